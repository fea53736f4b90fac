"""What a hardware description says, as data. Knows nothing about TOML, files or the catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

FactKind = Literal["datasheet", "measured", "derived"]
HardwareKind = Literal["accelerator", "family", "vendor"]
Timing = Literal["wall", "simulator"]
SampleRole = Literal["input", "weight", "output"]
Confidence = Literal["A", "B", "C"]
FactValue: TypeAlias = int | float | str

FACT_KINDS: tuple[FactKind, ...] = ("datasheet", "measured", "derived")
HARDWARE_KINDS: tuple[HardwareKind, ...] = ("accelerator", "family", "vendor")
TIMINGS: tuple[Timing, ...] = ("wall", "simulator")
SAMPLE_ROLES: tuple[SampleRole, ...] = ("input", "weight", "output")
CONFIDENCES: tuple[Confidence, ...] = ("A", "B", "C")

HARDWARE_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True)
class FactSpec:
    """One number (or short text) about a hardware, with its source.

    `formula` says how a derived value is calculated; arithmetic over numbers and other fact keys
    can be checked.
    """

    key: str
    value: FactValue
    unit: str
    kind: FactKind
    title: str = ""
    publisher: str = ""
    locator: str = ""
    url: str = ""
    date: str = ""
    note: str = ""
    formula: str = ""


@dataclass(frozen=True)
class SignatureSpec:
    """An error text of this hardware's own compiler or runtime: `pattern` is searched in one line
    of a log.
    """

    pattern: str
    signal: str
    title: str
    remedy: str = ""


@dataclass(frozen=True)
class RuleSpec:
    """A conclusion from this hardware's own counters: where the predicate `when` holds, the signal
    is concluded.

    `when` names counters as the profiler reports them, or `metrics.X`, `facts.X`, `problem.X` and
    `signals.X` as the built-in rules do. `confidence` is A (documented), B (published) or C
    (heuristic).
    """

    id: str
    when: str
    signal: str
    title: str
    why: str = ""
    confidence: Confidence = "C"


@dataclass(frozen=True)
class MetricAlias:
    """The canonical metric that a counter of this hardware is; `scale` is the factor from the
    counter to the metric's unit."""

    canonical: str
    scale: float = 1.0


@dataclass(frozen=True)
class ScalarSpec:
    """A number that a program is handed beside the tensors: an expression over shapes and
    constants of the reference. An optional one is left out where the problem has no such name."""

    value: str
    optional: bool = False


@dataclass(frozen=True)
class SampleArgument:
    """One tensor that the sample of a toolchain is run with. `shape` counts elements."""

    name: str
    role: SampleRole
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ToolchainSpec:
    """How one language is compiled, run and profiled: a built-in toolchain or command templates.

    `timing` is `simulator` when `run` reports a simulator's time, which is never mixed with wall
    time. `suffix` is that of the source file, where the compiler needs one. `entry` is what a
    kernel is called where a candidate names nothing else, `interface` says to its author how it is
    launched. `sample` is a kernel that compiles and runs on `sample_arguments`; `sample_reference`
    is a torch expression over their names that it computes. `arguments` are patterns of the names
    that tensors have in the program, by role; `scalars` are the numbers that it gets beside them.
    """

    builtin: str = ""
    compile: str = ""
    run: str = ""
    profile: str = ""
    timing: Timing = "wall"
    suffix: str = ""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    entry: str = ""
    interface: str = ""
    sample: str = ""
    sample_arguments: tuple[SampleArgument, ...] = ()
    sample_reference: str = ""
    arguments: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    scalars: Mapping[str, ScalarSpec] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class HardwareSpec:
    """One accelerator, family or vendor; `parent` is the next id up the lineage."""

    id: str
    name: str
    vendor: str
    parent: str | None = None
    aliases: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    kind: HardwareKind = "accelerator"
    summary: str = ""
    facts: tuple[FactSpec, ...] = ()
    signatures: tuple[SignatureSpec, ...] = ()
    rules: tuple[RuleSpec, ...] = ()
    metrics: Mapping[str, MetricAlias] = field(default_factory=lambda: MappingProxyType({}))
    toolchains: Mapping[str, ToolchainSpec] = field(default_factory=lambda: MappingProxyType({}))


# -- shipped: Which chips are built in: those with a description in the folder of the built-in kno


def is_shipped(hardware_id: str, knowledge_dir: Path) -> bool:
    """Whether every start registers this chip."""
    return (knowledge_dir / "hardware" / hardware_id / "hardware.toml").is_file()
