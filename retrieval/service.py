"""One request in, one cited answer out: scope, diagnosis, plan, search, excerpts, moves, skills,
context, log.

Hardware fails closed: an unknown id is an error, and what may be seen is listed scope by scope.
Knows nothing about HTTP."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.hardware import Fact, HardwareRegistry
from kb.catalog.knowledge.moves import candidates as move_candidates
from kb.catalog.meta import revision
from kb.embedding import Embedder, Vectors
from kb.hardware.spec import HardwareSpec, SignatureSpec
from kb.ids import new_id
from kb.scope import ANY, CATEGORIES, ScopeFilter
from retrieval.answer import Answer, Excerpt, Move
from retrieval.context import pack
from retrieval.diagnose.diagnosis import Conclusion, Diagnoser
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import load_signals
from retrieval.excerpts import WHOLE, make_excerpts
from retrieval.journal import Journal
from retrieval.moves import fitting_moves
from retrieval.plan import Plan, make_plan
from retrieval.ranking import Ranked, ScopeSamples, VectorIndex, rank
from retrieval.request import RetrieveRequest, check_request
from retrieval.skill_choice import WITHHELD_SHARE, Choice, choose_skills

PER_CATEGORY = 8  # excerpts a category offers to the context
MAX_STORED_LOG = 20_000  # characters of a log that the journal keeps


@dataclass(frozen=True)
class _Scope:
    """The hardware part of a request, resolved."""

    hardware: HardwareSpec | None
    lineage: tuple[str, ...]
    filter: ScopeFilter
    facts: Mapping[str, Fact]


class Retriever:
    """Answers requests from a catalog; may be shared between threads.

    `index` and `dense_ready` are called at each request, because the service opens Chroma and loads
    the embedding model while it already answers by words.
    """

    def __init__(
        self,
        catalog: Catalog,
        registry: HardwareRegistry,
        embedder: Embedder,
        index: Callable[[], VectorIndex],
        dense_ready: Callable[[], bool] = lambda: True,
        withheld_share: float = WITHHELD_SHARE,
    ) -> None:
        """`withheld_share` is the share, from 0 to 1, of skills that requests of a run are not
        shown (see `skill_choice`).
        """
        self._catalog = catalog
        self._registry = registry
        self._embedder = embedder
        self._index = index
        self._dense_ready = dense_ready
        self._withheld_share = withheld_share
        self._signals = load_signals()
        self._diagnoser = Diagnoser(self._signals)
        self._journal = Journal(catalog)
        self._samples = ScopeSamples(embedder.fingerprint)
        self._embed = functools.lru_cache(maxsize=2048)(self._encode)

    def retrieve(self, request: RetrieveRequest) -> Answer:
        """The whole answer; it is logged under its `retrieval_id`. Equal requests on an equal
        catalog give an equal `context`. Raises InvalidRequest, UnknownHardware and UnknownSignal.
        """
        started = time.perf_counter()
        check_request(request)
        scope = self._scope(request)
        conclusion = self._conclude(request, scope)
        plan = make_plan(
            query=request.query,
            log=request.log,
            metrics=request.metrics or {},
            registry=load_metrics(),
            signals=[self._signals.get(name) for name in conclusion.verdict.signal_ids],
            op=request.op,
        )
        with self._catalog.read() as connection:
            ranked = self._rank(connection, plan, scope.filter)
            excerpts = make_excerpts(connection, ranked, scope.filter, request.k)
            by_category = self._by_category(connection, plan, scope.filter, ranked)
            moves, choice = self._actions(connection, request, conclusion, scope)
            catalog_revision = revision(connection)
        hardware = _hardware(scope)
        context = pack(
            verdict=conclusion.verdict,
            hardware=hardware,
            by_category=by_category,
            moves=moves,
            skills=choice.answers,
            budget=request.max_tokens,
        )
        answer = Answer(
            retrieval_id=new_id("ret"),
            diagnosis=conclusion.verdict,
            hardware=hardware,
            excerpts=tuple(excerpts),
            skills=choice.answers,
            moves=moves,
            context=context.text,
            context_tokens=context.tokens,
            skills_withheld=choice.withheld,
            hints=self._hints(conclusion),
        )
        shown = dict.fromkeys([*(excerpt.id for excerpt in excerpts), *context.excerpts])
        self._record(request, answer, list(shown), catalog_revision, started)
        return answer

    def moves_and_skills(self, request: RetrieveRequest) -> Answer:
        """An answer without excerpts and context: no document is searched, which is most of the
        time that `retrieve` takes. Logged in the same way, and raises the same errors.
        """
        started = time.perf_counter()
        check_request(request)
        scope = self._scope(request)
        conclusion = self._conclude(request, scope)
        with self._catalog.read() as connection:
            moves, choice = self._actions(connection, request, conclusion, scope)
            catalog_revision = revision(connection)
        answer = Answer(
            retrieval_id=new_id("ret"),
            diagnosis=conclusion.verdict,
            hardware=_hardware(scope),
            excerpts=(),
            skills=choice.answers,
            moves=moves,
            context="",
            skills_withheld=choice.withheld,
        )
        self._record(request, answer, [], catalog_revision, started)
        return answer

    def report_outcome(
        self,
        retrieval_id: str,
        *,
        used: Sequence[str] = (),
        correct: bool | None = None,
        speedup: float | None = None,
        baseline_speedup: float | None = None,
        note: str | None = None,
    ) -> str:
        """Store what became of an answer and return the outcome's id. See `Journal.report`."""
        return self._journal.report(
            retrieval_id,
            used=used,
            correct=correct,
            speedup=speedup,
            baseline_speedup=baseline_speedup,
            note=note,
        )

    def warm(self) -> None:
        """Embed the signals' phrases, which are the same in every request; 0.7 s once."""
        for signal in self._signals:
            for phrase in signal.phrases:
                self._embed(phrase)

    def close(self) -> None:
        """Write what the journal still holds."""
        self._journal.close()

    # -- scope

    def _scope(self, request: RetrieveRequest) -> _Scope:
        categories = request.categories or CATEGORIES
        if request.hardware is not None:
            spec = self._registry.get(request.hardware)
            lineage = self._registry.lineage(spec.id)
            admitted = (*lineage, ANY)
            facts = self._registry.effective_facts(spec.id)
            scope = ScopeFilter(admitted, categories, request.language, request.access_scope)
            return _Scope(spec, lineage, scope, facts)
        # Nothing foreign may answer a run-time condition; a plain question may be about any chip.
        run_time = request.given_signals or request.log or request.metrics
        admitted_any = (ANY,) if run_time else None
        scope = ScopeFilter(admitted_any, categories, request.language, request.access_scope)
        return _Scope(None, (), scope, {})

    def _conclude(self, request: RetrieveRequest, scope: _Scope) -> Conclusion:
        return self._diagnoser.conclude(
            request,
            {key: fact.value for key, fact in scope.facts.items()},
            scope.lineage,
            self._signatures(scope.lineage),
        )

    def _signatures(self, lineage: Sequence[str]) -> list[SignatureSpec]:
        specs = self._registry.all()
        return [s for hardware_id in lineage for s in specs[hardware_id].signatures]

    # -- search

    def _encode(self, text: str) -> Vectors:
        return self._embedder.encode_query(text)

    def _rank(self, connection: Connection, plan: Plan, scope: ScopeFilter) -> list[Ranked]:
        return rank(
            connection,
            plan,
            scope,
            self._index(),
            self._embed if self._dense_ready() else None,
            self._embedder.fingerprint,
            self._samples,
        )

    def _by_category(
        self, connection: Connection, plan: Plan, scope: ScopeFilter, ranked: Sequence[Ranked]
    ) -> dict[str, list[Excerpt]]:
        """What each category offers to the context; one that the ranking hardly holds is searched
        for itself.
        """
        offered = {}
        for category in scope.categories:
            own = [r for r in ranked if r.category == category]
            if len(own) < PER_CATEGORY and len(scope.categories) > 1:
                own = self._rank(connection, plan, replace(scope, categories=(category,)))
            offered[category] = make_excerpts(connection, own, scope, PER_CATEGORY, WHOLE)
        return offered

    def _hints(self, conclusion: Conclusion) -> tuple[str, ...]:
        words_only = (
            ""
            if self._dense_ready()
            else "Not every passage has its vector yet: this answer was found by words alone."
        )
        return tuple(hint for hint in (conclusion.verdict.hint, words_only) if hint)

    def _actions(
        self,
        connection: Connection,
        request: RetrieveRequest,
        conclusion: Conclusion,
        scope: _Scope,
    ) -> tuple[tuple[Move, ...], Choice]:
        """What to do about the verdict."""
        signals = conclusion.verdict.signal_ids
        moves = fitting_moves(
            move_candidates(connection, signals, scope.filter),
            signals,
            conclusion.metrics,
            scope.facts,
            request.problem_values,
            scope.lineage,
            request.roles,
        )
        choice = choose_skills(
            connection,
            request,
            signals,
            scope.filter,
            conclusion.metrics,
            scope.facts,
            self._withheld_share,
        )
        return moves, choice

    # -- log

    def _record(
        self,
        request: RetrieveRequest,
        answer: Answer,
        shown: list[str],
        catalog_revision: int,
        started: float,
    ) -> None:
        stored = asdict(request)
        if request.log is not None and len(request.log) > MAX_STORED_LOG:
            half = MAX_STORED_LOG // 2
            stored["log"] = request.log[:half] + "\n...\n" + request.log[-half:]
        self._journal.record(
            {
                "id": answer.retrieval_id,
                "request": stored,
                "hardware_id": answer.hardware["id"] if answer.hardware else None,
                "signals": list(answer.diagnosis.signal_ids),
                "excerpt_ids": shown,
                "skill_ids": [skill.name for skill in answer.skills],
                "move_ids": [move.id for move in answer.moves],
                "skills_withheld": list(answer.skills_withheld),
                "context_sha256": hashlib.sha256(answer.context.encode()).hexdigest(),
                "run_id": request.run_id,
                "node_id": request.node_id,
                "milliseconds": (time.perf_counter() - started) * 1000,
                "catalog_revision": catalog_revision,
                "access_scope": request.access_scope,
            }
        )


def _hardware(scope: _Scope) -> dict[str, object] | None:
    if scope.hardware is None:
        return None
    return {
        "id": scope.hardware.id,
        "name": scope.hardware.name,
        "lineage": list(scope.lineage),
    }
