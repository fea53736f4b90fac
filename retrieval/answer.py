"""Answer one request: `answer(snapshot, request, config)`.

Runs scope, diagnosis, plan, search, order, excerpts, moves, skills, context and hints, in this
order. The answer is a pure function of the arguments: no catalog, clock or other state is read, and
equal arguments give equal answers. Hardware fails closed: an unknown id is an error, and every
search is restricted to a scope. Does not know HTTP and does not log (`service` does).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial

from kb.answers import Answer, ContextPart, Excerpt, Move, NamedFact
from kb.hardware.lineage import names_written, other_model
from kb.scope import ScopeFilter
from kb.tokens import below_title
from retrieval.compose.cards import named_facts
from retrieval.compose.composer import Composed, Material, cards_for, compose, task_of
from retrieval.compose.excerpts import make_excerpts, signal_excerpts
from retrieval.compose.hints import hints_of
from retrieval.compose.moves import fitting_moves, settings_of, shrunk, too_small
from retrieval.compose.skill_choice import WITHHELD_SHARE, SkillSelection, choose_skills
from retrieval.compose.standing import Standings, standings_of, versions_of
from retrieval.compose.target import own_scope
from retrieval.diagnose.diagnosis import Conclusion, Diagnoser
from retrieval.diagnose.given_profile import with_profile
from retrieval.diagnose.hot_lines import words_of
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import load_signals
from retrieval.diagnose.signatures import SignatureMatch
from retrieval.layout import load_layout
from retrieval.near import NearIndex
from retrieval.operators import OperatorTraits, load_operators
from retrieval.profiles.tables import column_names
from retrieval.readers import uplift_of
from retrieval.request import RetrieveRequest
from retrieval.scope import (
    RUN_EVERYWHERE,
    RequestScope,
    ResolvedHardware,
    resolve_hardware,
    with_vendor,
)
from retrieval.search.by_names import by_words, code_matches
from retrieval.search.by_signal import by_sections
from retrieval.search.names import Cards, language_named, language_of_kernel
from retrieval.search.plan import make_plan, plan_of
from retrieval.search.ranking import EmbedQuery, Near, Ranked, rank
from retrieval.search.titles import Titles
from retrieval.snapshot.snapshot import Snapshot
from retrieval.stages import stage

FIRST_AMONG = 60  # ranked passages among which those of uploaded manuals come first
FIRST_SENTENCE = 200  # characters of it that are read for the name of a product
OWN_NEAR = 0.5  # of the best score, from which on a passage of them does
PER_CATEGORY = 8  # with fewer ranked passages, a category is searched separately


@dataclass(frozen=True)
class AnswerConfig:
    """Resources and options of an answer in addition to the snapshot. Without `embed` the search is
    lexical only. `near` replaces the vector search of `Snapshot.near`. `remarks` are hints about
    knowledge that the answer lacks. `withheld_share` is the share, from 0 to 1, of skills withheld
    from requests of a run (see `skill_choice`)."""

    embed: EmbedQuery | None
    near: NearIndex | None = None
    remarks: tuple[str, ...] = ()
    withheld_share: float = WITHHELD_SHARE


@dataclass(frozen=True)
class Exclusions:
    """Ids that an answer must not repeat: in its excerpts, and in the part of its context about
    what happened."""

    excerpts: frozenset[str] = frozenset()
    context: frozenset[str] = frozenset()


@dataclass(frozen=True)
class AnswerResult:
    """An answer with the values that only the retrieval log needs: the resolved request and the ids
    of the passages in the answer."""

    request: RetrieveRequest
    answer: Answer
    shown: tuple[str, ...] = ()


def answer(
    snapshot: Snapshot,
    request: RetrieveRequest,
    config: AnswerConfig,
    exclusions: Exclusions | None = None,
) -> AnswerResult:
    """Answer a request that passed `check_request`. `retrieval_id` is left empty; the other fields,
    including every byte of the context, are equal for equal arguments. Raises InvalidRequest,
    UnknownHardware and UnknownSignal."""
    exclusions = exclusions or Exclusions(*[frozenset(request.exclude)] * 2)
    chips = snapshot.knowledge.chips(request.access_scope)
    request, vendor_hint = with_vendor(request, chips)
    given = request.profile or request.log or ""
    request, profile = with_profile(request, chips)
    standings = standings_of(snapshot, versions_of(request))
    snapshot = standings.snapshot
    resolved = _resolved(snapshot, request)
    scope, request = resolved.own, replace(request, language=resolved.language)

    conclusion = conclude(standings, request, resolved, vendor_hint)
    verdict = conclusion.verdict
    moves = moves_for(standings, request, conclusion, scope, profile.kernel if profile else "")
    choice = skills_for(standings, request, conclusion, scope, config)

    columns = column_names(given) if profile and not verdict.signals else ""
    ranking = _ranking(standings, request, conclusion, scope, moves, config, columns)
    ranked = ranking(scope.filter)
    make = make_excerpts
    if not (request.in_words or request.metrics):
        make = partial(signal_excerpts, signal=verdict.primary if verdict.signals else None)
    without, mark = exclusions.excerpts, standings.marked_excerpt
    shown = (
        _uploaded_first(snapshot, request, ranked, scope)
        if request.query and not request.log
        else ranked
    )
    excerpts = make(snapshot, shown, scope.filter, request.k, excluded=without, mark=mark)

    by_signal = not request.in_words and bool(verdict.signals)
    traits = traits_of(request)
    uplift = uplift_of(
        scope.lineage,
        request.language,
        traits.kinds,
        request.reader,
        request.language is not None and not load_layout().is_known(request.language),
    )
    related = by_signal or bool(request.log)
    material = Material(
        request=request,
        verdict=verdict,
        hardware=scope.named,
        spec=scope.hardware,
        toolchain=scope.toolchain,
        lineage=scope.lineage,
        scope=scope.filter,
        by_category=_by_category(scope.filter, ranked, ranking),
        search=_search(snapshot, config),
        embed=config.embed,
        moves=moves,
        skills=choice.answers,
        excluded=exclusions.context,
        first=tuple(excerpt.id for excerpt in excerpts),
        chip_languages=scope.chip_languages,
        titles=titles(),
        by_signal=by_signal and scope.toolchain is None,
        best=ranked[0].score if ranked and related and scope.toolchain is None else 0.0,
        facts=scope.facts,
        traits=traits,
        uplift=uplift,
        standings=standings,
    )
    task = task_of(request, verdict, load_signals())
    composed = compose(snapshot, material, task, load_layout())
    facts: tuple[NamedFact, ...] = ()
    if request.query is not None:
        terms = [term for _, term in snapshot.lexicon(scope.lineage, request.access_scope)]
        facts = named_facts(request.query, scope.facts, terms)
    hints = hints_of(snapshot, material, composed, excerpts, by_signal, config.remarks, facts)
    result = _answer(conclusion, scope, moves, choice, excerpts, composed, hints)
    result = replace(
        result, profile=profile, uplift=uplift, versions=standings.versions, facts=facts
    )
    return AnswerResult(request, result, _shown(excerpts, composed))


def traits_of(request: RetrieveRequest) -> OperatorTraits:
    """What the operator of a request is: by its name, which words of the question and of the
    problem's summary refine, else by those alone, else by its draft."""
    return load_operators().of(
        request.op,
        filter(None, (request.query, request.about)),
        code=request.draft or "",
        dtypes=(*filter(None, (request.dtype,)), *request.dtypes),
        sizes=request.problem,
    )


