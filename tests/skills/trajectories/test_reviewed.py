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
from skills.trajectories.reading import (
    flagged_keys,
    open_flags,
    review_notes,
    reviewed_evaluation,
    reviewed_tree,
)
from skills.trajectories.records import (
    Trajectory,
    steps_of,
    trajectory_from_json,
)
from tests.skills.curator.planted import (
    ROLES,
    VALUES,
    catalog_in,
    distil,
    instance,
    trajectory,
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


def held() -> Tree:
    """Three instances of a recipe, each a change of the one before; the second (ev-2) is
    flagged."""
    nodes = [Node(0, None, "evaluated", None, None)]
    values = dict(VALUES)
    speedups = {1: 1.0, 2: 40.0, 3: 60.0}
    for number, changed in enumerate(({}, {"unroll": 4}, {"lanes": 16}), 1):
        values = {**values, **changed}
        flags = (Flag(29, "review", FLAG),) if number == 2 else ()
        proposal = replace(instance(values), parent=number - 1)
        evaluation = evaluation_of(
            proposal.bundle, speedups[number], key=f"ev-{number}", flags=flags
        )
        nodes.append(Node(number, number - 1, "evaluated", proposal, evaluation))
    return Tree(nodes)


def read(tree: Tree, reviews: dict[str, Review] | None = None) -> Trajectory:
    """A tree as the curator reads it with these decisions, without the first instance."""
    decisions = reviews or {}
    changed = reviewed_tree(tree, decisions)
    steps = steps_of(changed, {}, review_notes(tree, decisions))
    made: Trajectory = trajectory(*steps[1:])
    return made


def gates(whole: Trajectory) -> list[tuple[bool, str]]:
    decisions = [gate(whole, step, {})[1] for step in whole.steps]
    return [(decision.passed, decision.reason) for decision in decisions]


# -- the curator


def test_accepted_the_gate_lets_it_and_its_child_pass() -> None:
    whole = read(held())
    assert [passed for passed, _ in gates(whole)] == [False, False]
    assert all("held for a person" in reason for _, reason in gates(whole))
    assert flagged_keys(held()) == {"ev-2"}
    free = read(held(), answer("ev-2"))
    assert [passed for passed, _ in gates(free)] == [True, True]
    own = free.steps[0].child
    assert own.evaluation is not None and own.evaluation.flags == ()
    assert own == free.steps[1].parent
    for note in ("accepted by ann on 2026-01-02", "read it: O(1)", FLAG):
        assert note in own.evaluation.reviewed
    before = whole.steps[0].child.evaluation
    assert before is not None
    assert replace(own.evaluation, flags=before.flags, reviewed="") == before
    assert free.steps[1].child == whole.steps[1].child
    assert flagged_keys(reviewed_tree(held(), answer("ev-2"))) == set()


def test_refused_it_counts_as_rejected_and_so_does_nothing_else() -> None:
    refused = read(held(), answer("ev-2", "refused"))
    (_, own_reason), (_, other) = gates(refused)
    assert (
        own_reason.startswith("it was rejected")
        and "refused by ann" in own_reason
        and FLAG in own_reason
    )
    assert other.startswith("its parent was rejected")
    own = refused.steps[0].child.evaluation
    assert own is not None and (own.validity, own.timing, own.speedup) == ("rejected", "none", None)
    assert [timing.speedup for timing in own.cases] == [None]
    first = replace(read(held()), steps=read(held()).steps[:1])
    assert "no skill in use" in str(tuned_instance(first, {}))  # it would be the winner ...
    alone = replace(refused, steps=refused.steps[:1])
    assert tuned_instance(alone, {}) == "no candidate is correct and measured"  # ... and is none


def test_answers_to_others_change_nothing() -> None:
    assert read(held(), answer("ev-9")) == read(held())


# -- records


def test_an_accepted_change_is_distilled_and_its_record_replays(chips: Catalog) -> None:
    made = distil(read(held(), answer("ev-2")), chips, roles=ROLES)
    assert {delta.node for delta in made.deltas} == {2, 3}
    record = json.loads(json.dumps(made.as_json()))
    assert "read it: O(1)" in record["trajectory"]["steps"][0]["child"]["measured"]["reviewed"]
    stored_form = trajectory_from_json(record["trajectory"]).as_json()
    assert json.loads(json.dumps(stored_form)) == record["trajectory"]
    again = json.loads(json.dumps(replay(record).as_json()))
    assert again == {**record, "stored": []}


def test_a_record_from_before_there_were_answers_replays_to_the_same_word(chips: Catalog) -> None:
    record = json.loads(json.dumps(distil(read(held()), chips, roles=ROLES).as_json()))
    kernels = [step[name] for step in record["trajectory"]["steps"] for name in ("parent", "child")]
    assert all("reviewed" not in kernel["measured"] for kernel in kernels)
    again = json.loads(json.dumps(replay(record).as_json()))
    assert again == {**record, "stored": []}
    stored_form = trajectory_from_json(record["trajectory"]).as_json()
    assert json.loads(json.dumps(stored_form)) == json.loads(json.dumps(read(held()).as_json()))


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
    assert flagged_keys(tree) == {key}
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


def test_what_a_check_rejected_stays_rejected() -> None:
    for flags in ([Flag(14, "reject", "x")], [Flag(29, "review", "y"), Flag(14, "reject", "x")]):
        evaluation = evaluation_of(bundle(16), None, flags=tuple(flags))
        assert open_flags(evaluation) == ()
        for review in (*answer("x").values(), *answer("x", "refused").values()):
            assert reviewed_evaluation(evaluation, review) == evaluation
