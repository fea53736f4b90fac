"""Where a command is carried out: by a running service, or in this process over the catalog.

`open_target` decides once. Commands see only `Target`, which returns the JSON of the HTTP interface
either way.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.cli.backends.contract import About, Filters, Target
from kb.errors import InvalidRequest

if TYPE_CHECKING:
    from api.cli.backends.local import LocalTarget
    from kb.settings import Settings

__all__ = [
    "About",
    "Filters",
    "Target",
    "actor",
    "open_target",
    "opened",
    "read_settings",
    "send_logs_to_stderr",
    "service_at",
]


def read_settings(data_dir: Path | None = None, **given: Any) -> Settings:
    """Settings from options, the environment and defaults, in this order.

    An option that is None was not given. Raises InvalidRequest for a value that does not fit.
    """
    from pydantic import ValidationError

    from kb.settings import Settings

    chosen = {k: v for k, v in {"data_dir": data_dir, **given}.items() if v is not None}
    try:
        return Settings(**chosen)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        option = "--" + {"allowed_hosts": "allowed-host"}.get(name, name.replace("_", "-"))
        wrong = option if name in chosen else f"KERNLORE_{name.upper()}"
        raise InvalidRequest(
            f"setting {name}: {first['msg']} (it is {first.get('input')!r})",
            hint=f"Correct {wrong}; docs/reference/settings.md lists every setting.",
        ) from error


@contextmanager
def open_target(data_dir: Path | None, url: str | None) -> Iterator[Target]:
    """The service at `url`, else the one that runs on the data directory, else this process."""
    where = service_at(data_dir, url)
    if where:
        from api.cli.backends.remote import RemoteTarget

        remote = RemoteTarget(where)
        try:
            yield remote
        finally:
            remote.close()
        return
    from api.cli.backends.local import LocalTarget

    send_logs_to_stderr("warning")
    local = LocalTarget(read_settings(data_dir))
    try:
        yield local
    finally:
        local.close()


@contextmanager
def opened(data_dir: Path | None) -> Iterator[LocalTarget]:
    """The target of a command that always runs in this process, closed at its end."""
    from api.cli.backends.local import LocalTarget

    send_logs_to_stderr("error")
    local = LocalTarget(read_settings(data_dir))
    try:
        yield local
    finally:
        local.close()


def service_at(data_dir: Path | None, url: str | None) -> str | None:
    """The URL of the service that is named, or runs on the data directory; None where none does.
    Raises InvalidRequest where both are given.
    """
    from kb.data_dir import running_service

    if url is not None and data_dir is not None:
        raise InvalidRequest(
            "--url and --data-dir exclude each other",
            hint="Give the URL of a service, or its data.",
        )
    return url or running_service(read_settings(data_dir).data_dir)


def send_logs_to_stderr(level: str) -> None:
    """Log from `level` up to standard error; standard output is for the answer."""
    import structlog

    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidRequest(
            f"log level {level!r} is unknown", hint="Use debug, info, warning or error."
        )
    logging.basicConfig(
        stream=sys.stderr, level=max(number, logging.WARNING), format="%(levelname)s %(message)s"
    )
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def actor() -> str:
    """Who corrects or decides: the login name."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return "cli"
