"""The word index of a segment: BM25 of passages and of sections.

The formula is that of SQLite's FTS5 (https://www.sqlite.org/fts5.html, the bm25 function): k1 = 1.2,
b = 0.75, the length of a row counts the tokens of its scope, heading and body, and a word's inverse
frequency is at least 1e-6. A word in a heading counts `heading_weight` times. Counts of rows are of
the whole snapshot, so scores do not depend on how it is divided into segments.
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
K1, B = 1.2, 0.75
LEAST_IDF = 1e-6
FEW = 2  # one in so many rows, below which a search reads the runs of its scopes alone


class LevelRow(NamedTuple):
    """A row to index: its number, the tokens of its scope, heading and body as tokens."""

    seq: int
    scope_tokens: int
    heading: str
    body: str


@lru_cache(maxsize=200_000)
def word_number(word: str) -> int:
    """A 64-bit number of a word."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def build(level: Level, rows: Sequence[LevelRow], heading_weight: float) -> dict[str, NDArray[Any]]:
    """The arrays of a level. The postings of word w of `words` (ascending numbers) are the places
    `starts[w]` to `starts[w + 1]` of `rows` (ascending) and `counts`; `lengths` are of all rows.
    """
    words: dict[str, int] = {}
    word_of, row_of, counts_of = array("i"), array("i"), array("f")
    lengths = np.empty(len(rows), np.int32)
    for place, row in enumerate(rows):
        heading, body = row.heading.split(), row.body.split()
        lengths[place] = row.scope_tokens + len(heading) + len(body)
        counts: dict[str, float] = Counter(body)  # type: ignore[assignment]
        for word in heading:
            counts[word] = counts.get(word, 0.0) + heading_weight
        for word, count in counts.items():
            word_of.append(words.setdefault(word, len(words)))
            row_of.append(place)
            counts_of.append(count)
    numbers = np.fromiter(map(word_number, words), np.uint64, len(words))
    by_number = np.argsort(numbers)
    rank = np.empty(len(words), np.int64)
    rank[by_number] = np.arange(len(words))
    word = rank[np.frombuffer(word_of, np.int32)] if word_of else np.zeros(0, np.int64)
    places = np.frombuffer(row_of, np.int32) if row_of else np.zeros(0, np.int32)
    order = np.lexsort((places, word))
    return {
        f"{level}_words": numbers[by_number],
        f"{level}_starts": np.searchsorted(word[order], np.arange(len(words) + 1)).astype(np.int64),
        f"{level}_rows": places[order].astype(np.int32),
        f"{level}_counts": (np.frombuffer(counts_of, np.float32) if counts_of else np.zeros(0, np.float32))[order],
        f"{level}_lengths": lengths,
    }


