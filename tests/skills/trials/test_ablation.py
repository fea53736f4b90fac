"""The same search with and without a skill, on a real bench."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kb.catalog import Catalog
from kb.catalog.skills.reading import SkillRow
from kb.errors import Unavailable
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Interval
from optimizer.search.knowledge import NoKnowledge, ShownKnowledge, ShownSkill
from optimizer.search.runs.knowledge import recipe_of, remedies_of, skill_of
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.recipe.recipe import Recipe
from retrieval.request import RetrieveRequest
from skills.trials.trial import classify_trials
from skills.trials.verification import MAX_TRIALS, Ablation, WithSkill
from tests.skills.trials.curated import TEMPLATE, WRONG, bench_of, skill_in

pytestmark = pytest.mark.slow(seconds=15)

HERE = HardwareView("x86-64", ("x86-64",), "cpu", ("cpp",), {})
MOVES = [
    {
        "id": "wider",
        "when": "problem.op in ['reduction']",
        "change": {"role": "vector", "direction": "increase"},
        "why": "More lanes.",
    }
]


def ablation(
    problem: Problem, *recipes: Recipe, seen: frozenset[tuple[str, str]] = frozenset()
) -> Ablation:
    return Ablation([problem], bench_of, recipes, NoKnowledge(), HERE, seen)


def test_recipe_without_rivals_is_compared_with_reference(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    skill = skill_in(catalog, tmp_path, TEMPLATE)
    (trial,) = ablation(problem).trials(skill, 2)
    assert (trial.problem, trial.case, trial.unseen) == ("row_total", "main", "another problem")
    assert (trial.with_skill.tried, trial.with_skill.correct, trial.wrong) == (2, 2, 0)
    assert (trial.without.tried, trial.without.best) == (0, None)
    assert trial.device == "cpu" or trial.device
    if trial.gain is not None:  # the machine was quiet enough to measure the winner again
        assert trial.gain.low <= trial.gain.value <= trial.gain.high
    # The times of these small kernels depend on the machine; a gain is not guaranteed.
    verdict = classify_trials([replace(trial, gain=Interval(1.5, 1.4, 1.6, 1), end=None)])
    assert not verdict.helps and "2 are needed" in verdict.reason


def test_wrong_recipe_is_reported_and_does_not_help(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    skill = skill_in(catalog, tmp_path, WRONG)
    (trial,) = ablation(problem).trials(skill, 1)
    assert (trial.with_skill.tried, trial.with_skill.correct, trial.wrong) == (1, 0, 1)
    assert trial.gain is None and trial.note
    verdict = classify_trials([trial])
    assert not verdict.helps and "not correct" in verdict.reason


def test_trials_exclude_source_problems_and_have_their_own_seeds(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    skill = skill_in(catalog, tmp_path, TEMPLATE)
    rival = recipe_of(skill)
    assert rival is not None
    seen = frozenset((problem.sha256, case.name) for case in problem.searched)
    rivals = ablation(problem, replace(rival, name="cpp-rival"), seen=seen)
    trials = list(rivals.trials(skill, 1))
    assert [trial.unseen for trial in trials] == ["held out", "other sizes", "other sizes"]
    assert [trial.seed for trial in trials] == [0, 1, 2]
    assert {trial.case for trial in trials}.isdisjoint({"main", "odd"})
    for trial in trials:  # the same recipe under two names has the same winner, measured once
        assert (trial.with_skill.tried, trial.without.tried) == (1, 1)
        if trial.gain is not None:
            assert (trial.gain.low, trial.gain.value, trial.gain.high) == (1.0, 1.0, 1.0)
            assert trial.note == "both searches have the same best kernels"
    assert not classify_trials(trials).helps


def test_skill_of_moves_is_tried_where_recipe_uses_them(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    recipe = recipe_of(skill_in(catalog, tmp_path, TEMPLATE))
    assert recipe is not None
    skill = moving(catalog, tmp_path)
    (trial,) = ablation(problem, recipe).trials(skill, 2)
    assert (trial.with_skill.tried, trial.without.tried) == (2, 2)
    assert trial.wrong == 0


def moving(catalog: Catalog, folder: Path) -> SkillRow:
    files = {"references/moves.json": json.dumps(MOVES).encode()}
    return skill_in(catalog, folder, "", name="any-wider-lanes", files=files)


def test_impossible_ablation_is_an_error(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    avoid = skill_in(catalog, tmp_path, TEMPLATE, name="avoid", metadata={"kb.polarity": "avoid"})
    words = skill_in(catalog, tmp_path, "", name="words", files={})
    other = skill_in(catalog, tmp_path, TEMPLATE, name="other", metadata={"kb.ops": "softmax"})
    for skill, message in (
        (avoid, "does not name the change to avoid"),
        (words, "neither a recipe nor moves"),
        (other, "no unseen problem or case"),
        # No recipe has this parameter.
        (moving(catalog, tmp_path), "made no candidate in searches of 1 on row_total main$"),
    ):
        with pytest.raises(Unavailable, match=message):
            list(ablation(problem).trials(skill, 1))


def test_unused_skill_is_given_up_after_as_many_searches_as_trials(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    seen = frozenset((problem.sha256, case.name) for case in problem.searched)
    with pytest.raises(Unavailable) as caught:
        list(ablation(problem, seen=seen).trials(moving(catalog, tmp_path), 1))
    looked_at = caught.value.message.partition(" on ")[2].split(", ")
    assert len(looked_at) == MAX_TRIALS and looked_at[0] == "row_total held_out"


class SkillKnowledge(NoKnowledge):
    """Knowledge of one skill and its moves; records the requests."""

    def __init__(self, skill: SkillRow) -> None:
        self.skill, self.asked = skill, list[RetrieveRequest]()

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        self.asked.append(request)
        shown = ShownSkill(self.skill.name, "", self.skill.body, 1.0)
        return ShownKnowledge("ret_1", moves=remedies_of(self.skill), skills=(shown,))


def test_knowledge_with_and_without_skill(catalog: Catalog, tmp_path: Path) -> None:
    skill = moving(catalog, tmp_path)
    source = SkillKnowledge(skill)
    query = RetrieveRequest(op="reduction", language="cpp", run_id="run_1")
    with_it = WithSkill(source, skill, "").consult(query)
    assert [s.name for s in with_it.skills] == [skill.name]
    assert [r.id for r in with_it.moves] == ["any-wider-lanes#0"]
    assert [skill_of(r.id) for r in with_it.moves] == [skill.name]
    without = WithSkill(source, None, skill.name).consult(query)
    assert without.skills == () and without.moves == ()
    assert [query.run_id for query in source.asked] == [None, None]  # nothing is withheld randomly
