"""Monte Carlo tree search: walk down by UCT until a node that is still to be widened.

The value of a node is the best merit below it, on a logarithmic scale from the reference to the
best of the run; the bonus is that of UCB1 (Auer and others, 2002; Kocsis and Szepesvari, 2006).
A node is widened while it has fewer children than the square root of its visits (progressive
widening, Coulom 2007), because the number of possible changes is not bounded. A node in flight is a
visit that brought nothing so far (a virtual loss, Chaslot and others, 2008).
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection

from optimizer.search.policies.base import open_nodes
from optimizer.search.records import REFERENCE
from optimizer.search.tree import Tree

EXPLORE = 0.7


class TreeSearch:
    """UCT with progressive widening."""

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        usable = set(open_nodes(tree, closed))
        if not usable:
            return None
        at = REFERENCE
        while True:
            children = [
                c.number for c in tree.children(at) if self._reaches(tree, c.number, usable)
            ]
            visits = len(tree.descendants(at)) + 1
            if at in usable and (not children or len(children) < math.sqrt(visits)):
                return at
            if not children:
                return max(usable)  # only nodes beside this path are left
            at = max(children, key=lambda child: (self._bound(tree, child, visits), -child))

    def _reaches(self, tree: Tree, number: int, usable: Collection[int]) -> bool:
        return number in usable or any(n.number in usable for n in tree.descendants(number))

    def _bound(self, tree: Tree, number: int, visits: int) -> float:
        below = [tree[number], *tree.descendants(number)]
        best = max(math.log(max(node.merit, 0.1)) for node in below)
        most = max(math.log(max(node.merit, 1.0)) for node in tree) or 1.0
        return best / most + EXPLORE * math.sqrt(math.log(visits + 1) / len(below))

    def island_of(self, tree: Tree, parent: int) -> int:
        return 0
