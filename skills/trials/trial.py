"""A trial of a skill: the cases that it may run on, its result, and the verdict of several trials.

A skill is tried on problems and cases that it was not made from and could be offered in. For a
skill to use, one search runs twice with the same budget, with and without it. For a warning, the
best kernel of a search without it is measured as it is and with the change that it warns of.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kb.catalog.skills.evidence import AVOID
from kb.catalog.skills.reading import SkillHead
from kb.errors import KernloreError
from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import canonical_dtype, canonical_op
from optimizer.evaluation.diagnose import quantities
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.tensors import open_case
from optimizer.evaluation.records import Interval
from optimizer.evaluation.roofline import Work, work_of
from optimizer.evaluation.timing.statistics import combined
from skills.trajectories.records import BOUNDING

LEAST_TRIALS = 2  # that a certain verdict needs
DRAWS = 24  # of other sizes, at most
LEAST = 8  # smaller constants are modes rather than sizes
FACTORS = (0.5, 0.625, 0.75, 1.25, 1.5)


@dataclass(frozen=True)
class Arm:
    """One side of a trial. `tried` counts its candidates, `correct` the correct ones; `best_key` is
    the evaluation of the best one."""

    tried: int
    correct: int
    best: Interval | None
    best_key: str = ""


@dataclass(frozen=True)
class Trial:
    """The result on one problem and case that the skill was not made from, for the reason `unseen`.

    `gain` is the best kernel of the search with the skill over that of the search without it,
    averaged over the candidates of the budget and measured anew (`ablation.advantage`); `end` is
    the same at the last candidate alone. They are None if the search with it found nothing correct,
    or the machine was busy. `wrong` counts candidates of the skill that were not correct.

    For a warning, `with_skill` is the kernel that heeds it and `without` the same kernel with the
    avoided change, so `gain` is the time with the change over the time without it. If the change
    could not be made, `without.tried` is 0 and `note` says why. `failed` is the validity of a
    changed kernel that is not correct. `sizes` are the quantities of the case.
    """

    problem: str
    problem_sha256: str
    case: str
    unseen: str
    seed: int
    without: Arm
    with_skill: Arm
    gain: Interval | None
    wrong: int
    hardware: str
    device: str
    toolchain: str
    note: str = ""
    failed: str = ""
    end: Interval | None = None
    sizes: Mapping[str, float] = field(default_factory=dict)

    @property
    def named(self) -> str:
        return f"{self.problem} {self.case}"

    @property
    def harms(self) -> bool:
        """Whether it is certainly slower with the skill, over the budget or at its end."""
        return any(gain is not None and gain.high < 1.0 for gain in (self.gain, self.end))

    @property
    def helps(self) -> bool:
        return not self.harms and self.gain is not None and self.gain.low > 1.0


# -- the verdict of several trials


@dataclass(frozen=True)
class TrialVerdict:
    """The effect of a skill in its trials: `open` if nothing is certain. `gain` is over all trials,
    `reason` a sentence."""

    effect: Literal["helps", "harms", "open"]
    gain: Interval | None
    reason: str

    @property
    def helps(self) -> bool:
        return self.effect == "helps"


def classify_trials(trials: Sequence[Trial], polarity: str = "use") -> TrialVerdict:
    """The verdict of the trials of a skill. It helps with a certain gain over all of them together,
    if it changed the result in at least LEAST_TRIALS and certainly harms in none, neither over the
    budget nor at its end."""
    if polarity == AVOID:
        return _classify_warning(trials)
    wrong = sum(trial.wrong for trial in trials)
    gains = [trial.gain for trial in trials if trial.gain is not None]
    gain = together(gains) if gains else None
    if wrong:
        return TrialVerdict("harms", gain, f"{wrong} candidates made by it were not correct")
    slower = [t.named for t in trials if t.gain is not None and t.gain.high < 1.0]
    if slower:
        return TrialVerdict("harms", gain, f"it is certainly slower on {', '.join(slower)}")
    worse = [t.named for t in trials if t.end is not None and t.end.high < 1.0]
    if worse:
        reason = f"the search with it ends certainly slower on {', '.join(worse)}"
        return TrialVerdict("harms", gain, reason)
    # If both arms end at the same kernels, the figure is 1 without an interval.
    changed = [g for g in gains if g.low < g.high]
    if gain is None or len(changed) < LEAST_TRIALS:
        reason = (
            f"it changed what was found on {len(changed)} of {len(trials)} unseen cases,"
            f" {LEAST_TRIALS} are needed"
        )
        return TrialVerdict("open", gain, reason)
    if gain.low <= 1.0:
        reason = f"no certain gain over the search without it: {_figures(gain)}"
        return TrialVerdict("open", gain, reason)
    reason = f"{_figures(gain)} over the search without it, over the budget"
    return TrialVerdict("helps", gain, reason)


def _classify_warning(trials: Sequence[Trial]) -> TrialVerdict:
    """The change is certainly slower, or fails, in at least LEAST_TRIALS, certainly faster in none,
    and costs time over all timed trials together."""
    gains = [trial.gain for trial in trials if trial.gain is not None]
    gain = together(gains) if gains else None
    faster = [t.named for t in trials if t.gain is not None and t.gain.high < 1.0]
    if faster:
        reason = f"what it says to avoid is certainly faster on {', '.join(faster)}"
        return TrialVerdict("harms", gain, reason)
    failing = [t.named for t in trials if t.failed]
    slower = [t for t in trials if t.gain is not None and t.gain.low > 1.0]
    if len(slower) + len(failing) < LEAST_TRIALS:
        unknown = [f"{t.named}: {t.note}" for t in trials if t.gain is None and not t.failed]
        reason = (
            f"what it says to avoid certainly costs time or fails on {len(slower) + len(failing)}"
            f" of {len(trials)} unseen cases, {LEAST_TRIALS} are needed"
        ) + (f" ({'; '.join(unknown)})" if unknown else "")
        return TrialVerdict("open", gain, reason)
    if gain is not None and gain.low <= 1.0 and not failing:
        return TrialVerdict("open", gain, f"leaving it out has no certain gain: {_figures(gain)}")
    parts = [f"{_figures(gain)} by leaving it out"] if gain is not None else []
    parts += [f"it fails on {', '.join(failing)}"] if failing else []
    return TrialVerdict("helps", gain, "; ".join(parts))


def together(gains: Sequence[Interval]) -> Interval:
    """The geometric mean of at least one gain; the errors of trials are independent. `n` counts the
    pairs of blocks of all."""
    mean = combined([(gain, 1.0) for gain in gains])
    return replace(mean, n=sum(gain.n for gain in gains))


def _figures(gain: Interval) -> str:
    return f"{gain.value:.3f} [{gain.low:.3f}, {gain.high:.3f}]"


# -- the cases of trials


@dataclass(frozen=True)
class HeldOutCase:
    """A problem whose only timed case was not searched, for the reason `why`."""

    problem: Problem
    case: Case
    why: str


def held_out_cases(
    problem: Problem, device: str, seed: int, known: Collection[str] = ()
) -> Iterator[HeldOutCase]:
    """Cases that a search does not see: those that the problem holds out, then other sizes of its
    main case that its code can run. `known` names cases to leave out."""
    for case in problem.held_out:
        if case.fits(device) and case.name not in known:
            yield as_only(problem, case, "held out")
    main = next((c for c in problem.searched if c.timed and c.fits(device)), None)
    if main is None:
        return
    chance = random.Random(f"{problem.sha256}:{seed}")
    drawn: list[dict[str, Any]] = [dict(main.constants)]
    for _ in range(DRAWS):
        constants = _resized(main, chance)
        if constants in drawn:
            continue
        drawn.append(constants)
        name = "sizes_" + "_".join(str(value) for value in constants.values())
        target = as_only(problem, replace(main, name=name, constants=constants), "other sizes")
        if name not in known and _opens(target):
            yield target


def as_only(problem: Problem, case: Case, why: str) -> HeldOutCase:
    """The problem with this case as the only one that is searched and timed."""
    only = replace(case, timed=True, held_out=False, devices=())
    return HeldOutCase(replace(problem, cases=(only,)), only, why)


def _resized(main: Case, chance: random.Random) -> dict[str, Any]:
    """The constants with one size changed: several changes rarely fit together."""
    sizes = [
        name
        for name, value in main.constants.items()
        if isinstance(value, int) and not isinstance(value, bool) and value >= LEAST
    ]
    constants = dict(main.constants)
    if sizes:
        name = chance.choice(sizes)
        constants[name] = max(1, int(constants[name] * chance.choice(FACTORS)))
    return constants


_UNUSABLE = (KernloreError, RuntimeError, ValueError, IndexError, AssertionError)


def _opens(target: HeldOutCase) -> bool:
    """Whether the problem's own code can run these sizes."""
    try:
        opened = open_case(target.problem, target.case)
        opened.reference(opened.inputs(0), opened.state(0))
    except _UNUSABLE:
        return False
    return True


def case_sizes(problem: Problem, case: Case) -> dict[str, float]:
    """The BOUNDING quantities of a case; empty if it cannot be opened here."""
    work = _work(problem, case)
    sizes = quantities(work) if work is not None else {}
    return {name: float(sizes[name]) for name in BOUNDING if name in sizes}


def can_be_offered(
    skill: SkillHead, problem: Problem, case: Case, facts: Mapping[str, float | str]
) -> bool:
    """Whether a skill's precondition allows it on a case. Unknown terms, such as the verdict,
    exclude nothing."""
    if not skill.predicate:
        return True
    work = _work(problem, case)
    terms: dict[str, float | str | None] = dict(quantities(work)) if work is not None else {}
    dtype = case.dtype or (work.dtype if work is not None else None)
    terms["op"] = canonical_op(problem.op)
    terms["dtype"] = canonical_dtype(dtype) if dtype else None
    terms["language"] = next(iter(skill.scopes.languages), None)
    known = Bindings(facts=dict(facts), problem=terms)
    return compile_predicate(skill.predicate).evaluate(known).value is not False


def _work(problem: Problem, case: Case) -> Work | None:
    try:
        return work_of(open_case(problem, case))
    except _UNUSABLE:
        return None
