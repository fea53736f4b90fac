"""A trial of a skill, what trials are run with, and what several trials say together.

Of a skill to use, the same search runs twice with the same budget, once with it and once without,
measured on the device at hand; finding the same sooner helps too. Of a skill to avoid something,
the best kernel of a search without it is measured once as it is and once with the change that it
warns of.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

from kb.catalog.skills import SkillHead, SkillRow
from kb.catalog.skills.evidence import AVOID
from kb.errors import KernloreError, Unavailable
from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import canonical_dtype, canonical_op, op_family
from optimizer.evaluation.diagnose import quantities
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Interval
from optimizer.evaluation.roofline import CaseWork, work_of
from optimizer.evaluation.timing.statistics import combined
from optimizer.search.bench.local import LocalBench
from optimizer.search.knowledge import KnowledgeSource
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.recipe.recipe import Recipe
from skills.trajectories.records import BOUNDING

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
class TrialVerdict:
    """What the trials of a skill say together. `effect` is open where nothing is certain, `gain` is
    over all trials, `reason` is in words."""

    effect: Effect
    gain: Interval | None
    reason: str

    @property
    def helps(self) -> bool:
        """Whether the effect is certainly a gain."""
        return self.effect == "helps"


def classify_trials(trials: Sequence[Trial], polarity: str = "use") -> TrialVerdict:
    """What trials say together. A skill helps with a certain gain over all of them, in at least
    LEAST_TRIALS of which it changed the result, and with no trial in which it certainly harms, be
    it over the budget or at its end. `polarity` is that of the skill."""
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
        where = ", ".join(worse)
        return TrialVerdict("harms", gain, f"the search with it ends certainly slower on {where}")
    # Where both arms stand at the same kernels the figure is 1 without any doubt: it tells nothing.
    telling = [g for g in gains if g.low < g.high]
    if gain is None or len(telling) < LEAST_TRIALS:
        return TrialVerdict(
            "open",
            gain,
            f"it changed what was found on {len(telling)} of {len(trials)} unseen cases,"
            f" {LEAST_TRIALS} are needed",
        )
    if gain.low <= 1.0:
        return TrialVerdict(
            "open", gain, f"no certain gain over the search without it: {_figures(gain)}"
        )
    return TrialVerdict(
        "helps", gain, f"{_figures(gain)} over the search without it, over the budget"
    )


def _classify_warning(trials: Sequence[Trial]) -> TrialVerdict:
    """The change is certainly slower, or fails, in at least LEAST_TRIALS, certainly faster in none,
    and costs time over all that were timed together."""
    gains = [trial.gain for trial in trials if trial.gain is not None]
    gain = together(gains) if gains else None
    faster = [t.named for t in trials if t.gain is not None and t.gain.high < 1.0]
    if faster:
        where = ", ".join(faster)
        return TrialVerdict("harms", gain, f"what it says to avoid is certainly faster on {where}")
    failing = [t.named for t in trials if t.failed]
    slower = [t for t in trials if t.gain is not None and t.gain.low > 1.0]
    if len(slower) + len(failing) < LEAST_TRIALS:
        unknown = [f"{t.named}: {t.note}" for t in trials if t.gain is None and not t.failed]
        return TrialVerdict(
            "open",
            gain,
            f"what it says to avoid certainly costs time or fails on {len(slower) + len(failing)}"
            f" of {len(trials)} unseen cases, {LEAST_TRIALS} are needed"
            + (f" ({'; '.join(unknown)})" if unknown else ""),
        )
    if gain is not None and gain.low <= 1.0 and not failing:
        return TrialVerdict("open", gain, f"leaving it out has no certain gain: {_figures(gain)}")
    parts = [f"{_figures(gain)} by leaving it out"] if gain is not None else []
    parts += [f"it fails on {', '.join(failing)}"] if failing else []
    return TrialVerdict("helps", gain, "; ".join(parts))


def together(gains: Sequence[Interval]) -> Interval:
    """The geometric mean of at least one gain; errors of the trials are independent of one another.
    `n` counts the pairs of blocks of all."""
    mean = combined([(gain, 1.0) for gain in gains])
    return replace(mean, n=sum(gain.n for gain in gains))


def _figures(gain: Interval) -> str:
    return f"{gain.value:.3f} [{gain.low:.3f}, {gain.high:.3f}]"


# -- held out: Where a skill is tried: problems and cases that it was not distilled from, and coul

DRAWS = 24  # at most, for sizes that the problem accepts
LEAST = 8  # sizes below that are rather modes than sizes
FACTORS = (0.5, 0.625, 0.75, 1.25, 1.5)


@dataclass(frozen=True)
class HeldOutCase:
    """A problem whose only timed case was not searched. `why` says in words why it was not."""

    problem: Problem
    case: Case
    why: str


def held_out_cases(
    problem: Problem, device: str, count: int, seed: int, known: Collection[str] = ()
) -> list[HeldOutCase]:
    """Up to `count` of them: held-out cases first, then other sizes. `known` names cases to leave
    out."""
    return list(islice(every_held_out(problem, device, seed, known), count))


def every_held_out(
    problem: Problem, device: str, seed: int, known: Collection[str] = ()
) -> Iterator[HeldOutCase]:
    """All of them, one after the other: only trying shows whether a problem can do other sizes."""
    return (case for case in _all(problem, device, seed) if case.case.name not in known)


def as_only(problem: Problem, case: Case, why: str) -> HeldOutCase:
    """The problem with this case as the one that is searched and timed."""
    only = replace(case, timed=True, held_out=False, devices=())
    return HeldOutCase(replace(problem, cases=(only,)), only, why)


def _all(problem: Problem, device: str, seed: int) -> Iterator[HeldOutCase]:
    for case in problem.held_out:
        if case.fits(device):
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
        if _opens(target):
            yield target


def _resized(main: Case, chance: random.Random) -> dict[str, Any]:
    """One of its sizes changed: more at once rarely fit together."""
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


def _opens(target: HeldOutCase) -> bool:
    """Whether the problem's own code can do these sizes."""
    try:
        opened = OpenCase(target.problem, target.case)
        inputs, state = opened.inputs(0), opened.state(0)
        opened.reference(inputs, state)
    except (KernloreError, RuntimeError, ValueError, IndexError, AssertionError):
        return False
    return True