def actions(snapshot: Snapshot, request: RetrieveRequest, config: AnswerConfig) -> AnswerResult:
    """Answer with moves and skills only. Skips the document search, which takes most of the time of
    `answer`. Raises the same errors."""
    chips = snapshot.knowledge.chips(request.access_scope)
    request, vendor_hint = with_vendor(request, chips)
    request, profile = with_profile(request, chips)
    standings = standings_of(snapshot, versions_of(request))
    resolved = _resolved(standings.snapshot, request)
    conclusion = conclude(standings, request, resolved, vendor_hint)
    moves = moves_for(
        standings, request, conclusion, resolved.scope, profile.kernel if profile else ""
    )
    choice = skills_for(standings, request, conclusion, resolved.scope, config)
    result = Answer(
        retrieval_id="",
        diagnosis=conclusion.verdict,
        hardware=resolved.scope.named,
        excerpts=(),
        skills=choice.answers,
        moves=moves,
        context="",
        skills_withheld=choice.withheld,
        profile=profile,
        versions=standings.versions,
    )
    return AnswerResult(request, result)


def _resolved(snapshot: Snapshot, request: RetrieveRequest) -> ResolvedHardware:
    """The hardware of a request. A log that names a language leaves out the other languages."""
    resolved = resolve_hardware(snapshot, request, load_layout())
    language = language_named(request.log or "") if request.language is None else None
    if language is None:
        return resolved

    def narrowed(scope: RequestScope) -> RequestScope:
        languages = (language, *RUN_EVERYWHERE)
        return replace(scope, filter=replace(scope.filter, languages=languages))

    return replace(resolved, scope=narrowed(resolved.scope), own=narrowed(resolved.own))


