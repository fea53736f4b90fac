"""Islands: several populations that search apart, each choosing parents by tournament; from time to
time the best of one is a parent on the next (Tanese, 1989).

What a population is follows from the tree: the correct nodes whose island is its own.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from optimizer.search.policies.base import open_nodes
from optimizer.search.records import REFERENCE
from optimizer.search.tree import Tree

ISLANDS = 3
POPULATION = 8
TOURNAMENT = 3
MIGRATE_EVERY = 10  # candidates


class Evolutionary:
    """Islands take turns by the number of the node to come."""

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        usable = open_nodes(tree, closed)
        if not usable:
            return None
        island = len(tree) % ISLANDS
        if len(tree) % MIGRATE_EVERY == 0:
            island = (island + 1) % ISLANDS  # the neighbour's best comes over
        living = [n for n in usable if n != REFERENCE and tree[n].island == island]
        living = sorted(living, key=lambda n: -tree[n].merit)[:POPULATION]
        if REFERENCE in usable and len(living) < TOURNAMENT:
            return REFERENCE  # seed the population first
        if not living:
            living = usable
        drawn = chance.sample(living, min(TOURNAMENT, len(living)))
        return max(drawn, key=lambda n: (tree[n].merit, -n))

    def island_of(self, tree: Tree, parent: int) -> int:
        return len(tree) % ISLANDS
