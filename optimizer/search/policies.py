"""Which node is changed next: best first, tree search and islands.

A policy is a function of the tree and a seeded random source, so the same evaluations and the same
seed give the same tree.
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

__all__ = ["POLICY_OF", "BestFirst", "Evolutionary", "SearchPolicy", "TreeSearch"]


class SearchPolicy(Protocol):
    """Chooses the parent of the next candidate."""

    def __init__(self) -> None: ...

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The number of the node to change next; None when every open node is closed.

        `closed` are nodes from which nothing more can be proposed; `chance` is the random source.
        """
        ...

    def island_of(self, tree: Tree, parent: int) -> int:
        """The island that a child of this parent lives on."""
        ...


def open_nodes(tree: Tree, closed: Collection[int]) -> list[int]:
    """Numbers of the nodes that can be changed: the reference, and correct nodes that are neither
    duplicates nor closed."""
    return [
        node.number
        for node in tree
        if node.number not in closed
        and node.state != "duplicate"
        and (node.parent is None or node.correct)
    ]


class BestFirst:
    """The node with the highest certain speed-up, unless its children have stopped paying.

    Each child that was no better than its parent lowers what the parent is worth by a tenth, so a
    search leaves a summit that it cannot climb further. A child in flight counts as such:
    candidates that are evaluated side by side spread over parents.
    """

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The open node that is worth most after fatigue, the newest of equals."""
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
        """All nodes live on one island."""
        return 0


class Evolutionary:
    """Islands: several populations that search apart, each choosing parents by tournament; from
    time to time the best of one is a parent on the next (Tanese, 1989).

    A population follows from the tree: the correct nodes whose island is its own. Islands take
    turns by the number of the node to come.
    """

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The winner of a tournament on the island whose turn it is."""
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
        """The island whose turn it is."""
        return len(tree) % ISLANDS


class TreeSearch:
    """Monte Carlo tree search: walk down by UCT until a node that is still to be widened.

    The value of a node is the best merit below it, on a logarithmic scale from the reference to the
    best of the run; the bonus is that of UCB1 (Auer and others, 2002; Kocsis and Szepesvari, 2006).
    A node is widened while it has fewer children than the square root of its visits (progressive
    widening, Coulom 2007), because the number of possible changes is not bounded. A node in flight
    is a visit that brought nothing so far (a virtual loss, Chaslot and others, 2008).
    """

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The first node on the way down that is still to be widened."""
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
        """All nodes live on one island."""
        return 0


POLICY_OF: Mapping[PolicyName, type[SearchPolicy]] = {
    "best-first": BestFirst,
    "mcts": TreeSearch,
    "evolutionary": Evolutionary,
}