# -- diagnosis and remedies


@lru_cache(maxsize=1)
def diagnoser() -> Diagnoser:
    """The diagnoser for the built-in signals."""
    return Diagnoser(load_signals())


@lru_cache(maxsize=1)
def titles() -> Titles:
    """The index of titles of the built-in signals."""
    return Titles(load_signals())


@stage("diagnosis")
def conclude(
    standings: Standings, request: RetrieveRequest, resolved: ResolvedHardware, hint: str
) -> Conclusion:
    """Diagnose the request from its signals, log and metrics. `hint` replaces an empty hint."""

    def codes(log: str) -> list[SignatureMatch]:
        named = resolved.scope.hardware is not None
        cards = _cards(standings.snapshot, request, resolved.scope) if named else Cards()
        return code_matches(log, cards)

    conclusion = diagnoser().conclude(
        request,
        resolved.facts,
        resolved.scope.lineage,
        resolved.signatures,
        resolved.rules,
        codes,
        standings.refuted_signatures,
    )
    verdict = standings.marked_signatures(conclusion.verdict)
    general = verdict.hint if request.hardware is not None or not hint else ""
    return replace(conclusion, verdict=replace(verdict, hint=general or hint))


@stage("moves and skills")
def moves_for(
    standings: Standings,
    request: RetrieveRequest,
    conclusion: Conclusion,
    scope: RequestScope,
    kernel: str,
) -> tuple[Move, ...]:
    """The moves that fit the diagnosis; those that shrink something have the factor of the leading
    error over its limit. `kernel` is the one that a profile is about."""
    problem = request.problem_values
    language = language_named(request.log or "") or language_of_kernel(kernel, scope.chip_languages)
    if problem["language"] is None and language is not None:
        problem = {**problem, "language": language}
    moves = fitting_moves(
        standings.snapshot.knowledge.fitting_moves(conclusion.remedied, scope.filter),
        conclusion.remedied,
        conclusion.metrics,
        scope.facts,
        problem,
        scope.lineage,
        request.roles,
        scope.runnable,
        scope.chip_languages,
        conclusion.roles,
        settings := settings_of(request.log or ""),
    )
    moves = tuple(map(standings.marked_move, moves)) if standings.versions else moves
    first = next(iter(conclusion.verdict.signatures), None)
    over = first["quantities"] if first else None
    if over is None:
        return moves
    factor = over["factor"]
    return tuple(shrunk(m, factor) for m in moves if not too_small(m, factor, settings))


