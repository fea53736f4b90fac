"""What a toolchain is: it compiles one language for one hardware, states how the result is run, and
reports what the compiler knew. A new one implements `Toolchain` and is named in `registry`.

Does not measure and does not judge. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle

Metric = float | str
CACHE = "compiled_when_called"  # folder of a candidate for the results of its compilers
LoaderKind = Literal["python", "interpreter", "c_abi", "command"]


@dataclass(frozen=True)
class Target:
    """Where a candidate is to run.

    `hardware` is the id of the registry, `lineage` that id and the ids above it. `arch` is the
    compiler's name for the chip ("90", "gfx942", "native"). `device` is "cpu" or "cuda" where it
    can run here, else None. `facts` are numbers of the chip by key. `templates` are the command
    templates of its toolchain for this language, `languages` those that it has a toolchain for,
    each with the suffix of its files, for whoever asked for another.
    """

    hardware: str
    lineage: tuple[str, ...]
    arch: str | None = None
    device: Literal["cpu", "cuda"] | None = None
    facts: Mapping[str, float | str] = field(default_factory=dict)
    templates: Mapping[str, Any] = field(default_factory=dict)
    languages: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Availability:
    """Whether something can be used; `reason` and `hint` state why not, and what to install."""

    ok: bool
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Loader:
    """How a runner gets at the candidate.

    The kind `python` imports `path` and calls the class `entry`; `interpreter` does the same inside
    Triton's interpreter; `c_abi` loads the library at `path` and calls the function `entry`;
    `command` is run by the toolchain itself. `compiles` says that it will call torch's compiler.
    """

    kind: LoaderKind
    path: Path
    entry: str
    compiles: bool = False


@dataclass(frozen=True)
class Compiled:
    """The result of compiling.

    `log` is what the compiler printed, for the signature index. `metrics` come from its reports, by
    the raw names that retrieval/data/metrics.toml knows for the collector `static` (registers per
    thread, spill bytes, shared memory, vector instructions ...); they are values of the whole
    candidate, and `kernels` has them per kernel where there are several. `loader` is None when
    compiling failed or the result cannot run anywhere here. `notes` are for the reader, such as
    "compiled only, not run".
    """

    ok: bool
    log: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, Metric]] = field(default_factory=dict)
    loader: Loader | None = None
    command: tuple[str, ...] = ()
    seconds: float = 0.0
    timed_out: bool = False
    notes: tuple[str, ...] = ()


class Toolchain(Protocol):
    """Compile, run and profile for one family of languages."""

    name: str
    languages: tuple[str, ...]

    def available(self, target: Target) -> Availability:
        """Whether it can compile for the target here."""
        ...

    def version(self) -> str:
        """The version of the compiler and of what else decides its output; part of every
        evaluation's key."""
        ...

    def compile(
        self, bundle: Bundle, target: Target, workdir: Path, signatures: tuple[Signature, ...]
    ) -> Compiled:
        """Compile in `workdir`, in a killable process group with a deadline.

        `signatures` are those of the cases it will run with; some compilers specialise on shapes. A
        candidate that does not compile is an answer (`ok` False with its log), never an exception.
        """
        ...
