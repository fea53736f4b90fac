"""The retrieval log: written in batches off the request path, and complete before an outcome is
reported.

Where several processes answer, the next request may reach another one. So a run's retrieval is
written before its answer is returned, and an outcome waits for a retrieval that may be in another
process's batch. Each retrieval is stored with the skills that it showed and withheld, each outcome
with the skills that were used and whether they helped.
"""

from __future__ import annotations

import hashlib
import queue
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, SQLAlchemyError, StatementError

from kb import clock
from kb.catalog.engine import Catalog
from kb.catalog.skills.reading import NewUse, UseRole
from kb.catalog.skills.writing import record_uses
from kb.catalog.tables import evaluations, nodes, outcomes, retrievals
from kb.errors import InvalidRequest, NotFound, Unavailable
from kb.ids import derived_id, new_id
from kb.problem_terms import canonical_dtype, canonical_op, op_family
from kb.scope import ALL_ACCESS, AccessScope
from retrieval.answer import AnswerResult, Exclusions
from retrieval.request import RetrieveRequest

BATCH = 200
FLUSH_SECONDS = 1.0
ARRIVES_SECONDS = 3.0  # time in which another process stores a retrieval
LOOK_SECONDS = 0.1
MAX_STORED_LOG = 20_000  # characters of a compiler log that are stored
# Smallest change that counts as a gain: 80 comparisons of a kernel with itself, on a shared CPU,
# gave 0.98 to 1.03 (benchmarks/results/evaluation.md).
NOISE = 0.02
MOST_SPEEDUP = 1e6  # of one kernel over another; larger values are measurement errors
REFERENCE = 0  # node number of the problem's reference in a run

_RETRIEVAL = re.compile(r"ret_[0-9a-f]{16}")

log = structlog.get_logger(__name__)


def stored_request(request: RetrieveRequest) -> dict[str, Any]:
    """The request as it is stored; a long compiler log is cut in the middle."""
    access = request.access_scope
    stored = asdict(request) | {"access_scope": access.owner}
    if access.restricted:
        stored["own_hardware"] = sorted(access.own)
    if request.log is not None and len(request.log) > MAX_STORED_LOG:
        half = MAX_STORED_LOG // 2
        stored["log"] = request.log[:half] + "\n...\n" + request.log[-half:]
    return stored


