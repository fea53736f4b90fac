"""What of the tree a proposal gets to see beside its parent: five memory operators.

none; the parent's own step; its siblings; both; or the ancestors up to the first good one. What is
in flight has no result to show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from optimizer.search.goal import MemoryName
from optimizer.search.records import IN_FLIGHT, Node
from optimizer.search.tree import Tree

MAX_SEEN = 6


def seen(tree: Tree, parent: int, memory: MemoryName) -> list[Node]:
    """Nodes to show, the most telling first, at most MAX_SEEN. parent: of what is proposed next."""
    return _OPERATORS[memory](tree, parent)[:MAX_SEEN]


def _none(tree: Tree, parent: int) -> list[Node]:
    return []


def _parent(tree: Tree, parent: int) -> list[Node]:
    """What led to the parent: its own parent's result."""
    above = tree[parent].parent
    return [] if above is None else [tree[above]]


def _siblings(tree: Tree, parent: int) -> list[Node]:
    """What was tried from this parent already: the best first, then the latest failures."""
    tried = [node for node in tree.children(parent) if node.state != IN_FLIGHT]
    good = sorted((n for n in tried if n.merit > 0), key=lambda n: -n.merit)
    failed = [n for n in reversed(tried) if n.merit == 0]
    half = MAX_SEEN // 2
    return [*good[: max(half, MAX_SEEN - len(failed))], *failed]


def _both(tree: Tree, parent: int) -> list[Node]:
    return [*_parent(tree, parent), *_siblings(tree, parent)]


def _ancestors(tree: Tree, parent: int) -> list[Node]:
    """Up to the first ancestor that was better than the reference: a way back out of a dead end."""
    found = []
    for node in tree.ancestors(parent):
        found.append(node)
        if node.merit > 1.0:
            break
    return found


_OPERATORS: Mapping[MemoryName, Callable[[Tree, int], list[Node]]] = {
    "none": _none,
    "parent": _parent,
    "siblings": _siblings,
    "both": _both,
    "ancestors": _ancestors,
}
