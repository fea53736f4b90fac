"""Spans of documents that are read: below the request that sent the document, though another
process may read it. From being read to having its vectors a document waits with others; that is a
span of its own, and batches of vectors are linked to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from kb import telemetry
from kb.catalog.work import Job

TRACE = "trace"  # in the payload of a job: where its upload is in a trace


class JobSpans:
    """Those of one worker."""

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[], None]] = {}

    def reading(self, job: Job) -> AbstractContextManager[None]:
        """Around the reading of a document."""
        return telemetry.span("job: read", _about(job), parent=job.payload.get(TRACE))

    def embedding(self, texts: int, jobs: Iterable[Job]) -> AbstractContextManager[None]:
        """Around a batch of vectors, which may be of any of these documents."""
        traces = [job.payload[TRACE] for job in jobs if TRACE in job.payload]
        return telemetry.span("embed", {"kernlore.texts": texts}, links=traces)

    def waits(self, job: Job) -> None:
        """From now on a document waits for its vectors."""
        if telemetry.on():
            end = telemetry.begin("job: vectors", _about(job), job.payload.get(TRACE))
            self._waiting[job.id] = end

    def done(self, jobs: Iterable[Job]) -> None:
        """These wait no longer, well or not."""
        for job in jobs:
            if (end := self._waiting.pop(job.id, None)) is not None:
                end()


def _about(job: Job) -> dict[str, telemetry.Value]:
    return {
        "kernlore.job.id": job.id,
        "kernlore.job.attempt": job.attempts,
        "kernlore.document.id": job.subject_id or "",
    }
