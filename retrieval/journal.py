"""The retrieval log: written in batches off the request's path, complete before an outcome is
reported against it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from kb import clock
from kb.catalog.engine import Catalog
from kb.catalog.tables.retrieval import outcomes, retrievals
from kb.errors import InvalidRequest, NotFound
from kb.ids import new_id

BATCH = 200
FLUSH_SECONDS = 1.0


class Journal:
    """Append-only; `record` never waits for the disk."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._queue: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._writing = threading.Lock()  # one batch at a time, so that flush means flushed
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # protects _thread

    def record(self, row: Mapping[str, Any]) -> None:
        self._queue.put({**row, "created_at": clock.now()})
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
                self._thread.start()

    def flush(self) -> None:
        """Write everything recorded so far."""
        with self._writing:
            rows = []
            while not self._queue.empty():
                rows.append(self._queue.get())
            for start in range(0, len(rows), BATCH):
                with self._catalog.write() as connection:
                    connection.execute(retrievals.insert(), rows[start : start + BATCH])

    def report(
        self,
        retrieval_id: str,
        *,
        used: Sequence[str],
        correct: bool | None,
        speedup: float | None,
        note: str | None = None,
    ) -> str:
        """Add an outcome to a retrieval; `used` must be ids that its answer showed. Returns the
        outcome's id.
        """
        self.flush()
        if speedup is not None and not 0 < speedup < 1e6:
            raise InvalidRequest("speedup must be positive", hint="2.0 means twice as fast.")
        with self._catalog.write() as connection:
            row = connection.execute(
                retrievals.select().where(retrievals.c.id == retrieval_id)
            ).one_or_none()
            if row is None:
                raise NotFound(
                    f"no retrieval {retrieval_id!r}",
                    hint="Use the retrieval_id of a /retrieve answer.",
                )
            shown = {*row.excerpt_ids, *row.skill_ids, *row.move_ids}
            foreign = sorted(set(used) - shown)
            if foreign:
                raise InvalidRequest(
                    f"{foreign[0]} was not part of that answer",
                    hint="`used` takes ids of excerpts, moves or skill names of the same answer.",
                    details={"foreign": foreign},
                )
            outcome_id = new_id("out")
            connection.execute(
                outcomes.insert().values(
                    id=outcome_id,
                    retrieval_id=retrieval_id,
                    used=list(used),
                    correct=correct,
                    speedup=speedup,
                    note=note,
                    created_at=clock.now(),
                )
            )
        return outcome_id

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self.flush()

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_SECONDS):
            self.flush()
