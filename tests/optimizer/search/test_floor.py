"""The floor of a run with counters: fitted costs of events, and when a run stops at it."""

from __future__ import annotations

from dataclasses import replace

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import CaseTiming, Evaluation
from optimizer.search.goal import Goal, floor_of, reason_at_floor, reason_to_stop
from optimizer.search.records import Node, Proposal


def _node(number: int, loads: int, multiplies: int, *, timed: bool = True) -> Node:
    """A correct kernel with 2 packets per load and 1 per multiplication."""
    cost = 2 * loads + multiplies
    timing = CaseTiming("main", "simulator", count=cost, counted="packets")
    if not timed:
        timing = CaseTiming("main", "measured", candidate_us=float(cost))
    evaluation = Evaluation(
        key=f"k{number}",
        problem="p",
        candidate=f"c{number}",
        language="hvx",
        hardware="x",
        device="cpu",
        toolchain="command",
        harness="1",
        validity="correct",
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
