"""A run in a row of a list: its gain fits the table cell."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from kb import clock
from kb.catalog.tables import problems
from kb.ids import derived_id
from kb.settings import Settings
from optimizer.evaluation.bundle import Bundle
from optimizer.search.confirm import UNTRIED, RunOutcome
from optimizer.search.goal import Goal
from optimizer.search.records import Node, Proposal
from optimizer.search.runs import processes
from optimizer.search.runs.processes import ServiceRuns
from optimizer.search.runs.run_store import RunLock, _candidate_row, run_store, summary_of
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from tests.catalogs import builtin_data_dir
from tests.optimizer.search.landscape import evaluation

WHY = ", because of this and that" * 20
GAIN = {"value": 1.237, "low": 1.195, "high": 1.281, "n": 12}


def outcome(reason: str, **changes: Any) -> dict[str, Any]:
    return asdict(RunOutcome(None, None, reason + WHY, **changes))


@pytest.mark.parametrize(
    "result, cell",
    [
        ({}, ""),  # running
        ({**outcome(""), "gain": GAIN}, "1.24x [1.20, 1.28]"),
        (outcome("no gain: no candidate is certainly faster"), "no gain"),
        (outcome(UNTRIED, measured=False), "nothing tried"),
        (outcome("not measured: none is right", measured=False), "not measured"),
        (outcome("it was cancelled", measured=False, best_so_far=3), "not confirmed"),
        ({"gain": None, "reason": f"no gain{WHY}"}, "no gain"),  # of an earlier release
    ],
)
def test_gain_is_short(result: dict[str, Any], cell: str) -> None:
    run = RunRow("run_1", "/p/softmax.py", "0" * 64, "x86-64", Goal(), result=result)
    assert summary_of(run)["gain"] == cell


# -- A candidate in a list and in a command

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


# -- A cancelled run of a killed service: the answer says that it has not ended yet

SHA = "0" * 64


@pytest.mark.slow
def test_cancel_reports_process_that_is_still_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "CANCEL_SECONDS", 0.3)
    base = KnowledgeBase(Settings(data_dir=builtin_data_dir(tmp_path / "data")))
    with base.catalog.write() as connection:
        row = {"id": derived_id("prb", SHA), "name": "softmax", "sha256": SHA, "provider": "file"}
        rest = {"op_family": "softmax", "blob_key": "", "policy": {}, "created_at": clock.now()}
        connection.execute(problems.insert().values(**row, **rest, access_scope="all"))
    store = run_store(base)
    store.begin(RunRow("run_1", "/p/softmax.py", SHA, "x86-64", Goal()))
    service = ServiceRuns(base, ())
    with RunLock(base, "run_1", 0.0):  # the process left by a killed service
        answer = service.cancel("run_1")
        assert "still works on it" in answer["note"] and store.cancelled("run_1")
    answer = service.cancel("run_1")
    assert answer["state"] == "cancelled" and "note" not in answer
    service.close()
