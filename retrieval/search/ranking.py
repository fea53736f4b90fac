"""The ranking: lexical and dense scores of the passages within a scope, fused into one order.

    lexical = passage + SECTION * section, each over its best score, the sum over its own maximum
    dense   = cos(query, passage) + NEIGHBOUR * the better neighbour's, between median and best
    score   = (lexical + DENSE * dense) * prior of prose and code

For a signal without details, `cos(query, passage)` is the mean cosine of the NEAREST_SENTENCES
nearest of its sentences, since a passage that helps is near to one cause or remedy and not to the
mean of all.

A normalised sum preserves the margin of the best hit, which rank fusion discards. The constants
were chosen on the development rows and confirmed on held-out rows (docs/adr/003-ranking.md, with
the ablations). Deterministic: ties go to the earlier passage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kb.embedding import Vectors
from kb.scope import ANY, AccessScope, ScopeFilter
from retrieval.search.plan import Plan
from retrieval.snapshot.snapshot import Columns, Snapshot
from retrieval.snapshot.words import Level
from retrieval.stages import stage


@dataclass(frozen=True)
class Weights:
    """The constants of the ranking; `benchmarks.retrieval.ablation` varies them one by one.
    `passage` and `section` weight the lexical levels, `dense` the dense score relative to the
    lexical one. `neighbour` is the share of the better neighbour's cosine. `prose` is the largest
    share subtracted for a passage without function words, `code` the factor on a block of code, and
    `generic` the factor on a passage about no chip if the request names a chip."""

    passage: float = 1.0
    section: float = 2.5
    dense: float = 0.9
    neighbour: float = 0.5
    prose: float = 0.2
    code: float = 0.8
    generic: float = 0.6


WEIGHTS = Weights()
# For a signal without details, which names no line of a listing or of a table: advice is prose.
# Chosen on 45 opened rows about six chips (benchmarks/results/retrieval_quality.md).
OF_SIGNALS = Weights(section=1.0, dense=1.5, prose=0.4, code=0.5)
PROSE_SHARE = 200  # per mille of function words in running prose
PER_LEVEL = 400  # rows of each lexical level
BY_WORDS = 500  # passages selected by words
NEAREST = 200  # passages selected by vectors
NEAREST_SENTENCES = 2
SAMPLE = 300  # passages that represent a whole scope

EmbedQuery = Callable[[str], Vectors]  # text -> unit vector of shape (dimension,)
# (hardware or None for any, unit vector, limit, access) -> passage number to cosine, best first.
Near = Callable[[Sequence[str] | None, Vectors, int, AccessScope], dict[int, float]]
Scores = NDArray[np.float64]


class Scored(NamedTuple):
    """Passages or sections by number, ascending, with the score of each."""

    seqs: NDArray[np.int64]
    scores: Scores


class Ranked(NamedTuple):
    """One passage by number, with its score and the parts of it: lexical and dense, each 0 to 1."""

    seq: int
    score: float
    lexical: float
    dense: float
    category: str


def ranked_of(
    seqs: Iterable[int],
    scores: Iterable[float],
    lexical_parts: Iterable[float],
    dense_parts: Iterable[float],
    categories: Iterable[str],
) -> list[Ranked]:
    """The passages of columns of equal length; takes half of the time of separate calls of
    `Ranked`."""
    rows = zip(seqs, scores, lexical_parts, dense_parts, categories, strict=True)
    return list(map(partial(tuple.__new__, Ranked), rows))


@stage("ranking")
def rank(
    snapshot: Snapshot,
    plan: Plan,
    scope: ScopeFilter,
    embed: EmbedQuery | None,
    near: Near,
    weights: Weights | None = None,
) -> list[Ranked]:
    """All candidates of a scope, best first; ties go to the earlier passage. Results of the plan's
    `also` are mixed in. Without `embed` the ranking is lexical only. `weights` are by default those
    of the plan."""
    weights = weights or (OF_SIGNALS if plan.sentences else WEIGHTS)
    ranked = _ranked(snapshot, plan, scope, embed, near, weights)
    named = snapshot.documents_named(plan.names, scope) if plan.names else frozenset()
    if named:
        # Within one document, the answer is as likely a table as running text.
        own_plan, own_weights = replace(plan, documents=named), replace(weights, prose=0.0)
        own = _ranked(snapshot, own_plan, scope, embed, near, own_weights)
        ranked = _with_named(ranked, own)
    if plan.also is None:
        return ranked
    return mixed(ranked, rank(snapshot, plan.also, scope, embed, near, weights))


def _ranked(
    snapshot: Snapshot,
    plan: Plan,
    scope: ScopeFilter,
    embed: EmbedQuery | None,
    near: Near,
    weights: Weights,
) -> list[Ranked]:
    if plan.empty:
        return []
    words = lexical_scores(snapshot, plan, scope, weights)
    nearest: dict[int, float] = {}
    vector = query_vector(plan, embed) if embed is not None else None
    if vector is not None and plan.documents is None:
        nearest = near(scope.hardware, vector, NEAREST, scope.access_scope)
    hits = np.union1d(words.seqs, np.fromiter(nearest, np.int64, len(nearest)))
    columns = snapshot.around(hits, scope)
    candidates = np.isin(columns.seqs, hits, assume_unique=True)
    lexical_part = np.zeros(len(columns.seqs))
    lexical = np.isin(columns.seqs, words.seqs, assume_unique=True)
    lexical_part[lexical] = words.scores[words.seqs.searchsorted(columns.seqs[lexical])]
    dense = np.zeros(len(columns.seqs))
    if embed is not None and vector is not None:
        queries = np.stack([embed(text) for text in plan.sentences] or [vector])
        middle = scope_middle(*snapshot.sample(scope, SAMPLE), queries, weights)
        dense = dense_scores(columns, candidates, queries, middle, weights)
    chip_named = scope.hardware is not None and scope.hardware != (ANY,)
    scores = (lexical_part + weights.dense * dense) * _prior(columns, weights, chip_named)
    places = np.flatnonzero(candidates)
    best = places[np.argsort(-scores[places], kind="stable")]
    return ranked_of(
        columns.seqs[best].tolist(),
        scores[best].tolist(),
        lexical_part[best].tolist(),
        dense[best].tolist(),
        columns.categories[best].tolist(),
    )


def mixed(*rankings: Sequence[Ranked]) -> list[Ranked]:
    """Interleave several rankings: the best of each, then the second of each. Scores of different
    questions are not comparable, so the score becomes a function of the rank: 1 for the first, half
    for the hundredth."""
    best: dict[int, Ranked] = {}
    for ranked in rankings:
        for place, entry in enumerate(ranked):
            score = 1 / (1 + 0.01 * place)
            if entry.seq not in best or best[entry.seq].score < score:
                best[entry.seq] = entry._replace(score=score)
    return sorted(best.values(), key=lambda entry: -entry.score)  # stable: the first ranking first


def _with_named(ranked: Sequence[Ranked], named: Sequence[Ranked]) -> list[Ranked]:
    """The ranking with the passages of the documents that the question names first: their scores
    rise by the best score."""
    best = max((entry.score for entry in (*ranked, *named)), default=0.0)
    raised = {e.seq: e._replace(score=e.score + best) for e in named}
    entries = [*raised.values(), *(e for e in ranked if e.seq not in raised)]
    return sorted(entries, key=lambda e: (-e.score, e.seq))


def _prior(columns: Columns, weights: Weights, chip_named: bool) -> Scores:
    """The query-independent factor of each passage: running text answers more often than lists and
    code."""
    prose = 1.0 - weights.prose * (1.0 - np.minimum(1.0, columns.prose / PROSE_SHARE))
    code = np.where(columns.code, weights.code, 1.0)
    general = chip_named & (columns.categories != "hardware")
    return prose * code * np.where(general, weights.generic, 1.0)


def lexical_scores(
    snapshot: Snapshot, plan: Plan, scope: ScopeFilter, weights: Weights = WEIGHTS
) -> Scored:
    """The BY_WORDS best passages by their words and those of their section; the best has 1.0."""
    own = _level(snapshot, "passage", plan, scope, weights)
    sections = _level(snapshot, "section", plan, scope, weights)
    members = snapshot.members_of(sections.seqs.tolist())
    of_sections = sections.scores[sections.seqs.searchsorted(members.sections)]
    both = _summed(
        np.concatenate([own.seqs, members.seqs]),
        np.concatenate(
            [weights.passage * own.scores, np.repeat(weights.section * of_sections, members.sizes)]
        ),
    )
    best = np.argsort(-both.scores, kind="stable")[:BY_WORDS]  # ties: the earlier passage
    best.sort()
    return _over_best(Scored(both.seqs[best], both.scores[best]))


def _level(
    snapshot: Snapshot, level: Level, plan: Plan, scope: ScopeFilter, weights: Weights
) -> Scored:
    numbers, scores = [np.zeros(0, np.int64)], [np.zeros(0)]
    for group in plan.words:
        matches = snapshot.search(level, group.tokens, scope, PER_LEVEL, plan.documents)
        numbers.append(np.fromiter(matches, np.int64, len(matches)))
        scores.append(group.weight * np.fromiter(matches.values(), np.float64, len(matches)))
    return _over_best(_summed(np.concatenate(numbers), np.concatenate(scores)))


def _summed(seqs: NDArray[np.int64], scores: Scores) -> Scored:
    """Each number once, with the sum of its scores, added in order."""
    every, places = np.unique(seqs, return_inverse=True)
    return Scored(every, np.asarray(np.bincount(places, scores, len(every)), np.float64))


def query_vector(plan: Plan, embed: EmbedQuery) -> Vectors:
    """The weighted mean direction of the plan's phrases: a unit vector of shape (dimension,)."""
    total = np.sum([p.weight * embed(p.text) for p in plan.phrases], axis=0)
    return np.asarray(total / max(float(np.linalg.norm(total)), 1e-12), np.float32)


