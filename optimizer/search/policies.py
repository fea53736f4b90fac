"""Policies that choose the node to change next: best first, tree search, islands.

A policy is a function of the tree and a seeded random source, so equal evaluations and seeds give
equal trees.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping
from typing import Protocol

from optimizer.search.goal import PolicyName
from optimizer.search.records import REFERENCE
from optimizer.search.tree import Tree

FATIGUE = 0.9
ISLANDS = 3
POPULATION = 8
TOURNAMENT = 3
MIGRATE_EVERY = 10  # candidates
EXPLORE = 0.7


class SearchPolicy(Protocol):
    """Chooses the parent of the next candidate."""

    def __init__(self) -> None: ...

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The number of the node to change next; None if every open node is in `closed`, the nodes
        from which nothing more can be proposed. `chance` is the random source."""
        ...

    def island_of(self, tree: Tree, parent: int) -> int:
        """The island that a child of this parent lives on."""
        ...


def open_nodes(tree: Tree, closed: Collection[int]) -> list[int]:
    """Numbers of the nodes that can be changed: the reference and correct nodes, without duplicates
    and closed nodes."""
    return [
        node.number
        for node in tree
        if node.number not in closed
        and node.state != "duplicate"
        and (node.parent is None or node.correct)
    ]


class BestFirst:
    """Chooses the node with the highest lower bound of the speed-up, after fatigue.

    Each child that was no better lowers the value of its parent by a tenth, so that a search leaves
    a local optimum. A child in flight counts as no better: candidates that are evaluated side by
    side spread over parents.
    """

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The open node with the highest value after fatigue, the newest of equals."""
        del chance
        values = {number: self._value(tree, number) for number in open_nodes(tree, closed)}
        return max(values, key=lambda number: (values[number], number), default=None)

    def _value(self, tree: Tree, number: int) -> float:
        node = tree[number]
        # The reference does not tire: first tries of other kinds start from it.
        weak = sum(child.merit <= node.merit for child in tree.children(number))
        fatigue = 1.0 if number == REFERENCE else FATIGUE
        return float(node.merit * fatigue**weak)

    def island_of(self, tree: Tree, parent: int) -> int:
        """All nodes live on one island."""
        return 0


class Evolutionary:
    """Islands: separate populations that choose parents by tournament; from time to time the best
    of one is a parent on the next (Tanese, 1989).

    The population of an island are the correct nodes with its number. Islands take turns by the
    number of the next node.
    """

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The winner of a tournament on the island whose turn it is."""
        usable = open_nodes(tree, closed)
        if not usable:
            return None
        island = len(tree) % ISLANDS
        if len(tree) % MIGRATE_EVERY == 0:
            island = (island + 1) % ISLANDS  # migration from the neighbour
        living = [n for n in usable if n != REFERENCE and tree[n].island == island]
        living = sorted(living, key=lambda n: -tree[n].merit)[:POPULATION]
        if REFERENCE in usable and len(living) < TOURNAMENT:
            return REFERENCE  # seed the population first
        if not living:
            living = usable
        drawn = chance.sample(living, min(TOURNAMENT, len(living)))
        return max(drawn, key=lambda n: (tree[n].merit, -n))

    def island_of(self, tree: Tree, parent: int) -> int:
        """The island whose turn it is."""
        return len(tree) % ISLANDS


class TreeSearch:
    """Monte Carlo tree search: descends by UCT to the first node that may be widened.

    The value of a node is the best merit below it, on a logarithmic scale from the reference to the
    best of the run; the bonus is that of UCB1 (Auer and others, 2002; Kocsis and Szepesvari, 2006).
    A node is widened while it has fewer children than the square root of its visits (progressive
    widening, Coulom 2007), because the number of possible changes is not bounded. A node in flight
    is a visit without a result (a virtual loss, Chaslot and others, 2008).
    """

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The first node on the way down that may be widened."""
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
                return max(usable)  # all usable nodes are on other paths
            at = max(children, key=lambda child: (self._bound(tree, child, visits), -child))

    def _reaches(self, tree: Tree, number: int, usable: Collection[int]) -> bool:
        return number in usable or any(n.number in usable for n in tree.descendants(number))

    def _bound(self, tree: Tree, number: int, visits: int) -> float:
        below = [tree[number], *tree.descendants(number)]
        best = max(math.log(max(node.merit, 0.1)) for node in below)
        most = max(math.log(max(node.merit, 1.0)) for node in tree) or 1.0
        return best / most + EXPLORE * math.sqrt(math.log(visits + 1) / len(below))

    def island_of(self, tree: Tree, parent: int) -> int:
        """All nodes live on one island."""
        return 0


POLICY_OF: Mapping[PolicyName, type[SearchPolicy]] = {
    "best-first": BestFirst,
    "mcts": TreeSearch,
    "evolutionary": Evolutionary,
}
