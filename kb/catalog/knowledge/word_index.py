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

import numpy as np
from numpy.typing import NDArray

K1, B = 1.2, 0.75
LEAST_IDF = 1e-6
MOST_SCOPES = 256  # whose masks are kept, of a byte a row


@dataclass(frozen=True)
class IndexedRow:
    """A row as it stands in a lexical table: its number and its three columns."""

    seq: int
    scope: str
    heading: str
    body: str


@dataclass(frozen=True, eq=False)
class WordIndex:
    """One level. Rows are in the order of their numbers `seqs`; the postings of word w are the
    places `starts[w]` to `starts[w + 1]` of `rows` and `shares`.
    """

    heading_weight: float
    words: dict[str, int]
    seqs: NDArray[np.int64]
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    shares: NDArray[np.float64]
    scopes: tuple[frozenset[str], ...]
    scope_of_row: NDArray[np.int32]
    _masks: dict[object, NDArray[np.bool_]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # protects _masks

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
        if not ids:
            return {}
        spans = [(int(self.starts[i]), int(self.starts[i + 1])) for i in ids]
        weights = np.concatenate([self.shares[a:b] * self._idf(b - a) for a, b in spans])
        rows = np.concatenate([self.rows[a:b] for a, b in spans])
        scores = np.bincount(rows, weights, len(self.seqs))
        scores[~self._mask(key, admits)] = 0.0
        places = np.flatnonzero(scores)
        if len(places) > limit:
            values = scores[places]
            least = np.partition(values, len(values) - limit)[len(values) - limit]
            places = places[values >= least]
        best = places[np.argsort(-scores[places], kind="stable")][:limit]
        return dict(zip(self.seqs[best].tolist(), scores[best].tolist(), strict=True))

    def _idf(self, rows: int) -> float:
        idf = math.log((len(self.seqs) - rows + 0.5) / (rows + 0.5))
        return idf if idf > 0 else LEAST_IDF

    def _mask(self, key: object, admits: Callable[[frozenset[str]], bool]) -> NDArray[np.bool_]:
        with self._lock:
            known = self._masks.get(key)
        if known is not None:
            return known
        admitted = np.fromiter(map(admits, self.scopes), np.bool_, len(self.scopes))
        mask: NDArray[np.bool_] = admitted[self.scope_of_row]
        with self._lock:
            if len(self._masks) >= MOST_SCOPES:
                self._masks.clear()
            self._masks[key] = mask
        return mask


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
    by_word = np.frombuffer(word_of, np.int32) if word_of else np.zeros(0, np.int32)
    order = np.argsort(by_word, kind="stable")
    places = np.asarray(row_of, np.int32)[order]
    length = np.asarray(lengths, np.float64)
    average = float(length.mean()) if len(length) else 1.0
    found = np.asarray(frequency, np.float64)[order]
    shares = found * (K1 + 1.0) / (found + (K1 * (1 - B + B * length / average))[places])
    return WordIndex(
        heading_weight,
        words,
        np.asarray(seqs, np.int64),
        np.searchsorted(by_word[order], np.arange(len(words) + 1)),
        places,
        shares,
        tuple(frozenset(scope.split()) for scope in scopes),
        np.asarray(scope_of_row, np.int32),
    )
