"""The rankings of one request, by scope: those of bare signals are kept for a revision.

What is asked with a signal and a chip alone is a finite set, and the order of its sections depends
on nothing else of a request: not on the depth, the budget or what its run was shown. Knows nothing
of how passages are ranked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from kb.catalog.kept import look_up
from kb.scope import CATEGORIES, ScopeFilter
from retrieval.ranking import Ranked, ranked_of

PER_CATEGORY = 8  # passages of a category below which it is searched for itself
MOST_RANKINGS = 6_000  # of a scope some 11 KB, of one of its categories at most 1.3 KB
_CATEGORIES: list[str] = sorted(CATEGORIES)
_SHOWN = 1_000_000  # lexical and dense parts are shown with six decimals (`excerpts.excerpt_of`)
# A ranking in a tenth of the memory of its entries; of each category its place among all.
_ENTRY = np.dtype(
    [("seq", "u4"), ("score", "f8"), ("lexical", "i4"), ("dense", "i4"), ("category", "u1")]
)

Rankings = Callable[[ScopeFilter], Sequence[Ranked]]


def _packed(ranked: Sequence[Ranked]) -> NDArray[np.void]:
    packed = np.empty(len(ranked), _ENTRY)
    packed["seq"] = [entry.seq for entry in ranked]
    packed["score"] = [entry.score for entry in ranked]
    packed["lexical"] = _decimals([entry.lexical for entry in ranked])
    packed["dense"] = _decimals([entry.dense for entry in ranked])
    packed["category"] = [_CATEGORIES.index(entry.category) for entry in ranked]
    return packed


def _decimals(parts: Sequence[float]) -> NDArray[np.float64]:
    """The parts in millionths, rounded as Python's `round` does. A product with a million, which
    numpy rounds, may lie on the other side of a tie.
    """
    values = np.array(parts, np.float64) * _SHOWN
    rounded: NDArray[np.float64] = np.rint(values)
    for place in np.flatnonzero(np.abs(np.abs(values - rounded) - 0.5) < 1e-3).tolist():
        rounded[place] = round(round(parts[place], 6) * _SHOWN)
    return rounded


def _entries(packed: NDArray[np.void]) -> list[Ranked]:
    lexical, dense = ((packed[name] / _SHOWN).tolist() for name in ("lexical", "dense"))
    categories = map(_CATEGORIES.__getitem__, packed["category"].tolist())
    return ranked_of(packed["seq"].tolist(), packed["score"].tolist(), lexical, dense, categories)


def kept_ranking(
    connection: Connection,
    key: Hashable,
    state: Hashable,
    make: Callable[[], Sequence[Ranked]],
    most: int | None = None,
) -> list[Ranked]:
    """What `make` gives, with the lexical and dense parts as they are shown; kept under `key` for a
    revision and a `state` of what is searched. With `most`, so many of its first.
    """

    def read(keys: Sequence[Hashable]) -> dict[Hashable, NDArray[np.void]]:
        return dict.fromkeys(keys, _packed(make()[:most]))

    whole: Hashable = (key, most)
    kept = look_up(
        connection, "rankings of signals", [whole], read, state, MOST_RANKINGS, skills=False
    )
    return _entries(kept[whole])


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
