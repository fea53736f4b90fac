"""Goals of a run: speed-up, time per call or share of the roofline, each by its confidence
bound.
"""

from __future__ import annotations

import json

import pytest

from kb.errors import InvalidRequest
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import CaseTiming, Evaluation, Interval
from optimizer.search.goal import (
    UNKNOWN_ROOFLINE,
    Goal,
    goal_from_json,
    reason_to_stop,
    roofline_of,
    slowest_us,
)
from optimizer.search.records import Node, Proposal

GAIN = Interval(2.0, 1.6, 2.5, 12)


def node(*times: float | None, roofline: float | None = 60.0) -> Node:
    """Correct and measured; a call takes 100 us in the reference and these times here."""
    bundle = Bundle({"k.cpp": ""}, "k.cpp", "cpp", "kernlore_run", {}, "recipe")
    timings = tuple(
        CaseTiming(f"case{n}", "measured", 2 * us, us, GAIN, 10)
        if us is not None
        else CaseTiming(f"case{n}", "repeat")
        for n, us in enumerate(times)
    )
    evaluation = Evaluation(
        key="k",
        problem="p",
        candidate=bundle.sha256,
        language="cpp",
        hardware="x86-64",
        device="cpu",
        toolchain="g++",
        harness="3",
        validity="correct",
        timing="measured",
        reached="diagnose",
        timings=timings,
        speedup=GAIN,
        metrics={} if roofline is None else {"roofline_pct": roofline},
    )
    return Node(1, 0, "evaluated", Proposal(bundle, "recipe"), evaluation)


def reason(goal: Goal, *nodes: Node) -> str | None:
    return reason_to_stop(goal, list(nodes), 1.0)


def test_time_goal_uses_upper_bound_of_every_case() -> None:
    measured = node(100.0, 50.0)
    assert slowest_us(measured) == pytest.approx(200 / 1.6)
    assert reason(Goal(target_us=125), measured) == "the target of 125 us is reached"
    assert reason(Goal(target_us=124), measured) is None
    assert reason(Goal(target_us=101), measured) is None  # the value itself is not the bound
    assert slowest_us(node(100.0, None)) is None
    assert reason(Goal(target_us=1000), node(100.0, None)) is None


def test_roofline_goal_uses_lower_bound() -> None:
    measured = node(100.0)
    assert roofline_of(measured) == pytest.approx(0.6 * 1.6 / 2.0)
    assert (
        reason(Goal(target_roofline=0.48), measured)
        == "the target of 0.48 of the roofline is reached"
    )
    assert reason(Goal(target_roofline=0.5), measured) is None


def test_unknown_roofline_is_never_reached() -> None:
    unknown = node(100.0, roofline=None)
    goal = Goal(target_roofline=0.01, candidates=1)
    assert reason(goal, unknown) == f"1 candidates were tried; {UNKNOWN_ROOFLINE}"
    assert reason(Goal(target_roofline=0.99, candidates=1), node(9.0)) == "1 candidates were tried"
    assert reason(Goal(target_roofline=0.01), unknown) is None


def test_speed_up_goal_uses_lower_bound() -> None:
    assert reason(Goal(target=1.6), node(100.0)) == "the target of 1.6 is reached"
    assert reason(Goal(target=1.61), node(100.0)) is None


def test_goal_round_trips_through_json() -> None:
    goal = Goal(target_us=120.0, target_roofline=0.85, synthesizers=("recipe", "llm"))
    assert goal_from_json(json.loads(json.dumps(goal.as_json()))) == goal
    older = {"candidates": 3, "knowledge": False}
    assert goal_from_json(older) == Goal(candidates=3, knowledge=False)


@pytest.mark.parametrize(
    "changes", [{"target_us": 0}, {"target_roofline": -1}, {"synthesizers": ["recipes"]}]
)
def test_invalid_goal_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        goal_from_json(changes)
