"""C and C++ for the CPU of this machine: one shared library behind the plain C ABI.

Torch's extension builder is not used, because it takes half a minute a candidate. Does not search
for cross compilers. Standard library only.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from kb.candidate_abi import HEADER, HEADER_NAME
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.isolation.machine import processor
from optimizer.evaluation.toolchains.base import (
    LIBRARY,
    SOURCES,
    Availability,
    Compiled,
    EvaluationTarget,
    LibraryToolchain,
    Loader,
    Metric,
)
from optimizer.evaluation.toolchains.processes import CommandLimits, FinishedCommand, clean_env, run
from optimizer.evaluation.toolchains.reports import Loops, count_instructions, parse_loops

REPORT = "vectoriser.txt"
LIMITS = CommandLimits(seconds=60.0, memory_bytes=4 << 30, file_bytes=256 << 20)
OBJDUMP_LIMITS = CommandLimits(seconds=20.0, output_bytes=64 << 20)
# Line tables do not change the code; perf maps samples to lines by them.
BASE_FLAGS = ("-g1", "-shared", "-fPIC", "-fopenmp", "-Wall", "-Wno-unknown-pragmas")

# A parameter of the bundle -> its allowed values -> the compiler flags.
VARIANTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "opt_level": {"1": ("-O1",), "2": ("-O2",), "3": ("-O3",)},
    "march": {
        name: (f"-march={name}",)
        for name in ("native", "x86-64-v2", "x86-64-v3", "x86-64-v4", "armv8-a", "armv9-a")
    },
    "fast_math": {"true": ("-ffast-math",), "false": ()},
    "unroll_loops": {"true": ("-funroll-loops",), "false": ()},
    "prefer_vector_width": {
        width: (f"-mprefer-vector-width={width}",) for width in ("128", "256", "512")
    },
    "prefetch_loops": {"true": ("-fprefetch-loop-arrays",), "false": ()},
    "interchange_loops": {"true": ("-floop-interchange",), "false": ()},
}
# Set unless the candidate chooses another value; advice to set it is useless.
DEFAULTS: Mapping[str, str] = {"opt_level": "3", "march": "native"}
MARKED = re.compile(r"^\s*(?://|/?\*+)\s*kernlore-flags:\s*(.+?)\s*(?:\*/)?$", re.MULTILINE)

# `platform.machine()` -> ids of the hardware registry.
MACHINES: Mapping[str, tuple[str, ...]] = {
    "x86_64": ("x86-64",),
    "amd64": ("x86-64",),
    "aarch64": ("arm",),
    "arm64": ("arm",),
}
_TORCH = re.compile(r"^\s*#\s*include\s*[<\"](?:torch|ATen|c10|pybind11)/", re.MULTILINE)


class RefusedFlag(Exception):
    """A flag variant that is not allowed; the message names those that are."""


def flags_of(bundle: Bundle) -> list[str]:
    """Optimisation flags: the defaults, a `// kernlore-flags: name=value ...` line of the main
    file, then the bundle's parameters. Parameters that are no variant are ignored. Raises
    RefusedFlag."""
    chosen = dict(DEFAULTS)
    for line in MARKED.findall(bundle.source):
        for word in line.split():
            name, _, value = word.partition("=")
            if name not in VARIANTS:
                raise RefusedFlag(f"kernlore-flags: {name!r} is none of {', '.join(VARIANTS)}")
            chosen[name] = value
    chosen |= {n: str(v).lower() for n, v in bundle.parameters.items() if n in VARIANTS}
    flags: list[str] = []
    for name, value in chosen.items():
        if value not in VARIANTS[name]:
            allowed = ", ".join(VARIANTS[name])
            raise RefusedFlag(f"kernlore-flags: {name}={value} is not allowed; use {allowed}")
        flags += VARIANTS[name][value]
    return flags


class CppToolchain(LibraryToolchain):
    """`g++ -shared`, with the vectoriser's report and a count of SIMD instructions."""

    name = "g++"
    languages: tuple[str, ...] = ("cpp",)

    def __init__(self, compiler: str = "g++", limits: CommandLimits = LIMITS) -> None:
        super().__init__()
        self._compiler = compiler
        self._limits = limits

    def available(self, target: EvaluationTarget) -> Availability:
        """Whether the compiler is installed and this machine is of the target's architecture."""
        if shutil.which(self._compiler) is None:
            return Availability(
                False, f"{self._compiler} is not installed", "Install it, as with apt install g++."
            )
        here = platform.machine().lower()
        if target.arch not in (None, "native") and target.arch != here:
            return self._another_machine(target, here)
        families = MACHINES.get(here)
        if families is not None and not set(families) & {target.hardware, *target.lineage}:
            return self._another_machine(target, here)
        return Availability(True)

    def _another_machine(self, target: EvaluationTarget, here: str) -> Availability:
        return Availability(
            False,
            f"this machine is {here}, not {target.hardware}",
            f"Evaluate on a {target.hardware} machine, or describe a cross compiler and a runner "
            f"as command templates under [toolchains.cpp] of its hardware.toml.",
        )

    def version(self) -> str:
        """The compiler's version, its meaning of `-march=native`, and the processor."""
        return _version(self._compiler)

    def build(
        self, bundle: Bundle, target: EvaluationTarget, workdir: Path, library: Path
    ) -> Compiled:
        """Compile to a shared library. A candidate without its entry, or with a refused flag, does
        not compile."""
        del target
        began = time.monotonic()
        refusal = self._refusal(bundle)
        if refusal:
            return Compiled(False, log=refusal)
        sources = workdir / SOURCES
        bundle.write(sources)
        (sources / HEADER_NAME).write_text(HEADER, encoding="utf-8")
        command = self._command(bundle)
        done = run(command, cwd=workdir, limits=self._limits, env=clean_env(workdir))
        if not done.ok or not library.is_file():
            return _failed(done, command, self._limits)
        loops = parse_loops(_read(workdir / REPORT), Path(SOURCES))
        listing = _disassemble(library)
        kernels = count_instructions(listing)
        missing = [] if bundle.entry in kernels or not listing else [_missing(bundle.entry)]
        return Compiled(
            ok=not missing,
            log="\n".join([*missing, *([done.log] if done.log else [])]),
            metrics=_metrics(loops, kernels) if listing else {},
            kernels=kernels,
            loader=None if missing else Loader("c_abi", library, bundle.entry),
            command=tuple(command),
            seconds=time.monotonic() - began,
            notes=(loops.summary,) if listing else (loops.summary, "objdump is not installed"),
        )

    def _refusal(self, bundle: Bundle) -> str:
        """Reason not to compile at all, or empty."""
        if any(_TORCH.search(text) for text in bundle.files.values()):
            return (
                "error: the source includes torch's C++ headers, which this toolchain does not "
                f"build; write a C function over {HEADER_NAME}"
            )
        try:
            flags_of(bundle)
        except RefusedFlag as refused:
            return f"error: {refused}"
        return ""

    def _command(self, bundle: Bundle) -> list[str]:
        main = f"{SOURCES}/{bundle.main}"
        language = ["-x", "c", "-std=gnu17"] if main.endswith(".c") else ["-std=gnu++20"]
        report = f"-fopt-info-vec-optimized-missed={REPORT}"
        options = [*BASE_FLAGS, *flags_of(bundle), report, f"-I{SOURCES}"]
        if sys.platform == "linux":
            options.append("-Wl,-z,defs")  # a missing function fails here, not at the first call
        return [self._compiler, *options, *language, "-o", LIBRARY, main, "-lm"]


