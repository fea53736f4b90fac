"""Arms with a learned library over a small table whose answers are known, and the planted
scenarios' own ability to fail."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from api.cli.target import CommandTarget, read_settings
from benchmarks.search.replay.arms import Target
from benchmarks.search.replay.spaces import CPP, TRITON, Space, proposal_of, space_of
from benchmarks.search.replay.table import Table
from benchmarks.skills.learned_skills import (
    findings,
    go_on,
    idle_spaces,
    measured_spaces,
    part_of,
)
from benchmarks.skills.learning.arms import (
    CURATED,
    NOTHING,
    Knows,
    applies,
    learned_recipes,
    replay,
)
from benchmarks.skills.learning.method import method
from benchmarks.skills.learning.opened import opened
from benchmarks.skills.learning.plan import Plan, default_plan, plan_of
from benchmarks.skills.learning.reporting import Findings, Part, refusals_table, report
from benchmarks.skills.learning.spaces import small_space, thinned
from benchmarks.skills.learning.teaching import Lesson, run_id
from benchmarks.skills.learning.views import Views, unseen_case
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
from kb.errors import InvalidRequest, KernloreError, NotFound, Unavailable
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.problem.tensors import open_case
from optimizer.search.bench.local import problem_view
from optimizer.search.knowledge import Knowledge, Move, ShownSkill
from optimizer.search.runs.knowledge import library_recipes
from optimizer.search.runs.run_store import run_store
from optimizer.search.synthesizers.base import ProblemView
from skills.trials.held_out import MAX_TRIALS, held_out_cases
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
from tests.catalogs import builtin_data_dir
from tests.shared import once, read_builtin_knowledge
from tests.skills.curator.planted import catalog_in

pytestmark = [pytest.mark.slow(seconds=40), pytest.mark.usefixtures("quick_timing")]

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


def test_the_standings_of_a_replay_end_at_its_share(space: Space, table: Table) -> None:
    answers = answers_of(space, table, PLAIN)
    found = replay(space, table, CURATED, 0, answers, TARGET, frozenset())
    assert found.reached and len(found.standings) == found.candidates + 1
    assert found.standings[0] == 1 / table.best(space.problem.name)
    assert list(found.standings) == sorted(found.standings) and found.standings[-1] >= TARGET.share


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
    move = Move("a-learned-one#0", "smaller", {"role": "tile_m", "direction": "decrease"},
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
    assert applies(
        skill, "elementwise", "float32", "cpp", ["memory_bound"]
    )  # sizes are not told here
    assert not applies(skill, "elementwise", "float32", "cpp", ["compute_bound"])
    assert not applies(skill, "softmax", "float32", "cpp", ["memory_bound"])


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
    unseen = unseen_case(problem, "cpu", 8)
    assert unseen is not None
    tried = {one.case.name for one in held_out_cases(problem, "cpu", MAX_TRIALS, 0)}
    assert unseen.name not in tried | {case.name for case in problem.searched}
    assert unseen.constants not in [case.constants for case in problem.searched]


def test_what_was_looked_at_is_read_again_until_the_problem_changes(tmp_path: Path) -> None:
    problem = load_problem(Path("softmax"))
    views = Views(tmp_path, CPP)
    unseen = views.unseen(problem, 8)
    assert unseen is not None and unseen.cases == (unseen_case(problem, "cpu", 8),)
    looked = [views.view(problem), views.view(unseen)]
    assert looked == [problem_view(problem, "cpu"), problem_view(unseen, "cpu")]
    assert Views(tmp_path, CPP).unseen(problem, 8) == unseen
    assert [Views(tmp_path, CPP).view(one) for one in (problem, unseen)] == looked
    other = replace(problem, sha256="another text", summary="other")
    assert Views(tmp_path, CPP).view(other).summary == "other"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_what_a_gpu_looked_at_needs_no_gpu_again(tmp_path: Path) -> None:
    problem = load_problem(Path("softmax"))
    with pytest.raises(Unavailable, match="not looked at on a GPU"):
        Views(tmp_path, TRITON).view(problem)
    Views(tmp_path, CPP).view(problem)
    assert Views(tmp_path, TRITON).view(problem) == problem_view(problem, "cpu")


# -- plans


def test_a_folder_keeps_its_plan_and_refuses_another(tmp_path: Path) -> None:
    asked = {"taught": ("softmax",), "others": ("row_reduction",), "budget": 1}
    plan = plan_of(tmp_path, asked)
    assert (plan.ground, plan.candidates, plan.documents) == (CPP, 8, True)
    assert plan_of(tmp_path, {}) == plan == plan_of(tmp_path, asked)
    with pytest.raises(InvalidRequest, match="begun with other options: budget is 1"):
        plan_of(tmp_path, {"budget": 2})
    assert plan.options() == "--taught softmax --others row_reduction --budget 1"


def test_a_folder_of_before_there_were_plans_is_the_usual_one(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert plan_of(tmp_path, {}) == default_plan(CPP)
    assert default_plan(CPP).options() == ""
    with pytest.raises(InvalidRequest, match="device is cpu"):
        plan_of(tmp_path, {"device": "cuda"})


def smallest(problem: Problem) -> Problem:
    """With the searched case that has the smallest sizes, and no other."""
    cases = [case for case in problem.searched if case.fits("cpu")]
    sizes = [[v for v in case.constants.values() if isinstance(v, int) and v > 0] for case in cases]
    _, case = min(zip(map(math.prod, sizes), cases, strict=True), key=lambda pair: pair[0])
    return replace(problem, cases=(replace(case, timed=True),))


def test_a_plan_for_a_gpu_has_recipes_for_all_of_its_problems(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "gpu", {"language": "triton"})
    assert plan.ground == TRITON and not plan.documents
    problems = {name: load_problem(Path(name)) for name in (*plan.taught, *plan.others)}
    assert len(problems) == 16
    ops = {problems[name].op for name in plan.taught}
    assert [name for name in plan.others if problems[name].op in ops] == ["pointwise_conv2d"]
    folder = tmp_path / "data"
    opened = CommandTarget(read_settings(builtin_data_dir(folder)))
    recipes = [r for r in library_recipes(opened.services) if r.language == "triton"]
    opened.close()
    for problem in problems.values():
        case = next(case for case in problem.searched if case.timed and case.fits("cuda"))
        # Traits are those of a small case: no recipe's number of tensors depends on the size.
        seen = problem_view(smallest(problem), "cpu").main
        view = replace(seen, name=case.name, signature=open_case(problem, case).signature)
        shown = ProblemView(problem.name, problem.op, "", problem.source, (view,), {})
        space = space_of(problem, recipes, 10_000, 1, TRITON, shown)
        assert len(space.points()) > 4, problem.name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "cuda", "language": "cpp"}, "on cuda there are no recipes in cpp"),
        ({"taught": ("softmax",), "others": ("softmax",)}, "softmax cannot be learned from"),
        ({"taught": ("softmaxx",)}, "no problem 'softmaxx'"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_and_not_kept(
    given: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(KernloreError, match=message):
        plan_of(tmp_path / "new", given)
    assert not (tmp_path / "new").exists()


def test_the_method_tells_the_plan() -> None:
    told = "\n".join(method(default_plan(CPP), []))
    assert told.startswith("Twelve shipped problems were searched on this CPU with the C++ recipes")
    gpu = "\n".join(method(default_plan(TRITON), ["a card (triton 3.6)"]))
    assert gpu.startswith("Eight shipped problems were searched on a GPU with the Triton recipes")
    assert "made on a card (triton 3.6)" in gpu and "CPU" not in gpu
    assert "small spaces were measured once:" in told
    assert "measured in two rounds, apart in time:" in "\n".join(method(default_plan(CPP), [], 2))


# -- the whole


def whole_table(space: Space, merits: Mapping[tuple[Any, Any], float]) -> Table:
    """With the bundles that the space's points have."""
    found = table_of(space, merits)
    bundles = {
        tuple(values.items()): proposal_of(space, fitting, values, "").bundle.sha256
        for fitting, values in space.points()
    }
    rows = [replace(row, bundle=bundles.get(tuple(row.values.items()), "")) for row in found.rows]
    return Table(rows)


