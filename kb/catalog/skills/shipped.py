"""Evidence that ships with a skill, and the effect of a skill in a reader's words.

`evidence.jsonl` in the folder of a shipped skill holds one trial a line. It was measured by
Kernlore's authors on the named device; it is stored with the skill's text and never counted among
the measurements and uses of this installation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from kb.hardware.table_reader import Problems

EVIDENCE_FILE = "evidence.jsonl"
SHIPPED = "shipped_evidence"  # key of the rows in the metadata of a skill
PLACES = ("inside", "edge", "outside")
EffectState = Literal["untested", "helps", "no effect", "harms"]
EFFECTS: tuple[EffectState, ...] = ("helps", "harms", "no effect", "untested")
NAMED = 3  # cases that a text names
# Standard deviation of the logarithm of a speed-up among drafts of one request: 63 pairs of drafts
# for 21 problems on an H200, 1 December 2026 (benchmarks/results/knowledge_and_skills.md).
DRAFT_SPREAD = 0.18


@dataclass(frozen=True)
class Figure:
    """A ratio with its 95 % interval from `n` pairs of blocks."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def among_drafts(self, drafts: int) -> Figure:
        """The ratio of two means of so many drafts each, with the interval of other drafts."""
        spread = 1.96 * DRAFT_SPREAD * math.sqrt(2 / drafts)
        below = math.exp(math.hypot(spread, math.log(self.value / self.low)))
        above = math.exp(math.hypot(spread, math.log(self.high / self.value)))
        return Figure(self.value, self.value / below, self.value * above, self.n)


@dataclass(frozen=True)
class ShippedTrial:
    """One line of `evidence.jsonl`.

    `gain` is the advantage of a search with the skill over one without it at `budget` candidates
    each, `end` the same at the last candidate, `placebo` the advantage of a placebo over the search
    without the skill. `place` is that of the case relative to the skill's preconditions, `unseen`
    says why the skill was not made from it. `made` counts candidates of the skill, `wrong` the
    incorrect ones, less those of the search without it where a `model` wrote them. `untried` is
    the reason why nothing was measured; then all figures are None.
    `load` is the machine's load average before the trial. `transcript` names the file with the
    searches, relative to the repository.
    """

    hardware: str
    date: str
    device: str = ""
    toolchain: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    transcript: str = ""
    problem: str = ""
    problem_sha256: str = ""
    case: str = ""
    place: str = "inside"
    unseen: str = ""
    dtype: str = ""
    budget: int = 0
    gain: Figure | None = None
    end: Figure | None = None
    placebo: Figure | None = None
    made: int = 0
    wrong: int = 0
    sizes: Mapping[str, float | str] = field(default_factory=dict)
    load: float | None = None
    note: str = ""
    untried: str = ""
    model: str = ""

    @property
    def certain_gain(self) -> Figure | None:
        """The gain with the interval that decides: for a `model` that of other drafts, which is
        wider than that of the timing."""
        if self.gain is None or not self.model:
            return self.gain
        return self.gain.among_drafts(max(1, self.budget))

    @property
    def helps(self) -> bool:
        """Whether the search with the skill is certainly faster than without it and than with the
        placebo, and at its end not slower."""
        gain = self.certain_gain
        least = max(1.0, self.placebo.high) if self.placebo is not None else 1.0
        return not self.harms and gain is not None and gain.low > least

    @property
    def harms(self) -> bool:
        """Whether the search with the skill is certainly slower, or the skill's candidate wrong: of
        a model's drafts more than half."""
        if self.model:
            gain = self.certain_gain
            return 2 * self.wrong > self.budget or (gain is not None and gain.high < 1.0)
        slower = any(f is not None and f.high < 1.0 for f in (self.gain, self.end))
        return slower or self.wrong > 0

    def as_json(self) -> dict[str, Any]:
        """The line's object without empty fields."""
        row: dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, Figure):
                value = {k: round(v, 4) for k, v in vars(value).items()}
            if value not in (None, "", {}):
                row[name] = value
        return row


def trial_from_json(row: Mapping[str, Any]) -> ShippedTrial:
    """Inverse of `ShippedTrial.as_json`. Raises KeyError, TypeError or ValueError for another
    object."""
    fields = {name: row[name] for name in ShippedTrial.__dataclass_fields__ if name in row}
    for name in ("gain", "end", "placebo"):
        if fields.get(name) is not None:
            figure = Figure(**fields[name])
            if not 0 < figure.low <= figure.value <= figure.high < math.inf:
                raise ValueError(f"{name} is no interval")
            fields[name] = figure
    if fields.get("place", "inside") not in PLACES:
        raise ValueError(f"place is {fields['place']!r}")
    for name in ("hardware", "date"):
        if not isinstance(fields[name], str):
            raise TypeError(f"{name} is no text")
    return ShippedTrial(**fields)


