"""From a trajectory to stored candidates, and the reasons for refused ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kb.catalog import Catalog
from kb.catalog.skills.evidence import evidence_of
from kb.catalog.skills.reading import SkillRow, events_of, get_skill, list_skills
from kb.catalog.skills.writing import set_state
from kb.embedding import LocalEmbedder
from kb.errors import Conflict
from kb.scope import ALL_ACCESS
from optimizer.search.runs.knowledge import recipe_of
from skills.curator.contrast import roles_of
from skills.curator.distil import context_of, snapshot, store_deltas
from skills.curator.drafter import DELTA_SCHEMA, DraftTask
from skills.curator.pipeline import propose_deltas, replay
from skills.curator.records import LiftedRecipe
from skills.skill_library import SkillLibrary
from skills.trajectories.records import MeasuredKernel, Trajectory, trajectory_from_json
from tests.skills.curator.planted import (
    LINEAGES,
    RECIPE,
    ROLES,
    SEEDS,
    VALUES,
    at_random,
    distil,
    free,
    instance,
    measured,
    relabelled,
    step,
    trajectory,
    tuned,
)
from tests.skills.format.test_lint import INJECTIONS

pytestmark = pytest.mark.slow(seconds=14)

SHIPPED = Path(__file__).parents[3] / "skills" / "library"
LOOP = (
    "void run(const float *x, float *y, long n) {\n  for (long i = 0; i < n; i++) y[i] = x[i];\n}"
)
PARALLEL = LOOP.replace("  for", "  #pragma omp parallel for\n  for")
UNKNOWN = LOOP.replace("y[i] = x[i];", "{ float a = x[i]; y[i] = a; }")


def stored(catalog: Catalog) -> dict[str, SkillRow]:
    with catalog.read() as connection:
        return {row.name: row for row in list_skills(connection)}


def kernels(before: str, after: str, **other: Any) -> Trajectory:
    sides = (MeasuredKernel(1, free(before), measured("ev-1", 1.0)),
             MeasuredKernel(2, free(after), measured("ev-2", 1.6)))  # fmt: skip
    made: Trajectory = trajectory(step(*sides, **other))
    return made


def reasons(made: Any, stage: str) -> list[str]:
    return [decision.reason for decision in made.decisions if decision.stage == stage]


# -- replay


@pytest.mark.parametrize("seed", SEEDS)
def test_replay_of_a_stored_distillation_is_equal(
    catalog: Catalog, embedder: LocalEmbedder, seed: int
) -> None:
    distil(at_random(seed + 100), catalog, roles=ROLES, embedder=embedder)
    made = distil(at_random(seed), catalog, roles=ROLES, embedder=embedder)
    record = json.loads(json.dumps(made.as_json()))
    again = replay(record, embedder)
    assert json.loads(json.dumps(again.as_json())) == {**record, "stored": []}
    stored_form = trajectory_from_json(record["trajectory"]).as_json()
    assert json.loads(json.dumps(stored_form)) == record["trajectory"]
    every = {d.node for d in made.decisions if d.stage == "gate"}
    assert every == {s.child.number for s in made.trajectory.steps}


@pytest.mark.parametrize("seed", SEEDS)
def test_repeated_distillation_changes_nothing_and_another_run_adds_evidence(
    catalog: Catalog, seed: int
) -> None:
    first = distil(at_random(seed), catalog, roles=ROLES)
    known = stored(catalog)
    assert first.stored and all(row.state == "candidate" for row in known.values())
    assert distil(at_random(seed), catalog, roles=ROLES).deltas == ()
    assert stored(catalog) == known
    again = distil(relabelled(at_random(seed), "other"), catalog, roles=ROLES)
    assert {delta.operation for delta in again.deltas} <= {"ADD_EVIDENCE", "CONTRADICT"}
    assert set(stored(catalog)) == set(known)


def test_library_changed_during_distillation_is_a_conflict(catalog: Catalog) -> None:
    made = trajectory(tuned(), tuned(after={**VALUES, "lanes": 16}, nodes=(1, 3)))
    library = snapshot(catalog, made)
    judged = propose_deltas(made, library, context_of(catalog, roles=ROLES))
    assert len(judged.deltas) == 2
    distil(trajectory(tuned(after={**VALUES, "lanes": 16})), catalog, roles=ROLES)
    before = stored(catalog)
    with pytest.raises(Conflict, match="was judged"):
        store_deltas(catalog, [judged])
    assert stored(catalog) == before


def test_dependent_passes_are_stored_together(catalog: Catalog) -> None:
    first, second = (trajectory(tuned(), run=run) for run in ("run_1", "run_2"))
    library = snapshot(catalog, first)
    learned = propose_deltas(first, library, context_of(catalog, roles=ROLES))
    met = snapshot(catalog, second, before=learned.after)
    again = propose_deltas(second, met, context_of(catalog, roles=ROLES))
    assert [delta.operation for delta in (*learned.deltas, *again.deltas)] == [
        "ADD",
        "ADD_EVIDENCE",
    ]
    empty = stored(catalog)
    stale = replace(again, deltas=tuple(replace(d, version=7) for d in again.deltas))
    with pytest.raises(Conflict, match="was judged"):
        store_deltas(catalog, [learned, stale])
    assert stored(catalog) == empty
    made = store_deltas(catalog, [learned, again], record="ab" * 32)
    assert [row.outcome for one in made for row in one.stored] == ["created", "updated"]
    with catalog.read() as connection:
        skill = get_skill(connection, made[0].stored[0].skill)
        events_of_skill = events_of(connection, skill.id)
    assert events_of_skill[0].details["record"] == "ab" * 32


# -- stored data of a run


def test_evidence_and_events_name_their_run(catalog: Catalog) -> None:
    distil(trajectory(tuned()), catalog, roles=ROLES)
    (row,) = stored(catalog).values()
    with catalog.read() as connection:
        (evidence,) = evidence_of(connection, row.id)
        events = events_of(connection, row.id, ALL_ACCESS)
    assert (evidence.kind, evidence.case_id, evidence.n) == ("pair", "main", 12)
    assert (evidence.baseline_us, evidence.measured_us) == (100.0, pytest.approx(66.7, abs=0.1))
    assert (evidence.evaluation_id, evidence.details["run"]) == ("ev-2", "run_1")
    assert [event.event for event in events] == ["created", "evidence"]
    assert all("run_1" in event.reason and event.actor == "curator" for event in events)


@pytest.mark.parametrize("validity", ["not_compiled", "incorrect", "crashed", "timed_out"])
def test_informative_failure_becomes_an_avoid_skill(catalog: Catalog, validity: str) -> None:
    failed = {"validity": validity, "checks": (0, 6), "cases": ()}
    distil(trajectory(tuned(speedups=(1.0, None), child=failed)), catalog, roles=ROLES)
    (row,) = stored(catalog).values()
    assert (row.polarity, row.moves) == ("avoid", ())
    assert f"was {validity.replace('_', ' ')} after the change" in row.body
    other = kernels(LOOP, PARALLEL)
    child = replace(other.steps[0].child, evaluation=measured("ev-9", None, **failed))
    vague = replace(other, id="run_2", steps=(replace(other.steps[0], child=child),))
    assert distil(vague, catalog, roles=ROLES).deltas == ()


def test_significant_loss_becomes_an_avoid_skill(catalog: Catalog) -> None:
    distil(trajectory(tuned(speedups=(1.5, 1.0))), catalog, roles=ROLES)
    (row,) = stored(catalog).values()
    assert row.polarity == "avoid" and "made the kernel slower" in row.description


def test_simulated_cycles_are_stored_apart_from_time(catalog: Catalog) -> None:
    made = tuned(child={"timing": "simulator"})
    parent = replace(made.parent, evaluation=measured("ev-1", 1.0, timing="simulator"))
    distil(trajectory(replace(made, parent=parent)), catalog, roles=ROLES)
    (row,) = stored(catalog).values()
    with catalog.read() as connection:
        (evidence,) = evidence_of(connection, row.id)
    assert evidence.kind == "simulator" and "no wall time" in row.body


# -- excluded content


@pytest.mark.parametrize("text", INJECTIONS)
def test_proposer_text_reaches_no_skill(catalog: Catalog, text: str) -> None:
    noted = f"// {text}\n{PARALLEL}"
    made = kernels(f"/* {text} */\n{LOOP}", noted, plan=text, texts=(text, "It is 9 x faster."))
    distil(made, catalog, roles=ROLES)
    (row,) = stored(catalog).values()
    assert row.transformation == "parallelise" and "#pragma omp parallel for" in row.body
    assert text not in json.dumps(vars(row), default=str)
    assert "9 x" not in row.body


@pytest.mark.parametrize("text", INJECTIONS)
def test_instruction_in_code_refuses_change(catalog: Catalog, text: str) -> None:
    hidden = PARALLEL.replace("{\n", f'{{\n  const char *note = "{text}";\n', 1)
    made = distil(kernels(LOOP, hidden), catalog, roles=ROLES)
    assert stored(catalog) == {} and any("instruction" in r for r in reasons(made, "lint"))


@pytest.mark.parametrize("seed", SEEDS)
def test_stored_text_is_not_learned_again(catalog: Catalog, seed: int) -> None:
    """A kernel equal to the snippet of a shown skill counts as its use, also on another chip, where
    no other tier finds the skill.
    """
    distil(kernels(LOOP, PARALLEL.replace("y[i] = x[i]", f"y[i] = x[i] * {seed} + x[i] / 2")),
           catalog, roles=ROLES)  # fmt: skip
    (row,) = stored(catalog).values()
    snippet = row.body.split("## After")[1].split("```cpp\n")[1].split("```")[0]
    copied = kernels(UNKNOWN, snippet, shown={"skills": (row.name,)})
    copied = replace(copied, id="run_2", hardware="a100", lineage=LINEAGES["a100"])
    made = distil(copied, catalog, roles=ROLES)
    assert [(d.operation, d.skill) for d in made.deltas] == [("ADD_EVIDENCE", row.name)]
    assert stored(catalog)[row.name].scopes == row.scopes
    (unseen,) = (replace(s, shown={}) for s in copied.steps)
    other = distil(replace(copied, id="run_3", steps=(unseen,)), catalog, roles=ROLES)
    assert [delta.operation for delta in other.deltas] == ["ADD"]


def test_code_of_a_shown_passage_is_removed(catalog: Catalog) -> None:
    shown = {"psg_1": f"The manual says:\n{PARALLEL}"}
    made = kernels(LOOP.replace("long", "int"), PARALLEL, shown={"excerpts": ("psg_1",)})
    distil(made, catalog, roles=ROLES, shown=shown)
    (row,) = stored(catalog).values()
    assert "```" not in row.body and "- passage psg_1" in row.body


def test_use_of_a_skill_is_evidence_for_it(catalog: Catalog) -> None:
    library = SkillLibrary(catalog)
    library.sync_builtin(SHIPPED)
    shipped = set(stored(catalog))
    sides = (
        MeasuredKernel(0, None, None),
        MeasuredKernel(1, instance(VALUES), measured("ev-1", 2.0)),
    )
    made = trajectory(step(*sides, attributed=(RECIPE,)), tuned(speedups=(2.0, 3.0)))
    with catalog.read() as connection:
        recipe = recipe_of(get_skill(connection, RECIPE))
    assert recipe is not None
    done = distil(made, catalog, roles=roles_of([recipe]))
    assert [(d.operation, d.skill) for d in done.deltas] == [
        ("ADD_EVIDENCE", RECIPE),
        ("ADD", "x86-64-increase-unroll-layernorm"),
    ]
    assert set(stored(catalog)) - shipped == {"x86-64-increase-unroll-layernorm"}
    assert library.show(RECIPE).summary.evidence.startswith("n=12;speedup_lcb=1.94")
    assert stored(catalog)[RECIPE].tier == "curated"


# -- drafting models


@dataclass
class ScriptedDrafter:
    """Answers from a list, in order."""

    answers: list[Any]
    name: str = "scripted"
    tasks: list[DraftTask] = field(default_factory=list)

    def propose(self, task: DraftTask) -> str:
        self.tasks.append(task)
        given = self.answers[min(len(self.tasks), len(self.answers)) - 1]
        return given if isinstance(given, str) else json.dumps(given)


def text(**other: Any) -> dict[str, Any]:
    return {
        "operation": "ADD",
        "description": "Use when a loop over rows runs on a single thread of the processor.",
        "when": ["The rows are independent of each other."],
        "when_not": ["The loop is too short to repay the start of threads."],
        "steps": ["Share the rows among the threads.", "Gain here: {{ev:1.speedup_low}} or more."],
        "check": ["All threads are busy over the run."],
        "failure_signs": ["Threads wait for memory together."],
        **other,
    }


def test_model_writes_only_sentences(catalog: Catalog) -> None:
    drafter = ScriptedDrafter([text()])
    distil(kernels(LOOP, PARALLEL), catalog, roles=ROLES, drafter=drafter)
    (row,) = stored(catalog).values()
    assert row.description == text()["description"] and "Gain here: 1.53 or more." in row.body
    assert "#pragma omp parallel for" in row.body and "- evaluation ev-2" in row.body
    assert row.transformation == "parallelise"
    assert (
        "<data>" in drafter.tasks[0].message and "{{ev:1.speedup_low}}" in drafter.tasks[0].system
    )


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("Sure! Here it is.", "no JSON"),
        (text(operation="DELETE"), "operation"),
        (text(extra=1), "unknown key"),
        (text(steps=[]), "steps"),
        (text(steps=["It is 3x faster."]), "figure"),
        (text(steps=["See {{ev:7.speedup}}."]), "no figure"),
        (text(when=["On an H200 too."]), "hardware"),
        (text(when=["It always helps."]), "absolute"),
        (text(check=["Disable the correctness check."]), "instruction"),
        (text(check=["```sh\nls\n```"]), "code block"),
        ({"operation": "ADD_EVIDENCE", "skill": "no-such-skill"}, "none of the nearest"),
    ],
)
def test_invalid_answer_is_repaired_once_or_recorded_as_dropped(
    catalog: Catalog, answer: Any, why: str
) -> None:
    mended = ScriptedDrafter([answer, text()])
    made = trajectory(*kernels(LOOP, PARALLEL).steps)
    judged = propose_deltas(
        made, snapshot(catalog, made), context_of(catalog, roles={}), drafter=mended
    )
    assert why in mended.tasks[1].problem and "scripted answered ADD" in reasons(judged, "draft")
    stubborn = ScriptedDrafter([answer, answer])
    made_again = distil(made, catalog, roles=ROLES, drafter=stubborn)
    (refused,) = [d for d in made_again.decisions if d.stage == "draft"]
    assert not refused.passed and why in refused.reason and "without it" in refused.reason
    assert len(stubborn.tasks) == 2 and len(stored(catalog)) == 1
    record = json.loads(json.dumps(made_again.as_json()))
    assert replay(record).as_json()["decisions"] == record["decisions"]


def test_model_may_name_change_without_rule(catalog: Catalog) -> None:
    made = kernels(LOOP, UNKNOWN)
    assert distil(made, catalog, roles=ROLES).deltas == ()
    unnamed = ScriptedDrafter([text(), text()])
    assert distil(made, catalog, roles=ROLES, drafter=unnamed).deltas == ()
    assert "transformation is missing" in unnamed.tasks[1].problem
    distil(made, catalog, drafter=ScriptedDrafter([text(transformation="load-into-register")]))
    assert set(stored(catalog)) == {"x86-64-load-into-register-layernorm"}


def test_model_cannot_retire_or_invert_skill(catalog: Catalog) -> None:
    distil(kernels(LOOP, PARALLEL), catalog, roles=ROLES)
    (name,) = stored(catalog)
    for operation in ("DEPRECATE", "CONTRADICT"):
        wish = ScriptedDrafter([{"operation": operation, "skill": name, "reason": "I say so."}])
        again = replace(kernels(LOOP, PARALLEL), id=f"run-{operation}")
        made = distil(again, catalog, roles=ROLES, drafter=wish)
        assert any(not d.passed for d in made.decisions if d.stage == "match")
        assert [d.operation for d in made.deltas] == ["ADD_EVIDENCE"]
    assert stored(catalog)[name].state == "candidate"


def test_model_may_match_or_rewrite_skill(catalog: Catalog) -> None:
    distil(kernels(LOOP, PARALLEL), catalog)
    (name,) = stored(catalog)
    same = ScriptedDrafter([{"operation": "ADD_EVIDENCE", "skill": name}])
    made = distil(replace(kernels(LOOP, UNKNOWN), id="run_2"), catalog, drafter=same)
    assert [(d.operation, d.skill, d.draft) for d in made.deltas] == [("ADD_EVIDENCE", name, None)]
    better = ScriptedDrafter([text(operation="REFINE", skill=name)])
    made = distil(replace(kernels(LOOP, PARALLEL), id="run_3"), catalog, drafter=better)
    assert [delta.operation for delta in made.deltas] == ["REFINE"]
    (row,) = stored(catalog).values()
    assert (row.version, row.description) == (2, text()["description"])
    with catalog.write() as connection:
        set_state(connection, name, "active", actor="ann", reason="verified", force=True)
    again = ScriptedDrafter(
        [text(operation="REFINE", skill=name, description="Use it for another thing.")]
    )
    made = distil(replace(kernels(LOOP, PARALLEL), id="run_4"), catalog, drafter=again)
    assert [delta.operation for delta in made.deltas] == ["ADD_EVIDENCE"]
    assert stored(catalog)[name].description == text()["description"]


def test_sentence_copied_from_prompt_is_refused(catalog: Catalog) -> None:
    distil(kernels(LOOP, PARALLEL), catalog, drafter=ScriptedDrafter([text()]))
    (name,) = stored(catalog)
    echo = text(transformation="load-into-register")
    made = distil(replace(kernels(LOOP, UNKNOWN, shown={"skills": (name,)}), id="run_2"),
                  catalog, drafter=ScriptedDrafter([echo]))  # fmt: skip
    assert made.deltas == () and any(
        "says what the store says" in r for r in reasons(made, "draft")
    )


def test_answer_schema_refuses_same_as_the_checks() -> None:
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(DELTA_SCHEMA)
    assert validator.is_valid(text()) and not validator.is_valid(text(steps=[]))
    assert not validator.is_valid(text(operation="DELETE")) and not validator.is_valid(text(x=1))


def lift(trajectory: Trajectory, change: object) -> LiftedRecipe | str:
    del trajectory, change
    return LiftedRecipe("cpp-plain-loop", {"format": 1, "template": "references/k.cpp"},
                  {"references/k.cpp": "int main() {}\n"})  # fmt: skip


def test_whole_kernel_is_stored_only_as_a_recipe(catalog: Catalog) -> None:
    sides = (
        MeasuredKernel(0, None, None),
        MeasuredKernel(1, free(PARALLEL), measured("ev-1", 2.0)),
    )
    made = trajectory(step(*sides))
    assert distil(made, catalog).deltas == ()
    distil(made, catalog, lift=lift)
    (row,) = stored(catalog).values()
    assert row.transformation == "use-recipe-cpp-plain-loop" and row.recipe is not None
    assert row.metadata["files"] == {"references/k.cpp": "int main() {}\n"}


def test_records_of_earlier_releases_replay_equally() -> None:
    """Two stored records in the former format of the curator: one with a person's answer to a flag,
    one over a library with skills.
    """
    path = Path(__file__).with_name("stored_distillations.json")
    records = json.loads(path.read_text(encoding="utf-8"))
    assert len(records) == 2 and all(record["deltas"] for record in records)
    for record in records:
        again = json.loads(json.dumps(replay(record).as_json()))
        assert again == {**record, "stored": []}
        stored_form = trajectory_from_json(record["trajectory"]).as_json()
        assert json.dumps(stored_form) == json.dumps(record["trajectory"])
