"""Trials of warnings: the change to avoid is made deliberately, on unseen cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kb.catalog import Catalog
from kb.catalog.skills.evidence import evidence_of
from kb.catalog.skills.reading import EvidenceRow, SkillEvent, SkillRow, events_of, get_skill
from kb.errors import Unavailable
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.search.knowledge import NoKnowledge
from optimizer.search.records import Proposal, Value
from optimizer.search.runs.knowledge import knobs_of, recipe_of, warning_of
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.recipe.recipe import Recipe
from optimizer.search.synthesizers.recipe.synthesizer import Knob
from skills.trials.trial import Arm, Trial, classify_trials
from skills.trials.verification import MAX_PAIRS, MAX_TRIALS, Ablation, verify
from tests.skills.trials.curated import TEMPLATE, bench_of, skill_in

pytestmark = pytest.mark.slow(seconds=10)

HERE = HardwareView("x86-64", ("x86-64",), "cpu", ("cpp",), {})
SPREAD = 0.02
# Wrong with four lanes, correct with more.
NARROW_IS_WRONG = TEMPLATE.replace("(float)sum", "(float)sum + (LANES < 8 ? 1 : 0)")
Speed = Callable[[Mapping[str, Value]], float | str]


@dataclass
class KnownBench:
    """A bench with a planted speed or failure for each kernel. `confirmed` holds the values of
    repeated measurements.
    """

    problem: Problem
    speed: Speed
    confirmed: list[Mapping[str, Value]] = field(default_factory=list)
    device: str = "cpu"
    at_once: int = 1

    def reference(self) -> Evaluation:
        return self._evaluation("reference", 1.0)

    def evaluate(self, proposal: Proposal) -> Evaluation:
        return self._evaluation(proposal.bundle.sha256, self.speed(proposal.values))

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        self.confirmed.append(dict(proposal.values))
        return self.evaluate(proposal)

    def _evaluation(self, candidate: str, outcome: float | str) -> Evaluation:
        fields: dict[str, Any] = {"validity": outcome, "timing": "none", "speedup": None}
        if isinstance(outcome, float):
            interval = Interval(outcome, outcome * (1 - SPREAD), outcome * (1 + SPREAD), 12)
            fields = {"validity": "correct", "timing": "measured", "speedup": interval}
        return Evaluation(
            key=f"key-{candidate[:8]}", problem=self.problem.name, candidate=candidate,
            language="cpp", hardware="x86-64", device="cpu0", toolchain="g++ 13", harness="3",
            reached="benchmark", **fields,
        )  # fmt: skip


def known(speed: Speed, stored: list[KnownBench] | None = None) -> Any:
    @contextmanager
    def bench(problem: Problem) -> Iterator[KnownBench]:
        made = KnownBench(problem, speed)
        if stored is not None:
            stored.append(made)
        yield made

    return bench


def lanes(values: Mapping[str, Value]) -> float:
    """Wider is faster."""
    return float(values["LANES"]) / 8


def ablation(problem: Problem, bench: Any, *recipes: Recipe) -> Ablation:
    """The ablation of a skill that was learned from everything that the problem searches."""
    seen = frozenset((problem.sha256, case.name) for case in problem.searched)
    return Ablation([problem], bench, recipes, NoKnowledge(), HERE, seen)


def warning(catalog: Catalog, folder: Path, transformation: str) -> SkillRow:
    metadata = {"kb.polarity": "avoid", "kb.transformation": transformation}
    return skill_in(
        catalog,
        folder,
        "",
        name=f"avoid-{transformation}".replace("_", "-"),
        files={},
        metadata=metadata,
    )


def recipe(catalog: Catalog, folder: Path, template: str = TEMPLATE) -> Recipe:
    own = recipe_of(skill_in(catalog, folder, template))
    assert own is not None
    return own


def history(catalog: Catalog, name: str) -> tuple[str, list[EvidenceRow], list[SkillEvent]]:
    with catalog.read() as connection:
        row = get_skill(connection, name)
        return (row.state, evidence_of(connection, row.id), events_of(connection, row.id))


# -- true warnings, false ones, and open ones


def test_true_warning_becomes_active_with_slow_change_as_evidence(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    skill = warning(catalog, tmp_path, "decrease-vector")
    benches: list[KnownBench] = []
    trials = ablation(problem, known(lanes, benches), recipe(catalog, tmp_path))
    done = verify(catalog, skill.name, trials, budget=1, actor="ann")
    assert done.state == "active" and done.verdict.helps
    assert "by leaving it out" in done.verdict.reason
    assert [trial.unseen for trial in done.trials] == ["held out", "other sizes", "other sizes"]
    for trial in done.trials:  # the default has 8 lanes, one step down 4: half the speed
        assert trial.gain is not None and trial.gain.value == pytest.approx(2.0)
        assert trial.note == "cpp-row-total: LANES from 8 to 4"
        assert (trial.with_skill.tried, trial.without.tried, trial.wrong) == (1, 1, 0)
    both = [{"LANES": 8}, {"LANES": 8}, {"LANES": 4}, {"LANES": 4}]
    assert [bench.confirmed for bench in benches] == [both] * MAX_TRIALS
    state, rows, events = history(catalog, skill.name)
    assert state == "active" and [row.kind for row in rows] == ["ablation"] * MAX_TRIALS
    for row in rows:  # as in evidence: the speed-up of the skill's subject
        assert row.speedup == pytest.approx(0.5)
        assert row.speedup_low is not None and row.speedup_high is not None
        assert row.speedup_low < 0.5 < row.speedup_high < 1.0
        assert row.details["without"]["best_key"] == row.evaluation_id
    last = events[-1]
    assert (last.event, last.to_state, last.actor) == ("state", "active", "ann")


def test_false_warning_stays_candidate_with_counterexamples(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    skill = warning(catalog, tmp_path, "increase-vector")
    trials = ablation(problem, known(lanes), recipe(catalog, tmp_path))
    done = verify(catalog, skill.name, trials, budget=1, actor="ann")
    assert done.state == "candidate" and done.verdict.effect == "harms"
    assert "certainly faster on row_total held_out" in done.verdict.reason
    state, rows, events = history(catalog, skill.name)
    assert [row.speedup for row in rows] == pytest.approx([2.0] * MAX_TRIALS)
    assert (state, events[-1].event, events[-1].reason) == (
        "candidate",
        "verified",
        done.verdict.reason,
    )


def test_change_without_effect_confirms_nothing(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    skill = warning(catalog, tmp_path, "decrease-vector")
    trials = ablation(problem, known(lambda values: 1.5), recipe(catalog, tmp_path))
    done = verify(catalog, skill.name, trials, budget=1)
    assert done.state == "candidate" and done.verdict.effect == "open"
    assert "on 0 of 3 unseen cases, 2 are needed" in done.verdict.reason


def test_best_kernel_of_search_is_changed(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    skill = warning(catalog, tmp_path, "decrease-vector")
    trials = ablation(problem, known(lanes), recipe(catalog, tmp_path)).trials(skill, 3)
    assert {trial.note for trial in trials} == {"cpp-row-total: LANES from 16 to 8"}


def test_impossible_change_is_reported_and_not_stored(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    own = recipe(catalog, tmp_path)
    wide = warning(catalog, tmp_path, "increase-vector")
    done = verify(catalog, wide.name, ablation(problem, known(lanes), own), budget=3)
    assert done.state == "candidate" and "on 0 of" in done.verdict.reason
    assert "LANES is 16 in cpp-row-total, which has no tested value" in done.verdict.reason
    assert all(trial.gain is None and not trial.without.tried for trial in done.trials)
    assert len(done.trials) <= MAX_PAIRS
    assert history(catalog, wide.name)[1] == []
    unrolled = warning(catalog, tmp_path, "decrease-unroll")
    for trial in ablation(problem, known(lanes), own).trials(unrolled, 1):
        assert trial.note == "no recipe that fits here has the role unroll"
    tested = replace(own, parameters=(replace(own.parameters[0], tested=(8, 16)),))
    narrow = warning(catalog, tmp_path, "decrease-vector")
    for trial in ablation(problem, known(lanes), tested).trials(narrow, 1):
        assert "no tested value to decrease it to" in trial.note
    bound = replace(own, constraints=("LANES >= 8",))
    for trial in ablation(problem, known(lanes), bound).trials(narrow, 1):
        assert trial.note == "cpp-row-total does not allow LANES from 8 to 4 here"


@pytest.mark.parametrize(
    ("validity", "state", "message"),
    [
        ("incorrect", "active", "it fails on row_total held_out"),
        ("rejected", "candidate", "it was rejected"),  # no measurement of the kernel
    ],
)
def test_failure_of_changed_kernel_confirms_warning(
    catalog: Catalog, problem: Problem, tmp_path: Path, validity: str, state: str, message: str
) -> None:
    def speed(values: Mapping[str, Value]) -> float | str:
        return validity if values["LANES"] == 4 else 1.5

    skill = warning(catalog, tmp_path, "decrease-vector")
    trials = ablation(problem, known(speed), recipe(catalog, tmp_path))
    done = verify(catalog, skill.name, trials, budget=1)
    assert done.state == state and message in done.verdict.reason
    rows = history(catalog, skill.name)[1]
    assert [row.speedup for row in rows] == [None] * MAX_TRIALS
    validities = [row.details.get("validity") for row in rows]
    assert validities == [validity if state == "active" else None] * MAX_TRIALS


def test_active_warning_that_is_false_becomes_suspect(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    skill, own = warning(catalog, tmp_path, "decrease-vector"), recipe(catalog, tmp_path)
    assert verify(catalog, skill.name, ablation(problem, known(lanes), own), budget=1).state == (
        "active"
    )
    narrower = ablation(problem, known(lambda values: 8 / float(values["LANES"])), own)
    assert verify(catalog, skill.name, narrower, budget=1).state == "suspect"


def test_warning_without_direction_cannot_be_tried(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    for transformation in ("set-dtype", "use-recipe-row-total", "vectorize-loads"):
        skill = warning(catalog, tmp_path, transformation)
        with pytest.raises(Unavailable, match="does not name the change to avoid"):
            list(ablation(problem, known(lanes)).trials(skill, 1))


# -- a real bench


def test_change_that_breaks_kernel_is_compiled_and_found_wrong(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    skill = warning(catalog, tmp_path, "decrease-vector")
    own = recipe(catalog, tmp_path, NARROW_IS_WRONG)
    done = verify(catalog, skill.name, ablation(problem, bench_of, own), budget=1)
    assert [trial.failed for trial in done.trials] == ["incorrect"] * MAX_TRIALS
    assert all(trial.with_skill.correct == 1 and trial.device for trial in done.trials)
    assert done.state == "active"


def test_change_that_leaves_kernel_correct_is_measured_on_both_sides(
    catalog: Catalog, problem: Problem, tmp_path: Path
) -> None:
    skill = warning(catalog, tmp_path, "increase-vector")
    trial = next(iter(ablation(problem, bench_of, recipe(catalog, tmp_path)).trials(skill, 1)))
    assert (trial.without.tried, trial.without.correct, trial.failed) == (1, 1, "")
    assert trial.with_skill.best_key != trial.without.best_key
    if trial.gain is not None:  # the machine was quiet enough
        assert trial.gain.low <= trial.gain.value <= trial.gain.high


# -- verdicts, and the parameters that a warning names


def test_one_wide_interval_makes_verdict_uncertain() -> None:
    def trial(value: float, spread: float) -> Trial:
        gain = Interval(value, value / spread, value * spread, 12)
        arm = Arm(1, 1, None)
        return Trial("p", "0" * 64, "c", "held out", 0, arm, arm, gain, 0, "x86-64", "cpu", "g++")

    certain: Sequence[Trial] = [trial(1.05, 1.02), trial(1.06, 1.02)]
    assert classify_trials(certain, "avoid").helps
    wide = classify_trials([*certain, trial(0.98, 1.9)], "avoid")
    assert wide.effect == "open" and "no certain gain" in wide.reason
    assert not classify_trials(certain[:1], "avoid").helps


def test_transformation_names_parameters(catalog: Catalog, tmp_path: Path) -> None:
    skill = warning(catalog, tmp_path, "decrease-tile_m-and-add-fuse")
    assert knobs_of(skill) == (Knob("tile_m", "decrease"), Knob("fuse", "add"))
    assert knobs_of(replace(skill, polarity="use")) == ()
    remedy = warning_of(skill, "x#0")
    assert remedy is not None and remedy.change.get("role") is None
    assert remedy.change["avoid"] == [
        {"role": "tile_m", "direction": "decrease"},
        {"role": "fuse", "direction": "add"},
    ]
    assert warning_of(replace(skill, transformation="set-dtype"), "x#0") is None
