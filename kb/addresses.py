"""Addresses that a service listens on: the hosts that can reach them, and their names in URLs."""

from __future__ import annotations

import ipaddress
import re
import socket

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_ANYWHERE = ("192.0.2.1", 9)  # reserved for documentation; no packet is sent to it
_NAME = re.compile(r"\*|(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def _parsed(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def is_address(name: str) -> bool:
    """Whether a name is a numeric IPv4 or IPv6 address, with or without brackets."""
    return _parsed(name) is not None


def is_loopback(name: str) -> bool:
    """Whether a name or address is of the loopback interface."""
    address = _parsed(name)
    return name == "localhost" if address is None else address.is_loopback


def is_every(host: str) -> bool:
    """Whether listening on `host` means every address of this machine."""
    address = _parsed(host)
    return host == "" if address is None else address.is_unspecified


def in_url(host: str) -> str:
    """The host as written in a URL: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def from_here(host: str) -> str:
    """The host of a URL with which this machine reaches a service that listens on `host`."""
    if is_every(host):
        return "[::1]" if ":" in host else "127.0.0.1"
    return in_url(host)


def from_elsewhere(host: str) -> str:
    """The host of a URL with which other machines reach a service that listens on `host`. For a
    service on every address, it is the address that this machine sends from, or its host name
    without a network."""
    if not is_every(host):
        return in_url(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def listed_names(text: str) -> list[str]:
    """The names of a comma-separated list as written in URLs. `*.example.com` matches every
    subdomain, `*` every name. Raises ValueError for other text, such as a name with a port."""
    names = [in_url(part.strip().lower()) for part in text.split(",") if part.strip()]
    for name in names:
        if not is_address(name) and not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a name or address; write it without scheme and port")
    return names


def own_names(host: str) -> list[str]:
    """The names of a service that listens on `host`, as written in URLs; without the numeric
    addresses of a service that listens on every address."""
    if is_loopback(host):
        return [*LOOPBACK, in_url(host)]
    machine = socket.gethostname().lower()
    names = [*LOOPBACK, machine, machine.partition(".")[0]]
    return names if is_every(host) else [*names, in_url(host).lower()]


def without_password(url: str) -> str:
    """A URL with its password replaced by `***`."""
    shown = re.sub(r"(://[^:/?#@]*):.*@", r"\1:***@", url)
    return re.sub(r"(password=)[^&]*", r"\1***", shown)
