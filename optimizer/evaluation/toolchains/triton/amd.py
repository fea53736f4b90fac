"""Triton for AMD GPUs: compiles to the code object of the named architecture and reads registers,
LDS, spills and occupancy from it; correctness is left to the interpreter.

Standard library only.
"""

from __future__ import annotations

import re
from pathlib import Path

from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains.base import Availability, Compiled, Metric, Target
from optimizer.evaluation.toolchains.processes import Limits
from optimizer.evaluation.toolchains.reports.gpu import parse_amdgcn
from optimizer.evaluation.toolchains.triton.compile import (
    LIMITS,
    Chip,
    compile_triton,
    missing_packages,
    versions,
)


def gfx(target: Target) -> str | None:
    """ "gfx942" from the architecture or the fact compute_capability; None when nothing says."""
    told = str(target.arch or target.facts.get("compute_capability", ""))
    return told if re.fullmatch(r"gfx\d+[a-z]?", told) else None


class TritonAmd:
    """Triton to AMDGCN assembly and code object."""

    name = "triton-amd"
    languages: tuple[str, ...] = ("triton",)

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits

    def available(self, target: Target) -> Availability:
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
        return versions()

    def compile(
        self, bundle: Bundle, target: Target, workdir: Path, signatures: tuple[Signature, ...]
    ) -> Compiled:
        arch = str(gfx(target))
        chip = Chip("hip", arch, 64 if arch.startswith("gfx9") else 32)
        return compile_triton(bundle, target, chip, workdir, signatures, read_kernel, self._limits)


def read_kernel(assembly: str, log: str) -> dict[str, Metric]:
    """One kernel's assembly; the AMD compiler prints nothing of use beside it."""
    del log
    return parse_amdgcn(assembly)
