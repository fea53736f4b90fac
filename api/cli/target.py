"""Where a command is carried out: by a running service, or in this process over the catalog.

`open_target` decides once; commands see only `Target`, whose values are the JSON of the HTTP
contract either way.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kb.errors import InvalidRequest

if TYPE_CHECKING:
    from kb.settings import Settings

Json = Mapping[str, Any]


@dataclass(frozen=True)
class About:
    """What a caller says of the files that are handed over."""

    hardware: tuple[str, ...] = ()
    category: str | None = None
    languages: tuple[str, ...] = ()
    title: str | None = None
    source_key: str | None = None


class Target(Protocol):
    """The operations of a service."""

    @property
    def name(self) -> str: ...

    def retrieve(self, request: Json) -> Json: ...
    def report_outcome(self, retrieval_id: str, outcome: Json) -> Json: ...
    def knowledge(self, path: str) -> Json: ...
    def signals(self) -> list[Json]: ...

    def upload(self, path: Path, name: str, about: About) -> Json: ...
    def reading(self) -> AbstractContextManager[None]: ...
    def job(self, job_id: str) -> Json: ...
    def retry_job(self, job_id: str) -> Json: ...

    def documents(self, hardware: str | None, category: str | None) -> list[Json]: ...
    def document(self, document_id: str) -> Json: ...
    def sections(self, document_id: str) -> list[Json]: ...
    def delete_document(self, document_id: str) -> Json: ...
    def passages(self, document_id: str, offset: int, limit: int) -> list[Json]: ...
    def correct_passage(self, passage_id: str, patch: Json) -> Json: ...

    def hardware(self) -> list[Json]: ...
    def hardware_one(self, hardware_id: str) -> Json: ...
    def add_hardware(self, text: str, origin: str) -> Json: ...
    def facts(self, hardware_id: str, *, proposed: bool) -> Json: ...
    def patch_fact(self, fact_id: str, patch: Json) -> Json: ...
    def coverage(self, hardware_id: str) -> Json: ...

    def skills(self) -> list[Json]: ...
    def skill(self, name: str) -> Json: ...


def read_settings(data_dir: Path | None = None, **given: Any) -> Settings:
    """The settings of this call; options that were not given leave environment and default."""
    from pydantic import ValidationError

    from kb.settings import Settings

    chosen = {k: v for k, v in {"data_dir": data_dir, **given}.items() if v is not None}
    try:
        return Settings(**chosen)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(
            f"setting {name}: {first['msg']} (it is {first.get('input')!r})",
            hint=f"Correct --{name.replace('_', '-')} or KERNLORE_{name.upper()};"
            " `kernlore config show` lists every setting.",
        ) from error


@contextmanager
def open_target(data_dir: Path | None, url: str | None) -> Iterator[Target]:
    """The service at `url`, else the one that runs on the data directory, else this process."""
    if url is not None and data_dir is not None:
        raise InvalidRequest(
            "--url and --data-dir name two places", hint="Give one of them: a service or its data."
        )
    where = url or _service_of(data_dir)
    if where:
        from api.cli.remote import RemoteTarget

        remote = RemoteTarget(where)
        try:
            yield remote
        finally:
            remote.close()
        return
    from api.cli.local import LocalTarget

    send_logs_to_stderr("warning")
    local = LocalTarget(read_settings(data_dir))
    try:
        yield local
    finally:
        local.close()


def _service_of(data_dir: Path | None) -> str | None:
    from kb.service_lock import running_service

    return running_service(read_settings(data_dir).data_dir)


def send_logs_to_stderr(level: str) -> None:
    """Standard output belongs to the answer."""
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
    """Who corrects or decides: the name of the account."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        return "cli"
