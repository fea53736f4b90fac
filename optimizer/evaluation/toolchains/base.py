"""The interface of toolchains: compile one language for one hardware, state how the result is run,
report the compiler's findings. A new one implements `Toolchain` and is added to `registry`.

Does not measure and does not judge. Standard library only.
"""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle

Metric = float | str
CACHE = "compiled_when_called"  # a candidate's folder for results of its compilers
LoaderKind = Literal["python", "interpreter", "c_abi", "command"]


@dataclass(frozen=True)
class EvaluationTarget:
    """Where a candidate is to run.

    `hardware` is the id of the registry, `lineage` that id and those above it. `arch` is the
    compiler's name of the chip ("90", "gfx942", "native"). `device` is "cpu" or "cuda" if it can
    run here, else None. `facts` are numbers of the chip by key. `templates` are the command
    templates of its toolchain for this language. `languages` are those that it has toolchains for,
    with the suffix of their files, for the message about any other.
    """

    hardware: str
    lineage: tuple[str, ...]
    arch: str | None = None
    device: Literal["cpu", "cuda"] | None = None
    facts: Mapping[str, float | str] = field(default_factory=dict)
    templates: Mapping[str, Any] = field(default_factory=dict)
    languages: Mapping[str, str] = field(default_factory=dict)

    @property
    def capability(self) -> int | None:
        """Compute capability: 90 for the arch "90" or "sm_90a", or the fact compute_capability
        "9.0"; None if unknown."""
        arch = str(self.arch or self.facts.get("compute_capability", ""))
        dotted = re.fullmatch(r"(\d+)\.(\d)", arch)
        if dotted is not None:
            return int(dotted[1]) * 10 + int(dotted[2])
        plain = re.fullmatch(r"(?:sm_?)?(\d{2,3})[af]?", arch)
        return int(plain[1]) if plain is not None else None


@dataclass(frozen=True)
class Availability:
    """Whether something can be used; `reason` and `hint` state why not, and what to install."""

    ok: bool
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True)
class CompileCase:
    """A case as a compiler sees it: the arrays, and the constructor arguments of a Python
    candidate.

    `init_args`: None if unknown; then the candidate's own `get_init_inputs` is used, if it has
    one. `init_source` is the text and path of the problem file that makes the arguments where they
    cannot be sent (see `init_arguments`). `gradients`: the problem differentiates. `dtype` is that
    of the floating weights, None for the candidate's own. `scalars` are values of inputs that are
    plain numbers, by name.
    """

    signature: Signature
    init_args: Sequence[Any] | None = None
    dtype: str | None = None
    scalars: Mapping[str, int | float | bool] = field(default_factory=dict)
    init_source: tuple[str, str] | None = None
    gradients: bool = False


@dataclass(frozen=True)
class Loader:
    """How a runner loads the candidate.

    The kind `python` imports `path` and calls the class `entry`; `interpreter` does the same in
    Triton's interpreter; `c_abi` loads the library at `path` and calls the function `entry`;
    `command` is run by the toolchain. `compiles`: it will call torch's compiler.
    """

    kind: LoaderKind
    path: Path
    entry: str
    compiles: bool = False


@dataclass(frozen=True)
class Compiled:
    """The result of compiling.

    `log` is the compiler's output, for the signature index. `metrics` of the whole candidate
    come from its reports, by the raw names that retrieval/data/metrics.toml knows for the collector
    `static` (registers per thread, spill bytes, shared memory, vector instructions ...); `kernels`
    has them by kernel. `loader` is None if compiling failed or the result cannot run here. `notes`
    are for readers, such as "compiled only, not run".
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

    def available(self, target: EvaluationTarget) -> Availability:
        """Whether it can compile for the target here."""
        ...

    def version(self) -> str:
        """The version of everything that decides the compiler's output; part of every evaluation's
        key."""
        ...

    def compile(
        self,
        bundle: Bundle,
        target: EvaluationTarget,
        workdir: Path,
        cases: tuple[CompileCase, ...],
    ) -> Compiled:
        """Compile in `workdir`, in a killable process group with a deadline.

        `cases` are those that it will run with; some compilers specialise on shapes. A failure to
        compile is a result (`ok` False with a log), never an exception.
        """
        ...


SOURCES, LIBRARY = "src", "candidate.so"  # relative: logs are equal in every working directory
MAX_LIBRARIES = 32
MAX_LIBRARY_BYTES = 8 << 20  # a larger one is built again


class LibraryToolchain(ABC):
    """Builds shared libraries of the plain C ABI.

    The same candidate is built once for a target: winners are measured several times in fresh
    processes, and building, above all with nvcc, takes longer than measuring. Libraries are kept in
    memory, out of the candidates' reach. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._built: OrderedDict[tuple[str | None, ...], tuple[Compiled, bytes]] = OrderedDict()

    @abstractmethod
    def build(
        self, bundle: Bundle, target: EvaluationTarget, workdir: Path, library: Path
    ) -> Compiled:
        """Build the candidate's `library` in `workdir`."""

    def compile(
        self,
        bundle: Bundle,
        target: EvaluationTarget,
        workdir: Path,
        cases: tuple[CompileCase, ...],
    ) -> Compiled:
        """Build a shared library, or write the one that was built before."""
        del cases
        library = workdir / LIBRARY
        key = bundle.sha256, target.hardware, target.arch, target.device
        with self._lock:
            built = self._built.get(key)
            if built is not None:
                self._built.move_to_end(key)
        if built is not None:
            compiled, content = built
            library.write_bytes(content)
            loader = compiled.loader
            return replace(compiled, loader=loader and replace(loader, path=library))
        compiled = self.build(bundle, target, workdir, library)
        if compiled.ok and library.stat().st_size <= MAX_LIBRARY_BYTES:
            with self._lock:
                self._built[key] = (compiled, library.read_bytes())
                while len(self._built) > MAX_LIBRARIES:
                    self._built.popitem(last=False)
        return compiled