def _missing(entry: str) -> str:
    return (
        f"error: undefined symbol: {entry} is not exported by the library; declare it as "
        f"KERNLORE_EXPORT int {entry}(const kernlore_tensor *, const kernlore_counts *)\n"
        '#include "kernlore_abi.h" has both: each tensor (inputs, parameters, then outputs) has'
        " data, dtype, ndim, shape and stride"
    )


def _failed(done: FinishedCommand, command: Sequence[str], limits: CommandLimits) -> Compiled:
    log = done.log
    if done.timed_out:
        log = f"error: compilation timed out after {limits.seconds:g} s\n{log}"
    elif not log:
        log = f"error: the compiler ended with status {done.code} and printed nothing"
    return Compiled(
        False, log=log, command=tuple(command), seconds=done.seconds, timed_out=done.timed_out
    )


def _metrics(loops: Loops, kernels: Mapping[str, Mapping[str, Metric]]) -> dict[str, Metric]:
    packed = sum(int(counts["packed_instructions"]) for counts in kernels.values())
    return {"packed_instructions": packed, "vec_missed": len(loops.missed)}


def _disassemble(library: Path) -> str:
    if shutil.which("objdump") is None:
        return ""
    command = ["objdump", "-d", "--no-show-raw-insn", "-j", ".text", str(library)]
    return run(command, cwd=library.parent, limits=OBJDUMP_LIMITS).stdout


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


@lru_cache(maxsize=4)
def _version(compiler: str) -> str:
    """The compiler's first line without its name, its -march=native, and the processor."""
    if shutil.which(compiler) is None:
        return f"{compiler} is not installed"
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    native = subprocess.run(
        [compiler, "-march=native", "-Q", "--help=target"],
        capture_output=True,
        text=True,
        check=False,
    )
    arch = re.search(r"^\s*-march=\s+(\S+)", native.stdout, re.MULTILINE)
    first = version.stdout.splitlines()[0].removeprefix(f"{Path(compiler).name} ")
    return f"{first}; native={arch[1] if arch else platform.machine()} on {processor()}"
