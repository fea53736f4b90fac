"""Triton for NVIDIA and AMD GPUs. Where an NVIDIA GPU is, candidates run on it; everywhere else
they are compiled for the named architecture, resource reports are read from PTX, ptxas or the AMD
code object, and correctness is left to Triton's interpreter.

Standard library only.
"""

from __future__ import annotations

import re
import subprocess
from functools import lru_cache
from pathlib import Path

from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains.base import Availability, Compiled, Metric, Target
from optimizer.evaluation.toolchains.processes import Limits
from optimizer.evaluation.toolchains.reports import parse_amdgcn, parse_ptx, parse_ptxas
from optimizer.evaluation.toolchains.triton.compile import (
    LIMITS,
    Chip,
    compile_triton,
    missing_packages,
    triton_folder,
    versions,
)

OLDEST = 75  # Triton 3.6 and 3.7 compile for nothing older


def capability(target: Target) -> int | None:
    """90 for "90", "sm_90a", or the fact compute_capability "9.0"; None where it is not known."""
    arch = str(target.arch or target.facts.get("compute_capability", ""))
    dotted = re.fullmatch(r"(\d+)\.(\d)", arch)
    if dotted is not None:
        return int(dotted[1]) * 10 + int(dotted[2])
    plain = re.fullmatch(r"(?:sm_?)?(\d{2,3})[af]?", arch)
    return int(plain[1]) if plain is not None else None


class TritonNvidia:
    """Triton to PTX and cubin."""

    name = "triton-nvidia"
    languages: tuple[str, ...] = ("triton",)

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits

    def available(self, target: Target) -> Availability:
        """Whether Triton is installed and compiles for the target's compute capability."""
        lacking = missing_packages()
        if lacking is not None:
            return lacking
        arch = capability(target)
        if arch is None:
            return Availability(
                False,
                f"no compute capability is known for {target.hardware}",
                'Give its hardware.toml the fact compute_capability, as "9.0".',
            )
        if arch < OLDEST:
            return Availability(
                False,
                f"Triton does not compile for sm_{arch}",
                f"Use hardware of compute capability {OLDEST / 10} or later.",
            )
        return Availability(True)

    def version(self) -> str:
        """The versions of Triton, torch and ptxas."""
        return f"{versions()}, {_ptxas_version()}"

    def compile(
        self, bundle: Bundle, target: Target, workdir: Path, signatures: tuple[Signature, ...]
    ) -> Compiled:
        """Compile to PTX and machine code."""
        chip = Chip("cuda", str(capability(target)), 32)
        return compile_triton(
            bundle, target, chip, workdir, signatures, read_nvidia_kernel, self._limits
        )


def read_nvidia_kernel(ptx: str, log: str) -> dict[str, Metric]:
    """Metrics of one kernel's PTX and of what ptxas printed for it."""
    metrics: dict[str, Metric] = parse_ptx(ptx)
    for row in parse_ptxas(log).values():
        metrics |= row
    return metrics


@lru_cache(maxsize=1)
def _ptxas_version() -> str:
    folder = triton_folder()
    tool = folder / "backends" / "nvidia" / "bin" / "ptxas" if folder else None
    if tool is None or not tool.is_file():
        return "ptxas is not installed"
    printed = subprocess.run([str(tool), "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"V[\d.]+", printed.stdout)
    return f"ptxas {version[0] if version else 'of unknown version'}"


def gfx(target: Target) -> str | None:
    """The architecture, such as "gfx942", from the target or its fact compute_capability; None
    where it is not known."""
    arch = str(target.arch or target.facts.get("compute_capability", ""))
    return arch if re.fullmatch(r"gfx\d+[a-z]?", arch) else None


class TritonAmd:
    """Triton to AMDGCN assembly and code object."""

    name = "triton-amd"
    languages: tuple[str, ...] = ("triton",)

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits

    def available(self, target: Target) -> Availability:
        """Whether Triton is installed and the target's architecture is known."""
        lacking = missing_packages()
        if lacking is not None:
            return lacking
        if gfx(target) is None:
            return Availability(
                False,
                f"no gfx architecture is known for {target.hardware}",
                'Give its hardware.toml the fact compute_capability, as "gfx942".',
            )
        return Availability(True)

    def version(self) -> str:
        """The versions of Triton and torch."""
        return versions()

    def compile(
        self, bundle: Bundle, target: Target, workdir: Path, signatures: tuple[Signature, ...]
    ) -> Compiled:
        """Compile to the code object of the architecture."""
        arch = str(gfx(target))
        chip = Chip("hip", arch, 64 if arch.startswith("gfx9") else 32)
        return compile_triton(
            bundle, target, chip, workdir, signatures, read_amd_kernel, self._limits
        )


def read_amd_kernel(assembly: str, log: str) -> dict[str, Metric]:
    """Metrics of one kernel's assembly. The AMD compiler prints nothing of use beside it."""
    del log
    return parse_amdgcn(assembly)
