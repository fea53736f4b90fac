"""The description of hardware as data. Knows nothing about TOML or the catalog."""

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
CostKind = Literal["cycles", "instructions", "packets"]
SampleRole = Literal["input", "weight", "output"]
Confidence = Literal["A", "B", "C"]
FactValue: TypeAlias = int | float | str

FACT_KINDS: tuple[FactKind, ...] = ("datasheet", "measured", "derived")
HARDWARE_KINDS: tuple[HardwareKind, ...] = ("accelerator", "family", "vendor")
TIMINGS: tuple[Timing, ...] = ("wall", "simulator")
COST_KINDS: tuple[CostKind, ...] = ("cycles", "instructions", "packets")
SAMPLE_ROLES: tuple[SampleRole, ...] = ("input", "weight", "output")
CONFIDENCES: tuple[Confidence, ...] = ("A", "B", "C")

HARDWARE_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True)
class FactSpec:
    """A number or short text about a hardware, with its source. `formula` computes a derived value
    from other fact keys; text other than arithmetic is not checked."""

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
    """An error text of the compiler or runtime; `pattern` is searched in each line of a log."""

    pattern: str
    signal: str
    title: str
    remedy: str = ""


@dataclass(frozen=True)
class RuleSpec:
    """A diagnosis rule: `signal` holds if the predicate `when` does.

    `when` refers to counters by the profiler's names, and like the built-in rules to `metrics.X`,
    `facts.X`, `problem.X` and `signals.X`. `confidence` is A (documented), B (published) or C
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
    """The canonical metric of a counter; `scale` converts the counter to the metric's unit."""

    canonical: str
    scale: float = 1.0


@dataclass(frozen=True)
class ScalarSpec:
    """A number that is passed to a program in addition to tensors: an expression over shapes and
    constants of the reference. An optional one is omitted if a problem lacks its names."""

    value: str
    optional: bool = False


@dataclass(frozen=True)
class SampleArgument:
    """A tensor that the sample of a toolchain runs with. `shape` is in elements."""

    name: str
    role: SampleRole
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ToolchainSpec:
    """Compilation, execution and profiling of a language, by a built-in toolchain or by command
    templates.

    `timing` is `simulator` if `run` reports a simulator's time, which is never mixed with wall
    time; `cost` is the kind of count that it reports. `programs` are further programs that the
    commands need, `install` the command that installs them. `suffix` is that of source files.
    `entry` is the default name of a kernel, `interface` tells its author how it is launched.
    `sample` is a kernel that runs on `sample_arguments` and computes `sample_reference`, a torch
    expression over their names. `arguments` are patterns of the names of tensors in the program by
    role, `scalars` its further arguments, which are numbers.
    """

    builtin: str = ""
    compile: str = ""
    run: str = ""
    profile: str = ""
    timing: Timing = "wall"
    cost: CostKind = "cycles"
    programs: tuple[str, ...] = ()
    install: str = ""
    suffix: str = ""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    entry: str = ""
    interface: str = ""
    sample: str = ""
    sample_arguments: tuple[SampleArgument, ...] = ()
    sample_reference: str = ""
    arguments: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    scalars: Mapping[str, ScalarSpec] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def called(self) -> str:
        """The name of a kernel for command templates; empty for a built-in toolchain."""
        return self.entry or ("" if self.builtin else "kernlore_run")


@dataclass(frozen=True)
class HardwareSpec:
    """An accelerator, family or vendor; `parent` is the next id of the lineage. `terms` are words
    of its manuals with the concept that each means, "" for none."""

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
    terms: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    toolchains: Mapping[str, ToolchainSpec] = field(default_factory=lambda: MappingProxyType({}))


def is_shipped(hardware_id: str, knowledge_dir: Path) -> bool:
    """Whether the built-in knowledge describes this hardware."""
    return (knowledge_dir / "hardware" / hardware_id / "hardware.toml").is_file()
