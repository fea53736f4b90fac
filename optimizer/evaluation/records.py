"""The result of evaluating a candidate. Validity, provenance of the timing and merit are three
separate facts: a valid kernel whose timing must be repeated has not failed and has no figure yet; a
failed kernel has no speed-up, never 1.0.

Standard library only. The JSON forms are stored, and printed by `kernlore evaluate --json`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Literal

from kb.answers import Verdict

Stage = Literal["parse", "compile", "correctness", "benchmark", "profile", "diagnose"]
Validity = Literal[
    "correct",
    "incorrect",
    "unsupported",
    "crashed",
    "timed_out",
    "not_compiled",
    "rejected",
    "not_run",
]
TIMING = "KERNLORE_TIMING"  # environment variable: full or brief
# A note on brief timings.
BRIEFLY = f"timed briefly ({TIMING}): in four short pairs of blocks, on a machine that may be busy"
TimingState = Literal["measured", "simulator", "repeat", "none"]


# Spans of an evaluation, in words.
EVALUATION_STAGES = {
    "evaluate: parse": "reading the source",
    "evaluate: compile": "compiling",
    "evaluate: correctness": "checking its results",
    "evaluate: benchmark": "measuring its time",
    "evaluate: profile": "profiling",
    "evaluate: diagnose": "diagnosing",
}


@dataclass(frozen=True)
class OutputError:
    """The largest error of one output and its limit, in units of the output's own size; for a
    `kind` that is compared exactly or points into an input, the share of wrong elements. `where` is
    the index of the worst.

    `quantile` is the 99.9 % quantile of the errors, or the largest error if that is within the
    quantile's limit. `undecided` counts elements that differ from the reference's and are right,
    because its own rounding decides them (`correctness.prepared.OtherRoundings`).
    """

    output: str
    kind: str
    worst: float
    allowed: float
    quantile: float
    quantile_allowed: float
    where: tuple[int, ...] = ()
    undecided: int = 0

    @property
    def ok(self) -> bool:
        """Whether both errors are within their bounds."""
        return self.worst <= self.allowed and self.quantile <= self.quantile_allowed

    def in_words(self, what: str = "") -> str:
        """The error as a sentence for the author of the kernel, about `what` (default: the
        output)."""
        what = what or self.output
        at = f" at {list(self.where)}" if self.where else ""
        if self.kind != "float" and self.worst <= 1:
            place = f", one of them{at}," if at else ""
            most = f"{self.allowed:.3g}" if self.allowed else "none"
            beside = f", beside {self.undecided} that rounding decides" if self.undecided else ""
            return f"{what} is wrong in a share of {self.worst:.3g} of its elements{place}" + (
                f" where {most} may be{beside}"
            )
        if self.worst <= self.allowed:
            return (
                f"{what} is off by {self.quantile:.3g} at the 99.9 % quantile where"
                f" {self.quantile_allowed:.3g} is allowed"
            )
        return f"{what} is off by {self.worst:.3g}{at} where {self.allowed:.3g} is allowed"


@dataclass(frozen=True)
class CaseCheck:
    """Correctness on one case and seed. `message` describes the error in a sentence."""

    case: str
    seed: int
    ok: bool
    errors: tuple[OutputError, ...] = ()
    message: str = ""


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval over `n` pairs of blocks."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}] n={self.n}"


@dataclass(frozen=True)
class CaseTiming:
    """Times of one case in microseconds a call. `speedup` is baseline over candidate; `cycles` are
    a simulator's for one call. An emulator without a clock gives `count`, the executed `counted`
    (`instructions` or `packets`) of one call, which is a cost and no time. `charged_us` is the
    part of `candidate_us` that its own clock missed.

    `spread` is the half-width of the 95 % interval of `candidate_us`, in log units, of a candidate
    that was run repeatedly without a reference; else 0.

    In the state `repeat` the machine was too busy to measure, as `reason` says, and there is no
    speed-up. `rough_us` and `rough_baseline_us` are then the fastest calls of both sides, if any:
    never figures to compare or to rank by.
    """

    case: str
    state: TimingState
    baseline_us: float | None = None
    candidate_us: float | None = None
    speedup: Interval | None = None
    calls: int = 0
    cycles: int | None = None
    reason: str = ""
    spread: float = 0.0
    charged_us: float = 0.0
    rough_us: float | None = None
    rough_baseline_us: float | None = None
    count: int | None = None
    counted: str = ""

    @property
    def simulated_cost(self) -> str:
        """Cycles or another count with its kind, as "1200 packets"; "" without one."""
        if self.count is not None:
            return f"{self.count} {self.counted}"
        return "" if self.cycles is None else f"{self.cycles} cycles"


class Violation(IntEnum):
    """Kinds of flags, by the numbers that are stored."""

    SIDE_STREAM = 1
    BACKGROUND_WORK = 2
    REPLACED_FUNCTIONS = 4
    INTROSPECTION = 11
    FORGED_RESULT = 12
    HIDDEN_TIME = 13
    FALLBACK = 14
    LIBRARY = 15
    IMPOSSIBLE_TIME = 29
    LATE_OUTPUT = 36
    DISPATCH_MODE = 46
    PATCHED_LIBRARY = 50


@dataclass(frozen=True)
class Flag:
    """A finding about the candidate's integrity. `defence` is a `Violation`. Severity `reject` ends
    the evaluation, `review` is shown to a person, `accepted` was one that a person accepts."""

    defence: int
    severity: Literal["reject", "review", "accepted"]
    message: str


@dataclass(frozen=True)
class Isolation:
    """The isolation that an evaluation had."""

    network: bool
    user_namespace: bool
    pid_namespace: bool
    limits: Mapping[str, int] = field(default_factory=dict)
    level: str = "process"


@dataclass(frozen=True)
class EvaluationVerdict(Verdict):
    """A diagnosis of an evaluation, and its input.

    `metrics` are measured and derived metrics of a correct kernel by raw names, `problem` the
    quantities of the leading case, `case` its name, or that of the first failed case, and `op` its
    operator. `kernels` are rows of a
    profiler: name, calls, us, pct. `not_measured` maps a tool to the reason why it reported
    nothing. `EvaluationVerdict()` means none yet.
    """

    metrics: Mapping[str, float | str] = field(default_factory=dict)
    problem: Mapping[str, float | str] = field(default_factory=dict)
    case: str = ""
    kernels: tuple[Mapping[str, Any], ...] = ()
    not_measured: Mapping[str, str] = field(default_factory=dict)
    op: str = ""

    def as_json(self) -> dict[str, Any]:
        """The stored form; an empty object if there is no verdict yet."""
        if self == EvaluationVerdict():
            return {}
        stored = asdict(self)
        later = {name: stored.pop(name) for name in ("kernels", "not_measured", "op")}
        return {**stored, "primary": self.primary, **later}


@dataclass(frozen=True)
class Evaluation:
    """One candidate on one problem and device. `seconds` maps a stage to its duration, and `calls`
    to the time of all timed calls of candidate and reference."""

    key: str
    problem: str
    candidate: str
    language: str
    hardware: str
    device: str
    toolchain: str
    harness: str
    validity: Validity
    timing: TimingState
    reached: Stage
    message: str = ""
    checks: tuple[CaseCheck, ...] = ()
    timings: tuple[CaseTiming, ...] = ()
    speedup: Interval | None = None
    flags: tuple[Flag, ...] = ()
    log: str = ""
    metrics: Mapping[str, float | str] = field(default_factory=dict)
    verdict: EvaluationVerdict = field(default_factory=EvaluationVerdict)
    isolation: Isolation | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def correct(self) -> bool:
        """Whether every check passed without a rejection."""
        return self.validity == "correct"

    def as_json(self) -> dict[str, Any]:
        """The stored and printed form."""
        verdict = self.verdict.as_json()
        return {**asdict(self), "verdict": verdict, "correct": self.correct}


# -- rough times, for readers

BUSY = "not confirmed: the processors were busy"


def rough_ratio(timings: Sequence[CaseTiming | Mapping[str, Any]]) -> str:
    """The rough speed-up of a kernel that could not be timed, over the cases that have one, such as
    `roughly 20x (not confirmed: the processors were busy)`; else empty."""
    ratios = [
        float(baseline) / float(candidate)
        for row in (asdict(t) if isinstance(t, CaseTiming) else t for t in timings)
        if (baseline := row.get("rough_baseline_us")) and (candidate := row.get("rough_us"))
    ]
    if not ratios:
        return ""
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return f"roughly {two_digits(mean)}x ({BUSY})"


def rough_times(timing: Mapping[str, Any]) -> str:
    """The fastest disturbed calls of one case in words; empty if no call was disturbed."""
    candidate, baseline = timing.get("rough_us"), timing.get("rough_baseline_us")
    if not candidate or not baseline:
        return ""
    return f"about {two_digits(candidate)} us a call, reference {two_digits(baseline)} us"


def two_digits(value: float) -> str:
    """The value with two significant digits; more would look like a measurement."""
    return f"{float(f'{value:.2g}'):g}"
