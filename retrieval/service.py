"""Answer requests from the current snapshot and log each under its `retrieval_id`."""

from __future__ import annotations

import functools
import os
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from kb.answers import KNOWLEDGE_LOADING, Answer
from kb.catalog.engine import Catalog
from kb.data_dir import private_folder
from kb.embedding import Embedder, Vectors
from kb.errors import StoreAway
from kb.ids import new_id
from kb.scope import ALL_ACCESS, AccessScope
from retrieval.answer import AnswerConfig, AnswerResult, actions, answer
from retrieval.compose.hints import NO_INDEX, NO_VECTORS_YET
from retrieval.compose.skill_choice import WITHHELD_SHARE
from retrieval.diagnose.signals import load_signals
from retrieval.journal import Journal
from retrieval.near import NearIndex
from retrieval.request import RetrieveRequest, check_request
from retrieval.search.plan import sentences_of
from retrieval.snapshot.store import SnapshotStore
from retrieval.stages import describe_answer, stage

log = structlog.get_logger(__name__)

MOST_VECTORS = 2_048  # cached query vectors, of 1.5 KB


class Retriever:
    """Answers requests; safe to share between threads.

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
        self._journal = Journal(catalog, shared)
        self._phrases: Mapping[str, Vectors] = {}
        self._embed = functools.lru_cache(maxsize=MOST_VECTORS)(self._encode)

    @stage("other", span="retrieve")
    def retrieve(self, request: RetrieveRequest) -> Answer:
        """Answer a request and log it. Equal requests on an equal catalog give an equal `context`.
        If a required vector index is unavailable, the search is lexical, with a hint. Raises
        InvalidRequest, UnknownHardware and UnknownSignal.
        """
        started = time.perf_counter()
        check_request(request)
        exclusions = self._journal.exclusions(request)
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
        self._journal.record_answer(replace(result, answer=logged), revision, started)
        describe_answer(logged)
        return logged

    def report_outcome(
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
        """Store the outcome of an answer and return the outcome's id. See `Journal.report`."""
        return self._journal.report(
            retrieval_id,
            used=used,
            correct=correct,
            speedup=speedup,
            baseline_speedup=baseline_speedup,
            note=note,
            access_scope=access_scope,
        )

    def request_of(
        self, retrieval_id: str, *, access_scope: AccessScope = ALL_ACCESS
    ) -> dict[str, Any]:
        """The stored request of an answer. See `Journal.request_of`."""
        return self._journal.request_of(retrieval_id, access_scope=access_scope)

    def warm(self, folder: Path) -> None:
        """Load the vectors of the signals' sentences; the first time takes seconds per data
        directory.
        """
        phrases = [text for signal in load_signals() for text in sentences_of(signal)]
        self._phrases = phrase_vectors(self._embedder, phrases, folder)

    def close(self) -> None:
        """Write the queued rows of the journal."""
        self._journal.close()

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


# -- vectors of the signals' sentences: equal in every process, and seconds to encode, so a file of
# the data directory caches them


def phrase_vectors(embedder: Embedder, phrases: Sequence[str], folder: Path) -> dict[str, Vectors]:
    """The `encode_query` vector of each phrase."""
    path = folder / f"{embedder.fingerprint}.phrases.npz"
    cached = _read(path)
    if cached.keys() >= set(phrases):
        return {phrase: cached[phrase] for phrase in phrases}
    vectors = {phrase: embedder.encode_query(phrase) for phrase in phrases}
    _write(path, vectors)
    return vectors


def _read(path: Path) -> dict[str, Vectors]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return dict(zip(stored["phrases"].tolist(), stored["vectors"], strict=True))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        log.warning("cached phrase vectors cannot be read; encoding again", reason=str(error))
        return {}


def _write(path: Path, vectors: dict[str, Vectors]) -> None:
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