@stage("moves and skills")
def skills_for(
    standings: Standings,
    request: RetrieveRequest,
    conclusion: Conclusion,
    scope: RequestScope,
    config: AnswerConfig,
) -> SkillSelection:
    """The skills that fit. If no change of the kernel can fix the error, only skills about this
    exact error fit."""
    signals = conclusion.mendable
    if conclusion.remedied and not signals:
        request = replace(request, op=None)
    chosen = choose_skills(
        standings.snapshot.knowledge,
        request,
        signals,
        scope.filter,
        conclusion.metrics,
        scope.facts,
        config.withheld_share,
        lambda skill: standings.skill(skill.name).marks,
        traits_of(request).kinds,
    )
    marked = tuple(map(standings.marked_skill, chosen.answers))
    return replace(chosen, answers=marked) if standings.versions else chosen


# -- search

Ranking = Callable[[ScopeFilter], list[Ranked]]


def _ranking(
    standings: Standings,
    request: RetrieveRequest,
    conclusion: Conclusion,
    scope: RequestScope,
    moves: Sequence[Move],
    config: AnswerConfig,
    columns: str = "",
) -> Ranking:
    """The function that ranks the passages of a scope for the request: by section for a bare
    signal; for a request in words, passages that define the names in it come first. `columns` are
    those of a profile without a diagnosis, which a manual may explain."""
    verdict, snapshot = conclusion.verdict, standings.snapshot
    signals = [load_signals().get(name) for name in verdict.signal_ids]
    specs = snapshot.knowledge.chips(request.access_scope).specs
    chip = names_written(request.query or "", [specs[place] for place in scope.lineage])
    causes = words_of(verdict.lines) or columns
    plan = plan_of(request, signals, load_layout().is_known, causes, chip)
    near = _near(snapshot, config)
    if request.in_words:
        cards = _cards(snapshot, request, scope) if scope.hardware is not None else Cards()
        own = [specs[place] for place in scope.lineage[:1]]
        names = [name for spec in own for name in (spec.id, spec.name, *spec.aliases)]
        in_order = by_words(snapshot, request, cards, titles(), verdict.signal_ids, names)
    elif signals:

        def in_order(ranked: list[Ranked]) -> list[Ranked]:
            return by_sections(
                snapshot,
                ranked,
                signals[0],
                titles(),
                [move.id for move in moves],
                scope.lineage,
                scope.chip_languages,
                request.op,
                request.metrics or (),
            )
    else:
        in_order = list

    return lambda within: standings.weighed(
        in_order(rank(snapshot, plan, within, config.embed, near))
    )


def _uploaded_first(
    snapshot: Snapshot, request: RetrieveRequest, ranked: Sequence[Ranked], scope: RequestScope
) -> Sequence[Ranked]:
    """For a question about a chip with uploaded manuals: the passages of these that are near to it
    precede, and of each other section only the best passage follows them directly. Sections about
    another model of the make of the chip do not precede."""
    if scope.hardware is None or not ranked:
        return ranked
    about = snapshot.documents_about(
        (scope.hardware.id,), own_scope(scope.hardware.id, scope.filter)
    )
    uploaded = {document.id for document in about if not document.builtin}
    if not uploaded:
        return ranked
    passages = snapshot.load([entry.seq for entry in ranked[:FIRST_AMONG]], scope.filter)
    floor = OWN_NEAR * ranked[0].score
    own = {
        entry.seq
        for entry in ranked[:FIRST_AMONG]
        if entry.score >= floor
        and entry.seq in passages
        and passages[entry.seq].document_id in uploaded
    }
    other = _other_product(snapshot, request, scope)
    foreign = {
        seq
        for seq, passage in passages.items()
        if passage.document_id in uploaded
        and other(below_title(passage.path, passage.document_title), passage.text)
    }
    own -= foreign
    sections: set[int] = set()
    later = set(foreign)
    for seq in (e.seq for e in ranked[:FIRST_AMONG] if e.seq in passages and e.seq not in own):
        section = passages[seq].section_seq
        if own and section in sections:
            later.add(seq)
        sections.add(section)
    return sorted(ranked, key=lambda entry: (entry.seq not in own, entry.seq in later))


