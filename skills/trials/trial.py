"""A trial of a skill, what trials are run with, and what several trials say together.

Of a skill to use, the same search runs twice with the same budget, once with it and once without,
measured on the device at hand; finding the same sooner helps too. Of a skill to avoid something,
the best kernel of a search without it is measured once as it is and once with the change that it
warns of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Literal

from kb.catalog.skills.evidence import AVOID
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Interval
from optimizer.evaluation.timing.statistics import combined
from optimizer.search.bench.local import LocalBench
from optimizer.search.knowledge import KnowledgeSource
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.recipe.recipe import Recipe

LEAST_TRIALS = 2


@dataclass(frozen=True)
class TrialContext:
    """What trials are run with.

    `problems` are those that may be searched here. `bench` opens a bench for one of them on the
    device at hand. `recipes` are those of active skills, `knowledge` is what a run has, `hardware`
    that of the device. `seen` holds (sha256 of a problem, case) pairs that the skill was distilled
    from.
    """

    problems: Sequence[Problem]
    bench: Callable[[Problem], AbstractContextManager[LocalBench]]
    recipes: Sequence[Recipe]
    knowledge: KnowledgeSource
    hardware: HardwareView
    seen: frozenset[tuple[str, str]]
    seed: int = 0


@dataclass(frozen=True)
class Arm:
    """One side of a trial. `tried` counts its candidates, `correct` those that were correct;
    `best_key` is the evaluation of the best one."""

    tried: int
    correct: int
    best: Interval | None
    best_key: str = ""


@dataclass(frozen=True)
class Trial:
    """A trial on one problem and case that the skill was not distilled from; `unseen` says why it
    was not.

    `gain` is where the search with the skill stood over where the one without it stood, on average
    over the candidates of the budget, all of it measured anew (`skills.trials.ablation.advantage`);
    `end` is the same at the last candidate alone. They are None where the search with it has
    nothing correct, or the machine was not quiet. `wrong` counts candidates of the skill itself
    that were not correct.

    For a skill to avoid something, `with_skill` is the kernel that heeds it and `without` the same
    kernel with the avoided change, so that `gain` is what leaving the change out brings: the time
    with the change over the time without it. `without.tried` is 0 where the change could not be
    made; `note` says why. `failed` is what became of the changed kernel where it cannot be used
    (`incorrect`). `sizes` are those of the case, in the quantities of predicates.
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
        """The problem and the case."""
        return f"{self.problem} {self.case}"

    @property
    def harms(self) -> bool:
        """Whether it is certainly slower with the skill, over the budget or at its end."""
        return any(gain is not None and gain.high < 1.0 for gain in (self.gain, self.end))

    @property
    def helps(self) -> bool:
        """Whether it is certainly faster with the skill."""
        return not self.harms and self.gain is not None and self.gain.low > 1.0


Effect = Literal["helps", "harms", "open"]


@dataclass(frozen=True)
class Verdict:
    """What the trials of a skill say together. `effect` is open where nothing is certain, `gain` is
    over all trials, `reason` is in words."""

    effect: Effect
    gain: Interval | None
    reason: str

    @property
    def helps(self) -> bool:
        """Whether the effect is certainly a gain."""
        return self.effect == "helps"


def classify_trials(trials: Sequence[Trial], polarity: str = "use") -> Verdict:
    """What trials say together. A skill helps with a certain gain over all of them, in at least
    LEAST_TRIALS of which it changed the result, and with no trial in which it certainly harms, be
    it over the budget or at its end. `polarity` is that of the skill."""
    if polarity == AVOID:
        return _classify_warning(trials)
    wrong = sum(trial.wrong for trial in trials)
    gains = [trial.gain for trial in trials if trial.gain is not None]
    gain = together(gains) if gains else None
    if wrong:
        return Verdict("harms", gain, f"{wrong} candidates made by it were not correct")
    slower = [t.named for t in trials if t.gain is not None and t.gain.high < 1.0]
    if slower:
        return Verdict("harms", gain, f"it is certainly slower on {', '.join(slower)}")
    worse = [t.named for t in trials if t.end is not None and t.end.high < 1.0]
    if worse:
        where = ", ".join(worse)
        return Verdict("harms", gain, f"the search with it ends certainly slower on {where}")
    # Where both arms stand at the same kernels the figure is 1 without any doubt: it tells nothing.
    telling = [g for g in gains if g.low < g.high]
    if gain is None or len(telling) < LEAST_TRIALS:
        return Verdict(
            "open",
            gain,
            f"it changed what was found on {len(telling)} of {len(trials)} unseen cases,"
            f" {LEAST_TRIALS} are needed",
        )
    if gain.low <= 1.0:
        return Verdict(
            "open", gain, f"no certain gain over the search without it: {_figures(gain)}"
        )
    return Verdict("helps", gain, f"{_figures(gain)} over the search without it, over the budget")


def _classify_warning(trials: Sequence[Trial]) -> Verdict:
    """The change is certainly slower, or fails, in at least LEAST_TRIALS, certainly faster in none,
    and costs time over all that were timed together."""
    gains = [trial.gain for trial in trials if trial.gain is not None]
    gain = together(gains) if gains else None
    faster = [t.named for t in trials if t.gain is not None and t.gain.high < 1.0]
    if faster:
        where = ", ".join(faster)
        return Verdict("harms", gain, f"what it says to avoid is certainly faster on {where}")
    failing = [t.named for t in trials if t.failed]
    slower = [t for t in trials if t.gain is not None and t.gain.low > 1.0]
    if len(slower) + len(failing) < LEAST_TRIALS:
        unknown = [f"{t.named}: {t.note}" for t in trials if t.gain is None and not t.failed]
        return Verdict(
            "open",
            gain,
            f"what it says to avoid certainly costs time or fails on {len(slower) + len(failing)}"
            f" of {len(trials)} unseen cases, {LEAST_TRIALS} are needed"
            + (f" ({'; '.join(unknown)})" if unknown else ""),
        )
    if gain is not None and gain.low <= 1.0 and not failing:
        return Verdict("open", gain, f"leaving it out has no certain gain: {_figures(gain)}")
    parts = [f"{_figures(gain)} by leaving it out"] if gain is not None else []
    parts += [f"it fails on {', '.join(failing)}"] if failing else []
    return Verdict("helps", gain, "; ".join(parts))


def together(gains: Sequence[Interval]) -> Interval:
    """The geometric mean of at least one gain; errors of the trials are independent of one another.
    `n` counts the pairs of blocks of all."""
    mean = combined([(gain, 1.0) for gain in gains])
    return replace(mean, n=sum(gain.n for gain in gains))


def _figures(gain: Interval) -> str:
    return f"{gain.value:.3f} [{gain.low:.3f}, {gain.high:.3f}]"