@dataclass(frozen=True, eq=False)
class Postings:
    """The word index of one level of one segment, mapped. `seqs` are the numbers of its rows;
    `dead` are rows that another segment has replaced, ascending.
    """

    seqs: NDArray[np.int64]
    words: NDArray[np.uint64]
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    counts: NDArray[np.float32]
    lengths: NDArray[np.int32]
    dead: NDArray[np.int64]
    dead_words: Mapping[int, int]  # place of a word -> how many dead rows have it

    @property
    def live(self) -> int:
        return len(self.seqs) - len(self.dead)

    @property
    def length(self) -> int:
        """The sum of the lengths of live rows."""
        return int(self.lengths.sum(dtype=np.int64)) - int(self.lengths[self.dead].sum(dtype=np.int64))

    def places(self, numbers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The place of each word, -1 for one that no row has."""
        at = np.searchsorted(self.words, numbers)
        at[at == len(self.words)] = 0
        found = self.words[at] == numbers if len(self.words) else np.zeros(len(numbers), np.bool_)
        return np.where(found, at, -1)

    def frequency(self, place: int) -> int:
        """How many live rows have a word."""
        return int(self.starts[place + 1] - self.starts[place]) - self.dead_words.get(place, 0)


class Found(NamedTuple):
    """Rows by number, with the score of each."""

    seqs: NDArray[np.int64]
    scores: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WordIndex:
    """One level of a snapshot."""

    segments: tuple[Postings, ...]
    count: int  # live rows
    average: float  # their mean length

    @classmethod
    def of(cls, segments: Sequence[Postings]) -> WordIndex:
        count = sum(segment.live for segment in segments)
        total = sum(segment.length for segment in segments)
        return cls(tuple(segments), count, total / count if count else 1.0)

    def search(
        self, tokens: Sequence[str], admitted: Sequence[NDArray[np.int64]], limit: int
    ) -> dict[int, float]:
        """The rows with any of the tokens, best first: number -> BM25 (> 0); of equal ones the
        earlier. `admitted` has, for each segment, where each run of rows of the scope begins and
        ends, in turn.
        """
        numbers = np.fromiter(map(word_number, tokens), np.uint64, len(tokens))
        places = [segment.places(numbers) for segment in self.segments]
        idf = [self._idf(places, n) for n in range(len(numbers))]
        found = [
            self._found(segment, at, idf, bounds)
            for segment, at, bounds in zip(self.segments, places, admitted, strict=True)
            if len(bounds)
        ]
        if not found:
            return {}
        seqs = np.concatenate([part.seqs for part in found])
        scores = np.concatenate([part.scores for part in found])
        hits = np.flatnonzero(scores > 0)  # of booleans: ten times as fast as of the numbers
        if len(hits) > limit:
            values = scores[hits]
            least = np.partition(values, len(values) - limit)[len(values) - limit]
            hits = hits[values >= least]
        best = hits[np.lexsort((seqs[hits], -scores[hits]))][:limit]
        return dict(zip(seqs[best].tolist(), scores[best].tolist(), strict=True))

    def _idf(self, places: Sequence[NDArray[np.int64]], word: int) -> float:
        """Of a word, over all segments."""
        frequency = sum(
            segment.frequency(int(at[word]))
            for segment, at in zip(self.segments, places, strict=True)
            if at[word] >= 0
        )
        idf = math.log((self.count - frequency + 0.5) / (frequency + 0.5))
        return idf if idf > 0 else LEAST_IDF

    def _found(
        self,
        segment: Postings,
        places: NDArray[np.int64],
        idf: Sequence[float],
        bounds: NDArray[np.int64],
    ) -> Found:
        known = [(int(place), idf[n]) for n, place in enumerate(places) if place >= 0]
        size = int((bounds[1::2] - bounds[::2]).sum())
        if not known or not size:
            return Found(np.zeros(0, np.int64), np.zeros(0))
        if size * FEW < len(segment.seqs):
            found, scores, rows = self._of_runs(segment, known, bounds, size)
        else:
            found, scores, rows = self._of_all(segment, known, bounds)
        if len(segment.dead):
            scores[np.isin(rows, segment.dead, assume_unique=True)] = 0.0
        return Found(found, scores)

    def _of_runs(
        self,
        segment: Postings,
        known: Sequence[tuple[int, float]],
        bounds: NDArray[np.int64],
        size: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """The admitted rows alone. The postings of each word are cut to the runs of the scope."""
        cuts = np.array([self._cut(segment, place, bounds) for place, _ in known], np.int64)
        starts, sizes = cuts[:, ::2].ravel(), (cuts[:, 1::2] - cuts[:, ::2]).ravel()
        before = np.cumsum(sizes) - sizes
        postings = np.arange(sizes.sum()) + np.repeat(starts - before, sizes)
        weights = np.repeat(np.repeat([idf for _, idf in known], len(bounds) // 2), sizes)
        rows = segment.rows[postings]
        runs = bounds[1::2] - bounds[::2]
        skipped = bounds[::2] - (np.cumsum(runs) - runs)  # rows of other scopes before each run
        within = rows - np.repeat(np.tile(skipped, len(known)), sizes)
        shares = self._shares(segment, postings, rows)
        pieces = [np.arange(a, b) for a, b in zip(bounds[::2].tolist(), bounds[1::2].tolist(), strict=True)]
        every = np.concatenate(pieces)
        return segment.seqs[every], _added(within, shares * weights, size), every

    def _of_all(
        self, segment: Postings, known: Sequence[tuple[int, float]], bounds: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        """All rows; those that are not admitted have 0."""
        spans = [slice(int(segment.starts[p]), int(segment.starts[p + 1])) for p, _ in known]
        rows = np.concatenate([segment.rows[span] for span in spans])
        weights = [
            self._shares(segment, span, segment.rows[span]) * idf
            for span, (_, idf) in zip(spans, known, strict=True)
        ]
        scores = _added(rows, np.concatenate(weights), len(segment.seqs))
        outside = [0, *bounds.tolist(), len(segment.seqs)]
        for a, b in zip(outside[::2], outside[1::2], strict=True):
            scores[a:b] = 0.0
        return segment.seqs, scores, np.arange(len(segment.seqs))

    def _shares(self, segment: Postings, postings: Any, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """The share of each posting in the score of its row, before the word's frequency."""
        found = segment.counts[postings].astype(np.float64)
        length = segment.lengths[rows].astype(np.float64)
        return found * (K1 + 1.0) / (found + (K1 * (1 - B + B * length / self.average)))

    @staticmethod
    def _cut(segment: Postings, place: int, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the postings of a word reach each of these rows."""
        start, stop = int(segment.starts[place]), int(segment.starts[place + 1])
        return segment.rows[start:stop].searchsorted(bounds) + start


def _added(
    rows: NDArray[Any], weights: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """The sum of the weights of each of `count` rows."""
    return np.asarray(np.bincount(rows, weights, count), np.float64)
