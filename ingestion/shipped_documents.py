"""Queued built-in documents whose readings ship, stored several in one transaction: they are taken
from the queue and stored in it, so whoever is killed has stored them or not begun.

Whatever else is queued comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import sqlalchemy as sa

from ingestion.read import ReadDocument
from ingestion.shipped_readings import ShippedReadings
from ingestion.storing import store_version, titled
from kb.catalog import tables as t
from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.jobs import Jobs, checkpoint_of
from kb.catalog.work import Job

AT_ONCE = 16  # documents; an upload waits for so many, half a second


class Parts(Protocol):
    """What this needs of the parts of a worker."""

    @property
    def catalog(self) -> Catalog: ...

    @property
    def jobs(self) -> Jobs: ...

    @property
    def registry(self) -> HardwareRegistry: ...

    @property
    def shipped(self) -> ShippedReadings | None: ...


class ShippedDocuments:
    """Those that one worker stores."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._passed_over: set[str] = set()  # jobs whose documents have to be read

    def store_some(self, owner: str, lease_seconds: float) -> Sequence[Job]:
        """Store the next few; their jobs, which are the owner's and wait for vectors. Empty where
        something else comes first.
        """
        parts = self._parts
        specs = parts.registry.all()  # in a transaction of its own
        with parts.catalog.read() as connection:
            if not self._queued(connection, locked=False):
                return []  # the usual case, which needs no write lock
        with parts.catalog.write() as connection:
            queued = self._queued(connection, locked=True)
            versions = _versions(connection, queued)
            progress: dict[str, dict[str, Any]] = {}
            for job in queued:
                version = versions.get(str(job.payload["version_id"]))
                read = self._reading(job, version, specs)
                if read is None or version is None:
                    self._passed_over.add(job.id)
                    continue
                progress[job.id] = store_version(
                    connection, parts.registry, version, titled(job, read)
                )
            taken = [job for job in queued if job.id in progress]
            if not taken:
                return []
            return parts.jobs.take_with_checkpoints(
                connection, taken, progress, owner, lease_seconds
            )

    def _queued(self, connection: sa.Connection, *, locked: bool) -> list[Job]:
        return self._parts.jobs.only_behind(connection, AT_ONCE, self._passed_over, locked=locked)

    def _reading(self, job: Job, version: sa.Row[Any] | None, specs: Any) -> ReadDocument | None:
        shipped = self._parts.shipped
        if shipped is None or version is None or version.origin != "builtin":
            return None
        if checkpoint_of(job) is not None or version.state != "staged":
            return None
        about = version.declared
        read = shipped.find(version.sha256, about["hardware"], about["languages"], specs)
        return read if read is not None and read.content.passages else None


def _versions(connection: sa.Connection, jobs: Sequence[Job]) -> dict[str, sa.Row[Any]]:
    """The versions that these jobs are about, by id."""
    rows = connection.execute(
        sa.select(t.document_versions, t.documents.c.origin)
        .join(t.documents, t.documents.c.id == t.document_versions.c.document_id)
        .where(t.document_versions.c.id.in_([str(job.payload["version_id"]) for job in jobs]))
    )
    return {row.id: row for row in rows}