def _other_product(
    snapshot: Snapshot, request: RetrieveRequest, scope: RequestScope
) -> Callable[[Sequence[str], str], str]:
    """The function that names another model of the make of the chip which a passage is about: by
    the innermost of its headings that names one or the chip, else by its first sentence. It names
    none if the question names another model."""
    specs = snapshot.knowledge.chips(request.access_scope).specs
    own = [specs[place] for place in scope.lineage]
    names = [name for spec in own for name in (spec.id, spec.name, *spec.aliases)]

    def other(headings: Sequence[str], text: str) -> str:
        for heading in reversed(headings):
            if names_written(heading, own):
                return ""
            if found := other_model(heading, names):
                return found
        first = re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]
        return "" if names_written(text, own) else other_model(first[:FIRST_SENTENCE], names)

    return (lambda *_: "") if other_model(request.query or "", names) else other


def _near(snapshot: Snapshot, config: AnswerConfig) -> Near:
    return snapshot.near if config.near is None else partial(config.near.nearest, snapshot)


def _by_category(
    scope: ScopeFilter, ranked: Sequence[Ranked], ranking: Ranking
) -> Callable[[str], Sequence[Ranked]]:
    """The ranked passages of each category. A category with few passages in `ranked` is searched
    separately."""

    def of(category: str) -> Sequence[Ranked]:
        own = [entry for entry in ranked if entry.category == category]
        if len(own) < PER_CATEGORY and len(scope.categories) > 1:
            return ranking(replace(scope, categories=(category,)))
        return own

    return of


def _search(snapshot: Snapshot, config: AnswerConfig) -> Callable[[str, ScopeFilter], list[Ranked]]:
    """The function that ranks the passages of a scope for a question in words."""

    def search(query: str, scope: ScopeFilter) -> list[Ranked]:
        plan = make_plan(
            query=query, log=None, metrics={}, registry=load_metrics(), signals=(), op=None
        )
        return rank(snapshot, plan, scope, config.embed, _near(snapshot, config))

    return search


def _cards(snapshot: Snapshot, request: RetrieveRequest, scope: RequestScope) -> Cards:
    """The symbol cards whose names the request's texts may contain."""
    language = request.language or language_named(request.log or "")
    return cards_for(snapshot, scope.lineage, language, request.access_scope)


# -- the answer


def _answer(
    conclusion: Conclusion,
    scope: RequestScope,
    moves: tuple[Move, ...],
    choice: SkillSelection,
    excerpts: Sequence[Excerpt],
    composed: Composed,
    hints: tuple[str, ...],
) -> Answer:
    context = composed.context
    return Answer(
        retrieval_id="",
        diagnosis=conclusion.verdict,
        hardware=scope.named,
        excerpts=tuple(excerpts),
        skills=choice.answers,
        moves=moves,
        context=context.text,
        context_tokens=context.tokens,
        skills_withheld=choice.withheld,
        hints=hints,
        task=composed.task,
        context_stable=context.stable,
        context_actions=context.actions,
        parts=tuple(
            ContextPart(b.kind, b.id, b.tokens, b.citation) for b in context.shown if b.citation
        ),
        unknown_names=tuple(asdict(name) for name in composed.unknown),
    )


def _shown(excerpts: Sequence[Excerpt], composed: Composed) -> tuple[str, ...]:
    """Ids of the passages in the answer."""
    context = composed.context
    cited = [block.id for block in context.shown if block.citation]
    return tuple(dict.fromkeys([*(e.id for e in excerpts), *cited, *context.passages]))
