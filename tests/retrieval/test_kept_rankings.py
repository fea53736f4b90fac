"""A ranking that is kept says what it said before, in less memory."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kb.scope import CATEGORIES
from retrieval.rankings import kept_ranking
from retrieval.search.ranking import Ranked

if TYPE_CHECKING:
    from tests.fixtures import Store


def _ranking(count: int) -> list[Ranked]:
    rng = random.Random(count)
    parts = [rng.random(), 0.0, 1.0, 0.0000005, 0.4999995, 0.1234565]  # ties of the sixth decimal
    return [
        Ranked(n, rng.random(), rng.choice(parts), rng.random(), rng.choice(sorted(CATEGORIES)))
        for n in rng.sample(range(2**31), count)
    ]


def _shown(ranked: list[Ranked]) -> list[Ranked]:
    return [
        entry._replace(lexical=round(entry.lexical, 6), dense=round(entry.dense, 6))
        for entry in ranked
    ]


def test_a_kept_ranking_is_what_was_made(store: Store) -> None:
    made = _ranking(3_000)
    with store.catalog.read() as connection:
        first = kept_ranking(connection, "key", "state", lambda: made)
        again = kept_ranking(connection, "key", "state", list)
    assert first == again == _shown(made)


def test_the_first_of_a_ranking_do_not_stand_for_all_of_it(store: Store) -> None:
    made = _ranking(100)
    with store.catalog.read() as connection:
        few = kept_ranking(connection, "key", "state", lambda: made, 60)
        every = kept_ranking(connection, "key", "state", lambda: made)
    assert few == _shown(made)[:60] and every == _shown(made)
