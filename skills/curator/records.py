"""What the curator reads and hands from step to step, as data that can be stored and replayed.

A trajectory is told by the optimizer of this product or, after everything in it was evaluated again
here, by another one. Knows neither runs nor problems: whoever has them builds these records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Value = int | float | str | bool
Operation = Literal["ADD", "ADD_EVIDENCE", "REFINE", "CONTRADICT", "DEPRECATE"]
OPERATIONS: tuple[Operation, ...] = ("ADD", "ADD_EVIDENCE", "REFINE", "CONTRADICT", "DEPRECATE")


@dataclass(frozen=True)
class Ratio:
    """A speed-up with its 95 % interval over n pairs of blocks."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Kernel:
    """A candidate's text. recipe and values: where it is an instance of one."""

    language: str
    main: str
    entry: str
    files: Mapping[str, str]
    recipe: str | None = None
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class CaseFigure:
    """Times of one case in microseconds a call; speedup: reference over candidate."""

    case: str
    baseline_us: float | None
    candidate_us: float | None
    speedup: Ratio | None
    state: str  # measured | simulator | repeat | none


@dataclass(frozen=True)
class Measured:
    """What the harness of this product found of a kernel. key: of the stored evaluation. checks:
    (passed, of). signals: of its verdict, the leading one first. flags: integrity findings in
    words; rejected: one of them ended the evaluation. reviewed: what a person answered to flags,
    with the flags where the answer took them away; empty for no answer."""

    key: str
    validity: str
    timing: str
    harness: str
    toolchain: str
    device: str
    checks: tuple[int, int]
    signals: tuple[str, ...] = ()
    metrics: Mapping[str, float | str] = field(default_factory=dict)
    speedup: Ratio | None = None
    cases: tuple[CaseFigure, ...] = ()
    flags: tuple[str, ...] = ()
    rejected: bool = False
    message: str = ""
    reviewed: str = ""


@dataclass(frozen=True)
class Side:
    """A kernel and what was found of it. number: of its node; kernel None: the problem's own
    reference."""

    number: int
    kernel: Kernel | None
    measured: Measured | None


@dataclass(frozen=True)
class Step:
    """A change: parent to child. claimed: ids the proposer says it used; attributed: those that
    made the change for certain; shown: ids of everything it was shown, by kind (excerpts, moves,
    skills). told: texts of the proposer about it, data of unknown trust."""

    parent: Side
    child: Side
    synthesizer: str
    origin: str
    plan: str = ""
    claimed: tuple[str, ...] = ()
    attributed: tuple[str, ...] = ()
    shown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    told: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject:
    """The problem that a trajectory is about. family: op family; cases: names by kind (searched,
    held_out). sizes: of each case, by the name of a dimension or of a quantity of
    `kb/problem_terms.toml`; empty where nobody told them."""

    name: str
    sha256: str
    op: str
    family: str
    dtype: str | None
    cases: Mapping[str, tuple[str, ...]]
    source: str = ""
    sizes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Trajectory:
    """All changes of one run, in their order. evaluated_here: every figure in it was measured by
    this product's harness; nothing else is believed."""

    id: str
    subject: Subject
    hardware: str
    lineage: tuple[str, ...]
    steps: tuple[Step, ...]
    evaluated_here: bool
    actor: str = "optimizer"

    def as_json(self) -> dict[str, Any]:
        """Without `reviewed` where nobody answered, as records were stored before there was one:
        judged again, they are the same to the word."""
        told = asdict(self)
        for step in told["steps"]:
            for side in (step["parent"]["measured"], step["child"]["measured"]):
                if side is not None and not side["reviewed"]:
                    del side["reviewed"]
        return told


def trajectory_from_json(row: Mapping[str, Any]) -> Trajectory:
    """The inverse of `Trajectory.as_json`. Raises KeyError or TypeError for anything else."""
    told = row["subject"]
    cases = {kind: tuple(names) for kind, names in told["cases"].items()}
    return Trajectory(
        **{
            **row,
            "subject": Subject(**{**told, "cases": cases}),
            "lineage": tuple(row["lineage"]),
            "steps": tuple(_step(step) for step in row["steps"]),
        }
    )


def _step(row: Mapping[str, Any]) -> Step:
    lists = {name: tuple(row[name]) for name in ("claimed", "attributed", "told")}
    shown = {kind: tuple(ids) for kind, ids in row["shown"].items()}
    sides = {name: _side(row[name]) for name in ("parent", "child")}
    return Step(**{**row, **lists, **sides, "shown": shown})


def _side(row: Mapping[str, Any]) -> Side:
    kernel, measured = row["kernel"], row["measured"]
    return Side(
        row["number"],
        None if kernel is None else Kernel(**kernel),
        None if measured is None else _measured(measured),
    )


def _measured(row: Mapping[str, Any]) -> Measured:
    passed, of = row["checks"]
    return Measured(
        **{
            **row,
            "checks": (passed, of),
            "signals": tuple(row["signals"]),
            "flags": tuple(row["flags"]),
            "speedup": _ratio(row["speedup"]),
            "cases": tuple(
                CaseFigure(**{**case, "speedup": _ratio(case["speedup"])}) for case in row["cases"]
            ),
        }
    )


def _ratio(row: Mapping[str, Any] | None) -> Ratio | None:
    return None if row is None else Ratio(**row)


@dataclass(frozen=True)
class ParameterChange:
    """A parameter that differs between parent and child. role: as moves call it."""

    name: str
    role: str
    before: Value | None
    after: Value


@dataclass(frozen=True)
class Change:
    """The structured delta of a step, without the transcript: what a skill is drafted from.

    polarity `avoid`: an informative failure. transformation: its name in the library's words
    (`increase-tile_m`, `use-recipe-cpp-row-softmax`, `vectorise`). gain: child over parent, from
    figures that were both taken against the reference in sessions of their own; None where either
    has none. before, after: signals of the two verdicts. pattern: normalised lines that went and
    came, for kernels that are no instances of one recipe.
    """

    step: Step
    polarity: Literal["use", "avoid"]
    transformation: str
    parameters: tuple[ParameterChange, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    gain: Ratio | None
    pattern: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """What one step of the curator said of one change; kept, so that a distillation can be read and
    replayed. stage: gate | contrast | draft | lint | normalise | match | verify | publish."""

    stage: str
    node: int
    passed: bool
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)