def dense_scores(
    columns: Columns,
    candidates: NDArray[np.bool_],
    queries: Vectors,
    middle: float,
    weights: Weights = WEIGHTS,
) -> Scores:
    """The closeness of each row to the queries, of shape (queries, dimension), plus a share of the
    better neighbour's in the section, scaled to 0..1 from `middle` to the best of the `candidates`;
    0 without a vector."""
    raw = _with_neighbours(columns, columns.embedded, queries, weights)
    counted = candidates & columns.embedded
    if not counted.any():
        return np.zeros(len(raw))
    width = max(float(raw[counted].max()) - middle, 1e-9)
    scaled: Scores = np.clip((raw - middle) / width, 0.0, 1.0)
    return np.where(columns.embedded, scaled, 0.0)


def scope_middle(
    sample: Columns, counted: NDArray[np.bool_], queries: Vectors, weights: Weights
) -> float:
    """The median over the `counted` rows of a sample: the score of an unrelated passage."""
    if not counted.any():
        return 0.0
    return float(np.median(_with_neighbours(sample, counted, queries, weights)[counted]))


def _with_neighbours(
    columns: Columns, counted: NDArray[np.bool_], queries: Vectors, weights: Weights
) -> Scores:
    """The mean cosine of each row with the nearest queries, 0 without a vector, plus a share of the
    better neighbour's within its section (in a section of one passage, of that passage). 0 if no
    row counts."""
    if not counted.any():
        return np.zeros(len(columns.vectors))
    each = columns.vectors @ queries.T
    nearest = min(NEAREST_SENTENCES, len(queries))
    cosine = np.partition(each, -nearest)[:, -nearest:].mean(1, dtype=np.float64)
    follows = columns.follows()
    before, after = np.full((2, len(cosine)), -np.inf)
    before[1:][follows] = cosine[:-1][follows]
    after[:-1][follows] = cosine[1:][follows]
    better = np.maximum(before, after)
    near: Scores = cosine + weights.neighbour * np.where(np.isinf(better), cosine, better)
    return near


def _over_best(scored: Scored) -> Scored:
    best = scored.scores.max(initial=0.0)
    if best <= 0:
        return Scored(scored.seqs[:0], scored.scores[:0])
    return Scored(scored.seqs, scored.scores / best)
