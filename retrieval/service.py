"""One request in, one cited answer out: scope, diagnosis, plan, search, excerpts, moves, skills,
context, log.

Hardware fails closed: an unknown id is an error, and what may be seen is listed scope by scope.
Knows nothing about HTTP."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.hardware import HardwareRegistry
from kb.catalog.kept import knowledge_of, look_up, revision_of
from kb.catalog.knowledge import candidates
from kb.catalog.knowledge.moves import candidates as move_candidates
from kb.catalog.knowledge.symbols import Symbol
from kb.embedding import Embedder, Vectors
from kb.errors import StoreAway
from kb.ids import new_id
from kb.scope import ALL_ACCESS, AccessScope, ScopeFilter
from retrieval.ahead import Attendance
from retrieval.answer import Answer, Move
from retrieval.blocks import HITS
from retrieval.composer import Material, Remember, compose, kept_cards, task_of
from retrieval.diagnose.diagnosis import Conclusion, Diagnoser
from retrieval.diagnose.given_profile import with_profile
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import load_signals
from retrieval.diagnose.signatures import SignatureMatch
from retrieval.excerpts import make_excerpts
from retrieval.hints import NO_INDEX, NO_VECTORS_YET, hints_of
from retrieval.journal import Answered, Journal, Unwanted
from retrieval.layout import load_layout
from retrieval.missing_names import language_named
from retrieval.moves import fitting_moves
from retrieval.own_codes import code_matches
from retrieval.phrases import phrase_vectors
from retrieval.place import Place, place_of
from retrieval.plan import Plan, make_plan
from retrieval.ranking import Ranked, ScopeSamples, VectorIndex, mixed, rank
from retrieval.rankings import Rankings, by_category, kept_ranking
from retrieval.request import RetrieveRequest, check_request
from retrieval.request_order import by_words, plan_of
from retrieval.request_scope import RequestScope
from retrieval.section_excerpts import section_excerpts
from retrieval.signal_sections import by_sections
from retrieval.skill_choice import WITHHELD_SHARE, Choice, choose_skills
from retrieval.stages import describe_answer, stage
from retrieval.titles import Titles
from retrieval.whole_answer import Asked, Written, answer_of, key_of

REMEMBERED = 256  # stable parts of contexts
MOST_MOVES = 2_000  # that are kept, of 10 KB
MOST_WRITTEN = 400  # parts of answers that are kept, of about 60 KB


# Gives the answer of another process, or None.
Elsewhere = Callable[[RetrieveRequest, Unwanted], Answered | None]


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
        self._why_no_vectors = NO_VECTORS_YET
        self._withheld_share = withheld_share
        self._signals = load_signals()
        self._titles = Titles(self._signals)
        self._layout = load_layout()
        self._diagnoser = Diagnoser(self._signals)
        self._journal = Journal(catalog)
        self._elsewhere: Elsewhere = lambda request, unwanted: None
        self._samples = ScopeSamples(embedder.fingerprint)
        self._phrases: Mapping[str, Vectors] = {}
        self._embed = functools.lru_cache(maxsize=2048)(self._encode)
        self.attendance = Attendance()

    @stage("other", span="retrieve")
    def retrieve(self, request: RetrieveRequest) -> Answer:
        """The answer, logged under its `retrieval_id`. Equal requests on an equal catalog give an
        equal `context`; without a vector index that is needed it is found by words, and says so.
        Raises InvalidRequest, UnknownHardware and UnknownSignal."""
        with self.attendance.asked():
            started = time.perf_counter()
            check_request(request)
            unwanted = self._journal.unwanted(request)
            # Alone, a request would wait for the way there and back.
            answered = None if self.attendance.alone else self._elsewhere(request, unwanted)
            answered = answered or self.answered(request, unwanted)
            self._journal.record_answer(answered, started)
            describe_answer(answered.answer)
            return answered.answer

    def answer_elsewhere(self, elsewhere: Elsewhere) -> None:
        """Let other processes answer what they can; where they give nothing it is answered here."""
        self._elsewhere = elsewhere

    def answered(self, request: RetrieveRequest, unwanted: Unwanted) -> Answered:
        """As `retrieve`, without the log."""
        try:
            return self._answered(request, unwanted)
        except StoreAway:  # `/readyz` says which and why
            return self._without_vectors()._answered(request, unwanted)

    def _without_vectors(self) -> Retriever:
        """This retriever for one answer by words. It shares all that is kept."""
        by_words = copy.copy(self)
        by_words._dense_ready, by_words._why_no_vectors = lambda: False, NO_INDEX
        return by_words

    def _answered(self, request: RetrieveRequest, unwanted: Unwanted) -> Answered:
        request, profile = with_profile(request, self._chips(request))
        with self._catalog.read() as connection:
            place = self._place(connection, request)
            scope, request = place.own, replace(request, language=place.language)
            conclusion = self._conclude(connection, request, place)
            moves, choice = self._actions(connection, request, conclusion, scope)
            asked = Asked(request, conclusion, scope, moves, choice, unwanted)
            written = self._written(connection, asked)
            catalog_revision = revision_of(connection)
        answer = replace(answer_of(asked, written), profile=profile)
        return Answered(request, answer, tuple(written.shown), catalog_revision)

    def _written(self, connection: Connection, asked: Asked) -> Written:
        """What documents say; kept for equal requests while catalog and index stay as they are."""

        def write(keys: Sequence[str]) -> dict[str, Written]:
            return {key: self._write(connection, asked) for key in keys}

        key = asked.key
        state = self._searched(connection)
        return look_up(connection, "written", [key], write, state, MOST_WRITTEN)[key]

    def _searched(self, connection: Connection) -> Hashable:
        """What the hits of a search depend on beside the catalog's revision."""
        index = self._index()
        return candidates.state(connection), id(index), index.generation, self._why_words()

    def _write(self, connection: Connection, asked: Asked) -> Written:
        request, scope, verdict = asked.request, asked.scope, asked.conclusion.verdict
        plan = self._plan(request, asked.conclusion)
        ranking = self._rankings(connection, asked, plan)
        ranked = ranking(scope.filter)
        by_signal = not request.in_words and bool(verdict.signals)
        make = make_excerpts if request.in_words or request.metrics else section_excerpts
        unwanted = asked.unwanted
        excerpts = make(connection, ranked, scope.filter, request.k, excluded=unwanted.anywhere)
        material = Material(
            request=request,
            verdict=verdict,
            hardware=scope.named,
            spec=scope.hardware,
            toolchain=scope.toolchain,
            lineage=scope.lineage,
            scope=scope.filter,
            by_category=by_category(scope.filter, ranked, ranking),
            search=self._search,
            embed=self._embed if self._dense_ready() else None,
            moves=asked.moves,
            skills=asked.choice.answers,
            excluded=unwanted.about_what_happened,
            remember=self._remembered(connection),
            first=tuple(excerpt.id for excerpt in excerpts),
            spoken=scope.spoken,
            titles=self._titles,
            signal_best=ranked[0].score if ranked and by_signal and not scope.toolchain else 0,
        )
        task = task_of(request, verdict, self._signals)
        composed = compose(connection, material, task, self._layout)
        hints = hints_of(connection, material, composed, excerpts, by_signal, self._why_words())
        return Written(composed, tuple(excerpts), hints)

    def _why_words(self) -> str:
        """Why vectors have no part in answers; empty where they have."""
        return "" if self._dense_ready() else self._why_no_vectors

    def moves_and_skills(self, request: RetrieveRequest) -> Answer:
        """An answer without excerpts and context: no document is searched, which is most of the
        time that `retrieve` takes. Logged in the same way, and raises the same errors.
        """
        started = time.perf_counter()
        check_request(request)
        request, profile = with_profile(request, self._chips(request))
        with self._catalog.read() as connection:
            place = self._place(connection, request)
            scope, conclusion = place.scope, self._conclude(connection, request, place)
            moves, choice = self._actions(connection, request, conclusion, scope)
            catalog_revision = revision_of(connection)
        answer = Answer(
            retrieval_id=new_id("ret"),
            diagnosis=conclusion.verdict,
            hardware=scope.named,
            excerpts=(),
            skills=choice.answers,
            moves=moves,
            context="",
            skills_withheld=choice.withheld,
            profile=profile,
        )
        answered = Answered(request, answer, (), catalog_revision)
        self._journal.record_answer(answered, started)
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
        access_scope: AccessScope = ALL_ACCESS,
    ) -> str:
        """Store what became of an answer and return the outcome's id. See `Journal.report`."""
        return self._journal.report(
            retrieval_id,
            used=used,
            correct=correct,
            speedup=speedup,
            baseline_speedup=baseline_speedup,
            note=note,
            access_scope=access_scope,
        )

    def warm(self, folder: Path) -> None:
        """Have the vectors of the signals' phrases; a folder's first time takes a second."""
        phrases = [phrase for signal in self._signals for phrase in signal.phrases]
        self._phrases = phrase_vectors(self._embedder, phrases, folder)

    # -- ahead of requests (see retrieval.ahead.Orders)

    def searched(self) -> Hashable:
        """What kept orders depend on; None before words, columns and vectors are in memory."""
        with self._catalog.read() as connection:
            if not self._dense_ready() or not candidates.in_memory(
                connection, self._embedder.fingerprint
            ):
                return None
            return knowledge_of(connection), self._searched(connection)

    def signals_and_chips(self, most: int) -> Sequence[tuple[str, str]]:
        """Every signal of one chip after the other: those last asked about, then those that
        documents are about.
        """
        known = self._registry.all()
        with self._catalog.read() as connection:
            places = candidates.places_of_scopes(connection, self._embedder.fingerprint) or {}
        chips = [chip for chip in (*self._journal.chips(), *places) if chip in known]
        pairs = ((s.id, chip) for chip in dict.fromkeys(chips) for s in self._signals)
        return list(islice(pairs, most))

    def make_order(self, signal: str, hardware: str) -> None:
        """Make and keep the order of sections for a signal and a chip, and the blocks of text that
        an answer in this order has.
        """
        request = RetrieveRequest(signal=signal, hardware=hardware)
        with self._catalog.read() as connection:
            place = self._place(connection, request)
            request = replace(request, language=place.language)
            conclusion = self._conclude(connection, request, place)
            moves, choice = self._actions(connection, request, conclusion, place.own)
            nothing = Unwanted(frozenset(), frozenset())
            self._write(connection, Asked(request, conclusion, place.own, moves, choice, nothing))

    def close(self) -> None:
        """Write what the journal still holds."""
        self._journal.close()

    # -- scope

    def _chips(self, request: RetrieveRequest) -> HardwareRegistry:
        return self._registry.seen_by(request.access_scope)

    def _place(self, connection: Connection, request: RetrieveRequest) -> Place:
        return place_of(connection, request, self._chips(request), self._layout)

    @stage("diagnosis")
    def _conclude(
        self, connection: Connection, request: RetrieveRequest, place: Place
    ) -> Conclusion:
        def codes(log: str) -> list[SignatureMatch]:
            named = place.scope.hardware is not None
            return code_matches(log, self._cards(connection, request, place.scope)) if named else []

        def read(keys: Sequence[str]) -> dict[str, Conclusion]:
            facts, lineage = place.facts, place.scope.lineage
            made = self._diagnoser.conclude(
                request, facts, lineage, place.signatures, place.rules, codes
            )
            return dict.fromkeys(keys, made)

        key = key_of(request)
        return look_up(connection, "conclusions", [key], read, most=MOST_MOVES, skills=False)[key]

    # -- search

    @stage("embedding")
    def _encode(self, text: str) -> Vectors:
        known = self._phrases.get(text)
        return self._embedder.encode_query(text) if known is None else known

    def _rank(self, connection: Connection, plan: Plan, scope: ScopeFilter) -> list[Ranked]:
        ranked = rank(
            connection,
            plan,
            scope,
            self._index(),
            self._embed if self._dense_ready() else None,
            self._embedder.fingerprint,
            self._samples,
        )
        return (
            ranked if plan.also is None else mixed(ranked, self._rank(connection, plan.also, scope))
        )

    def _plan(self, request: RetrieveRequest, conclusion: Conclusion) -> Plan:
        signals = [self._signals.get(name) for name in conclusion.verdict.signal_ids]
        return plan_of(request, signals, self._layout.is_known)

    def _order(
        self, connection: Connection, asked: Asked
    ) -> Callable[[list[Ranked]], list[Ranked]]:
        """How a ranking is put in order: by sections where a signal is all that is known, with what
        defines the names in a log or a question first where there are words.
        """
        request, scope, verdict = asked.request, asked.scope, asked.conclusion.verdict
        if request.in_words:
            cards = self._cards(connection, request, scope) if scope.hardware is not None else []
            return by_words(connection, request, cards, self._titles, verdict.signal_ids)
        if not verdict.signals:
            return _unchanged
        signal = self._signals.get(verdict.primary)
        fitting = [move.id for move in asked.moves]
        return lambda ranked: by_sections(
            connection,
            ranked,
            signal,
            self._titles,
            fitting,
            scope.lineage,
            scope.spoken,
            request.op,
        )

    def _cards(
        self, connection: Connection, request: RetrieveRequest, scope: RequestScope
    ) -> list[Symbol]:
        """What a text of the caller can name."""
        remember, access = self._remembered(connection), request.access_scope
        language = request.language or language_named(request.log or "")
        return kept_cards(connection, remember, scope.lineage, language, access)

    def _search(self, connection: Connection, query: str, scope: ScopeFilter) -> list[Ranked]:
        """The ranking of a scope for a question in words."""
        plan = make_plan(
            query=query, log=None, metrics={}, registry=load_metrics(), signals=(), op=None
        )
        return self._rank(connection, plan, scope)

    def _rankings(self, connection: Connection, asked: Asked, plan: Plan) -> Rankings:
        """The ranking of a scope for this request, in order. One for signals alone is kept: it is
        the same for every depth, budget and run.
        """
        request, scope, verdict = asked.request, asked.scope, asked.conclusion.verdict
        in_order = self._order(connection, asked)

        def ranked(within: ScopeFilter) -> list[Ranked]:
            return in_order(self._rank(connection, plan, within))

        if request.in_words or request.metrics or not verdict.signals:
            return ranked
        moves = tuple(move.id for move in asked.moves)
        key = (plan, verdict.primary, moves, scope.lineage, scope.spoken, request.op)
        state = self._searched(connection)
        own = scope.filter.key

        def kept(within: ScopeFilter) -> Sequence[Ranked]:
            most = None if within.key == own else HITS  # of a category no more are looked at
            return kept_ranking(connection, (*key, within.key), state, lambda: ranked(within), most)

        return kept

    def _remembered(self, connection: Connection) -> Remember:
        """A memory of what depends on the catalog and a key alone: the stable part of contexts."""
        dense = self._dense_ready()

        def remember(key: tuple[object, ...], make: Callable[[], Any]) -> Any:
            def read(_: Sequence[object]) -> dict[tuple[object, ...], Any]:
                return {key: make()}

            return look_up(connection, "contexts", [key], read, dense, REMEMBERED)[key]

        return remember

    @stage("moves and skills")
    def _actions(
        self,
        connection: Connection,
        request: RetrieveRequest,
        conclusion: Conclusion,
        scope: RequestScope,
    ) -> tuple[tuple[Move, ...], Choice]:
        """What to do about the verdict. Where no change of the kernel mends it, no skill does but
        one that is about this very error.
        """
        moves = self._moves(connection, request, conclusion, scope)
        signals = conclusion.mendable
        if conclusion.remedied and not signals:
            request = replace(request, op=None)
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

    def _moves(
        self,
        connection: Connection,
        request: RetrieveRequest,
        conclusion: Conclusion,
        scope: RequestScope,
    ) -> tuple[Move, ...]:
        """The moves that fit; decided once a revision for all that they depend on."""
        signals, metrics = conclusion.remedied, conclusion.metrics
        key: object = (
            *(tuple(signals), tuple(metrics.items()), tuple(request.problem_values.items())),
            *(request.roles, scope.filter.key, scope.lineage, scope.runnable, scope.spoken),
            tuple(conclusion.roles.items()),
        )

        def read(_: Sequence[object]) -> dict[object, tuple[Move, ...]]:
            moves = fitting_moves(
                move_candidates(connection, signals, scope.filter),
                signals,
                metrics,
                scope.facts,
                request.problem_values,
                scope.lineage,
                request.roles,
                scope.runnable,
                scope.spoken,
                conclusion.roles,
            )
            return {key: moves}

        return look_up(connection, "moves", [key], read, most=MOST_MOVES, skills=False)[key]


def _unchanged(ranked: list[Ranked]) -> list[Ranked]:
    return ranked
