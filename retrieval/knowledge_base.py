"""An open data directory: catalog, blobs, hardware, documents, embedder, vector index, retriever.

Every use case in the rooms above receives a `KnowledgeBase`; the service and the commands extend
it. Parts are built on first use, because the embedding model takes seconds to load. Does not know
HTTP, ingestion or kernels.

The retriever answers requests from the current snapshot. The journal logs each under its
`retrieval_id`, in batches off the request path, and is complete before an outcome is reported.
Where several processes answer, the next request may reach another one. So a run's retrieval is
written before its answer is returned, and an outcome waits for a retrieval that may be in another
process's batch. Each retrieval is stored with the skills that it showed and withheld, each outcome
with the skills that were used and whether they helped.
"""

from __future__ import annotations

import functools
import hashlib
import os
import queue
import re
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, SQLAlchemyError, StatementError

from kb import clock
from kb.answers import KNOWLEDGE_LOADING, Answer
from kb.blobs import Blobs, open_blobs
from kb.catalog import Catalog, open_catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.knowledge.documents import Documents
from kb.catalog.skills.reading import NewUse, UseRole
from kb.catalog.skills.writing import record_uses
from kb.catalog.tables import evaluations, nodes, outcomes, retrievals
from kb.data_dir import private_folder
from kb.embedding import Embedder, LocalEmbedder, Vectors, open_embedder
from kb.errors import InvalidRequest, NotFound, StoreAway, Unavailable
from kb.ids import derived_id, new_id
from kb.problem_terms import canonical_dtype, canonical_op, op_family
from kb.scope import ALL_ACCESS, AccessScope
from kb.settings import Settings
from retrieval.answer import AnswerConfig, AnswerResult, Exclusions, actions, answer
from retrieval.compose.hints import NO_INDEX, NO_VECTORS_YET
from retrieval.compose.skill_choice import WITHHELD_SHARE
from retrieval.diagnose.signals import load_signals
from retrieval.near import NearIndex
from retrieval.request import RetrieveRequest, check_request
from retrieval.search.plan import sentences_of
from retrieval.snapshot.store import TEXTS_FILE, SnapshotStore
from retrieval.stages import describe_answer, stage

REMEMBERED = 4_096  # cached vectors of queries and names, of 1.5 KB
DENSE_SHARE = 0.9  # share of passages with a vector from which on vectors are used in answers


class KnowledgeBase:
    """The parts of one data directory. Call `close` when done."""

    access: AccessScope = ALL_ACCESS  # restricts reads and changes

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog: Catalog = open_catalog(settings.data_dir, settings.catalog)
        self.blobs: Blobs = open_blobs(settings.data_dir, settings.blob_url)
        self.documents = Documents(self.catalog)
        self.registry = HardwareRegistry(self.catalog)

    @cached_property
    def dense_ready(self) -> bool:
        """Whether answers use vectors. While few passages have a vector, those would rank first for
        that reason alone. A command decides this once; the service sets it again while it starts.
        """
        embedded, passages = self.vectors()
        return embedded >= DENSE_SHARE * passages

    def vectors(self) -> tuple[int, int]:
        """Number of passages with a vector, and number of all passages."""
        snapshot = self.snapshots.current()
        return snapshot.embedded, snapshot.passages

    @cached_property
    def embedder(self) -> LocalEmbedder:
        return open_embedder(self.settings.embedder, self.settings.models_dir)

    @cached_property
    def embed(self) -> Callable[[str], Vectors]:
        """The embedder's vector of a query, cached."""
        return lru_cache(maxsize=REMEMBERED)(self.embedder.encode_query)

    @cached_property
    def snapshots(self) -> SnapshotStore:
        """Source of the snapshots that answers are computed from."""
        shipped = self.settings.knowledge_dir / TEXTS_FILE
        return SnapshotStore(self.catalog, self.embedder.fingerprint, shipped=shipped)

    near: NearIndex | None = None  # set by a service with Chroma
    knowledge_loaded: bool = True  # False while a service loads the built-in knowledge

    @cached_property
    def retriever(self) -> Retriever:
        return Retriever(
            self.catalog,
            self.snapshots,
            self.embedder,
            near=lambda: self.near,
            dense_ready=lambda: self.dense_ready,
            loaded=lambda: self.knowledge_loaded,
            withheld_share=self.settings.skills_withheld_share,
            shared=self.settings.workers > 1,
        )

    def report_skill_use(self, names: Sequence[str]) -> None:
        """Record that an outcome was reported for these skills. Does nothing here; with a skill
        library (`skills/`), losing skills are narrowed or retired."""

    def close(self) -> None:
        if "retriever" in self.__dict__:
            self.retriever.close()
        self.catalog.close()


log = structlog.get_logger(__name__)

MOST_VECTORS = 2_048  # cached query vectors, of 1.5 KB


