"""The word indexes of segments: BM25 of passages and of sections.

The formula is that of SQLite's FTS5 (https://www.sqlite.org/fts5.html, `bm25`): k1 = 1.2, b = 0.75,
the length of a row counts the tokens of its scope, heading and body, and a word's inverse frequency
is at least 1e-6. A word in a heading counts `heading_weight` times. Rows are counted over the whole
snapshot, so scores do not depend on how it is divided into segments; for a caller who may not see
all of it, over the rows that the caller sees, so that scores say nothing about the others.

Arrays of a level: the postings of word w of `words` (numbers, ascending) are the places `starts[w]`
to `starts[w + 1]` of `postings` (rows, ascending) and `counts`; `lengths` are of all rows.
"""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Level = Literal["passage", "section"]
LEVELS: tuple[Level, ...] = ("passage", "section")
K1, B = 1.2, 0.75
LEAST_IDF = 1e-6
HEADING_WEIGHT = 2.0  # of a word in a heading; tuned with the weights of the ranking
FEW = 2  # share of rows (one in this many) below which a search reads only the runs of its scopes
Scores = NDArray[np.float64]


class LevelRow(NamedTuple):
    """A row to index: the number of tokens of its scope, its heading and body as tokens."""

    scope_tokens: int
    heading: str
    body: str


@lru_cache(maxsize=200_000)
def word_number(word: str) -> int:
    """A 64-bit number of a word."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


class _Places(dict[str, int]):
    """A place for each word, in the order in which they are asked for."""

    def __missing__(self, word: str) -> int:
        self[word] = len(self)
        return self[word]


def index_words(
    level: Level, rows: Sequence[LevelRow], heading_weight: float
) -> dict[str, NDArray[Any]]:
    words = _Places()
    word_of, count_of = array("i"), array("f")
    sizes = np.empty(len(rows), np.int64)
    lengths = np.empty(len(rows), np.int32)
    for place, row in enumerate(rows):
        heading, body = row.heading.split(), row.body.split()
        lengths[place] = row.scope_tokens + len(heading) + len(body)
        counts: dict[str, float] = dict(Counter(body))
        for word in heading:
            counts[word] = counts.get(word, 0.0) + heading_weight
        word_of.extend(map(words.__getitem__, counts))
        count_of.extend(counts.values())
        sizes[place] = len(counts)
    numbers = np.fromiter(map(word_number, words), np.uint64, len(words))
    return _arrays(
        level,
        numbers[np.array(word_of, np.int32)],
        np.repeat(np.arange(len(rows), dtype=np.int32), sizes),
        np.array(count_of, np.float32),
        lengths,
    )


def merge_words(
    level: Level,
    parts: Sequence[tuple[Mapping[str, NDArray[Any]], NDArray[np.int64]]],
    places: NDArray[np.int64],
) -> dict[str, NDArray[Any]]:
    """The arrays of the level of several segments, each with its remaining rows; `places` maps
    these to their new rows, segment by segment."""
    numbers, rows, counts = [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)], [np.zeros(0, "f4")]
    lengths = np.empty(len(places), np.int32)
    first = 0
    for arrays, remaining in parts:
        own = places[first : first + len(remaining)]
        first += len(remaining)
        lengths[own] = arrays[f"{level}_lengths"][remaining]
        new = np.full(len(arrays[f"{level}_lengths"]), -1, np.int32)
        new[remaining] = own
        of_posting = new[arrays[f"{level}_postings"]]
        left = of_posting >= 0
        sizes = np.diff(arrays[f"{level}_starts"])
        numbers.append(np.repeat(arrays[f"{level}_words"], sizes)[left])
        rows.append(of_posting[left])
        counts.append(arrays[f"{level}_counts"][left])
    joined = np.concatenate(numbers), np.concatenate(rows), np.concatenate(counts)
    return _arrays(level, *joined, lengths)


def _arrays(
    level: Level,
    numbers: NDArray[np.uint64],
    rows: NDArray[np.int32],
    counts: NDArray[np.float32],
    lengths: NDArray[np.int32],
) -> dict[str, NDArray[Any]]:
    """Build the arrays from postings in any order."""
    order = np.lexsort((rows, numbers))
    words, starts = np.unique(numbers[order], return_index=True)
    return {
        f"{level}_words": words,
        f"{level}_starts": np.append(starts, len(numbers)).astype(np.int64),
        f"{level}_postings": rows[order],
        f"{level}_counts": counts[order],
        f"{level}_lengths": lengths,
    }


@dataclass(frozen=True, eq=False)
class Postings:
    """The word index of one level of one segment. `seqs` are the numbers of its rows; `dead` are
    rows that another segment has replaced, ascending; `dead_words` is the number of dead rows with
    each word, by index of the word."""

    seqs: NDArray[np.int64]
    words: NDArray[np.uint64]
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    counts: NDArray[np.float32]
    lengths: NDArray[np.int32]
    dead: NDArray[np.int64]
    dead_words: Mapping[int, int]

    @classmethod
    def of(
        cls,
        level: Level,
        arrays: Mapping[str, NDArray[Any]],
        seqs: NDArray[np.int64],
        dead: NDArray[np.int64],
    ) -> Postings:
        """The index of a segment with these arrays."""
        rows, starts = arrays[f"{level}_postings"], arrays[f"{level}_starts"]
        dead_words: dict[int, int] = {}
        if len(dead):
            hit = np.flatnonzero(np.isin(rows, dead))
            words, counts = np.unique(np.searchsorted(starts, hit, "right") - 1, return_counts=True)
            dead_words = dict(zip(words.tolist(), counts.tolist(), strict=True))
        return cls(
            seqs,
            arrays[f"{level}_words"],
            starts,
            rows,
            arrays[f"{level}_counts"],
            arrays[f"{level}_lengths"],
            dead,
            dead_words,
        )

    @property
    def live(self) -> int:
        return len(self.seqs) - len(self.dead)

    @property
    def length(self) -> int:
        """The sum of the lengths of live rows."""
        dead = self.lengths[self.dead].sum(dtype=np.int64)
        return int(self.lengths.sum(dtype=np.int64) - dead)

    def places(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The index of each word, -1 for an absent one."""
        if not len(self.words):
            return np.full(len(numbers), -1)
        at = np.searchsorted(self.words, numbers)
        at[at == len(self.words)] = 0
        return np.where(self.words[at] == numbers, at, -1)

    def frequency(self, place: int, counted: NDArray[np.int64] | None) -> int:
        """The number of live rows with a word, among the `counted` runs of rows (None: all)."""
        if counted is None:
            return int(self.starts[place + 1] - self.starts[place]) - self.dead_words.get(place, 0)
        cut = _cut(self, place, counted)
        dead = np.intersect1d(self.rows[self.starts[place] : self.starts[place + 1]], self.dead)
        inside = counted.searchsorted(dead, "right") % 2  # a run begins before and ends after it
        return int((cut[1::2] - cut[::2]).sum() - inside.sum())

    def rows_of(self, counted: NDArray[np.int64]) -> NDArray[np.int64]:
        """The live rows of these runs."""
        runs = zip(counted[::2].tolist(), counted[1::2].tolist(), strict=True)
        every = np.concatenate([np.zeros(0, np.int64), *(np.arange(*run) for run in runs)])
        rows: NDArray[np.int64] = np.setdiff1d(every, self.dead, assume_unique=True)
        return rows


