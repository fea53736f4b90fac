"""What an address to listen on means: who reaches it, and by which names. Knows nothing of HTTP."""

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
    """Whether a name or an address means this machine alone."""
    address = _parsed(name)
    return name == "localhost" if address is None else address.is_loopback


def is_every(host: str) -> bool:
    """Whether listening on `host` means on every address of this machine."""
    address = _parsed(host)
    return host == "" if address is None else address.is_unspecified


def in_url(host: str) -> str:
    """The host as it stands in a URL: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def from_here(host: str) -> str:
    """How this machine itself reaches what listens on `host`, as it stands in a URL."""
    if is_every(host):
        return "[::1]" if ":" in host else "127.0.0.1"
    return in_url(host)


def from_elsewhere(host: str) -> str:
    """How other machines reach what listens on `host`, as it stands in a URL: for every address the
    one that this machine sends from, or its name where it has no network.
    """
    if not is_every(host):
        return in_url(host)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def listed_names(text: str) -> list[str]:
    """The names of a list with commas, as they stand in URLs. `*.example.com` means every name
    below it, `*` every name. Raises ValueError for what is no name, such as one with a port.
    """
    names = [in_url(part.strip().lower()) for part in text.split(",") if part.strip()]
    for name in names:
        if not is_address(name) and not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name or address; write it without scheme and port")
    return names


def own_names(host: str) -> list[str]:
    """The names of a service that listens on `host`, as they stand in URLs; numeric addresses of a
    service that listens on every address are not among them.
    """
    if is_loopback(host):
        return [*LOOPBACK, in_url(host)]
    machine = socket.gethostname().lower()
    names = [*LOOPBACK, machine, machine.partition(".")[0]]
    return names if is_every(host) else [*names, in_url(host).lower()]


def without_password(url: str) -> str:
    """A URL as it may be shown."""
    shown = re.sub(r"(://[^:/?#@]*):.*@", r"\1:***@", url)
    return re.sub(r"(password=)[^&]*", r"\1***", shown)