class Journal:
    """The log of retrievals and outcomes, append-only. `record` never waits for the disk; a thread
    writes batches. `shared`: other processes answer over the same catalog.
    """

    def __init__(self, catalog: Catalog, shared: bool = False) -> None:
        self._catalog = catalog
        self._shared = shared or catalog.on_server
        self._queue: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._unwritten: list[dict[str, Any]] = []  # rows taken off the queue and not stored yet
        self._writing = threading.Lock()  # one batch at a time, so that flush covers all rows
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()  # protects _thread
        self._failing = False

    def record(self, row: Mapping[str, Any]) -> None:
        """Queue one retrieval; `row` holds the columns of the table except `created_at`."""
        if self._catalog.read_only:
            return
        self._queue.put({**row, "created_at": clock.now()})
        if self._shared and row.get("run_id") and self._flushed():
            return
        with self._starting:
            if not self._stop.is_set() and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
                self._thread.start()

    def record_answer(self, answered: AnswerResult, revision: int, started: float) -> None:
        """Queue the retrieval of an answer. `revision` is the catalog revision, `started` the
        request's start by `time.perf_counter`.
        """
        answer, request = answered.answer, answered.request
        self.record(
            {
                "id": answer.retrieval_id,
                "request": stored_request(request),
                "hardware_id": answer.hardware["id"] if answer.hardware else None,
                "signals": list(answer.diagnosis.signal_ids),
                "excerpt_ids": list(answered.shown),
                "skill_ids": [skill.name for skill in answer.skills],
                "move_ids": [move.id for move in answer.moves],
                "skills_withheld": list(answer.skills_withheld),
                "context_sha256": hashlib.sha256(answer.context.encode()).hexdigest(),
                "run_id": request.run_id,
                "node_id": request.node_id,
                "milliseconds": (time.perf_counter() - started) * 1000,
                "catalog_revision": revision,
                "access_scope": request.access_scope.owner,
            }
        )

    def flush(self) -> None:
        """Write all recorded rows. If the catalog cannot be written, raises and keeps the rows for
        the next attempt; a row that can never be stored is dropped and logged.
        """
        with self._writing:
            while not self._queue.empty():
                self._unwritten.append(self._queue.get())
            size = BATCH
            while self._unwritten:
                batch = self._unwritten[:size]
                try:
                    with self._catalog.write() as connection:
                        _write(connection, batch)
                except OperationalError:  # database locked or disk full
                    raise
                except StatementError:
                    if len(batch) > 1:  # one by one, to find the faulty row
                        size = 1
                        continue
                    log.exception("retrieval cannot be stored", retrieval=batch[0]["id"])
                del self._unwritten[: len(batch)]

    def request_of(
        self, retrieval_id: str, *, access_scope: AccessScope = ALL_ACCESS
    ) -> dict[str, Any]:
        """The stored request of a retrieval. Raises NotFound, also for another caller's."""
        self.flush()
        with self._catalog.read() as connection:
            row = connection.execute(
                sa.select(retrievals.c.request, retrievals.c.access_scope).where(
                    retrievals.c.id == retrieval_id
                )
            ).one_or_none()
        other = access_scope.restricted and row is not None and row[1] != access_scope.owner
        if row is None or other:
            raise NotFound(
                f"no retrieval {retrieval_id[:80]!r}", hint="Ask again; its link has another id."
            )
        return dict(row.request)

    def exclusions(self, request: RetrieveRequest) -> Exclusions:
        """Ids that the answer must not repeat: those that the caller excludes and, for a failure of
        a run, those shown to that run without success.
        """
        excluded = frozenset(request.exclude)
        if request.run_id is None or not request.log:
            return Exclusions(excluded, excluded)
        shown, reported = self._unhelpful_ids(request.run_id)
        return Exclusions(excluded | reported, excluded | reported | shown)

    def _unhelpful_ids(self, run_id: str) -> tuple[frozenset[str], frozenset[str]]:
        """Ids in answers to failures of this run without success; and those that an outcome
        reports as no help: the ids it names as used, else all ids of its answer.
        """
        self.flush()
        with self._catalog.read() as connection:
            rows = connection.execute(
                sa.select(
                    retrievals.c.request,
                    retrievals.c.excerpt_ids,
                    outcomes.c.correct,
                    outcomes.c.used,
                )
                .outerjoin(outcomes, outcomes.c.retrieval_id == retrievals.c.id)
                .where(retrievals.c.run_id == run_id)
            ).all()
        helped = {i for row in rows if row.correct for i in row.excerpt_ids}
        failed = {i for row in rows if row.request.get("log") for i in row.excerpt_ids}
        wrong = [row for row in rows if row.request.get("log") and row.correct is False]
        reported = {i for row in wrong for i in (row.used or row.excerpt_ids)}
        return frozenset(failed - helped), frozenset(reported - helped)

    def report(
        self,
        retrieval_id: str,
        *,
        used: Sequence[str],
        correct: bool | None,
        speedup: float | None,
        baseline_speedup: float | None = None,
        note: str | None = None,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> str:
        """Add an outcome to a retrieval and return the outcome's id. `used` must be ids that its
        answer showed.

        A retrieval may have several outcomes, since an answer may lead to several kernels.
        `baseline_speedup` is that of the kernel before the change, relative to the same reference
        as `speedup`. Its default is that of the node that the retrieval was for, if the request
        came from a run of this catalog, else 1.
        """
        self.flush()
        for figure in (speedup, baseline_speedup):
            if figure is not None and not 0 < figure < MOST_SPEEDUP:
                raise InvalidRequest(
                    f"{figure:g} is not a speed-up: use a number above 0 and below"
                    f" {MOST_SPEEDUP:,.0f}",
                    hint="2.0 means twice as fast, 0.5 half as fast.",
                )
        self._await(retrieval_id)
        with self._catalog.write() as connection:
            row = connection.execute(
                retrievals.select().where(retrievals.c.id == retrieval_id)
            ).one_or_none()
            if row is None or not _sees(access_scope, row):
                raise NotFound(
                    f"no retrieval {retrieval_id!r}",
                    hint="Use the retrieval_id of a /retrieve answer.",
                )
            _check_used(row, used)
            before = baseline_speedup or _baseline(connection, row)
            effect = _effect(correct, speedup, before)
            outcome_id = new_id("out")
            connection.execute(
                outcomes.insert().values(
                    id=outcome_id,
                    retrieval_id=retrieval_id,
                    used=list(used),
                    correct=correct,
                    speedup=speedup,
                    baseline_speedup=before,
                    gain=effect.gain,
                    helped=effect.helped,
                    note=note,
                    created_at=clock.now(),
                )
            )
            record_uses(
                connection,
                list(_used(row, used, effect, outcome_id)),
                AccessScope(row.access_scope),
            )
        return outcome_id

    def _await(self, retrieval_id: str) -> None:
        """Wait for a retrieval that another process may have answered just before."""
        if not self._shared or not _RETRIEVAL.fullmatch(retrieval_id):
            return
        stored = sa.select(retrievals.c.id).where(retrievals.c.id == retrieval_id)
        deadline = time.monotonic() + ARRIVES_SECONDS
        while time.monotonic() < deadline:
            with self._catalog.read() as connection:
                if connection.execute(stored).scalar() is not None:
                    return
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Stop the thread and write the queued rows. Raises OperationalError if the catalog cannot
        be written.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)
        self.flush()

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_SECONDS):
            self._flushed()

    def _flushed(self) -> bool:
        """Write the queued rows; False if the attempt failed and is to be repeated."""
        try:
            self.flush()
        except (SQLAlchemyError, Unavailable):
            if not self._failing:  # log the first failure only
                log.exception("retrievals wait to be stored")
            self._failing = True
            return False
        self._failing = False
        return True


