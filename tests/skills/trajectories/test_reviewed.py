"""A person's answer frees a change that a flag held, or ends it; nothing else is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kb.catalog import Catalog
from kb.catalog.evaluations import Review, ReviewDecision
from optimizer.evaluation.records import Flag
from optimizer.search.records import Node
from optimizer.search.tree import Tree
from skills.curator.gate import gate
from skills.curator.lifting import tuned_instance
from skills.curator.pipeline import replay
from skills.training.samples import reward_of
from skills.trajectories.reading import steps_of
from skills.trajectories.records import Side, Trajectory, side_as_json, trajectory_from_json
from skills.trajectories.reviews import (
    flagged,
    flagged_in,
    flagged_keys,
    reviewed_evaluation,
    reviewed_side,
    reviewed_trajectory,
    reviewed_tree,
)
from tests.skills.curator.planted import (
    ROLES,
    VALUES,
    catalog_in,
    distil,
    measured,
    trajectory,
    tuned,
)
from tests.skills.trajectories.test_trajectory_reading import bundle, evaluation_of
from tests.skills.trajectories.test_trajectory_reading import tree as built

FLAG = "case main: 40.0 times as fast as the reference; look at what it leaves out"


def answer(key: str, decision: ReviewDecision = "accepted") -> dict[str, Review]:
    return {key: Review(key, decision, "ann", "read it: O(1)", "2026-01-02T03:04:05.000000Z")}


@pytest.fixture
def chips(tmp_path: Path) -> Iterator[Catalog]:
    opened = catalog_in(tmp_path / "data")
    yield opened
    opened.close()


def held() -> Trajectory:
    """Two changes, one after the other: the first (ev-2) is flagged."""
    after = {**VALUES, "unroll": 4}
    first = tuned(after=after, speedups=(1.0, 40.0), child={"flags": (FLAG,)})
    second = tuned(after, {**after, "lanes": 16}, (40.0, 60.0), (2, 3))
    made: Trajectory = trajectory(first, replace(second, parent=first.child))
    return made


def gates(whole: Trajectory) -> list[tuple[bool, str]]:
    decisions = [gate(whole, step, {})[1] for step in whole.steps]
    return [(decision.passed, decision.reason) for decision in decisions]


# -- the curator


def test_accepted_the_gate_lets_it_and_its_child_pass() -> None:
    whole = held()
    assert [passed for passed, _ in gates(whole)] == [False, False]
    assert all("held for a person" in reason for _, reason in gates(whole))
    assert flagged_keys(whole) == {"ev-2"}
    free = reviewed_trajectory(whole, answer("ev-2"))
    assert [passed for passed, _ in gates(free)] == [True, True]
    own = free.steps[0].child
    assert own.evaluation is not None and own.flags == () and own == free.steps[1].parent
    for note in ("accepted by ann on 2026-01-02", "read it: O(1)", FLAG):
        assert note in own.reviewed
    before = whole.steps[0].child.evaluation
    assert before is not None
    assert replace(own.evaluation, flags=before.flags, notes=()) == before
    assert free.steps[1].child == whole.steps[1].child and flagged_keys(free) == set()


def test_refused_it_counts_as_rejected_and_so_does_nothing_else() -> None:
    refused = reviewed_trajectory(held(), answer("ev-2", "refused"))
    (_, own_reason), (_, other) = gates(refused)
    assert (
        own_reason.startswith("it was rejected")
        and "refused by ann" in own_reason
        and FLAG in own_reason
    )
    assert other.startswith("its parent was rejected")
    own = refused.steps[0].child.evaluation
    assert own is not None and (own.validity, own.timing, own.speedup) == ("rejected", "none", None)
    assert [timing.speedup for timing in own.timings] == [None]
    tuned_one = tuned_instance(reviewed_trajectory(trajectory(held().steps[0]), {}), {})
    assert "no skill in use" in str(tuned_one)  # it would be the winner ...
    alone = reviewed_trajectory(trajectory(held().steps[0]), answer("ev-2", "refused"))
    assert tuned_instance(alone, {}) == "no candidate is correct and measured"  # ... and is none


@pytest.mark.parametrize(
    "changes",
    [
        {"rejected": True, "flags": ("row 14: falls back",)},
        {"validity": "rejected", "flags": (FLAG,)},
        {},
    ],
)
@pytest.mark.parametrize("decision", ["accepted", "refused"])
def test_no_answer_changes_what_does_not_wait(
    changes: dict[str, object], decision: ReviewDecision
) -> None:
    side = Side(2, None, measured("ev-2", 40.0, **changes))
    assert reviewed_side(side, answer("ev-2", decision)) == side


def test_answers_to_others_change_nothing() -> None:
    assert reviewed_trajectory(held(), answer("ev-9")) == held()
    assert reviewed_trajectory(held(), {}) == held()


# -- records


def test_an_accepted_change_is_distilled_and_its_record_replays(chips: Catalog) -> None:
    free = reviewed_trajectory(held(), answer("ev-2"))
    made = distil(free, chips, roles=ROLES)
    assert {delta.node for delta in made.deltas} == {2, 3}
    record = json.loads(json.dumps(made.as_json()))
    assert "read it: O(1)" in record["trajectory"]["steps"][0]["child"]["measured"]["reviewed"]
    stored_form = trajectory_from_json(record["trajectory"]).as_json()
    assert json.loads(json.dumps(stored_form)) == record["trajectory"]
    again = json.loads(json.dumps(replay(record).as_json()))
    assert again == {**record, "stored": []}


def test_a_record_from_before_there_were_answers_replays_to_the_same_word(chips: Catalog) -> None:
    record = json.loads(json.dumps(distil(held(), chips, roles=ROLES).as_json()))
    sides = [step[side] for step in record["trajectory"]["steps"] for side in ("parent", "child")]
    assert all("reviewed" not in side["measured"] for side in sides)
    again = json.loads(json.dumps(replay(record).as_json()))
    assert again == {**record, "stored": []}
    stored_form = trajectory_from_json(record["trajectory"]).as_json()
    assert stored_form == held().as_json()


# -- what is exported


def flagged_tree(*flags: Flag) -> Tree:
    """Node 2 has these flags, node 3 repeats it."""
    nodes = built().nodes
    forged = evaluation_of(bundle(16), 40.0, flags=flags)
    return Tree([replace(n, evaluation=forged) if n.number == 2 else n for n in nodes])


def rewards(tree: Tree, node: Node) -> tuple[object, ...]:
    reward = reward_of(tree, node)
    assert reward is not None
    return reward.validity, reward.value, reward.flags


def test_a_tree_is_exported_with_the_answers() -> None:
    tree = flagged_tree(Flag(29, "review", FLAG))
    key = bundle(16).sha256[:8]
    assert flagged_in(tree) == {key}
    assert rewards(tree, tree[2]) == ("correct", 40.0 * 0.98, (FLAG,))
    free = reviewed_tree(tree, answer(key))
    assert rewards(free, free[2]) == ("correct", 40.0 * 0.98, ())
    own = free[2].evaluation
    assert own is not None and FLAG in own.notes[-1] and "accepted by ann" in own.notes[-1]
    refused = reviewed_tree(tree, answer(key, "refused"))
    validity, value, flags = rewards(refused, refused[2])
    assert (validity, value) == ("rejected", 0.0) and flags == (
        FLAG,
        "refused by ann on 2026-01-02: read it: O(1)",
    )
    assert refused.best is not None and refused.best.number == 1 and tree.best is tree[2]
    for changed in (free, refused):
        assert [n for n in changed if n.number != 2] == [n for n in tree if n.number != 2]


@pytest.mark.parametrize("decision", ["accepted", "refused"])
def test_a_tree_and_a_trajectory_are_answered_alike(decision: ReviewDecision) -> None:
    """A run is exported as a tree, and distilled as a trajectory, which may be stored before the
    answer."""
    tree = flagged_tree(Flag(29, "review", FLAG))
    answers = answer(bundle(16).sha256[:8], decision)
    exported = reviewed_tree(tree, answers)[2].evaluation
    steps = [step for step in steps_of(tree) if step.child.number == 2]
    whole = replace(trajectory(*steps), id="run_9")
    distilled = reviewed_trajectory(whole, answers).steps[0].child
    assert distilled.evaluation == exported
    stored = trajectory_from_json(json.loads(json.dumps(whole.as_json())))
    again = reviewed_trajectory(stored, answers).steps[0].child
    assert side_as_json(again) == side_as_json(distilled)


def test_what_a_check_rejected_stays_rejected() -> None:
    for flags in ([Flag(14, "reject", "x")], [Flag(29, "review", "y"), Flag(14, "reject", "x")]):
        evaluation = evaluation_of(bundle(16), None, flags=tuple(flags))
        assert flagged(evaluation) == ()
        for review in (*answer("x").values(), *answer("x", "refused").values()):
            assert reviewed_evaluation(evaluation, review) == evaluation
