"""Arms with a learned library over a small table whose answers are known, and the planted
scenarios' own ability to fail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.search.replay.arms import Target
from benchmarks.search.replay.spaces import Space, space_of
from benchmarks.search.replay.table import Table
from benchmarks.skills.learning.arms import (
    CURATED,
    NOTHING,
    Knows,
    applies,
    learned_recipes,
    replay,
)
from benchmarks.skills.learning.reporting import refusals_table
from benchmarks.skills.learning.spaces import small_space, thinned, unseen_case
from benchmarks.skills.learning.teaching import Lesson
from benchmarks.skills.planted_skills import (
    LOSS,
    TRICKS,
    WIN,
    Outcome,
    Scenario,
    exploited,
    goes,
    half,
    outside,
    tell,
    told_again,
)
from kb.catalog import skills as store
from kb.catalog.skills import SkillDraft, SkillRow, SkillScopes
from optimizer.curation.ablation import MAX_TRIALS
from optimizer.curation.unseen import unseen_cases
from optimizer.problem.load import load_problem
from optimizer.search.knowledge import Knowledge, Remedy, ShownSkill
from tests.benchmarks.test_knowledge_value import (
    FACTS,
    HARDWARE,
    KERNEL,
    PROBLEM,
    RECIPE,
    TOML,
    answers_of,
    scale,
    table_of,
)
from tests.skills.curator.planted import catalog_in

HERE = "problem.op in ['elementwise']"
ELSEWHERE = "problem.op in ['softmax']"
TARGET = Target(HARDWARE)
PLAIN = Knowledge("", (), (), (), FACTS)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Space:
    file = tmp_path_factory.mktemp("problem") / "scale.py"
    file.write_text(PROBLEM, encoding="utf-8")
    file.with_suffix(".toml").write_text(TOML, encoding="utf-8")
    return space_of(load_problem(file), [scale()], 100, 1)


@pytest.fixture(scope="module")
def table(space: Space) -> Table:
    """One summit, two steps from the defaults (4, 32)."""
    return table_of(space, {(4, 32): 1.0, (4, 16): 1.1, (4, 8): 2.0})


def learned(folder: Path, predicate: str, tile: int | None = None) -> SkillRow:
    """Of the real store. tile: a tuned recipe that begins with it, else a move to smaller tiles."""
    change = {"role": "tile_m", "direction": "decrease"}
    move = {"id": "smaller", "when": predicate, "change": change, "why": ""}
    told: dict[str, Any] = {"moves": (move,)}
    if tile is not None:
        body = {**RECIPE, "parameters": [RECIPE["parameters"][0],
                                         {**RECIPE["parameters"][1], "default": tile}]}  # fmt: skip
        told = {"recipe": body, "metadata": {"files": {"references/kernel.cpp": KERNEL}}}
    draft = SkillDraft(
        name="a-learned-one",
        tier="learned",
        transformation="decrease-tile_m",
        description="Use smaller tiles.",
        body="## Steps\n\nTake a smaller tile.",
        scopes=SkillScopes(ops=("elementwise",)),
        content_sha256="",
        origin="run",
        predicate=predicate,
        **told,
    )
    catalog = catalog_in(folder)
    with catalog.write() as connection:
        store.put(connection, draft, state="candidate", actor="curator", reason="planted")
    with catalog.read() as connection:
        row = store.get(connection, draft.name)
    catalog.close()
    return row


def took(space: Space, table: Table, arm: Knows, knowledge: Knowledge = PLAIN) -> set[int]:
    answers = answers_of(space, table, knowledge)
    names = frozenset({"a-learned-one"})
    return {replay(space, table, arm, seed, answers, TARGET, names).candidates for seed in range(8)}


# -- arms


def test_a_learned_recipe_begins_where_its_run_ended(
    space: Space, table: Table, tmp_path: Path
) -> None:
    tuned = learned(tmp_path, HERE, tile=8)
    assert took(space, table, Knows("offered", skills=(tuned,), offered=True)) == {1}
    assert min(took(space, table, CURATED)) > 1
    # Not offered, it stands after the curated one by name unless an answer shows it.
    shown = Knowledge("", (), (), (ShownSkill(tuned.name, "", "", 1.0),), FACTS)
    active = Knows("active", skills=(tuned,))
    assert took(space, table, active, shown) == {1}


def test_a_learned_move_saves_candidates_only_where_it_may_be_offered(
    space: Space, table: Table, tmp_path: Path
) -> None:
    plain = took(space, table, CURATED)
    here = learned(tmp_path / "a", HERE)
    assert max(took(space, table, Knows("here", skills=(here,), offered=True))) == 3 < max(plain)
    other = learned(tmp_path / "b", ELSEWHERE)
    assert took(space, table, Knows("other", skills=(other,), offered=True)) == plain
    ignored = Knows("ignored", skills=(other,), offered=True, conditions=False)
    assert took(space, table, ignored) == {3}


def test_an_arm_without_the_skill_does_not_see_it_in_the_answers(
    space: Space, table: Table, tmp_path: Path
) -> None:
    move = Remedy("a-learned-one#0", "smaller", {"role": "tile_m", "direction": "decrease"},
                  None, None, "", True)  # fmt: skip
    told = Knowledge("", (), (move,), (), FACTS)
    skill = learned(tmp_path, HERE)
    assert took(space, table, CURATED, told) == took(space, table, CURATED)
    assert took(space, table, Knows("active", skills=(skill,)), told) == {3}
    assert len(took(space, table, NOTHING, told)) > 1  # drawn starts


def test_a_recipe_whose_default_the_space_lacks_takes_no_part(space: Space, tmp_path: Path) -> None:
    tuned = learned(tmp_path, HERE, tile=8)
    assert list(learned_recipes(space, [tuned])) == ["a-learned-one"]
    (fitting,) = space.fittings
    few = thinned(fitting.recipe, fitting.binding, 1, 0, {})
    narrow = Space(space.problem, space.view, (type(fitting)(few, fitting.binding, ()),), 12)
    assert learned_recipes(narrow, [tuned]) == {}


def test_preconditions_decide_by_operator_and_signal(tmp_path: Path) -> None:
    skill = learned(tmp_path, f"{HERE} and signals.memory_bound and problem.rows >= 8")
    assert applies(skill, "elementwise", "float32", ["memory_bound"])  # sizes are not told here
    assert not applies(skill, "elementwise", "float32", ["compute_bound"])
    assert not applies(skill, "softmax", "float32", ["memory_bound"])


# -- spaces


@pytest.mark.parametrize("most", [1, 4, 7])
def test_thinned_spaces_keep_defaults_and_what_was_learned(space: Space, most: int) -> None:
    (fitting,) = space.fittings
    kept: Mapping[str, Any] = {"tile": 8}
    recipe = thinned(fitting.recipe, fitting.binding, most, 3, kept)
    points = [values for _, values in small_space(space.problem, [scale()], most, 3, kept).points()]
    assert recipe.defaults in points and {**recipe.defaults, "tile": 8} in points
    assert len(points) <= max(most, 2)


def test_an_unseen_case_is_none_that_a_run_or_a_trial_has() -> None:
    problem = load_problem(Path("softmax"))
    unseen = unseen_case(problem, 8)
    assert unseen is not None
    tried = {one.case.name for one in unseen_cases(problem, "cpu", MAX_TRIALS, 0)}
    assert unseen.case.name not in tried | {case.name for case in problem.searched}
    sizes = [case.constants for case in problem.searched]
    assert unseen.case.constants not in sizes


# -- reports


def test_refusals_are_counted_without_what_differs() -> None:
    reasons = ("no certain difference from its parent: [0.971, 1.020]",
               "no certain difference from its parent: [0.950, 1.001]",
               "the code is that of node 3")  # fmt: skip
    decisions = [{"stage": "gate", "passed": False, "reason": reason} for reason in reasons]
    told = refusals_table([Lesson("softmax", 8, 8, 1.0, decisions, (), "")])
    assert "| gate | no certain difference from its parent | 2 |" in told
    assert "| gate | the code is that of an earlier node | 1 |" in told


# -- planted scenarios can fail


def test_a_run_without_a_trick_is_no_rejected_exploit(tmp_path: Path) -> None:
    assert not any(outcome.good for outcome in exploited({})(tmp_path / "honest"))
    trick = TRICKS["rejected by a check"]
    assert all(outcome.good for outcome in exploited(trick)(tmp_path / "exploit"))


def test_uses_turn_against_a_skill_only_where_it_loses(tmp_path: Path) -> None:
    assert not any(outcome.good for outcome in goes(lambda told: WIN, 12)(tmp_path / "wins"))
    lost = goes(lambda told: LOSS, 12)(tmp_path / "loses")
    assert all(outcome == Outcome(True, 8) for outcome in lost)  # the fewest that say anything
    assert half("op", "softmax")({"op": "softmax"}) == LOSS
    assert all(outcome.good for outcome in told_again(tmp_path / "again"))


def test_what_closes_the_fence_is_outside_of_it() -> None:
    message = "<data>\ninside\n</data>\n\nYour answer was refused: why\n<data>\nagain\n</data>"
    assert "inside" not in outside(message) and "again" not in outside(message)
    assert "escaped" in outside("<data>\n a </data> escaped\n</data>")


def test_a_row_tells_how_many_and_when() -> None:
    scenario = Scenario("what", "wanted", "10 of 10", lambda folder: [])
    told = tell(scenario, [Outcome(True, 8), Outcome(True, 14), Outcome(False)])
    assert told == ["what", "wanted", 3, 2, "10 of 10", "8 to 14"]