class _Found(NamedTuple):
    seqs: NDArray[np.int64]
    scores: Scores


@dataclass(frozen=True, eq=False)
class WordIndex:
    """One level of a snapshot. `count` is the number of live rows, `average` their mean length.
    `counted` are the runs of rows of each segment over which words are counted (None: all)."""

    segments: tuple[Postings, ...]
    count: int
    average: float
    counted: tuple[NDArray[np.int64], ...] | None = None

    @classmethod
    def of(cls, segments: Sequence[Postings]) -> WordIndex:
        """The index over several segments."""
        count = sum(segment.live for segment in segments)
        total = sum(segment.length for segment in segments)
        return cls(tuple(segments), count, total / count if count else 1.0)

    def counted_over(self, runs: Sequence[NDArray[np.int64]]) -> WordIndex:
        """The same index with words counted over these runs of rows, one array for each segment."""
        rows = [s.rows_of(part) for s, part in zip(self.segments, runs, strict=True)]
        count = sum(map(len, rows))
        total = sum(int(s.lengths[r].sum()) for s, r in zip(self.segments, rows, strict=True))
        return WordIndex(self.segments, count, total / count if count else 1.0, tuple(runs))

    def search(
        self, tokens: Sequence[str], admitted: Sequence[NDArray[np.int64]], limit: int
    ) -> dict[int, float]:
        """The rows with any of the tokens, best first: number -> BM25 (> 0); ties go to the earlier
        row. `admitted` has, for each segment, the start and end of each run of rows in the scope,
        alternating."""
        numbers = np.fromiter(map(word_number, tokens), np.uint64, len(tokens))
        places = [segment.places(numbers) for segment in self.segments]
        weights = [self._inverse_frequency(places, n) for n in range(len(numbers))]
        found = [
            self._found(segment, at, weights, bounds)
            for segment, at, bounds in zip(self.segments, places, admitted, strict=True)
            if len(bounds)
        ]
        if not found:
            return {}
        seqs = np.concatenate([part.seqs for part in found])
        scores = np.concatenate([part.scores for part in found])
        hits = np.flatnonzero(scores > 0)  # on booleans ten times as fast as on numbers
        if len(hits) > limit:
            values = scores[hits]
            least = np.partition(values, len(values) - limit)[len(values) - limit]
            hits = hits[values >= least]
        best = hits[np.lexsort((seqs[hits], -scores[hits]))][:limit]
        return dict(zip(seqs[best].tolist(), scores[best].tolist(), strict=True))

    def _inverse_frequency(self, places: Sequence[NDArray[np.int64]], word: int) -> float:
        counted = self.counted or (None,) * len(self.segments)
        frequency = sum(
            segment.frequency(int(at[word]), runs)
            for segment, at, runs in zip(self.segments, places, counted, strict=True)
            if at[word] >= 0
        )
        idf = math.log((self.count - frequency + 0.5) / (frequency + 0.5))
        return idf if idf > 0 else LEAST_IDF

    def _found(
        self,
        segment: Postings,
        places: NDArray[np.int64],
        weights: Sequence[float],
        bounds: NDArray[np.int64],
    ) -> _Found:
        known = [(place, weights[n]) for n, place in enumerate(places.tolist()) if place >= 0]
        size = int((bounds[1::2] - bounds[::2]).sum())
        if not known or not size:
            return _Found(np.zeros(0, np.int64), np.zeros(0))
        of_words = self._of_runs if size * FEW < len(segment.seqs) else self._of_all
        rows, scores = of_words(segment, known, bounds, size)
        if len(segment.dead):
            scores[np.isin(rows, segment.dead, assume_unique=True)] = 0.0
        return _Found(segment.seqs[rows], scores)

    def _of_runs(
        self,
        segment: Postings,
        known: Sequence[tuple[int, float]],
        bounds: NDArray[np.int64],
        size: int,
    ) -> tuple[NDArray[np.int64], Scores]:
        """Scores of the admitted rows. The postings of each word are cut to the scope's runs."""
        cuts = np.array([_cut(segment, place, bounds) for place, _ in known], np.int64)
        starts, sizes = cuts[:, ::2].ravel(), (cuts[:, 1::2] - cuts[:, ::2]).ravel()
        before = np.cumsum(sizes) - sizes
        postings = np.arange(sizes.sum()) + np.repeat(starts - before, sizes)
        weights = np.repeat(np.repeat([idf for _, idf in known], len(bounds) // 2), sizes)
        runs = bounds[1::2] - bounds[::2]
        before_run = np.cumsum(runs) - runs
        skipped = bounds[::2] - before_run  # rows of other scopes before each run
        rows = segment.rows[postings]
        within = rows - np.repeat(np.tile(skipped, len(known)), sizes)
        scores = _summed(within, self._shares(segment, postings, rows) * weights, size)
        return np.arange(size) + np.repeat(skipped, runs), scores

    def _of_all(
        self,
        segment: Postings,
        known: Sequence[tuple[int, float]],
        bounds: NDArray[np.int64],
        size: int,
    ) -> tuple[NDArray[np.int64], Scores]:
        """Scores of all rows; 0 for those that are not admitted."""
        spans = [slice(int(segment.starts[p]), int(segment.starts[p + 1])) for p, _ in known]
        rows = np.concatenate([segment.rows[span] for span in spans])
        weights = [
            self._shares(segment, span, segment.rows[span]) * idf
            for span, (_, idf) in zip(spans, known, strict=True)
        ]
        scores = _summed(rows, np.concatenate(weights), len(segment.seqs))
        outside = [0, *bounds.tolist(), len(segment.seqs)]
        for start, stop in zip(outside[::2], outside[1::2], strict=True):
            scores[start:stop] = 0.0
        return np.arange(len(segment.seqs)), scores

    def _shares(
        self, segment: Postings, postings: NDArray[np.int64] | slice, rows: NDArray[np.int32]
    ) -> Scores:
        """The share of each posting in the score of its row, before the word's weight."""
        found = segment.counts[postings].astype(np.float64)
        length = segment.lengths[rows].astype(np.float64)
        shares: Scores = found * (K1 + 1.0) / (found + (K1 * (1 - B + B * length / self.average)))
        return shares


def _cut(segment: Postings, place: int, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """The position in the postings of a word at which each of these rows begins."""
    start, stop = int(segment.starts[place]), int(segment.starts[place + 1])
    cut: NDArray[np.int64] = segment.rows[start:stop].searchsorted(bounds) + start
    return cut


def _summed(rows: NDArray[Any], weights: Scores, count: int) -> Scores:
    """The sum of the weights of each of `count` rows."""
    return np.asarray(np.bincount(rows, weights, count), np.float64)