class Retriever:
    """Answers requests; safe to share between threads. `journal` has the answers and outcomes.

    `near`, `dense_ready` and `loaded` (the built-in knowledge) are called for each request, because
    a service answers before it has loaded its knowledge and models and opened Chroma.
    """

    def __init__(
        self,
        catalog: Catalog,
        snapshots: SnapshotStore,
        embedder: Embedder,
        near: Callable[[], NearIndex | None] = lambda: None,
        dense_ready: Callable[[], bool] = lambda: True,
        loaded: Callable[[], bool] = lambda: True,
        withheld_share: float = WITHHELD_SHARE,
        shared: bool = False,
    ) -> None:
        self.snapshots = snapshots
        self._embedder = embedder
        self._near = near
        self._dense_ready = dense_ready
        self._loaded = loaded
        self._withheld_share = withheld_share
        self.journal = Journal(catalog, shared)
        self._phrases: Mapping[str, Vectors] = {}
        self._embed = functools.lru_cache(maxsize=MOST_VECTORS)(self._encode)

    @stage("other", span="retrieve")
    def retrieve(self, request: RetrieveRequest) -> Answer:
        """Answer a request and log it. Equal requests on an equal catalog give an equal `context`.
        If a required vector index is unavailable, the search is lexical, with a hint. Raises
        InvalidRequest, UnknownHardware and UnknownSignal."""
        started = time.perf_counter()
        check_request(request)
        exclusions = self.journal.exclusions(request)
        snapshot, config = self.snapshots.current(), self._config()
        try:
            result = answer(snapshot, request, config, exclusions)
        except StoreAway:  # `/readyz` reports the store and the reason
            by_words = replace(config, embed=None, remarks=(*config.remarks, NO_INDEX))
            result = answer(snapshot, request, by_words, exclusions)
        logged = self._logged(result, snapshot.state.revision, started)
        return logged.only(request.fields)

    def moves_and_skills(self, request: RetrieveRequest) -> Answer:
        """Answer with moves and skills only. Logged like `retrieve`; raises the same errors."""
        started = time.perf_counter()
        check_request(request)
        snapshot = self.snapshots.current()
        result = actions(snapshot, request, self._config())
        return self._logged(result, snapshot.state.revision, started)

    def _logged(self, result: AnswerResult, revision: int, started: float) -> Answer:
        logged = replace(result.answer, retrieval_id=new_id("ret"))
        self.journal.record_answer(replace(result, answer=logged), revision, started)
        describe_answer(logged)
        return logged

    def warm(self, folder: Path, shipped: Path) -> None:
        """Load the vectors of the signals' sentences from `shipped`; `folder` caches others."""
        self._phrases = phrase_vectors(self._embedder, signal_phrases(), folder, shipped)

    def close(self) -> None:
        """Write the queued rows of the journal."""
        self.journal.close()

    def _config(self) -> AnswerConfig:
        dense = self._dense_ready()
        remarks = {KNOWLEDGE_LOADING: self._loaded(), NO_VECTORS_YET: dense}
        return AnswerConfig(
            embed=self._embed if dense else None,
            near=self._near(),
            remarks=tuple(remark for remark, lacks_nothing in remarks.items() if not lacks_nothing),
            withheld_share=self._withheld_share,
        )

    @stage("embedding")
    def _encode(self, text: str) -> Vectors:
        known = self._phrases.get(text)
        return self._embedder.encode_query(text) if known is None else known


# -- vectors of the signals' sentences: equal in every process, and seconds to encode, so they ship
# for the default model, and a file of the data directory caches those of another one


def signal_phrases() -> list[str]:
    """The sentences and phrases of all signals."""
    return [text for signal in load_signals() for text in sentences_of(signal)]


def phrase_vectors(
    embedder: Embedder, phrases: Sequence[str], folder: Path, shipped: Path | None = None
) -> dict[str, Vectors]:
    """The `encode_query` vector of each phrase. Those in neither folder are encoded, and `folder`
    gets a file of all."""
    name = _phrases_file(embedder)
    known = {} if shipped is None else _read_phrases(shipped / name)
    if not known.keys() >= set(phrases):
        known |= _read_phrases(folder / name)
    vectors = {p: known[p] if p in known else embedder.encode_query(p) for p in phrases}
    if not known.keys() >= set(phrases):
        _write_phrases(folder / name, vectors)
    return vectors


def ship_phrases(embedder: Embedder, folder: Path) -> None:
    """Write the file of `folder` for all phrases of signals; only new ones are encoded."""
    vectors = phrase_vectors(embedder, signal_phrases(), folder)
    _write_phrases(folder / _phrases_file(embedder), vectors)


def _phrases_file(embedder: Embedder) -> str:
    return f"{embedder.fingerprint}.phrases.npz"


def _read_phrases(path: Path) -> dict[str, Vectors]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return dict(zip(stored["phrases"].tolist(), stored["vectors"], strict=True))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        log.warning("cached phrase vectors cannot be read; encoding again", reason=str(error))
        return {}


def _write_phrases(path: Path, vectors: dict[str, Vectors]) -> None:
    """Write atomically: another process may read or write the file."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        private_folder(path.parent)
        with partial.open("wb") as file:
            np.savez(file, phrases=np.array(list(vectors)), vectors=np.stack([*vectors.values()]))
        partial.replace(path)
    except OSError as error:
        log.warning("phrase vectors cannot be cached", reason=str(error))
        with suppress(OSError):
            partial.unlink()


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
    writes batches. `shared`: other processes answer over the same catalog."""

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
        request's start by `time.perf_counter`."""
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
        the next attempt; a row that can never be stored is dropped and logged."""
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
        a run, those shown to that run without success."""
        excluded = frozenset(request.exclude)
        if request.run_id is None or not request.log:
            return Exclusions(excluded, excluded)
        shown, reported = self._unhelpful_ids(request.run_id)
        return Exclusions(excluded | reported, excluded | reported | shown)

    def _unhelpful_ids(self, run_id: str) -> tuple[frozenset[str], frozenset[str]]:
        """Ids in answers to failures of this run without success; and those that an outcome
        reports as no help: the ids it names as used, else all ids of its answer."""
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
        used: Sequence[str] = (),
        correct: bool | None = None,
        speedup: float | None = None,
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
        be written."""
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
    restriction see it."""
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
