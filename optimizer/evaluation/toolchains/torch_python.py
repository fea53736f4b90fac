"""Plain PyTorch: a `ModelNew` of torch operators, torch.compile configurations included. Nothing is
compiled before it runs; only the syntax is checked.

Standard library only.
"""

from __future__ import annotations

import sys
from pathlib import Path

from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains.base import Availability, Compiled, Loader, Target
from optimizer.evaluation.toolchains.processes import Limits, clean_env, run
from optimizer.evaluation.toolchains.triton.compile import missing_packages, versions

SOURCES = "src"
LIMITS = Limits(seconds=10.0, memory_bytes=2 << 30, file_bytes=16 << 20)
COMPILER = ("torch.compile", "torch._dynamo", "torch._inductor")
CHECK = "import ast, sys; ast.parse(open(sys.argv[1], encoding='utf-8').read(), sys.argv[1])"


class TorchPython:
    """Python that torch runs."""

    name = "torch"
    languages: tuple[str, ...] = ("torch",)

    def available(self, target: Target) -> Availability:
        """Whether torch is installed and can use the target here."""
        lacking = missing_packages()
        if lacking is not None and "torch" in lacking.reason:
            return lacking
        if target.device is None:
            return Availability(
                False,
                f"torch has no {target.hardware} to run on here",
                "Evaluate on a machine that has one, or choose another language.",
            )
        return Availability(True)

    def version(self) -> str:
        """The versions of torch, Triton and Python."""
        return f"{versions()}, python {sys.version_info.major}.{sys.version_info.minor}"

    def compile(
        self, bundle: Bundle, target: Target, workdir: Path, signatures: tuple[Signature, ...]
    ) -> Compiled:
        """Check the syntax of the main file."""
        del target, signatures
        path = bundle.write(workdir / SOURCES)
        command = [sys.executable, "-I", "-S", "-c", CHECK, f"{SOURCES}/{bundle.main}"]
        done = run(command, cwd=workdir, limits=LIMITS, env=clean_env(workdir))
        if not done.ok:
            return Compiled(False, log=done.log, seconds=done.seconds, timed_out=done.timed_out)
        compiles = any(name in text for text in bundle.files.values() for name in COMPILER)
        loader = Loader("python", path, bundle.entry, compiles)
        return Compiled(True, loader=loader, seconds=done.seconds)
