"""The ranking: lexical and dense scores of the passages within a scope, fused into one order.

    lexical = passage + SECTION * section, each over its best score, the sum over its own maximum
    dense   = cos(query, passage) + NEIGHBOUR * the better neighbour's, between median and best
    score   = (lexical + DENSE * dense) * prior of prose and code

A normalised sum keeps how much better the best hit is, which rank fusion throws away. The constants
were chosen on the development rows and confirmed on rows that took no part in it
(docs/adr/003-ranking.md, with the ablations).
Deterministic: ties go to the earlier passage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from kb.catalog.knowledge import lexical
from kb.catalog.knowledge.candidates import (
    Columns,
    Rows,
    Sample,
    candidates,
    members_of,
    sample,
    state,
)
from kb.embedding import Vectors
from kb.scope import ALL_ACCESS, ANY, AccessScope, ScopeFilter
from retrieval.plan import Plan
from retrieval.stages import stage


@dataclass(frozen=True)
class Weights:
    """The constants of the ranking; `benchmarks.retrieval.ablation` varies them one by one.

    `passage` and `section` weigh the lexical levels, `heading` the heading column in both, and
    `dense` the dense score beside the lexical one. `neighbour` is the share of the better
    neighbour's cosine. `prose` is the largest share subtracted for a passage without function
    words, `code` the factor on a block of code, and `generic` the factor on a passage that is about
    no chip where a chip was named.
    """

    passage: float = 1.0
    section: float = 2.5
    heading: float = 2.0
    dense: float = 0.9
    neighbour: float = 0.5
    prose: float = 0.2
    code: float = 0.8
    generic: float = 0.6


WEIGHTS = Weights()
PROSE_SHARE = 200  # per mille of function words that running prose reaches
PER_LEVEL: Mapping[lexical.Level, int] = {"passage": 400, "section": 400}  # rows read
BY_WORDS = 500  # passages kept by their words
NEAREST = 200  # and from the vector index
SAMPLE = 300  # passages that stand for a whole scope
MOST_SAMPLES = 500  # that are kept, of 6 KB


class VectorIndex(Protocol):
    """What the ranking needs of a vector index; `kb.index.exact` and `kb.index.chroma` each are
    one.
    """

    @property
    def generation(self) -> int:
        """Grows whenever the index was changed apart from the catalog; what was found before is not
        what is found after.
        """
        ...

    def query(
        self,
        scopes: Sequence[str] | None,
        vector: Vectors,
        limit: int,
        access_scope: AccessScope = ALL_ACCESS,
        transaction: Connection | None = None,
    ) -> dict[int, float]:
        """At most `limit` passages of the scopes (None: all) nearest to a unit vector of shape
        (dimension,), best first: passage number -> cosine. What is read of the catalog is read in
        the `transaction`, where one is given.
        """
        ...


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
    """The passages of equally long columns, in half of the time of a call of `Ranked` for each."""
    rows = zip(seqs, scores, lexical_parts, dense_parts, categories, strict=True)
    return list(map(partial(tuple.__new__, Ranked), rows))


class ScopeSamples:
    """A sample of each scope's vectors, kept until the catalog changes."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._kept: dict[object, tuple[object, Sample]] = {}
        self._lock = threading.Lock()  # protects _kept

    def of(self, connection: Connection, scope: ScopeFilter) -> Rows:
        """About SAMPLE passages of the scope."""
        seen = state(connection)
        with self._lock:
            kept = self._kept.get(scope.key)
        rows = kept[1].rows() if kept is not None and kept[0] == seen else None
        while rows is None:
            fresh = sample(connection, self._model, scope, SAMPLE)
            with self._lock:
                if len(self._kept) >= MOST_SAMPLES:
                    self._kept.clear()
                self._kept[scope.key] = (seen, fresh)
            rows = fresh.rows()
        return rows


EmbedQuery = Callable[[str], Vectors]


@stage("ranking")
def rank(
    connection: Connection,
    plan: Plan,
    scope: ScopeFilter,
    index: VectorIndex,
    embed: EmbedQuery | None,
    model: str,
    samples: ScopeSamples,
    weights: Weights = WEIGHTS,
) -> list[Ranked]:
    """All candidates of a scope, best first; ties go to the earlier passage. Without `embed` they
    are ranked by their words alone. `model` is the fingerprint of the embedding model.
    """
    if plan.empty:
        return []
    words = lexical_scores(connection, plan, scope, model, weights)
    near: dict[int, float] = {}
    vector = query_vector(plan, embed) if embed is not None else None
    if vector is not None:
        near = index.query(scope.hardware, vector, NEAREST, scope.access_scope, connection)
    hits = np.union1d(words.seqs, np.fromiter(near, np.int64, len(near)))
    columns = candidates(connection, hits, model, scope)
    wanted = np.isin(columns.seqs, hits, assume_unique=True)
    lexical_part = np.zeros(len(columns.seqs))
    spoken = np.isin(columns.seqs, words.seqs, assume_unique=True)
    lexical_part[spoken] = words.scores[words.seqs.searchsorted(columns.seqs[spoken])]
    dense = np.zeros(len(columns.seqs))
    if vector is not None:
        middle = scope_middle(samples.of(connection, scope), vector, weights)
        dense = dense_scores(columns, wanted, vector, middle, weights)
    chip_named = scope.hardware is not None and scope.hardware != (ANY,)
    scores = (lexical_part + weights.dense * dense) * _prior(columns, weights, chip_named)
    places = np.flatnonzero(wanted)
    best = places[np.argsort(-scores[places], kind="stable")]
    return ranked_of(
        columns.seqs[best].tolist(),
        scores[best].tolist(),
        lexical_part[best].tolist(),
        dense[best].tolist(),
        columns.categories[best].tolist(),
    )


