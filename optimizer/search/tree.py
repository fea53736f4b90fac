"""The tree of one run, in memory. Rows come in order and are never changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from optimizer.search.records import REFERENCE, Node, best_of


class Tree:
    """Nodes by number; the reference is the root."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: list[Node] = []
        self._children: dict[int, list[int]] = {}
        self._by_bundle: dict[str, int] = {}
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        if node.number != len(self.nodes):
            raise ValueError(f"node {node.number} follows {len(self.nodes) - 1}")
        self.nodes.append(node)
        if node.parent is not None:
            self._children.setdefault(node.parent, []).append(node.number)
        if node.proposal is not None and node.state != "duplicate":
            self._by_bundle.setdefault(node.proposal.bundle.sha256, node.number)

    def __len__(self) -> int:
        return len(self.nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number]

    @property
    def root(self) -> Node:
        return self.nodes[REFERENCE]

    @property
    def best(self) -> Node | None:
        return best_of(self.nodes[1:])

    def children(self, number: int) -> list[Node]:
        return [self.nodes[child] for child in self._children.get(number, ())]

    def siblings(self, number: int) -> list[Node]:
        """Other children of the same parent, oldest first."""
        parent = self.nodes[number].parent
        if parent is None:
            return []
        return [node for node in self.children(parent) if node.number != number]

    def ancestors(self, number: int) -> list[Node]:
        """From the parent up to the reference."""
        found, at = [], self.nodes[number].parent
        while at is not None:
            found.append(self.nodes[at])
            at = self.nodes[at].parent
        return found

    def descendants(self, number: int) -> list[Node]:
        found, waiting = [], list(self._children.get(number, ()))
        while waiting:
            at = waiting.pop(0)
            found.append(self.nodes[at])
            waiting += self._children.get(at, ())
        return found

    def same_bundle(self, sha256: str) -> Node | None:
        """The node that has this very bundle already."""
        number = self._by_bundle.get(sha256)
        return None if number is None else self.nodes[number]
