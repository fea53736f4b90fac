"""A candidate in a list and in a command."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optimizer.evaluation.bundle import Bundle
from optimizer.search.records import Node, Proposal
from optimizer.search.runs.run_store import _candidate_row
from optimizer.search.tree import Tree
from tests.optimizer.search.landscape import evaluation

BUNDLE = Bundle({"kernel.cpp": "void run();"}, "kernel.cpp", "cpp", "run", {}, "recipe")
PROPOSAL = Proposal(BUNDLE, "traced", 0, "Write it as loops.", cases=("main",))


@pytest.mark.parametrize(
    ("validity", "message"), [("incorrect", "output1 is off by 1"), ("correct", "")]
)
def test_wrong_candidate_has_its_message(validity: str, message: str) -> None:
    root = Node(0, None, "evaluated", None, evaluation(None, 1.0))
    result = replace(evaluation(BUNDLE, None, validity), message="output1 is off by 1")
    tree = Tree([root, Node(1, 0, "evaluated", PROPOSAL, result)])
    row = _candidate_row(tree, tree[1])
    assert (row["verdict"], row["message"]) == (validity, message)