def mixed(*rankings: Sequence[Ranked]) -> list[Ranked]:
    """Several rankings as one, in turns: the best of each, then the second of each. The scores of
    different questions cannot be compared, so a passage's tells its place: 1 for the first, half of
    that for the hundredth.
    """
    best: dict[int, Ranked] = {}
    for ranked in rankings:
        for place, entry in enumerate(ranked):
            score = 1 / (1 + 0.01 * place)
            if entry.seq not in best or best[entry.seq].score < score:
                best[entry.seq] = entry._replace(score=score)
    return sorted(best.values(), key=lambda entry: -entry.score)  # stable: the first ranking first


def _prior(columns: Columns, weights: Weights, chip_named: bool) -> Scores:
    """The factor on each passage whatever the request: running text answers more often than lists
    and code.
    """
    prose = 1.0 - weights.prose * (1.0 - np.minimum(1.0, columns.prose / PROSE_SHARE))
    code = np.where(columns.code, weights.code, 1.0)
    general = chip_named & (columns.categories != "hardware")
    return prose * code * np.where(general, weights.generic, 1.0)


def lexical_scores(
    connection: Connection,
    plan: Plan,
    scope: ScopeFilter,
    model: str,
    weights: Weights = WEIGHTS,
) -> Scored:
    """The BY_WORDS best passages by their words and their section's, 1.0 for the best. `model` says
    which columns in memory know the members of sections.
    """
    own = _level(connection, "passage", plan, scope, weights)
    sections = _level(connection, "section", plan, scope, weights)
    members = members_of(connection, sections.seqs.tolist(), model)
    of_sections = sections.scores[sections.seqs.searchsorted(members.sections)]
    both = _summed(
        np.concatenate([own.seqs, members.seqs]),
        np.concatenate(
            [weights.passage * own.scores, np.repeat(weights.section * of_sections, members.sizes)]
        ),
    )
    best = np.argsort(-both.scores, kind="stable")[:BY_WORDS]  # of equal ones the earlier passage
    best.sort()
    return _over_best(Scored(both.seqs[best], both.scores[best]))


def _level(
    connection: Connection,
    level: lexical.Level,
    plan: Plan,
    scope: ScopeFilter,
    weights: Weights,
) -> Scored:
    numbers, scores = [np.zeros(0, np.int64)], [np.zeros(0)]
    for group in plan.words:
        matches = lexical.search(
            connection,
            level,
            group.tokens,
            scope,
            heading_weight=weights.heading,
            limit=PER_LEVEL[level],
        )
        numbers.append(np.fromiter(matches, np.int64, len(matches)))
        scores.append(group.weight * np.fromiter(matches.values(), np.float64, len(matches)))
    return _over_best(_summed(np.concatenate(numbers), np.concatenate(scores)))


def _summed(seqs: NDArray[np.int64], scores: Scores) -> Scored:
    """Each number once, with the sum of its scores in their order."""
    every, places = np.unique(seqs, return_inverse=True)
    return Scored(every, np.asarray(np.bincount(places, scores, len(every)), np.float64))


def query_vector(plan: Plan, embed: EmbedQuery) -> Vectors:
    """The weighted mean direction of the plan's phrases: a unit vector of shape (dimension,)."""
    total = np.sum([p.weight * embed(p.text) for p in plan.phrases], axis=0)
    return np.asarray(total / max(float(np.linalg.norm(total)), 1e-12), np.float32)


def dense_scores(
    columns: Columns,
    wanted: NDArray[np.bool_],
    vector: Vectors,
    middle: float,
    weights: Weights = WEIGHTS,
) -> Scores:
    """Of each row, its cosine with a share of the better neighbour's in the section, scaled to 0..1
    from middle to the best of the `wanted`; 0 where it has no vector.
    """
    rows = Rows(columns.vectors, columns.neighbours(), columns.embedded)
    raw = _with_neighbours(rows, vector, weights)
    counted = wanted & columns.embedded
    if not counted.any():
        return np.zeros(len(raw))
    width = max(float(raw[counted].max()) - middle, 1e-9)
    scaled: Scores = np.clip((raw - middle) / width, 0.0, 1.0)
    return np.where(columns.embedded, scaled, 0.0)


def scope_middle(sample: Rows, vector: Vectors, weights: Weights) -> float:
    """The median over a sample of the scope: what an unrelated passage scores."""
    if not sample.counted.any():
        return 0.0
    return float(np.median(_with_neighbours(sample, vector, weights)[sample.counted]))


def _with_neighbours(rows: Rows, vector: Vectors, weights: Weights) -> Scores:
    """The cosine of each row, 0 without a vector, with a share of the better neighbour's within its
    section, or of its own where it stands alone. 0 where none of the rows counts.
    """
    if not rows.counted.any():
        return np.zeros(len(rows.vectors))
    cosine = (rows.vectors @ vector).astype(np.float64)
    before, after = np.full((2, len(cosine)), -np.inf)
    before[1:][rows.follows] = cosine[:-1][rows.follows]
    after[:-1][rows.follows] = cosine[1:][rows.follows]
    better = np.maximum(before, after)
    return cosine + weights.neighbour * np.where(np.isinf(better), cosine, better)


def _over_best(scored: Scored) -> Scored:
    best = scored.scores.max(initial=0.0)
    if best <= 0:
        return Scored(scored.seqs[:0], scored.scores[:0])
    return Scored(scored.seqs, scored.scores / best)
