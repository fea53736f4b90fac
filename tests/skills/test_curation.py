"""The curator end to end: a small real run distilled, tuned recipes, trials as evidence, lift."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.cli.commands.optimize import target_of
from api.services import Services, open_services
from kb.catalog.skills.reading import SkillEvent, SkillLift, SkillRow, list_skills
from kb.catalog.skills.writing import add_evidence, uses_of
from kb.errors import InvalidRequest, NotFound
from kb.hardware.table_reader import Problems
from kb.settings import Settings
from optimizer.search.goal import Goal
from optimizer.search.records import Node
from optimizer.search.runs.hardware_view import hardware_view_of
from optimizer.search.runs.knowledge import (
    RecipeSource,
    ServiceKnowledge,
    library_recipes,
    library_sources,
)
from optimizer.search.runs.optimize import attributed, optimize
from optimizer.search.runs.places import places_for
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from optimizer.search.synthesizers.base import ModelCall
from optimizer.search.synthesizers.llm.settings import ModelOptions
from optimizer.search.synthesizers.recipe.recipe import parse_recipe
from optimizer.search.tree import Tree
from retrieval.request import RetrieveRequest
from skills.curator.distil import (
    COMPOSED,
    Distilled,
    TunedRecipe,
    distil_source,
    recipe_lift,
    replayed,
    tuned_instance,
)
from skills.curator.records import KernelChange
from skills.lifecycle import change_state
from skills.trajectories.records import MeasuredKernel, Trajectory, TrajectoryStep
from skills.trials.verification import Verifier, waiting
from skills.uses import lift_interval, lift_report
from tests.kb.catalog.stored_skills import ablation
from tests.shared import FINISHED_CANDIDATES, finished_run, place_models
from tests.skills.curator import planted
from tests.skills.curator.planted import distil
from tests.skills.trials.curated import TEMPLATE, WRONG, problem_in, skill_in

BODY: dict[str, Any] = {
    "format": 1,
    "language": "cpp",
    "template": "references/kernel.cpp",
    "ops": ["layernorm"],
    "tensors": [{"name": "y", "role": "output", "dtypes": ["float32"], "dims": ["n"]}],
    "parameters": [
        {"name": "lanes", "role": "vector", "values": [4, 8, 16], "default": 8},
        {"name": "unroll", "role": "unroll", "values": [1, 2, 4], "default": 1},
        {"name": "chunk", "role": "block", "values": [16, 32], "default": 16},
        {"name": "ahead", "role": "prefetch", "values": [0, 1], "default": 0},
    ],
}
TEXT = "@{host} // @{lanes} @{unroll} @{chunk} @{ahead}\n"
FILES = {"references/kernel.cpp": TEXT, "notes.md": ""}
RECIPES = {planted.RECIPE: RecipeSource(BODY, FILES, ("poor_reuse",))}

pytestmark = pytest.mark.slow(seconds=20)


@pytest.fixture(scope="module")
def data_and_run(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> tuple[Path, str]:
    data = tmp_path_factory.mktemp("curation") / "data"
    run = finished_run(tmp_path_factory, data)
    return place_models(data, model_cache), run


@pytest.fixture(scope="module")
def services(data_and_run: tuple[Path, str]) -> Iterator[Services]:
    opened = open_services(Settings(data_dir=data_and_run[0]))
    yield opened
    opened.close()


class Quiet:
    def node(self, node: Node, tree: Tree) -> None: ...

    def asking(self, asking: ModelCall) -> None: ...

    def log(self, message: str) -> None: ...


@pytest.fixture(scope="module")
def run(services: Services, data_and_run: tuple[Path, str]) -> RunRow:
    return run_store(services).run(data_and_run[1])


@pytest.fixture(scope="module")
def distilled(services: Services, run: RunRow) -> Distilled:
    return distil_source(services, run.id)


# -- a real run


def test_real_run_is_evidence_for_its_recipe(
    services: Services, run: RunRow, distilled: Distilled
) -> None:
    report = distilled.as_json()
    assert report["source"] == run.id and report["record"]
    gates = [d for d in report["decisions"] if d["stage"] == "gate" and not d["composed"]]
    assert [d["node"] for d in gates] == list(range(1, FINISHED_CANDIDATES + 1))
    for stored in report["stored"]:
        detail = services.skills.show(stored["skill"])
        assert any(row.details.get("run") == distilled.distillations[0].trajectory.id
                   for row in detail.evidence)  # fmt: skip
        assert stored["operation"] == "ADD_EVIDENCE" or detail.summary.state == "candidate"
    learned = [s for s in services.skills.list(tier="learned")]
    assert {s.state for s in learned} <= {"candidate"}


def test_repeated_distillation_stores_nothing_and_replays(
    services: Services, run: RunRow, distilled: Distilled
) -> None:
    again = distil_source(services, run.id)
    assert all(not distillation.stored for distillation in again.distillations)
    for record in (distilled.record, again.record):
        assert replayed(services, record) == []
    record = json.loads(services.blobs.get(distilled.record))
    decisions = record["passes"][0]["distillation"]["decisions"]
    record["passes"][0]["distillation"]["decisions"] = decisions[:-1]
    forged = services.blobs.put(json.dumps(record).encode())
    assert replayed(services, forged) == ["pass 1: decisions"]


def test_unknown_run_or_record_is_refused(services: Services) -> None:
    with pytest.raises(NotFound):
        distil_source(services, "run_0")
    with pytest.raises(NotFound):
        replayed(services, "0" * 64)
    with pytest.raises(InvalidRequest, match="no distillation"):
        replayed(services, services.blobs.put(b'{"format": 7}'))


def test_run_without_knowledge_has_no_attribution(services: Services, run: RunRow) -> None:
    assert attributed(services, run.id) == []


@pytest.mark.parametrize(
    ("goal", "models", "message"),
    [
        (Goal(synthesizers=("llm",)), "", "needs a language model"),
        (Goal(synthesizers=("recipe",)), "openai/x", "leaves llm out"),
        (Goal(language="cpp", synthesizers=("compiler",)), "", "compiler synthesizer is un"),
    ],
)
def test_synthesizers_that_cannot_propose_are_refused(
    services: Services, goal: Goal, models: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        optimize(services, Path("map_id"), goal, "auto", Quiet(), models=ModelOptions(models))


def test_torch_is_listed_last_and_only_by_default(services: Services) -> None:
    places = places_for(services, "auto", "cpp")
    target = next(iter(places.values())).target
    assert set(places) == {"cpp", "torch"}
    assert hardware_view_of(target, places, "cpp").languages == ("cpp",)
    assert hardware_view_of(target, places).languages == ("cpp", "torch")


@pytest.mark.parametrize(
    ("text", "report"),
    [
        (None, {}),
        ("1.5x", {"target": 1.5}),
        ("1.5", {"target": 1.5}),
        ("120us", {"target_us": 120.0}),
        ("0.85roofline", {"target_roofline": 0.85}),
    ],
)
def test_target_with_unit_is_parsed(text: str | None, report: dict[str, float]) -> None:
    assert target_of(text) == report


@pytest.mark.parametrize("text", ["fast", "x", "-1x", "0us", "1.2roofline", "nanx", "infus"])
def test_invalid_target_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--target"):
        target_of(text)


# -- a recipe that was tuned


def searched(*values: dict[str, Any], speedups: tuple[float, ...]) -> Trajectory:
    """A chain of instances, each a change of the previous one."""
    steps: list[TrajectoryStep] = []
    for number, (changed, speedup) in enumerate(zip(values, speedups, strict=True), 1):
        parent = MeasuredKernel(0, None, planted.measured("ev-0", 1.0))
        if steps:
            parent = steps[-1].child
        child = planted.measured(f"ev-{number}", speedup)
        instance = planted.instance({**planted.VALUES, **changed})
        steps.append(planted.step(parent, MeasuredKernel(number, instance, child)))
    whole: Trajectory = planted.trajectory(*steps)
    return whole


def test_successive_changes_of_values_are_one_composed_step() -> None:
    tuned = tuned_instance(
        searched(
            {}, {"lanes": 16}, {"lanes": 16, "unroll": 4}, {"lanes": 16, "unroll": 4, "chunk": 32},
            speedups=(1.0, 1.1, 1.3, 1.5),
        ),
        RECIPES,
    )  # fmt: skip
    assert isinstance(tuned, TunedRecipe), tuned
    (step,) = tuned.trajectory.steps
    assert (step.proposal.synthesizer, step.parent.number, step.child.number) == (COMPOSED, 1, 4)
    assert step.proposal.recipe == tuned.lifted.name
    assert tuned.lifted.name == f"{planted.RECIPE}-chunk32-lanes16-unroll4"
    problems = Problems("a recipe")
    recipe = parse_recipe("x", tuned.lifted.recipe, tuned.lifted.files, problems)
    problems.raise_if_any()
    assert recipe is not None and recipe.template == TEXT
    assert recipe.defaults == {"lanes": 16, "unroll": 4, "chunk": 32, "ahead": 0}
    assert {p.name: p.tested for p in recipe.parameters} == {
        "lanes": (8, 16),
        "unroll": (1, 4),
        "chunk": (16, 32),
        "ahead": (0,),
    }
    assert [p.values for p in recipe.parameters] == [(4, 8, 16), (1, 2, 4), (16, 32), (0, 1)]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (searched({}, {"unroll": 4}, speedups=(1.5, 1.2)), "the values of"),
        (searched({"unroll": 4}, speedups=(1.5,)), "nothing to compare"),
        (planted.trajectory(planted.tuned(child={"validity": "incorrect"})), "no candidate"),
    ],
)
def test_untuned_run_has_no_composed_step(made: Trajectory, message: str) -> None:
    reason = tuned_instance(made, RECIPES)
    assert isinstance(reason, str) and message in reason
    assert tuned_instance(made, {}) and isinstance(tuned_instance(made, {}), str)


def test_tuned_recipe_is_learned_as_a_candidate_with_template(tmp_path: Path) -> None:
    catalog = planted.catalog_in(tmp_path / "data")
    made = searched(
        {}, {"lanes": 16, "unroll": 4}, {"lanes": 16, "unroll": 4, "chunk": 32},
        speedups=(1.0, 1.3, 1.6),
    )  # fmt: skip
    tuned = tuned_instance(made, RECIPES)
    assert isinstance(tuned, TunedRecipe)
    lifting = recipe_lift({tuned.lifted.name: tuned.lifted})
    done = distil(tuned.trajectory, catalog, lift=lifting, roles=planted.ROLES)
    assert [(d.operation, d.evidence[0].details["parent"]) for d in done.deltas] == [("ADD", 1)]
    (row,) = rows(catalog)
    assert (row.tier, row.state, row.recipe) == ("learned", "candidate", tuned.lifted.recipe)
    assert row.metadata["files"] == {"references/kernel.cpp": TEXT}
    assert "chunk = 32" in row.body
    # A search starts with it: it is found by the reference and the skill of its recipe; the verdict
    # of an instance is not a condition.
    assert row.scopes.signals == tuple(sorted(tuned.lifted.signals))
    assert "poor_reuse" in row.scopes.signals and "signals." not in (row.predicate or "")
    assert "verdict" not in row.description and "verdict" not in row.body
    again = distil(tuned.trajectory, catalog, lift=lifting, roles=planted.ROLES)
    assert again.deltas == ()
    other = replace(tuned.trajectory, id="run_2")
    more = distil(other, catalog, lift=lifting, roles=planted.ROLES)
    assert [(d.operation, d.skill) for d in more.deltas] == [("ADD_EVIDENCE", row.name)]
    catalog.close()


def test_gain_within_noise_gives_no_recipe(tmp_path: Path) -> None:
    catalog = planted.catalog_in(tmp_path / "data")
    tuned = tuned_instance(searched({}, {"unroll": 4}, speedups=(1.0, 1.02)), RECIPES)
    assert isinstance(tuned, TunedRecipe)
    lifting = recipe_lift({tuned.lifted.name: tuned.lifted})
    done = distil(tuned.trajectory, catalog, lift=lifting, roles=planted.ROLES)
    assert done.deltas == () and "no certain difference" in done.decisions[0].reason
    catalog.close()


def test_unknown_recipe_is_not_learned(tmp_path: Path) -> None:
    catalog = planted.catalog_in(tmp_path / "data")
    tuned = tuned_instance(searched({}, {"unroll": 4}, speedups=(1.0, 1.5)), RECIPES)
    assert isinstance(tuned, TunedRecipe)
    done = distil(tuned.trajectory, catalog, lift=recipe_lift({}), roles=planted.ROLES)
    assert done.deltas == () and "no skill has the recipe" in done.decisions[-1].reason
    lift = recipe_lift({})(tuned.trajectory, _change(tuned))
    assert lift == f"no skill has the recipe {tuned.lifted.name}"
    own = recipe_lift({tuned.lifted.name: tuned.lifted})
    assert own(tuned.trajectory, _change(tuned)) == tuned.lifted
    catalog.close()


def _change(tuned: TunedRecipe) -> KernelChange:
    (step,) = tuned.trajectory.steps
    return KernelChange(step, "use", f"use-recipe-{tuned.lifted.name}", (), (), (), None)


def rows(catalog: Any) -> list[SkillRow]:
    with catalog.read() as connection:
        return list_skills(connection)


# -- trials


@pytest.mark.usefixtures("quick_timing")
def test_trials_run_on_given_problems(services: Services, tmp_path: Path) -> None:
    problem_in(tmp_path / "problems" / "row_total")
    skill = skill_in(services.catalog, tmp_path, TEMPLATE, name="row-total-test")
    assert waiting(services, queued=False) and "row-total-test" in waiting(services, queued=False)
    assert waiting(services, queued=True) == []
    verifier = Verifier(services, tmp_path / "problems")
    wrong = skill_in(services.catalog, tmp_path, WRONG, name="row-total-wrong")
    report = verifier.try_out(wrong.name, 1)
    (trial,) = report["trials"]
    assert (trial["problem"], trial["case"], trial["wrong"]) == ("row_total", "main", 1)
    assert trial["with_skill"]["correct"] == 0 and not report["helps"]
    assert services.skills.show(wrong.name).evidence == ()  # nothing changed
    remaining = verifier.verify(skill.name, 1, "ann")
    assert remaining["state"] == "candidate" and remaining["reason"]  # one trial and a plain kernel
    (trial,) = remaining["trials"]
    assert (trial["problem"], trial["case"], trial["wrong"]) == ("row_total", "main", 0)
    assert trial["with_skill"]["correct"] == 1
    assert [e.kind for e in services.skills.show(skill.name).evidence] == ["ablation"]
    words = skill_in(services.catalog, tmp_path, "", name="words-test", files={})
    refused = verifier.verify(words.name, 1, "ann")
    assert refused["trials"] == [] and "neither a recipe nor moves" in refused["reason"]
    with pytest.raises(NotFound):
        Verifier(services, tmp_path / "nowhere").try_out(skill.name, 1)


# -- learned skills in later searches


def measured_and_active(services: Services, name: str) -> SkillEvent:
    with services.catalog.write() as connection:
        row = ablation(1.4, "x86-64", n=6)
        add_evidence(connection, name, row, actor="ann", reason="a test")
    return change_state(services.catalog, name, "active", actor="ann", reason="it was measured")


def test_recipe_that_did_harm_on_chip_takes_no_part_there(services: Services) -> None:
    harmful = "triton-split-k-skinny-matmul"  # by its shipped trials on an H200
    everywhere = {recipe.name for recipe in library_recipes(services)}
    assert harmful in everywhere
    assert harmful in {recipe.name for recipe in library_recipes(services, "h100")}
    left_out = everywhere - {recipe.name for recipe in library_recipes(services, "h200")}
    assert harmful in left_out
    assert "triton-tiled-batched-matmul" not in left_out  # it helps there
    assert len(left_out) < len(everywhere) / 4


def test_approved_skill_takes_part_in_next_run(services: Services, tmp_path: Path) -> None:
    skill = skill_in(services.catalog, tmp_path, TEMPLATE, name="row-total-next")
    assert skill.name not in {recipe.name for recipe in library_recipes(services)}
    event = measured_and_active(services, skill.name)
    assert (event.from_state, event.to_state) == ("candidate", "active")
    assert skill.name in {recipe.name for recipe in library_recipes(services)}
    assert skill.name in library_sources(services)
    change_state(services.catalog, skill.name, "quarantined", actor="ann", reason="a test")
    assert skill.name not in {recipe.name for recipe in library_recipes(services)}


def test_moves_of_a_shown_skill_count_as_its_use(services: Services, tmp_path: Path) -> None:
    change = {"role": "unroll", "direction": "increase"}
    moves = [{"id": "more", "when": "signals.memory_bound", "change": change, "why": "Why not."}]
    files = {"references/moves.json": json.dumps(moves).encode()}
    metadata = {"kb.signals": "memory_bound", "kb.hardware": "x86-64", "kb.languages": "cpp"}
    skill = skill_in(
        services.catalog, tmp_path, "", name="unroll-rows", files=files, metadata=metadata
    )
    measured_and_active(services, skill.name)
    knowledge = ServiceKnowledge(services)
    query = RetrieveRequest(
        signals=("memory_bound",),
        hardware="x86-64",
        op="reduction",
        language="cpp",
        dtype="float32",
        max_tokens=2_000,
    )
    knowledge_here = knowledge.consult(query)
    assert skill.name in [shown.name for shown in knowledge_here.skills]
    (own,) = [remedy for remedy in knowledge_here.moves if remedy.id == f"{skill.name}#0"]
    assert (own.name, own.change) == ("more", change)
    assert own.applies is True
    node = Node(1, 0, "evaluated", None, None, knowledge_here.shown())
    knowledge.report(knowledge_here.retrieval_id, (own.id, skill.name, "foreign"), node)
    with services.catalog.read() as connection:
        uses = uses_of(connection, skill.id, role="used")
    assert [use.retrieval_id for use in uses] == [knowledge_here.retrieval_id]
    change_state(services.catalog, skill.name, "retired", actor="ann", reason="a test")
    later = ServiceKnowledge(services).consult(query)
    assert f"{skill.name}#0" not in [remedy.id for remedy in later.moves]


# -- lift


def test_lift_is_reported_with_its_interval(services: Services, tmp_path: Path) -> None:
    skill = skill_in(services.catalog, tmp_path, TEMPLATE, name="row-total-lift")
    report = lift_report(services, skill.name)
    assert report["lift"] is None and "no lift" in report["reason"]
    with pytest.raises(NotFound):
        lift_report(services, "nobody")


def test_interval_of_lift_equals_published_values() -> None:
    """Newcombe 1998, table II, row (a), method 10: 56/70 and 48/80."""
    value, *bounds = lift_interval(SkillLift(70, 56, 80, 48))
    assert value == pytest.approx(0.2)
    assert bounds == pytest.approx([0.0524, 0.3339], abs=5e-5)
    value, low, high = lift_interval(SkillLift(5, 5, 5, 0))
    assert value == 1.0 and high == 1.0 and low > 0
