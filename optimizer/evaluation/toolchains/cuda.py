"""CUDA C++ by nvcc: the plain C ABI with a stream, and the resource report of every kernel.

Runs on a machine with a GPU; elsewhere compiles for the named architecture. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from kb.candidate_abi import HEADER, HEADER_NAME
from optimizer.evaluation.bundle import Bundle
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
from optimizer.evaluation.toolchains.reports import parse_ptx, parse_ptxas, whole

LIMITS = CommandLimits(seconds=120.0, memory_bytes=8 << 30, file_bytes=512 << 20)
FLAGS = (
    *("-shared", "-Xcompiler", "-fPIC", "-O3", "-std=c++17", "-Xptxas", "-v", "-lineinfo"),
    *("-Xlinker", "-z,defs"),
)
NOT_RUN_NOTE = "compiled only, not run: there is no CUDA device here"
# Architectures whose newest instructions need the suffix `a`, which Triton adds too.
SPECIFIC = (90, 100, 103, 120, 121)
_PTX_ENTRY = re.compile(r"^\s*(?:\.visible\s+)?\.entry\s+(?P<name>\w+)", re.MULTILINE)


def find_nvcc(env: Mapping[str, str] | None = None) -> str | None:
    """The path of nvcc on the PATH, or under CUDA_HOME or CUDA_PATH; None if it is not found."""
    known = os.environ if env is None else env
    homes = (known.get("CUDA_HOME"), known.get("CUDA_PATH"))
    folders = [known.get("PATH", ""), *(str(Path(home) / "bin") for home in homes if home)]
    found = (shutil.which("nvcc", path=folder) for folder in folders)
    return next((path for path in found if path), None)


def code_for(arch: str) -> str:
    """The option of nvcc that compiles for this architecture only, such as `90a`. The short
    `-arch=sm_90a` also assembles for plain sm_90, which refuses the instructions of `90a`."""
    return f"-gencode=arch=compute_{arch},code=sm_{arch}"


class Nvcc(LibraryToolchain):
    """nvcc to a shared library."""

    name = "nvcc"
    languages: tuple[str, ...] = ("cuda",)

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._nvcc = find_nvcc(env)

    def available(self, target: EvaluationTarget) -> Availability:
        """Whether nvcc is installed and compiles for the target's compute capability."""
        if self._nvcc is None:
            return Availability(
                False,
                "nvcc is not installed",
                "Install the CUDA toolkit and put nvcc on the PATH or set CUDA_HOME, or write the "
                "kernel in Triton, which needs neither.",
            )
        arch = target.capability
        if arch is None:
            return Availability(
                False,
                f"no compute capability is known for {target.hardware}",
                'Give its hardware.toml the fact compute_capability, as "9.0".',
            )
        supported = _architectures(self._nvcc)
        if supported and arch not in supported:
            return Availability(
                False,
                f"this nvcc does not compile for sm_{arch}",
                f"It knows sm_{', sm_'.join(map(str, supported))}; install another CUDA toolkit.",
            )
        return Availability(True)

    def version(self) -> str:
        return _version(self._nvcc) if self._nvcc else "nvcc is not installed"

    def build(
        self, bundle: Bundle, target: EvaluationTarget, workdir: Path, library: Path
    ) -> Compiled:
        """Compile to a shared library, which is loaded only on a machine with a CUDA device."""
        began = time.monotonic()
        bundle.write(workdir / SOURCES)
        (workdir / SOURCES / HEADER_NAME).write_text(HEADER, encoding="utf-8")
        command = self._command(bundle, target)
        done = run(command, cwd=workdir, limits=LIMITS, env=clean_env(workdir))
        ok = done.ok and library.is_file()
        kernels = _kernels(done.log, workdir) if ok else {}
        here = target.device == "cuda"
        return Compiled(
            ok=ok,
            log=_log(done, LIMITS),
            metrics=whole(kernels),
            kernels=kernels,
            loader=Loader("c_abi", library, bundle.entry) if ok and here else None,
            command=tuple(command),
            seconds=time.monotonic() - began,
            timed_out=done.timed_out,
            notes=(NOT_RUN_NOTE,) if ok and not here else (),
        )

    def _command(self, bundle: Bundle, target: EvaluationTarget) -> list[str]:
        arch = target.capability
        suffix = "a" if arch in SPECIFIC else ""
        source = f"{SOURCES}/{bundle.main}"
        # The PTX shows facts that the resource report lacks, such as the width of loads.
        keep_ptx = ["-keep", "-keep-dir", "."]
        options = [*FLAGS, code_for(f"{arch}{suffix}"), f"-I{SOURCES}", *keep_ptx]
        return [str(self._nvcc), *options, "-x", "cu", "-o", LIBRARY, source]


def _log(done: FinishedCommand, limits: CommandLimits) -> str:
    if done.timed_out:
        return f"error: compilation timed out after {limits.seconds:g} s\n{done.log}"
    return done.log or ("" if done.ok else f"error: nvcc ended with status {done.code}")


def _kernels(log: str, workdir: Path) -> dict[str, dict[str, Metric]]:
    """The resource report of each kernel, with counts from its PTX."""
    kernels = parse_ptxas(log)
    for path in sorted(workdir.glob("*.ptx")):
        text = path.read_text(encoding="utf-8", errors="replace")
        starts = [*_PTX_ENTRY.finditer(text)]
        ends = [*(entry.start() for entry in starts[1:]), len(text)]
        for entry, end in zip(starts, ends, strict=True):
            kernels.setdefault(entry["name"], {}).update(parse_ptx(text[entry.start() : end]))
    return kernels


@lru_cache(maxsize=4)
def _version(nvcc: str) -> str:
    printed = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"V[\d.]+", printed.stdout)
    return f"nvcc {version[0] if version else 'of unknown version'}"


@lru_cache(maxsize=4)
def _architectures(nvcc: str) -> tuple[int, ...]:
    printed = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=False)
    return tuple(sorted({int(digits) for digits in re.findall(r"sm_(\d+)", printed.stdout)}))
