"""Steps that a skill warns of are tried last, are still reached, and are restored without the
warning.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optimizer.search.goal import Goal
from optimizer.search.knowledge import ShownKnowledge, ShownMove
from optimizer.search.loop import Search
from optimizer.search.propose import SearchTask
from optimizer.search.runs.optimize import CHANGED, attribution
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.recipe.recipe import Parameter
from optimizer.search.synthesizers.recipe.synthesizer import (
    Knob,
    NoStep,
    RecipeSynthesizer,
    avoided,
    avoiding,
    does,
    next_value,
    turned,
)
from optimizer.search.tree import Tree
from tests.optimizer.search.landscape import HARDWARE, VIEW, Moves, RecordingListener, TableBench
from tests.optimizer.search.synthesizers.test_recipe import (
    PROBLEM,
    REMEDY,
    after,
    context,
    measured,
    recipe,
)

LARGER = Knob("tile_m", "increase")
PROBLEM_VIEW = replace(
    VIEW,
    op="elementwise",
    source=PROBLEM,
    cases=(replace(VIEW.cases[0], traits={"mul.other": 1.5}),),
)


def warning(*knobs: Knob, identity: str = "avoid-it#0", applies: bool | None = None) -> ShownMove:
    return ShownMove(identity, "avoid", avoiding(knobs), None, None, "Slower.", applies)


def proposed(*moves: ShownMove, **values: int) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    parent = measured(1, 0, {"chunk": 4, "tile": 16, **values}, 1.0)
    return after(parent, parent, knowledge=ShownKnowledge("ret_1", moves=moves))


# -- the order


def test_avoided_step_is_last_and_none_is_lost() -> None:
    free, warned = proposed(REMEDY), proposed(REMEDY, warning(LARGER))
    assert free[0] == ({"chunk": 4, "tile": 32}, ("mv_1",))
    larger = [{"chunk": 4, "tile": 32}, {"chunk": 4, "tile": 64}]
    last = [values for values, _ in warned[-2:]]
    assert last[0] == larger[0] and last[1] == larger[1]
    others = [values for values, _ in free if values not in larger]
    assert [values for values, _ in warned[:-2]] == others  # all others in order
    assert warned[-2][1] == ("mv_1",)  # attributed to the move


def test_false_warning_or_one_for_another_role_has_no_effect() -> None:
    free = proposed(REMEDY)
    assert proposed(REMEDY, warning(LARGER, applies=False)) == free
    assert proposed(REMEDY, warning(Knob("unroll", "increase"))) == free
    assert proposed(REMEDY, warning()) == free


def test_warning_is_not_followed_or_attributed_as_a_move() -> None:
    choices = proposed(warning(Knob("tile_m", "decrease")), warning(LARGER, identity="other#0"))
    assert {attributed for _, attributed in choices} == {()}
    assert choices[0][0]["tile"] == 16 and len(choices) == 11


def test_warning_on_two_parameters_avoids_only_both_together() -> None:
    both = warning(LARGER, Knob("block", "decrease"))
    chosen = [values for values, _ in proposed(both)]
    assert {(v["chunk"], v["tile"]) for v in chosen[-2:]} == {(1, 32), (1, 64)}
    assert {"chunk": 4, "tile": 32} in chosen[:4] and {"chunk": 1, "tile": 16} in chosen[:4]


def test_recent_win_in_this_run_outweighs_warning() -> None:
    start = measured(1, 0, {"chunk": 4, "tile": 8}, 1.0)
    won = measured(2, 1, {"chunk": 4, "tile": 16}, 1.5)
    knowledge = ShownKnowledge("ret_1", moves=(warning(LARGER),))
    assert after(won, start, won, knowledge=knowledge)[0] == ({"chunk": 4, "tile": 32}, ())
    lost = measured(2, 1, {"chunk": 4, "tile": 16}, 0.5)
    waiting = [values for values, _ in after(start, start, lost, knowledge=knowledge)[-2:]]
    assert sorted(values["tile"] for values in waiting) == [32, 64]
    assert {values["chunk"] for values in waiting} == {4}


def test_deferred_step_names_its_warning() -> None:
    parent = measured(1, 0, {"chunk": 4, "tile": 32}, 1.0)
    knowledge = ShownKnowledge("ret_1", moves=(warning(LARGER),))
    others = [
        measured(2 + number, 1, {"chunk": chunk, "tile": tile}, 0.5)
        for number, (chunk, tile) in enumerate(
            (c, t) for c in (1, 4, 16) for t in (8, 16, 32, 64) if (c, t) not in ((4, 32), (4, 64))
        )
    ]
    proposal = RecipeSynthesizer([recipe()], ["cpp"]).propose(
        context(parent, (parent, *others), knowledge=knowledge)
    )
    assert proposal is not None and proposal.values == {"chunk": 4, "tile": 64}
    assert proposal.plan.endswith("Tried last: avoid-it#0 says to avoid it.")


# -- one step


def test_change_follows_values_not_the_order_of_domain() -> None:
    first = Parameter("rows_first", "order", (True, False), True)
    assert (next_value(first, True, "remove"), next_value(first, True, "add")) == (False, None)
    falling = Parameter("tile", "tile_m", (64, 32, 16, 8), 32)
    assert (next_value(falling, 32, "increase"), next_value(falling, 32, "decrease")) == (64, 16)
    tested = replace(falling, tested=(8, 32))
    assert (next_value(tested, 32, "decrease"), next_value(tested, 32, "increase")) == (8, None)
    names = Parameter("kind", "dtype", ("float", "double"), "float")
    assert next_value(names, "float", "increase") is None


def test_one_step_of_each_parameter_or_reason() -> None:
    values = {"chunk": 4, "tile": 32}
    knobs = (LARGER, Knob("block", "decrease"))
    changed = turned(recipe(), values, knobs)
    assert changed == {"chunk": 1, "tile": 64} and does(recipe(), values, changed, knobs)
    assert not does(recipe(), values, changed, knobs[:1])
    with pytest.raises(NoStep, match="tile is 64 in scale, which has no tested value to increase"):
        turned(recipe(), changed, knobs[:1])
    with pytest.raises(NoStep, match="no parameter of the role unroll"):
        turned(recipe(), values, [Knob("unroll", "increase")])
    assert avoided(warning(*knobs)) == knobs and avoided(REMEDY) == ()


# -- in a run


def run(folder: Path, knowledge: Moves, *, on: bool = True) -> tuple[Tree, SearchTask]:
    """Over a table in which larger tiles are slower."""
    goal = Goal(candidates=6, seed=2, knowledge=on)
    row = RunRow("run_1", "hill", "0" * 64, "x86-64", goal)
    store = FileStore(folder)
    store.begin(row)
    bench = TableBench(lambda proposal: 2.0 - int(proposal.values["tile"]) / 100)
    search = Search(
        row, store, bench, [proposer()], knowledge, PROBLEM_VIEW, HARDWARE, RecordingListener()
    )
    search.run()
    return Tree(store.nodes("run_1")), SearchTask("run_1", goal, PROBLEM_VIEW, HARDWARE)


def proposer() -> RecipeSynthesizer:
    return RecipeSynthesizer([recipe(constraints=[])], ["cpp"])


def values_of(tree: Tree) -> list[dict[str, Any]]:
    return [dict(node.proposal.values) for node in tree if node.proposal is not None]


def test_shown_warning_is_stored_and_found_by_ablation(tmp_path: Path) -> None:
    up = replace(REMEDY, id="mv_up")
    knowledge = Moves(up, warning(LARGER))
    tree, task = run(tmp_path / "warned", knowledge)
    assert {node.shown.moves for node in tree.nodes[1:]} == {("mv_up", "avoid-it#0")}
    free, _ = run(tmp_path / "free", Moves(up))
    assert values_of(free)[1] == {"chunk": 4, "tile": 64} != values_of(tree)[1]
    attributions = {item.node: item for item in attribution(tree, task, [proposer()], knowledge)}
    assert attributions[2].attributed == ("avoid-it#0",) and not attributions[2].note
    assert attributions[2].recorded == ()  # it made no candidate, so none counts as its use
    assert attributions[1].attributed == ()  # the defaults come first either way
    gone = attribution(tree, task, [proposer()], Moves(up))
    assert {item.note for item in gone} == {CHANGED}


def test_run_without_knowledge_sees_no_warning(tmp_path: Path) -> None:
    off, _ = run(tmp_path / "off", Moves(warning(LARGER)), on=False)
    plain, _ = run(tmp_path / "plain", Moves(), on=False)
    assert values_of(off) == values_of(plain)
    assert {node.shown.moves for node in off} == {()}
    silent, _ = run(tmp_path / "silent", Moves())
    assert values_of(silent) == values_of(run(tmp_path / "other", Moves(warning()))[0])