def read_trials(text: str, problems: Problems) -> tuple[ShippedTrial, ...]:
    """The trials of an `evidence.jsonl`; an invalid line is added to `problems`."""
    trials = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            trials.append(trial_from_json(json.loads(line)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            where = f"{EVIDENCE_FILE}:{number}"
            problems.add(where, f"is no trial: {error}", "write it with `kernlore skills prove`")
    return tuple(trials)


def stored_trials(metadata: Mapping[str, Any]) -> tuple[ShippedTrial, ...]:
    return tuple(trial_from_json(row) for row in metadata.get(SHIPPED, ()))


# -- the effect


@dataclass(frozen=True)
class SkillEffect:
    """The measured effect of a skill.

    `by` is `Kernlore` for shipped trials, `here` for trials of this installation, empty without
    any. `gain` is over the `cases` in which the skill made a candidate. `harms` names the cases in
    which it did harm, `untried` is why there is no trial. `devices` are names of devices, `on` the
    date of the newest trial. `helped` counts the cases with a certain gain; `placebo` is the gain
    of a placebo over the same cases. `models` wrote the candidates, empty for a recipe's.
    """

    state: EffectState = "untested"
    by: str = ""
    gain: Figure | None = None
    cases: int = 0
    harms: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    on: str = ""
    untried: str = ""
    helped: int = 0
    placebo: Figure | None = None
    models: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.state == "untested":
            return f"untested ({self.untried})" if self.untried else "untested"
        figure = f"{self.gain}" if self.gain is not None else "no figure"
        text = f"{self.state}: {figure}, n={self.cases}"
        if self.state == "no effect" and self.gain is not None and self.gain.low > 1.0:
            placebo = f" (with a placebo {self.placebo})" if self.placebo is not None else ""
            text += f"; certainly faster in {self.helped} of {self.cases}{placebo}"
        if self.harms:
            more = len(self.harms) - NAMED
            named = ", ".join(self.harms[:NAMED]) + (f" and {more} more" if more > 0 else "")
            text += f"; harms on {named}"
        return f"{text}; measured {self.measured}"

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts effects: the largest certain gain first, untested skills last."""
        low = self.gain.low if self.gain is not None else 0.0
        return ("helps", "no effect", "harms", "untested").index(self.state), -low

    @property
    def measured(self) -> str:
        """Who measured it, on which devices and when."""
        if self.by == "here":
            return "here"
        written = f", kernels written by {', '.join(self.models)}" if self.models else ""
        return f"by {self.by} on {', '.join(self.devices)}, {self.on}{written}"


UNTESTED = SkillEffect()


class Measurement(Protocol):
    """The fields of a stored measurement that decide an effect."""

    @property
    def kind(self) -> str: ...
    @property
    def hardware_id(self) -> str: ...
    @property
    def n(self) -> int: ...
    @property
    def case_id(self) -> str | None: ...
    @property
    def speedup(self) -> float | None: ...
    @property
    def speedup_low(self) -> float | None: ...
    @property
    def speedup_high(self) -> float | None: ...
    @property
    def details(self) -> Mapping[str, Any]: ...
    @property
    def created_at(self) -> str: ...


def effect_of(trials: Sequence[ShippedTrial]) -> SkillEffect:
    """The effect in shipped trials. A skill helps with a certain gain over all cases together and
    if it is certainly faster in at least half of them; else it harms if it did so in any case."""
    tried = [t for t in trials if not t.untried and t.place != "outside" and t.made]
    if not tried:
        reason = next((t.untried for t in trials if t.untried), "")
        return SkillEffect(untried=reason)
    gains = [t.certain_gain for t in tried if t.certain_gain is not None]
    together = combined(gains)
    helped = sum(t.helps for t in tried)
    harms = tuple(_named(t) for t in tried if t.harms)
    certain = together is not None and together.low > 1.0 and 2 * helped >= len(tried)
    state: EffectState = "helps" if certain else "harms" if harms else "no effect"
    if not gains and not harms:
        return SkillEffect(untried="the machine was too busy to measure it")
    return SkillEffect(
        state,
        "Kernlore",
        together,
        len(gains),
        harms,
        tuple(sorted({t.device for t in tried})),
        max(t.date for t in tried),
        helped=helped,
        placebo=combined(t.placebo for t in tried if t.placebo is not None),
        models=tuple(sorted({t.model for t in tried if t.model})),
    )


def own_effect(
    rows: Sequence[Measurement], polarity: str, without: SkillEffect = UNTESTED
) -> SkillEffect:
    """The effect in trials with and without the skill on this installation; `without` any."""
    trials = [row for row in rows if row.kind == "ablation"]
    gains = [
        Figure(row.speedup, row.speedup_low, row.speedup_high, row.n)
        for row in trials
        if row.speedup and row.speedup_low and row.speedup_high
    ]
    if polarity == "avoid":
        gains = [Figure(1 / g.value, 1 / g.high, 1 / g.low, g.n) for g in gains]
    together = combined(gains)
    if together is None:
        return without
    harms = tuple(
        f"{row.details.get('problem', '')} {row.case_id or ''}".strip()
        for row in trials
        if (polarity != "avoid" and (row.speedup_high or 1.0) < 1.0) or row.details.get("wrong")
    )
    helped = sum(g.low > 1.0 for g in gains)
    certain = together.low > 1.0 and 2 * helped >= len(gains)
    state: EffectState = "helps" if certain else "harms" if harms else "no effect"
    newest = max(row.created_at for row in trials)[:10]
    devices = tuple(sorted({row.hardware_id for row in trials}))
    return SkillEffect(state, "here", together, len(gains), harms, devices, newest, helped=helped)


def combined(figures: Iterable[Figure]) -> Figure | None:
    """The geometric mean of ratios whose errors are independent; None without any. `n` is the sum
    of their pairs."""
    known = list(figures)
    if not known:
        return None
    count = len(known)
    centre = sum(math.log(f.value) for f in known) / count
    below = math.sqrt(sum(math.log(f.value / f.low) ** 2 for f in known)) / count
    above = math.sqrt(sum(math.log(f.high / f.value) ** 2 for f in known)) / count
    value, low, high = (math.exp(centre + shift) for shift in (0.0, -below, above))
    return Figure(value, low, high, sum(f.n for f in known))


def _named(trial: ShippedTrial) -> str:
    sizes = [f"{k} {v:g}" for k, v in trial.sizes.items() if k in _TELLING and _is_number(v)]
    why = "wrong results" if trial.wrong else str(_worst(trial))
    within = f" ({', '.join(sizes)})" if sizes else ""
    return f"{trial.problem} {trial.case}{within}: {why}"


_TELLING = ("row_length", "rows", "product_rows", "product_columns", "product_depth", "sequence")


def _worst(trial: ShippedTrial) -> Figure:
    figures = [f for f in (trial.gain, trial.end) if f is not None]
    return min(figures, key=lambda figure: figure.high)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# -- by chip and dtype


@dataclass(frozen=True)
class GainRow:
    """The gain on one device and dtype over its trials."""

    by: str
    hardware: str
    device: str
    dtype: str
    gain: Figure | None
    cases: int
    harmed: int


def gains_by_chip(trials: Sequence[ShippedTrial]) -> tuple[GainRow, ...]:
    """The gain of shipped trials by chip, device and dtype; without cases outside."""
    groups: dict[tuple[str, str, str], list[ShippedTrial]] = {}
    for trial in trials:
        if not trial.untried and trial.place != "outside":
            key = (trial.hardware, trial.device, trial.dtype)
            groups.setdefault(key, []).append(trial)
    return tuple(
        GainRow(
            "Kernlore",
            *key,
            combined(t.certain_gain for t in group if t.certain_gain is not None),
            len(group),
            sum(t.harms for t in group),
        )
        for key, group in sorted(groups.items())
    )


def own_gains(rows: Sequence[Measurement]) -> tuple[GainRow, ...]:
    """The gain of this installation's measurements by chip and dtype, without simulators."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for row in rows:
        if row.kind != "simulator":
            groups.setdefault((row.hardware_id, str(row.details.get("dtype", ""))), []).append(row)
    return tuple(
        GainRow(
            "here",
            hardware,
            "",
            dtype,
            combined(
                Figure(row.speedup, row.speedup_low, row.speedup_high, row.n)
                for row in group
                if row.speedup and row.speedup_low and row.speedup_high
            ),
            len(group),
            sum((row.speedup_high or 1.0) < 1.0 for row in group),
        )
        for (hardware, dtype), group in sorted(groups.items())
    )
