"""The nodes that each memory operator shows."""

from __future__ import annotations

from pathlib import Path

from optimizer.search.goal import MEMORIES, Goal
from optimizer.search.records import Node
from optimizer.search.tree import MAX_SEEN, Tree, seen
from tests.optimizer.search.landscape import evaluation, proposal, search


def tree_of(*rows: tuple[int | None, float]) -> Tree:
    """Rows of (parent, speed-up); 0 is a wrong kernel."""
    nodes = []
    for number, (parent, value) in enumerate(rows):
        if parent is None:
            nodes.append(Node(number, None, "evaluated", None, evaluation(None, None)))
            continue
        candidate = proposal(number, parent)
        measured = evaluation(candidate.bundle, value or None, "correct" if value else "incorrect")
        nodes.append(Node(number, parent, "evaluated", candidate, measured))
    return Tree(nodes)


TREE = tree_of((None, 1.0), (0, 1.5), (1, 0.0), (1, 1.8), (1, 0.9), (3, 0.8), (5, 0.7))


def numbers(memory: str, parent: int) -> list[int]:
    return [node.number for node in seen(TREE, parent, memory)]  # type: ignore[arg-type]


def test_each_operator_shows_its_part() -> None:
    assert numbers("none", 1) == []
    assert numbers("parent", 1) == [0] and numbers("parent", 0) == []
    assert numbers("siblings", 1) == [3, 4, 2]  # the correct ones by merit, then failed ones
    assert numbers("both", 1) == [0, 3, 4, 2]
    assert numbers("ancestors", 6) == [5, 3]  # up to the first that beats the reference


def test_every_operator_is_bounded(tmp_path: Path) -> None:
    wide = tree_of((None, 1.0), *[(0, 1.0 + number / 10) for number in range(20)])
    for memory in MEMORIES:
        assert len(seen(wide, 0, memory)) <= MAX_SEEN
    going = search(tmp_path, Goal(candidates=2, memory="none"))
    going.run()
    assert len(going.tree) == 3