@dataclass(frozen=True)
class _Effect:
    """`helped` is 1, 0 or None; `gain` is the time before divided by the time after."""

    helped: int | None
    gain: float | None


def _write(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    connection.execute(retrievals.insert(), [dict(row) for row in rows])
    by_scope: dict[str, list[NewUse]] = {}
    for row in rows:
        by_scope.setdefault(row["access_scope"], []).extend(_shown(row))
    for access_scope, uses in by_scope.items():
        record_uses(connection, uses, AccessScope(access_scope))


def _shown(row: Mapping[str, Any]) -> Iterator[NewUse]:
    situation = situation_of(row["request"], row["hardware_id"])
    listed: tuple[tuple[UseRole, Sequence[str]], ...] = (
        ("shown", row["skill_ids"]),
        ("withheld", row["skills_withheld"]),
    )
    for role, names in listed:
        for name in names:
            yield NewUse(row["id"], name, role, situation=situation)


def _used(
    row: sa.Row[Any], used: Sequence[str], effect: _Effect, outcome_id: str
) -> Iterator[NewUse]:
    situation = situation_of(row.request, row.hardware_id)
    for name in row.skill_ids:
        if name in used:
            yield NewUse(row.id, name, "used", effect.helped, effect.gain, situation, outcome_id)


def situation_of(request: Mapping[str, Any], hardware: str | None) -> dict[str, str | float]:
    """The situation of a request in canonical terms, used to narrow a skill's scope."""
    op, dtype = request.get("op"), request.get("dtype")
    situation: dict[str, Any] = {
        **(request.get("problem") or {}),
        "op": canonical_op(op) if op else None,
        "op_family": op_family(op) if op else None,
        "dtype": canonical_dtype(dtype) if dtype else None,
        "language": request.get("language"),
        "hardware": hardware,
    }
    return {key: value for key, value in situation.items() if value is not None}


def _sees(access: AccessScope, row: sa.Row[Any]) -> bool:
    """An answer about no hardware may contain any passage, so only callers with the same
    restriction see it.
    """
    if not access.restricted:
        return True
    if row.hardware_id is None:
        return bool(row.request.get("own_hardware") == sorted(access.own))
    return access.sees([row.hardware_id])


def _check_used(row: sa.Row[Any], used: Sequence[str]) -> None:
    foreign = sorted(set(used) - {*row.excerpt_ids, *row.skill_ids, *row.move_ids})
    if foreign:
        raise InvalidRequest(
            f"{foreign[0]} was not part of that answer",
            hint="`used` takes ids of excerpts, moves or skill names of the same answer.",
            details={"foreign": foreign},
        )


def _baseline(connection: Connection, row: sa.Row[Any]) -> float | None:
    """The speed-up of the node that the answer was for; None if that has none."""
    number = row.node_id or ""
    if not row.run_id or not number.isdecimal():
        return 1.0
    node = connection.execute(
        sa.select(nodes.c.number, evaluations.c.validity, evaluations.c.speedup)
        .outerjoin(evaluations, evaluations.c.id == nodes.c.evaluation_id)
        .where(nodes.c.id == derived_id("nod", row.run_id, number))
    ).one_or_none()
    if node is None or node.number == REFERENCE:
        return 1.0
    return node.speedup if node.validity == "correct" else None


def _effect(correct: bool | None, speedup: float | None, before: float | None) -> _Effect:
    """A wrong kernel did not help; a right one helped if it gained more than the noise."""
    gain = speedup / before if speedup is not None and before else None
    if correct is False:
        return _Effect(0, gain)
    if gain is None:
        return _Effect(None, None)
    if gain <= 1 + NOISE:
        return _Effect(0, gain)
    return _Effect(1 if correct else None, gain)