MAX_TRIALS = 3  # of a skill
MAX_LOOKED_AT = 3 * MAX_TRIALS  # of which some lie outside of what the skill is about


def admitted(context: TrialContext, skill: SkillRow) -> None:
    """Raises Unavailable where a skill is about another chip or language: it cannot be proven
    here."""
    here = context.hardware
    chips, languages = set(skill.scopes.hardware), set(skill.scopes.languages)
    if chips and not chips & set(here.lineage):
        raise Unavailable(
            f"{skill.name} is about {', '.join(sorted(chips))}, and this is {here.id}",
            hint="Verify it on that hardware, or in a portable session.",
        )
    if languages and not languages & set(here.languages):
        raise Unavailable(
            f"{skill.name} is about {', '.join(sorted(languages))}, which nothing here builds",
            hint="Install the toolchain, or verify it on a machine that has it.",
        )


def targets(
    context: TrialContext, skill: SkillRow, apart_from: Collection[tuple[str, str]]
) -> Iterator[HeldOutCase]:
    """Where a skill is tried: without what was tried before, and without cases where it could not
    be offered, as nobody gets its advice there. `apart_from` holds (sha256 of a problem, case)
    pairs."""
    facts = context.hardware.facts
    for target in islice(_unseen(context, skill), MAX_LOOKED_AT):
        if (target.problem.sha256, target.case.name) in apart_from:
            continue
        if leaves_in(skill, target.problem, target.case, facts):
            yield target


def no_held_out_case(skill: SkillRow) -> Unavailable:
    """The error where there is nothing to try a skill on."""
    return Unavailable(
        f"no unseen problem or case here is one that {skill.name} is about",
        hint="Add a problem of its op family with `kernlore problem new`.",
    )


def _unseen(context: TrialContext, skill: SkillRow) -> Iterator[HeldOutCase]:
    """Other problems of its families first: they are further from what it was made of."""
    device = context.hardware.device or "cpu"
    families = {op_family(op) for op in skill.scopes.ops}
    own = {sha256 for sha256, _ in context.seen}
    fitting = [p for p in context.problems if not families or op_family(p.op) in families]
    for problem in fitting:
        main = next((c for c in problem.searched if _timed_for(skill, c, device)), None)
        if problem.sha256 not in own and main is not None:
            yield as_only(problem, main, "another problem")
    for problem in fitting:
        if problem.sha256 in own:
            known = [case for sha256, case in context.seen if sha256 == problem.sha256]
            seed = context.seed
            yield from every_held_out(problem, device, seed, known)


def _timed_for(skill: SkillRow, case: Case, device: str) -> bool:
    dtypes = {canonical_dtype(dtype) for dtype in skill.scopes.dtypes}
    fitting = not dtypes or case.dtype is None or canonical_dtype(case.dtype) in dtypes
    return case.timed and case.fits(device) and fitting


def case_sizes(problem: Problem, case: Case) -> dict[str, float]:
    """Quantities by which advice is bounded (bytes, elements); none where the case cannot be opened
    here."""
    work = _work(problem, case)
    sizes = quantities(work) if work is not None else {}
    return {name: float(sizes[name]) for name in BOUNDING if name in sizes}


def leaves_in(
    skill: SkillHead, problem: Problem, case: Case, facts: Mapping[str, float | str]
) -> bool:
    """Whether a skill's precondition could let it be offered on a case. A verdict is not known yet,
    and what is not known excludes nothing."""
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


def _work(problem: Problem, case: Case) -> CaseWork | None:
    try:
        return work_of(OpenCase(problem, case))
    except (KernloreError, RuntimeError, ValueError, IndexError, AssertionError):
        return None
