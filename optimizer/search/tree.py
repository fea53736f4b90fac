"""The tree of one run in memory, the earlier nodes that a proposer is shown, and rough figures of
correct candidates that could not be timed.

Nodes come in order and are never changed. A memory operator chooses the shown nodes: none, the
parent's own parent, its siblings, both, or the ancestors up to the first good one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

from optimizer.evaluation.records import rough_ratio, rough_times
from optimizer.search.goal import MemoryName
from optimizer.search.records import IN_FLIGHT, REFERENCE, Node, best_of, time_text

MAX_SEEN = 6
BY_COMMANDS = "command"  # prefix of toolchains that run a chip's own commands


class Tree:
    """The nodes of a run by number; the reference is the root."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self.nodes: list[Node] = []
        self._children: dict[int, list[int]] = {}
        self._by_bundle: dict[str, int] = {}
        for node in nodes:
            self.add(node)

    def add(self, node: Node) -> None:
        """Append the next node. Raises ValueError for a number out of order."""
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
    def reference_runs(self) -> bool:
        """Whether the root is a measured reference; never on a chip that only its own commands
        run."""
        evaluation = self.root.evaluation if self.nodes else None
        return (
            evaluation is not None
            and evaluation.correct
            and not evaluation.toolchain.startswith(BY_COMMANDS)
        )

    @property
    def baseline(self) -> Node | None:
        """The node that speed-ups are relative to on a chip that only its own commands run: a
        sample of the manual, else the first correct candidate. None if that is the reference."""
        for node in self.nodes:
            evaluation = node.evaluation
            if evaluation is None or not evaluation.correct:
                continue
            if not evaluation.toolchain.startswith(BY_COMMANDS):
                return None
            if evaluation.speedup is not None:
                return node
        return None

    @property
    def baseline_text(self) -> str:
        """The baseline in words, with its time; "" for the reference."""
        node = self.baseline
        if node is None:
            return ""
        name = "the manual's sample" if node.number == REFERENCE else f"candidate {node.number}"
        return f"baseline: {name}, {time_text(node)}"

    @property
    def best(self) -> Node | None:
        """The correct, measured node with the highest lower bound of the speed-up."""
        return best_of(self.nodes[1:])

    def children(self, number: int) -> list[Node]:
        """Nodes that change this node, oldest first."""
        return [self.nodes[child] for child in self._children.get(number, ())]

    def ancestors(self, number: int) -> list[Node]:
        """The nodes from the parent up to the reference."""
        nodes, at = [], self.nodes[number].parent
        while at is not None:
            nodes.append(self.nodes[at])
            at = self.nodes[at].parent
        return nodes

    def path_to(self, number: int) -> list[Node]:
        """The nodes from the reference to this node."""
        return [*reversed(self.ancestors(number)), self.nodes[number]]

    def descendants(self, number: int) -> list[Node]:
        """Every node below this node, level by level."""
        nodes, waiting = [], list(self._children.get(number, ()))
        while waiting:
            at = waiting.pop(0)
            nodes.append(self.nodes[at])
            waiting += self._children.get(at, ())
        return nodes

    def same_bundle(self, sha256: str) -> Node | None:
        """The first node with this bundle, if any."""
        number = self._by_bundle.get(sha256)
        return None if number is None else self.nodes[number]


def seen(tree: Tree, parent: int, memory: MemoryName) -> list[Node]:
    """The nodes that a proposer is shown for this parent, most useful first, at most MAX_SEEN."""
    return _OPERATORS[memory](tree, parent)[:MAX_SEEN]


def last_failure(tree: Tree, parent: int) -> Node | None:
    """The newest evaluated child of this parent, if it is incorrect."""
    for node in reversed(tree.children(parent)):
        if node.evaluation is not None and node.state != "duplicate":
            return None if node.correct else node
    return None


def _none(tree: Tree, parent: int) -> list[Node]:
    return []


def _parent(tree: Tree, parent: int) -> list[Node]:
    """The parent's own parent."""
    above = tree[parent].parent
    return [] if above is None else [tree[above]]


def _siblings(tree: Tree, parent: int) -> list[Node]:
    """Evaluated children of the parent: the best first, then the latest failures."""
    tried = [node for node in tree.children(parent) if node.state != IN_FLIGHT]
    good = sorted((n for n in tried if n.merit > 0), key=lambda n: -n.merit)
    failed = [n for n in reversed(tried) if n.merit == 0]
    half = MAX_SEEN // 2
    return [*good[: max(half, MAX_SEEN - len(failed))], *failed]


def _both(tree: Tree, parent: int) -> list[Node]:
    return [*_parent(tree, parent), *_siblings(tree, parent)]


def _ancestors(tree: Tree, parent: int) -> list[Node]:
    """Ancestors up to the first that beats the reference: a way out of a dead end."""
    shown = []
    for node in tree.ancestors(parent):
        shown.append(node)
        if node.merit > 1.0:
            break
    return shown


_OPERATORS: Mapping[MemoryName, Callable[[Tree, int], list[Node]]] = {
    "none": _none,
    "parent": _parent,
    "siblings": _siblings,
    "both": _both,
    "ancestors": _ancestors,
}


# -- rough figures


def rough_of(node: Node) -> str:
    """Rough ratio, marked as such, of a correct candidate without a figure; else ""."""
    if node.speedup is not None or node.evaluation is None or not node.correct:
        return ""
    return rough_ratio(node.evaluation.timings)


def rough_gain(node: Node) -> float:
    """Rough time of the reference over that of the kernel, in the first case with both; else 0."""
    for timing in node.evaluation.timings if node.evaluation is not None else ():
        if timing.rough_us and timing.rough_baseline_us:
            return timing.rough_baseline_us / timing.rough_us
    return 0.0


def rough_cases(node: Node) -> dict[str, str]:
    """Fastest disturbed calls in words, by case, of a candidate with a rough ratio."""
    if not rough_of(node) or node.evaluation is None:
        return {}
    rows = {timing.case: rough_times(asdict(timing)) for timing in node.evaluation.timings}
    return {case: text for case, text in rows.items() if text}


def rough_best(nodes: Sequence[Node]) -> str:
    """The highest rough ratio of these candidates with the candidate's number; "" without one."""
    known = [(text, node.number) for node in nodes if (text := rough_of(node))]
    if not known:
        return ""
    text, number = max(known, key=lambda entry: float(entry[0].split()[1].rstrip("x")))
    return f"{text}, node {number}"
