"""Whether a skill helps where it was not distilled from: the same search with the same budget, once
with it and once without, measured on the device at hand; finding the same sooner helps too. Of a
skill to avoid something: the best kernel of a search without it, once as it is and once with the
change that it warns of.

Knows neither problems nor searches: an `Ablation` runs them. A trial is believed as far as its
interval goes; a skill without a certain gain stays what it is, and its history says why.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

from kb.catalog import skills as store
from kb.catalog.engine import Catalog
from kb.catalog.skills import SkillRow, State
from kb.catalog.skills.support import AVOID
from kb.catalog.skills.writing import append_event
from kb.errors import Conflict, Unavailable
from kb.scope import ALL_ACCESS
from skills.curator.records import Ratio
from skills.observation import Part
from skills.trials.narrowing import losing_part, narrow

ACTOR = "verification"
BUDGET = 4  # candidates of each arm
LEAST_TRIALS = 2
VERIFIABLE = ("candidate", "suspect", "active")


@dataclass(frozen=True)
class Arm:
    """One side of a trial. best_key: evaluation of its best candidate; tried: candidates."""

    tried: int
    correct: int
    best: Ratio | None
    best_key: str = ""


@dataclass(frozen=True)
class Trial:
    """One problem and case that the skill was not distilled from. unseen: why it was not.

    gain: where the search with the skill stood over where the one without it stood, on average over
    the candidates of the budget, all of it measured anew (skills/trials/advantage.py);
    end: at the last candidate alone. None where the search with it found nothing correct, or the
    machine was not quiet. wrong: candidates made by the skill itself that were not correct.

    Of a skill to avoid something, with_skill is the kernel that heeds it and without the same
    kernel with the avoided change, so that gain is what leaving the change out brings: the time
    with the change over the time without it. without.tried is 0 where the change could not be made;
    note says why. failed: what became of the changed kernel where it cannot be used (`incorrect`).
    sizes: of the case, in the quantities of predicates.
    """

    problem: str
    problem_sha256: str
    case: str
    unseen: str
    seed: int
    without: Arm
    with_skill: Arm
    gain: Ratio | None
    wrong: int
    hardware: str
    device: str
    toolchain: str
    note: str = ""
    failed: str = ""
    end: Ratio | None = None
    sizes: Mapping[str, float] = field(default_factory=dict)

    @property
    def named(self) -> str:
        return f"{self.problem} {self.case}"

    @property
    def harms(self) -> bool:
        """Certainly, over the budget or at its end."""
        return any(found is not None and found.high < 1.0 for found in (self.gain, self.end))

    @property
    def helps(self) -> bool:
        return not self.harms and self.gain is not None and self.gain.low > 1.0


class Ablation(Protocol):
    """Runs trials of a skill. Implemented by the optimizer."""

    def trials(
        self, skill: SkillRow, budget: int, apart_from: Collection[tuple[str, str]] = ()
    ) -> Iterable[Trial]:
        """apart_from: (sha256 of a problem, case) pairs that were tried. Raises Unavailable where
        nothing here can be measured, with what is missing."""
        ...


Effect = Literal["helps", "harms", "open"]


@dataclass(frozen=True)
class Verdict:
    """effect: open where nothing is certain; gain: over all trials; reason: in words."""

    effect: Effect
    gain: Ratio | None
    reason: str

    @property
    def helps(self) -> bool:
        return self.effect == "helps"


@dataclass(frozen=True)
class Verification:
    """What verifying came to. state: of the skill afterwards."""

    skill: str
    state: str
    verdict: Verdict
    trials: tuple[Trial, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def verify(
    catalog: Catalog,
    name: str,
    ablation: Ablation,
    *,
    budget: int = BUDGET,
    actor: str = ACTOR,
    access_scope: str = ALL_ACCESS,
) -> Verification:
    """Run the trials, keep each as evidence, and let the skill be active where it certainly helps.

    Where it certainly helps on some sizes and certainly harms on others it is narrowed to where it
    helps, and tried again on further cases there; these alone decide then.

    Raises Conflict for a skill that is out of use or that changed meanwhile, Unavailable where
    nothing can be measured here (the skill stays what it is, and its history says so).
    """
    with catalog.read() as connection:
        skill = store.get(connection, name, access_scope)
    if skill.state not in VERIFIABLE:
        raise Conflict(
            f"{name} is {skill.state}", hint="Restore it first, or verify one that is in use."
        )
    signed = Signed(actor, access_scope)
    try:
        trials = _tried(catalog, skill, ablation.trials(skill, budget), signed)
    except Unavailable as problem:
        _note(catalog, skill, f"not verified: {problem.message}", actor, access_scope)
        raise
    verdict, part = judge(trials, skill.polarity), _losing(trials, skill.polarity)
    if part is not None:
        reason = f"{verdict.reason}: not offered with {part}"
        with catalog.write() as connection:
            _same(store.get(connection, name, access_scope), skill)
            skill = narrow(connection, skill, part, reason=reason, **vars(signed))
        known = {(trial.problem_sha256, trial.case) for trial in trials}
        again = _again(catalog, skill, ablation, budget, known, signed)
        verdict = judge(again, skill.polarity)
        told = verdict.reason if again else "nothing is left there that nobody tried"
        verdict = replace(verdict, reason=f"not offered with {part} any more; {told}")
        trials = [*trials, *again]
    with catalog.write() as connection:
        present = store.get(connection, name, access_scope)
        _same(present, skill)
        state = _moved(connection, present, verdict, budget, actor, access_scope)
    return Verification(name, state, verdict, tuple(trials))


@dataclass(frozen=True)
class Signed:
    """Whoever asked, and what they may see."""

    actor: str
    access_scope: str


def _tried(catalog: Catalog, skill: SkillRow, made: Iterable[Trial], signed: Signed) -> list[Trial]:
    """Each is kept as it comes: it took minutes."""
    trials = []
    for trial in made:
        with catalog.write() as connection:
            _same(store.get(connection, skill.name, signed.access_scope), skill)
            _keep(connection, skill, trial, signed.actor, signed.access_scope)
        trials.append(trial)
    return trials


def _again(
    catalog: Catalog,
    skill: SkillRow,
    ablation: Ablation,
    budget: int,
    known: Collection[tuple[str, str]],
    signed: Signed,
) -> list[Trial]:
    """Of the narrowed skill; none where no case is left that nobody tried."""
    try:
        return _tried(catalog, skill, ablation.trials(skill, budget, known), signed)
    except Unavailable:
        return []


def _losing(trials: Sequence[Trial], polarity: str) -> Part | None:
    """Only sizes are told apart: a wrong candidate speaks against the skill wherever it was."""
    if polarity == AVOID or any(trial.wrong for trial in trials):
        return None
    harmed, helped = ([t.sizes for t in trials if getattr(t, kind)] for kind in ("harms", "helps"))
    return losing_part(harmed, helped)


def _same(present: SkillRow, measured: SkillRow) -> None:
    if (present.version, present.state) != (measured.version, measured.state):
        raise Conflict(f"{present.name} changed while it was measured", hint="Verify it again.")


def judge(trials: Sequence[Trial], polarity: str = "use") -> Verdict:
    """A certain gain over all trials together, in at least LEAST_TRIALS of which the skill changed
    what was found, and no trial in which it certainly harms, be it over the budget or at its end.
    polarity: of the skill."""
    if polarity == AVOID:
        return _judged_warning(trials)
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
        return Verdict("open", gain, f"no certain gain over the search without it: {_told(gain)}")
    return Verdict("helps", gain, f"{_told(gain)} over the search without it, over the budget")


def _judged_warning(trials: Sequence[Trial]) -> Verdict:
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
        untold = [f"{t.named}: {t.note}" for t in trials if t.gain is None and not t.failed]
        return Verdict(
            "open",
            gain,
            f"what it says to avoid certainly costs time or fails on {len(slower) + len(failing)}"
            f" of {len(trials)} unseen cases, {LEAST_TRIALS} are needed"
            + (f" ({'; '.join(untold)})" if untold else ""),
        )
    if gain is not None and gain.low <= 1.0 and not failing:
        return Verdict("open", gain, f"leaving it out has no certain gain: {_told(gain)}")
    told = [f"{_told(gain)} by leaving it out"] if gain is not None else []
    told += [f"it fails on {', '.join(failing)}"] if failing else []
    return Verdict("helps", gain, "; ".join(told))


def together(gains: Sequence[Ratio]) -> Ratio:
    """The geometric mean; errors of the trials are independent of one another."""
    centre = sum(math.log(gain.value) for gain in gains) / len(gains)
    halves = [(math.log(gain.high) - math.log(gain.low)) / 2 for gain in gains]
    half = math.sqrt(sum(h * h for h in halves)) / len(gains)
    return Ratio(
        math.exp(centre), math.exp(centre - half), math.exp(centre + half), sum(g.n for g in gains)
    )


def _told(gain: Ratio) -> str:
    return f"{gain.value:.3f} [{gain.low:.3f}, {gain.high:.3f}]"


def _keep(connection: Any, skill: SkillRow, trial: Trial, actor: str, access_scope: str) -> None:
    """A trial without a figure is kept too: that it was tried is known. An avoided change that
    could not be made was not tried."""
    if skill.polarity == AVOID and not trial.without.tried:
        return
    told, arm = _about_the_claim(skill, trial)
    store.add_evidence(
        connection,
        skill.name,
        kind="ablation",
        hardware=trial.hardware,
        n=told.n if told is not None else max(1, arm.tried),
        actor=actor,
        reason=f"with and without {_subject(skill)} on {trial.problem}, {trial.case}"
        f" ({trial.unseen})",
        device=trial.device or None,
        toolchain=trial.toolchain or None,
        problem=trial.problem_sha256,
        case=trial.case,
        evaluation=arm.best_key or None,
        speedup=told.value if told is not None else None,
        low=told.low if told is not None else None,
        high=told.high if told is not None else None,
        details={
            "problem": trial.problem,
            "sizes": dict(trial.sizes),
            "unseen": trial.unseen,
            "seed": trial.seed,
            "without": asdict(trial.without),
            "with": asdict(trial.with_skill),
            "wrong": trial.wrong,
            "end": asdict(trial.end) if trial.end is not None else None,
            "note": trial.note,
            **({"validity": trial.failed} if trial.failed else {}),
        },
        access_scope=access_scope,
    )


def _subject(skill: SkillRow) -> str:
    return "the avoided change" if skill.polarity == AVOID else "it"


def _about_the_claim(skill: SkillRow, trial: Trial) -> tuple[Ratio | None, Arm]:
    """The speed-up by what the skill is about, as evidence has it (kb.catalog.skills.support), and
    the arm that has it: of one to avoid that is the change, so the figure is the gain's inverse."""
    gain = trial.gain
    if skill.polarity != AVOID:
        return gain, trial.with_skill
    inverse = None if gain is None else Ratio(1 / gain.value, 1 / gain.high, 1 / gain.low, gain.n)
    return inverse, trial.without


def _moved(
    connection: Any, skill: SkillRow, verdict: Verdict, budget: int, actor: str, access_scope: str
) -> str:
    details = {"budget": budget, "gain": asdict(verdict.gain) if verdict.gain else None}
    signed: dict[str, Any] = {
        "actor": actor,
        "reason": verdict.reason,
        "details": details,
        "access_scope": access_scope,
    }
    to: State | None = None
    if verdict.effect == "helps" and skill.state != "active":
        to = "active"
    elif verdict.effect == "harms" and skill.state == "active":
        to = "suspect"
    elif verdict.effect == "harms" and skill.state == "suspect" and skill.tier == "learned":
        to = "candidate"
    if to is not None:
        store.set_state(connection, skill.name, to, **signed)
        return to
    change = (skill.state, skill.state)
    append_event(connection, skill.id, "verified", change, actor, verdict.reason, details)
    return skill.state


def _note(catalog: Catalog, skill: SkillRow, reason: str, actor: str, access_scope: str) -> None:
    with catalog.write() as connection:
        store.get(connection, skill.name, access_scope)
        change = (skill.state, skill.state)
        append_event(connection, skill.id, "not_verified", change, actor, reason, {})
