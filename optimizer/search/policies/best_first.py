"""Best first: the node with the highest certain speed-up, unless its children have stopped paying.

Each child that was no better than its parent lowers what the parent is worth by a tenth, so a
search leaves a summit that it cannot climb further. One in flight counts as such: candidates that
are evaluated side by side spread over parents.
"""

from __future__ import annotations

import random
from collections.abc import Collection

from optimizer.search.policies.base import open_nodes
from optimizer.search.records import REFERENCE
from optimizer.search.tree import Tree

FATIGUE = 0.9


class BestFirst:
    """Greedy, with fatigue."""

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        del chance
        worth = {number: self._worth(tree, number) for number in open_nodes(tree, closed)}
        return max(worth, key=lambda number: (worth[number], number), default=None)

    def _worth(self, tree: Tree, number: int) -> float:
        node = tree[number]
        # The reference stays worth while first tries of other kinds are left.
        weak = sum(child.merit <= node.merit for child in tree.children(number))
        fatigue = 1.0 if number == REFERENCE else FATIGUE
        return float(node.merit * fatigue**weak)

    def island_of(self, tree: Tree, parent: int) -> int:
        return 0
