"""What a hardware description says, as data. Knows nothing about TOML, files or the catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

FactKind = Literal["datasheet", "measured", "derived"]
HardwareKind = Literal["accelerator", "family", "vendor"]
Timing = Literal["wall", "simulator"]
FactValue: TypeAlias = int | float | str

FACT_KINDS: tuple[FactKind, ...] = ("datasheet", "measured", "derived")
HARDWARE_KINDS: tuple[HardwareKind, ...] = ("accelerator", "family", "vendor")
TIMINGS: tuple[Timing, ...] = ("wall", "simulator")

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
class ToolchainSpec:
    """How one language is compiled, run and profiled: a built-in toolchain or command templates.

    `timing` is `simulator` when `run` reports a simulator's time, which is never mixed with wall
    time. `suffix` is that of the source file, where the compiler needs one.
    """

    builtin: str = ""
    compile: str = ""
    run: str = ""
    profile: str = ""
    timing: Timing = "wall"
    suffix: str = ""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


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
    toolchains: Mapping[str, ToolchainSpec] = field(default_factory=lambda: MappingProxyType({}))
