"""The rankings of one request, by scope: those of bare signals are kept for a revision.

What is asked with a signal and a chip alone is a finite set, and the order of its sections depends
on nothing else of a request: not on the depth, the budget or what its run was shown. Knows nothing
of how passages are ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from kb.catalog.kept import look_up
from kb.scope import CATEGORIES, ScopeFilter
from retrieval.ranking import Ranked

PER_CATEGORY = 8  # passages of a category below which it is searched for itself
MOST_RANKINGS = 4_000  # of a scope 23 KB, of one of its categories some 3 KB
_CATEGORIES: list[str] = sorted(CATEGORIES)

Rankings = Callable[[ScopeFilter], Sequence[Ranked]]


@dataclass(frozen=True, eq=False)
class _Columns:
    """A ranking in a tenth of the memory of its entries; of each category its place among all."""

    seqs: NDArray[np.int64]
    scores: NDArray[np.float64]
    lexical: NDArray[np.float64]
    dense: NDArray[np.float64]
    categories: NDArray[np.uint8]

    @classmethod
    def of(cls, ranked: Sequence[Ranked]) -> _Columns:
        return cls(
            np.array([entry.seq for entry in ranked], np.int64),
            np.array([entry.score for entry in ranked], np.float64),
            np.array([entry.lexical for entry in ranked], np.float64),
            np.array([entry.dense for entry in ranked], np.float64),
            np.array([_CATEGORIES.index(entry.category) for entry in ranked], np.uint8),
        )

    def entries(self) -> list[Ranked]:
        columns = (self.seqs, self.scores, self.lexical, self.dense)
        categories = map(_CATEGORIES.__getitem__, self.categories.tolist())
        return list(map(Ranked, *(column.tolist() for column in columns), categories))


def kept_ranking(
    connection: Connection, key: Hashable, state: Hashable, make: Callable[[], Sequence[Ranked]]
) -> list[Ranked]:
    """What `make` gives; kept under `key` for a revision and a `state` of what is searched."""

    def read(keys: Sequence[Hashable]) -> dict[Hashable, _Columns]:
        return dict.fromkeys(keys, _Columns.of(make()))

    kept = look_up(
        connection, "rankings of signals", [key], read, state, MOST_RANKINGS, skills=False
    )
    return kept[key].entries()


def by_category(
    scope: ScopeFilter, ranked: Sequence[Ranked], ranking: Rankings
) -> Callable[[str], Sequence[Ranked]]:
    """What each category offers to the context; one that the ranking hardly holds is searched for
    itself.
    """

    def of(category: str) -> Sequence[Ranked]:
        own = [r for r in ranked if r.category == category]
        if len(own) < PER_CATEGORY and len(scope.categories) > 1:
            return ranking(replace(scope, categories=(category,)))
        return own

    return of
