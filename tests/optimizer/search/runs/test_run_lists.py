"""A run in a row of a list: its gain fits the table cell."""

from __future__ import annotations

from typing import Any

import pytest

from optimizer.search.confirm import UNTRIED, RunOutcome
from optimizer.search.goal import Goal
from optimizer.search.runs.run_store import summary_of
from optimizer.search.store import RunRow

WHY = ", because of this and that" * 20
GAIN = {"value": 1.237, "low": 1.195, "high": 1.281, "n": 12}


def outcome(reason: str, **changes: Any) -> dict[str, Any]:
    return RunOutcome(None, None, reason + WHY, **changes).as_json()


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
