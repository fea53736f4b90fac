"""What every policy is."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Protocol

from optimizer.search.tree import Tree


class Policy(Protocol):
    """Chooses the parent of the next candidate."""

    def __init__(self) -> None: ...

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """Number of the node to change next; None when every open one is closed.

        closed: nodes from which nothing more can be proposed.
        """
        ...

    def island_of(self, tree: Tree, parent: int) -> int:
        """The island that a child of this parent lives on."""
        ...


def open_nodes(tree: Tree, closed: Collection[int]) -> list[int]:
    """Nodes that can be changed: the reference, and what is correct."""
    return [
        node.number
        for node in tree
        if node.number not in closed
        and node.state != "duplicate"
        and (node.parent is None or node.correct)
    ]
