"""One question in, one cited answer out: scope, diagnosis, plan, search, excerpts, moves, skills,
context, log.

The order of steps is DESIGN.md's. Hardware fails closed: an unknown id is an error, and what may be
seen is listed scope by scope. Knows nothing about HTTP."""

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
from kb.errors import InvalidRequest, nearest
from kb.hardware.spec import HardwareSpec, SignatureSpec
from kb.ids import new_id
from kb.moves_vocabulary import ROLES
from kb.problem_terms import problem_terms
from kb.scope import ANY, CATEGORIES, ScopeFilter
from retrieval.answer import Answer, Excerpt, MoveAnswer, RetrieveRequest
from retrieval.compose.context import pack
from retrieval.compose.remedies import fitting_moves
from retrieval.compose.skill_choice import WITHHELD_SHARE, Choice, choose_skills
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import load_signals
from retrieval.diagnose.verdict import Diagnoser, Verdict
from retrieval.journal import Journal
from retrieval.search.excerpts import WHOLE, make_excerpts
from retrieval.search.plan import Plan, make_plan
from retrieval.search.ranking import Ranked, ScopeSamples, rank
from retrieval.search.vectors import VectorIndex

MAX_K = 200
MAX_TOKENS = 100_000
PER_CATEGORY = 8  # excerpts a category offers to the context
SKILL_STATES = ("candidate", "active", "suspect", "retired", "quarantined")


@dataclass(frozen=True)
class _Scope:
    """The hardware part of a request, resolved."""

    hardware: HardwareSpec | None
    lineage: tuple[str, ...]
    filter: ScopeFilter
    facts: Mapping[str, Fact]


class Retriever:
    """Thread-safe. `index` and `dense_ready` are asked at each request, because the service opens
    Chroma and loads the embedding model while it already answers by words.
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
        """withheld_share: of the skills of a run's request, 0 to 1 (see compose.skill_choice)."""
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
        started = time.perf_counter()
        _check(request)
        scope = self._scope(request)
        verdict = self._conclude(request, scope)
        plan = make_plan(
            query=request.query,
            log=request.log,
            metrics=request.metrics or {},
            registry=load_metrics(),
            signals=[self._signals.get(signal) for signal in verdict.signals],
            op=request.op,
        )
        with self._catalog.read() as connection:
            ranked = self._rank(connection, plan, scope.filter)
            excerpts = make_excerpts(connection, ranked, scope.filter, request.k)
            by_category = self._by_category(connection, plan, scope.filter, ranked)
            moves, skills = self._acting(connection, request, verdict, scope)
            state = revision(connection)
        hardware = _hardware(scope)
        context = pack(
            diagnosis=verdict.diagnosis,
            hardware=hardware,
            by_category=by_category,
            moves=moves,
            skills=skills.answers,
            budget=request.max_tokens,
        )
        answer = Answer(
            retrieval_id=new_id("ret"),
            diagnosis=verdict.diagnosis,
            hardware=hardware,
            excerpts=tuple(excerpts),
            skills=skills.answers,
            moves=moves,
            context=context.text,
            context_tokens=context.tokens,
            skills_withheld=skills.withheld,
            hints=self._hints(verdict),
        )
        shown = [e.id for e in excerpts] + [i for i in context.excerpts]
        self._record(request, answer, verdict, list(dict.fromkeys(shown)), state, started)
        return answer

    def remedies(self, request: RetrieveRequest) -> Answer:
        """Moves and skills alone: no document is searched, which is most of what `retrieve` takes.
        Logged as it is.
        """
        started = time.perf_counter()
        _check(request)
        scope = self._scope(request)
        verdict = self._conclude(request, scope)
        with self._catalog.read() as connection:
            moves, skills = self._acting(connection, request, verdict, scope)
            state = revision(connection)
        answer = Answer(
            retrieval_id=new_id("ret"),
            diagnosis=verdict.diagnosis,
            hardware=_hardware(scope),
            excerpts=(),
            skills=skills.answers,
            moves=moves,
            context="",
            skills_withheld=skills.withheld,
        )
        self._record(request, answer, verdict, [], state, started)
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
        """What became of an answer; returns the outcome's id. See `Journal.report`."""
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

    def _conclude(self, request: RetrieveRequest, scope: _Scope) -> Verdict:
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

    def _hints(self, verdict: Verdict) -> tuple[str, ...]:
        words_only = (
            ""
            if self._dense_ready()
            else "Not every passage has its vector yet: this answer was found by words alone."
        )
        return tuple(hint for hint in (verdict.diagnosis.hint, words_only) if hint)

    def _acting(
        self, connection: Connection, request: RetrieveRequest, verdict: Verdict, scope: _Scope
    ) -> tuple[tuple[MoveAnswer, ...], Choice]:
        """What to do about the verdict."""
        moves = fitting_moves(
            move_candidates(connection, verdict.signals, scope.filter),
            verdict.signals,
            verdict.metrics,
            scope.facts,
            request.problem_values,
            scope.lineage,
            request.roles,
        )
        skills = choose_skills(
            connection,
            request,
            verdict.signals,
            scope.filter,
            verdict.metrics,
            scope.facts,
            self._withheld_share,
        )
        return moves, skills

    # -- log

    def _record(
        self,
        request: RetrieveRequest,
        answer: Answer,
        verdict: Verdict,
        shown: list[str],
        state: int,
        started: float,
    ) -> None:
        stored = asdict(request)
        if request.log is not None and len(request.log) > 20_000:
            stored["log"] = request.log[:10_000] + "\n...\n" + request.log[-10_000:]
        self._journal.record(
            {
                "id": answer.retrieval_id,
                "request": stored,
                "hardware_id": answer.hardware["id"] if answer.hardware else None,
                "signals": list(verdict.signals),
                "excerpt_ids": shown,
                "skill_ids": [skill.name for skill in answer.skills],
                "move_ids": [move.id for move in answer.moves],
                "skills_withheld": list(answer.skills_withheld),
                "context_sha256": hashlib.sha256(answer.context.encode()).hexdigest(),
                "run_id": request.run_id,
                "node_id": request.node_id,
                "milliseconds": (time.perf_counter() - started) * 1000,
                "catalog_revision": state,
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


def _check(request: RetrieveRequest) -> None:
    """What a door may not let through, in the one error shape."""
    if not any((request.given_signals, request.log, request.metrics, request.query)):
        raise InvalidRequest(
            "nothing to retrieve for",
            hint="Give a signal, a log, metrics or a query (q), in any combination.",
        )
    if not 1 <= request.k <= MAX_K:
        raise InvalidRequest(f"k is {request.k}", hint=f"Use 1 to {MAX_K}.")
    if not 1 <= request.max_tokens <= MAX_TOKENS:
        raise InvalidRequest(f"max_tokens is {request.max_tokens}", hint=f"Use 1 to {MAX_TOKENS}.")
    for name, values, known in (
        ("category", request.categories or (), CATEGORIES),
        ("skill state", request.skill_states, SKILL_STATES),
        ("role", request.roles, tuple(sorted(ROLES))),
        ("quantity of a problem", request.problem or (), tuple(problem_terms().quantities)),
    ):
        for value in values:
            if value not in known:
                near = nearest(value, known)
                raise InvalidRequest(
                    f"unknown {name} {value!r}",
                    hint=f"Use one of {', '.join(known)}"
                    + (f"; did you mean {near[0]}?" if near else "."),
                )
