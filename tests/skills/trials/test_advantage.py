"""The advantage of one search over another at every point of the budget."""

from __future__ import annotations

import math

import pytest

from optimizer.evaluation.records import Interval
from optimizer.search.portable.skill_trial import advantage, standings
from optimizer.search.records import REFERENCE, Node
from tests.optimizer.search.landscape import evaluation, proposal

SPREAD = 1.1


def walk(*speeds: int) -> list[Node]:
    """Candidates of these speed-ups in order. Equal speed-ups are equal kernels."""
    return [candidate(number, speed) for number, speed in enumerate(speeds, 1)]


def candidate(number: int, speed: int) -> Node:
    made = proposal(speed, REFERENCE)
    return Node(number, REFERENCE, "evaluated", made, evaluation(made.bundle, float(speed)))


def measured(node: Node) -> Interval | None:
    assert node.speedup is not None
    value = node.speedup.value
    return Interval(value, value / SPREAD, value * SPREAD, 5)


def stand(ours: list[Node], theirs: list[Node], budget: int) -> tuple[Interval | None, ...]:
    ahead = advantage(standings(ours, budget), standings(theirs, budget), measured)
    return ahead.over, ahead.end


def test_best_after_each_candidate() -> None:
    stood = standings(walk(2, 1, 4), 4)
    assert [node.number if node else 0 for node in stood] == [1, 1, 3, 3]
    assert standings([], 2) == [None, None]


def test_faster_search_for_same_kernel_has_advantage() -> None:
    over, end = stand(walk(4, 2), walk(2, 4), 2)
    assert over is not None and end is not None
    assert over.value == pytest.approx(math.sqrt(2.0))  # twice the speed for half of the budget
    # Two independent figures, each with half the weight: their errors add as squares.
    assert over.high / over.value == pytest.approx(math.exp(math.hypot(0.5, 0.5) * math.log(1.1)))
    assert (end.low, end.value, end.high) == (1.0, 1.0, 1.0)


def test_time_with_equal_standings_is_not_measured() -> None:
    measured_nodes: list[int] = []

    def counted(node: Node) -> Interval | None:
        measured_nodes.append(node.number)
        return measured(node)

    ahead = advantage(standings(walk(2, 4), 2), standings(walk(2, 2), 2), counted)
    assert len(measured_nodes) == 2  # the better kernel and the one that it replaced
    again = advantage(standings(walk(2, 4), 2), standings(walk(2, 4), 2), counted)
    assert len(measured_nodes) == 2
    assert ahead.over is not None and ahead.over.value == pytest.approx(math.sqrt(2.0))
    assert again.over == again.end == Interval(1.0, 1.0, 1.0, 1)


def test_search_may_be_worse_at_end_than_over_budget() -> None:
    over, end = stand(walk(2, 2, 2), walk(1, 1, 4), 3)
    assert over is not None and end is not None
    assert over.value == pytest.approx((2 * 2 / 2) ** (1 / 3)) and end.value == pytest.approx(0.5)
    assert end.high < 1.0


def test_search_without_candidate_has_speed_of_reference() -> None:
    over, end = stand(walk(4), [], 2)
    assert over is not None and end is not None
    assert over.value == pytest.approx(4.0) and end.value == pytest.approx(4.0)


def test_unmeasured_kernel_gives_no_advantage() -> None:
    ahead = advantage(standings(walk(4), 1), standings(walk(2), 1), lambda node: None)
    assert ahead.over is None and ahead.end is None
