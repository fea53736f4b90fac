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
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from sqlalchemy import Connection

from kb.catalog.knowledge import lexical, passages
from kb.catalog.knowledge.candidates import Candidate, candidates, sample
from kb.catalog.knowledge.embeddings import index_state
from kb.embedding import Vectors
from kb.scope import ALL_ACCESS, ANY, AccessScope, ScopeFilter
from retrieval.plan import Plan


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


class VectorIndex(Protocol):
    """What the ranking needs of a vector index; `kb.index.exact` and `kb.index.chroma` each are
    one.
    """

    def query(
        self,
        scopes: Sequence[str] | None,
        vector: Vectors,
        limit: int,
        access_scope: AccessScope = ALL_ACCESS,
    ) -> dict[int, float]:
        """At most `limit` passages of the scopes (None: all) nearest to a unit vector of shape
        (dimension,), best first: passage number -> cosine.
        """
        ...


@dataclass(frozen=True)
class Ranked:
    """One passage by number, with its score and the parts of it: lexical and dense, each 0 to 1."""

    seq: int
    score: float
    lexical: float
    dense: float
    category: str


class ScopeSamples:
    """A sample of each scope's vectors, kept until the catalog changes."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._kept: dict[object, tuple[tuple[int, int], dict[int, Candidate]]] = {}
        self._lock = threading.Lock()  # protects _kept

    def of(self, connection: Connection, scope: ScopeFilter) -> dict[int, Candidate]:
        """At most SAMPLE passages of the scope, by number."""
        state = index_state(connection)
        with self._lock:
            kept = self._kept.get(scope.key)
        if kept is not None and kept[0] == state:
            return kept[1]
        fresh = sample(connection, self._model, scope, SAMPLE)
        with self._lock:
            self._kept[scope.key] = (state, fresh)
        return fresh


EmbedQuery = Callable[[str], Vectors]


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
    words = lexical_scores(connection, plan, scope, weights)
    near: dict[int, float] = {}
    vector = query_vector(plan, embed) if embed is not None else None
    if vector is not None:
        near = index.query(scope.hardware, vector, NEAREST, scope.access_scope)
    by_seq = candidates(connection, {*words, *near}, model, scope)
    dense: dict[int, float] = {}
    if vector is not None:
        middle = scope_middle(samples.of(connection, scope), vector, weights)
        dense = dense_scores(by_seq, vector, middle, weights)
    chip_named = scope.hardware is not None and scope.hardware != (ANY,)
    ranked = []
    for seq, candidate in by_seq.items():
        if not candidate.wanted:
            continue
        word, meaning = words.get(seq, 0.0), dense.get(seq, 0.0)
        score = (word + weights.dense * meaning) * _prior(candidate, weights, chip_named)
        ranked.append(Ranked(seq, score, word, meaning, candidate.category))
    return sorted(ranked, key=lambda r: (-r.score, r.seq))


def _prior(candidate: Candidate, weights: Weights, chip_named: bool) -> float:
    """The factor on a passage whatever the request: running text answers more often than lists and
    code.
    """
    prose = 1.0 - weights.prose * (1.0 - min(1.0, candidate.prose / PROSE_SHARE))
    code = weights.code if candidate.kind == "code" else 1.0
    generic = weights.generic if chip_named and candidate.category != "hardware" else 1.0
    return prose * code * generic


def lexical_scores(
    connection: Connection, plan: Plan, scope: ScopeFilter, weights: Weights = WEIGHTS
) -> dict[int, float]:
    """The BY_WORDS best passages by their words and their section's: number -> score, 1.0 for the
    best.
    """
    total: dict[int, float] = defaultdict(float)
    for seq, score in _level(connection, "passage", plan, scope, weights).items():
        total[seq] += weights.passage * score
    sections = _level(connection, "section", plan, scope, weights)
    for section, seqs in passages.sections_of(connection, sections).items():
        for seq in seqs:
            total[seq] += weights.section * sections[section]
    best = sorted(total.items(), key=lambda item: (-item[1], item[0]))[:BY_WORDS]
    return _over_best(dict(best))


def _level(
    connection: Connection,
    level: lexical.Level,
    plan: Plan,
    scope: ScopeFilter,
    weights: Weights,
) -> dict[int, float]:
    scores: dict[int, float] = defaultdict(float)
    for group in plan.words:
        matches = lexical.search(
            connection,
            level,
            group.tokens,
            scope,
            heading_weight=weights.heading,
            limit=PER_LEVEL[level],
        )
        for seq, score in matches.items():
            scores[seq] += group.weight * score
    return _over_best(scores)


def query_vector(plan: Plan, embed: EmbedQuery) -> Vectors:
    """The weighted mean direction of the plan's phrases: a unit vector of shape (dimension,)."""
    total = np.sum([p.weight * embed(p.text) for p in plan.phrases], axis=0)
    return np.asarray(total / max(float(np.linalg.norm(total)), 1e-12), np.float32)


def dense_scores(
    by_seq: Mapping[int, Candidate], vector: Vectors, middle: float, weights: Weights = WEIGHTS
) -> dict[int, float]:
    """Cosine with a share of the better neighbour in the section, scaled to 0..1 from middle to
    best.
    """
    cosine = _cosines(by_seq, vector)
    raw = _with_neighbours(by_seq, cosine, weights)
    if not raw:
        return {}
    best = max(raw.values())
    width = max(best - middle, 1e-9)
    return {seq: min(1.0, max(0.0, (value - middle) / width)) for seq, value in raw.items()}


def scope_middle(sample: Mapping[int, Candidate], vector: Vectors, weights: Weights) -> float:
    """The median over a sample of the scope: what an unrelated passage scores."""
    cosine = _cosines(sample, vector)
    raw = _with_neighbours(sample, cosine, weights)
    return float(np.median(list(raw.values()))) if raw else 0.0


def _cosines(by_seq: Mapping[int, Candidate], vector: Vectors) -> dict[int, float]:
    vectors = {seq: c.vector for seq, c in by_seq.items() if c.vector is not None}
    if not vectors:
        return {}
    cosines = np.stack(list(vectors.values())) @ vector
    return dict(zip(vectors, cosines.tolist(), strict=True))


def _with_neighbours(
    by_seq: Mapping[int, Candidate], cosine: Mapping[int, float], weights: Weights
) -> dict[int, float]:
    return {
        seq: value + weights.neighbour * _better_neighbour(seq, by_seq, cosine)
        for seq, value in cosine.items()
        if by_seq[seq].wanted
    }


def _better_neighbour(
    seq: int, by_seq: Mapping[int, Candidate], cosine: Mapping[int, float]
) -> float:
    section = by_seq[seq].section_id
    beside = (n for n in (seq - 1, seq + 1) if n in by_seq and by_seq[n].section_id == section)
    return max((cosine.get(n, 0.0) for n in beside), default=cosine[seq])


def _over_best(scores: Mapping[int, float]) -> dict[int, float]:
    best = max(scores.values(), default=0.0)
    return {seq: score / best for seq, score in scores.items()} if best > 0 else {}
