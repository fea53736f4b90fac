"""The lexical index in memory: the same rows, the same scores, without the walk through SQL.

FTS5 computes BM25 row by row and counts, for each word of a query, its rows of the whole store; a
request asks for up to a hundred words. Here the share of each word in each row is computed once, so
a search adds up a few arrays. The lexical tables stay what is written, checked and erased: this is
made from them, for one state of them, and a transaction that sees another state asks FTS5, which
gives the same rows in the same order.

The formula is FTS5's (https://www.sqlite.org/fts5.html, the bm25 function): k1 = 1.2, b = 0.75, the
length of a row counts the tokens of all its columns, and a word's inverse frequency is at least
1e-6.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

K1, B = 1.2, 0.75
LEAST_IDF = 1e-6
MOST_SCOPES = 1_000  # whose rows are known, of 100 bytes
FEW = 2  # one in so many rows, below which a search reads those of its scopes alone


@dataclass(frozen=True)
class IndexedRow:
    """A row as it stands in a lexical table: its number and its three columns."""

    seq: int
    scope: str
    heading: str
    body: str


@dataclass(frozen=True, eq=False)
class WordIndex:
    """One level. Rows `seqs` stand scope by scope: those of scope s are at the places
    `first_of_scope[s]` to `first_of_scope[s + 1]`, in the order of their numbers. The postings of
    word w are the places `starts[w]` to `starts[w + 1]` of `rows` and `shares`.
    """

    heading_weight: float
    words: dict[str, int]
    seqs: NDArray[np.int64]
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    shares: NDArray[np.float64]
    scopes: tuple[frozenset[str], ...]
    first_of_scope: NDArray[np.int64]
    _admitted: dict[object, _Admitted] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # protects _admitted

    def search(
        self,
        tokens: Sequence[str],
        key: object,
        admits: Callable[[frozenset[str]], bool],
        limit: int,
    ) -> dict[int, float]:
        """The rows with any of the tokens whose scope is admitted, best first: number -> BM25.
        `key` is equal for predicates that admit the same scopes.
        """
        ids = [self.words[token] for token in tokens if token in self.words]
        admitted = self._rows_of(key, admits)
        if not ids or not admitted.rows:
            return {}
        # Of few rows its time is theirs, however large the store is.
        few = admitted.rows * FEW < len(self.seqs)
        seqs, scores = (self._of_few if few else self._of_many)(ids, admitted)
        places = np.flatnonzero(scores > 0)  # of booleans: ten times as fast as of the numbers
        if len(places) > limit:
            values = scores[places]
            least = np.partition(values, len(values) - limit)[len(values) - limit]
            places = places[values >= least]
        best = places[np.lexsort((seqs[places], -scores[places]))][:limit]
        return dict(zip(seqs[best].tolist(), scores[best].tolist(), strict=True))

    def _of_few(self, ids: Sequence[int], admitted: _Admitted) -> _Scored:
        """The admitted rows alone. The postings of each word are cut to the runs of the scope."""
        bounds = admitted.bounds
        cuts = np.array([self._cut(word, bounds) for word in ids], np.int64)
        starts, sizes = cuts[:, ::2].ravel(), (cuts[:, 1::2] - cuts[:, ::2]).ravel()
        before = np.cumsum(sizes) - sizes
        postings = np.arange(sizes.sum()) + np.repeat(starts - before, sizes)
        idf = np.array([self._idf(self._postings_of(word)) for word in ids])
        weights = self.shares[postings] * np.repeat(np.repeat(idf, len(bounds) // 2), sizes)
        runs = bounds[1::2] - bounds[::2]
        skipped = bounds[::2] - (np.cumsum(runs) - runs)  # rows of other scopes before each run
        rows = self.rows[postings] - np.repeat(np.tile(skipped, len(ids)), sizes)
        pieces = [self.seqs[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True)]
        return _Scored(np.concatenate(pieces), _added(rows, weights, admitted.rows))

    def _cut(self, word: int, bounds: NDArray[np.int32]) -> NDArray[np.int64]:
        """Where the postings of a word reach each of these rows."""
        start, stop = int(self.starts[word]), int(self.starts[word + 1])
        return self.rows[start:stop].searchsorted(bounds) + start

    def _of_many(self, ids: Sequence[int], admitted: _Admitted) -> _Scored:
        """All rows; those that are not admitted have 0."""
        spans = [slice(int(self.starts[word]), int(self.starts[word + 1])) for word in ids]
        weights = [self.shares[span] * self._idf(span.stop - span.start) for span in spans]
        rows = np.concatenate([self.rows[span] for span in spans])
        scores = _added(rows, np.concatenate(weights), len(self.seqs))
        outside = [0, *admitted.bounds.tolist(), len(self.seqs)]
        for a, b in zip(outside[::2], outside[1::2], strict=True):
            scores[a:b] = 0.0
        return _Scored(self.seqs, scores)

    def _postings_of(self, word: int) -> int:
        return int(self.starts[word + 1] - self.starts[word])

    def _idf(self, rows: int) -> float:
        idf = math.log((len(self.seqs) - rows + 0.5) / (rows + 0.5))
        return idf if idf > 0 else LEAST_IDF

    def _rows_of(self, key: object, admits: Callable[[frozenset[str]], bool]) -> _Admitted:
        with self._lock:
            known = self._admitted.get(key)
        if known is not None:
            return known
        inside = np.fromiter(map(admits, self.scopes), np.bool_, len(self.scopes))
        edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
        bounds = self.first_of_scope[edges].astype(np.int32)
        admitted = _Admitted(bounds, int((bounds[1::2] - bounds[::2]).sum()))
        with self._lock:
            if len(self._admitted) >= MOST_SCOPES:
                self._admitted.clear()
            self._admitted[key] = admitted
        return admitted


class _Scored(NamedTuple):
    """Rows by number, with the score of each."""

    seqs: NDArray[np.int64]
    scores: NDArray[np.float64]


def _added(
    rows: NDArray[np.int32], weights: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """The sum of the weights of each of `count` rows."""
    return np.asarray(np.bincount(rows, weights, count), np.float64)


@dataclass(frozen=True, eq=False)
class _Admitted:
    """The rows of some scopes: how many, and where each run of them begins and ends, in turn."""

    bounds: NDArray[np.int32]
    rows: int


def build(rows: Iterable[IndexedRow], heading_weight: float) -> WordIndex:
    """The index of rows that come in the order of their numbers."""
    words: dict[str, int] = {}
    scopes: dict[str, int] = {}
    seqs, scope_of_row, lengths = array("q"), array("i"), array("i")
    word_of, row_of, frequency = array("i"), array("i"), array("d")
    for place, row in enumerate(rows):
        seqs.append(row.seq)
        scope_of_row.append(scopes.setdefault(row.scope, len(scopes)))
        heading, body = row.heading.split(), row.body.split()
        lengths.append(len(row.scope.split()) + len(heading) + len(body))
        counts: dict[str, float] = Counter(body)  # type: ignore[assignment]
        for word in heading:
            counts[word] = counts.get(word, 0.0) + heading_weight
        for word, count in counts.items():
            word_of.append(words.setdefault(word, len(words)))
            row_of.append(place)
            frequency.append(count)
    names = sorted(scopes, key=_by_hardware)
    rank = np.empty(len(scopes), np.int64)
    rank[[scopes[name] for name in names]] = np.arange(len(scopes))
    ranks = rank[np.asarray(scope_of_row, np.int64)]
    by_scope = np.argsort(ranks, kind="stable")
    place_of = np.empty(len(seqs), np.int32)
    place_of[by_scope] = np.arange(len(seqs))
    by_word = np.frombuffer(word_of, np.int32) if word_of else np.zeros(0, np.int32)
    places = place_of[np.asarray(row_of, np.int32)]
    order = np.argsort(by_word.astype(np.int64) * len(seqs) + places)  # no two are equal
    places = places[order]
    length = np.asarray(lengths, np.float64)[by_scope]
    average = float(length.mean()) if len(length) else 1.0
    found = np.asarray(frequency, np.float64)[order]
    shares = found * (K1 + 1.0) / (found + (K1 * (1 - B + B * length / average))[places])
    return WordIndex(
        heading_weight,
        words,
        np.asarray(seqs, np.int64)[by_scope],
        np.searchsorted(by_word[order], np.arange(len(words) + 1)),
        places,
        shares,
        tuple(frozenset(name.split()) for name in names),
        np.searchsorted(ranks[by_scope], np.arange(len(names) + 1)),
    )


def _by_hardware(scope: str) -> tuple[str, str]:
    """An order in which scopes about one hardware stand together, whatever their category: the
    tokens of places end with it.
    """
    return scope.partition(" ")[0][::-1], scope
