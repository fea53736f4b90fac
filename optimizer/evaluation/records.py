"""What the harness found out about a candidate. Validity, provenance of the timing and merit are
three separate things: a valid kernel whose timing must be repeated is no failed kernel and has no
figure yet; a failed one has no speed-up, never 1.0.

Standard library only; the JSON forms are what is stored and what `kernlore evaluate --json` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Stage = Literal["parse", "compile", "correctness", "benchmark", "profile", "diagnose"]
STAGES: tuple[Stage, ...] = (
    "parse",
    "compile",
    "correctness",
    "benchmark",
    "profile",
    "diagnose",
)
Validity = Literal[
    "correct", "incorrect", "crashed", "timed_out", "not_compiled", "rejected", "not_run"
]
TimingState = Literal["measured", "simulator", "repeat", "none"]


@dataclass(frozen=True)
class OutputError:
    """The largest error of one output beside what was allowed; `where` is the worst index.

    quantile: the 99.9 % one, or the largest error where that is within the quantile's bound.
    """

    output: str
    kind: str
    worst: float
    allowed: float
    quantile: float
    quantile_allowed: float
    where: tuple[int, ...] = ()

    @property
    def ok(self) -> bool:
        return self.worst <= self.allowed and self.quantile <= self.quantile_allowed

    def told(self) -> str:
        """What is wrong with it, in words."""
        if self.worst <= self.allowed:
            return (
                f"{self.output} is off by {self.quantile:.3g} at the 99.9 % quantile where"
                f" {self.quantile_allowed:.3g} is allowed"
            )
        at = f" at {list(self.where)}" if self.where else ""
        return f"{self.output} is off by {self.worst:.3g}{at} where {self.allowed:.3g} is allowed"


@dataclass(frozen=True)
class CaseCheck:
    """Correctness on one case and seed. `message` says what is wrong, in words."""

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
    """Times of one case in microseconds a call; `speedup` is baseline over candidate. cycles: as a
    simulator counts them.

    state `repeat`: the machine was too busy to say, `reason` tells; then there is no speed-up.
    """

    case: str
    state: TimingState
    baseline_us: float | None = None
    candidate_us: float | None = None
    speedup: Interval | None = None
    calls: int = 0
    cycles: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class Flag:
    """An integrity finding. defence: number of the row in the exploit table. severity `reject` ends
    the evaluation, `review` is shown to a person."""

    defence: int
    severity: Literal["reject", "review"]
    message: str


@dataclass(frozen=True)
class Isolation:
    """The isolation that an evaluation really had."""

    network: bool
    user_namespace: bool
    pid_namespace: bool
    limits: Mapping[str, int] = field(default_factory=dict)
    level: str = "process"


@dataclass(frozen=True)
class Evaluation:
    """One candidate on one problem and device. seconds: by stage, and `calls`: what of them the two
    sides spent in calls that were clocked."""

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
    verdict: Mapping[str, Any] = field(default_factory=dict)
    isolation: Isolation | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def correct(self) -> bool:
        return self.validity == "correct"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "correct": self.correct}


def evaluation_from_json(record: Mapping[str, Any]) -> Evaluation:
    """The evaluation that `as_json` made; fields of a newer harness are ignored."""
    told = {name: record[name] for name in Evaluation.__dataclass_fields__ if name in record}
    return Evaluation(
        **{
            **told,
            "checks": tuple(_check(row) for row in told.get("checks", ())),
            "timings": tuple(_timing(row) for row in told.get("timings", ())),
            "speedup": _interval(told.get("speedup")),
            "flags": tuple(Flag(**row) for row in told.get("flags", ())),
            "isolation": Isolation(**told["isolation"]) if told.get("isolation") else None,
            "notes": tuple(told.get("notes", ())),
        }
    )


def checks_from_json(rows: Sequence[Mapping[str, Any]]) -> list[CaseCheck]:
    """What `asdict` made of checks."""
    return [_check(row) for row in rows]


def _check(row: Mapping[str, Any]) -> CaseCheck:
    errors = (OutputError(**{**e, "where": tuple(e["where"])}) for e in row["errors"])
    return CaseCheck(**{**row, "errors": tuple(errors)})


def _timing(row: Mapping[str, Any]) -> CaseTiming:
    return CaseTiming(**{**row, "speedup": _interval(row.get("speedup"))})


def _interval(row: Mapping[str, Any] | None) -> Interval | None:
    return Interval(**row) if row else None
