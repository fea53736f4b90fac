"""Goals of a run: speed-up, time per call or share of the roofline, each by its confidence
bound.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from kb.errors import InvalidRequest
from kb.plain import from_json
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import CaseTiming, Interval
from optimizer.search.goal import (
    UNKNOWN_ROOFLINE,
    Goal,
    floor_of,
    reason_at_floor,
    reason_to_stop,
    roofline_of,
    slowest_us,
)
from optimizer.search.records import Node, Proposal
from tests.evaluations import RIGHT

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
    evaluation = replace(
        RIGHT,
        candidate=bundle.sha256,
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
    assert from_json(Goal, json.loads(json.dumps(asdict(goal)))) == goal
    older = {"candidates": 3, "knowledge": False}
    assert from_json(Goal, older) == Goal(candidates=3, knowledge=False)


@pytest.mark.parametrize(
    "changes", [{"target_us": 0}, {"target_roofline": -1}, {"synthesizers": ["recipes"]}]
)
def test_invalid_goal_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        from_json(Goal, changes)


# -- the floor of a run with counters: fitted costs of events, and when a run stops at it


def _node(number: int, loads: int, multiplies: int, *, timed: bool = True) -> Node:
    """A correct kernel with 2 packets per load and 1 per multiplication."""
    cost = 2 * loads + multiplies
    timing = CaseTiming("main", "simulator", count=cost, counted="packets")
    if not timed:
        timing = CaseTiming("main", "measured", candidate_us=float(cost))
    evaluation = replace(
        RIGHT,
        key=f"k{number}",
        candidate=f"c{number}",
        language="hvx",
        hardware="x",
        timing=timing.state,
        reached="benchmark",
        timings=(timing,),
        metrics={"packets": cost, "loads": loads, "multiplies": multiplies, "idle": 0},
    )
    bundle = Bundle({"k.c": f"// {number}"}, "k.c", "hvx", "kernlore_run")
    return Node(number, 0, "evaluated", Proposal(bundle, "external"), evaluation)


FALLING = [(90, 40), (80, 64), (64, 64), (64, 40)]


def test_costs_of_events_are_fitted_from_correct_kernels() -> None:
    nodes = [_node(n, *events) for n, events in enumerate(FALLING, start=1)]
    floor = floor_of(nodes)
    assert floor is not None and floor.kind == "packets" and floor.kernels == 4
    fitted = {name: round(each, 2) for name, each, _ in floor.events}
    assert fitted == {"loads": 2.0, "multiplies": 1.0}
    assert round(floor.cost) == 2 * 64 + 40 and floor.reached
    assert "loads: 2 packets each, at least 64 seen" in floor.sentence()


def test_run_stops_after_three_more_kernels_at_floor() -> None:
    nodes = [_node(n, *events) for n, events in enumerate(FALLING, start=1)]
    assert reason_at_floor(nodes) is None
    nodes += [_node(n, 64, 40) for n in (5, 6, 7)]
    assert reason_at_floor(nodes) == "the best kernel is at the floor of 168 packets"
    stopped = reason_to_stop(
        Goal(language="hvx"), [Node(0, None, "evaluated", None, None), *nodes], seconds=1.0
    )
    assert stopped is not None and "floor" in stopped


def test_unwritten_cheaper_combination_continues_run() -> None:
    events = [(90, 40), (80, 64), (64, 90), (70, 70)]
    nodes = [_node(n, *each) for n, each in enumerate(events, start=1)]
    floor = floor_of(nodes)
    assert floor is not None and not floor.reached
    assert "times that" in floor.sentence() and reason_at_floor(nodes) is None


def test_times_and_unexplained_costs_have_no_floor() -> None:
    assert floor_of([_node(n, *e, timed=False) for n, e in enumerate(FALLING, start=1)]) is None
    unexplained = []
    for number, each in enumerate(FALLING, start=1):
        node = _node(number, *each)
        assert node.evaluation is not None
        evaluation = replace(node.evaluation, metrics={"loads": 7 * number % 5})
        unexplained.append(replace(node, evaluation=evaluation))
    assert floor_of(unexplained) is None