def test_a_space_without_anything_faster_tells_nothing(space: Space) -> None:
    slow, good = whole_table(space, {(4, 8): 0.9}), whole_table(space, {(4, 8): 1.2})
    assert measured_spaces([space], slow) == [space]
    assert measured_spaces([space], Table(slow.rows[:-1])) == []
    assert idle_spaces([space], slow) == [space]
    assert idle_spaces([space], good) == []
    told = Part([space, space], [space], good, None, 0.95, [space]).told()
    assert told.startswith("2 of 2 spaces are measured. In 1 of them no point is certainly faster")


def test_a_part_of_a_plan_has_these_problems_alone(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, {"taught": ("softmax", "layernorm"), "others": ("conv1d",)})
    part = part_of(plan, ["conv1d", "softmax"])
    assert (part.taught, part.others) == (("softmax",), ("conv1d",))
    with pytest.raises(InvalidRequest, match="attention is not in this folder's plan"):
        part_of(plan, ["attention"])


@dataclass(frozen=True)
class Tiny:
    """A folder in which one problem was taught, and what every call of `go_on` said."""

    folder: Path
    plan: Plan
    said: tuple[bool, bool, bool]
    found: Findings


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that has read what ships."""
    return once(tmp_path_factory, "read-builtin", read_builtin_knowledge)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> Tiny:
    asked = {"taught": ("softmax",), "others": ("row_reduction",), "candidates": 1, "budget": 1,
             "unseen_points": 1, "other_points": 1, "documents": False}  # fmt: skip
    folder = tmp_path_factory.mktemp("tiny")
    plan, stages = plan_of(folder, asked), ("runs", "distil", "trials", "others")
    shutil.copytree(prepared, folder / "data")
    with opened(folder / "data", plan.documents) as services:
        said = (
            go_on(services, folder, plan, stages, 0),  # stops before the first run
            go_on(services, folder, plan, stages, 300),
            go_on(services, folder, plan, stages, 0),  # nothing is left
        )
        return Tiny(folder, plan, said, findings(services, folder, plan, 2))


def test_runs_of_a_copy_are_distilled_where_they_are_put_together(
    tmp_path: Path, prepared: Path, tiny: Tiny
) -> None:
    shutil.copytree(prepared, tmp_path / "data")
    shutil.copytree(tiny.folder / "runs", tmp_path / "runs")
    with opened(tmp_path / "data", tiny.plan.documents) as services:
        with pytest.raises(NotFound):
            run_store(services).run(run_id("softmax"))
        assert go_on(services, tmp_path, tiny.plan, ("distil",), 120)
        nodes = run_store(services).nodes(run_id("softmax"))
    assert len(nodes) == 2
    assert all(node.evaluation is not None for node in nodes)
    assert (tmp_path / "lessons" / "softmax.json").is_file()


def test_a_tiny_folder_goes_from_a_run_to_a_report(tiny: Tiny) -> None:
    assert tiny.said == (False, True, True)
    found = tiny.found
    assert [(lesson.problem, lesson.candidates) for lesson in found.lessons] == [("softmax", 1)]
    asked_for = {kind: [s.problem.op for s in part.asked] for kind, part in found.parts.items()}
    assert asked_for == {"unseen": ["softmax"], "others": ["reduction"]}  # no part `seen`
    assert len(found.parts["others"].table) == 2 or not found.parts["others"].whole
    told = "\n".join(report(found))
    assert told.startswith("One shipped problem was searched on this CPU with the C++ recipes")
    assert "not measured are softmax, " in told


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
