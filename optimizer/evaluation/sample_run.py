"""The sample kernel of a toolchain, compiled, run and compared with its reference.

The sample, its arguments and the expression that it computes are those of `[toolchains.LANGUAGE]`
in hardware.toml. Nothing here judges speed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from kb.errors import KernloreError
from kb.hardware.spec import SampleArgument, ToolchainSpec
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle, default_entry
from optimizer.evaluation.correctness.prepared import PreparedCase
from optimizer.evaluation.evaluate import problem_sent
from optimizer.evaluation.problem.spec import Case
from optimizer.evaluation.problem.tensors import open_case
from optimizer.evaluation.simulated import run_simulated
from optimizer.evaluation.toolchains.base import Compiled, Metric, Target
from optimizer.evaluation.toolchains.command import CommandToolchain

SECONDS = 60.0  # of one run
SEED = 7
LOG_CHARS = 600
ROLES = {"input": "input", "weight": "buffer", "output": "output"}


@dataclass(frozen=True)
class SampleRun:
    """How far a sample came. `compiled`, `ran` and `right` are None where they were not tried;
    `message` says why the first that is False is. `metrics` are those of the program's report."""

    compiled: bool | None = None
    ran: bool | None = None
    right: bool | None = None
    message: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    time: str = ""


def run_sample(language: str, toolchain: ToolchainSpec, target: Target) -> SampleRun:
    """Compile the sample, run it where it has arguments, and compare where it has a reference."""
    chain = CommandToolchain(language, toolchain)
    main = "sample" + (toolchain.suffix or ".txt")
    bundle = Bundle(
        {main: toolchain.sample}, main, language, toolchain.entry or default_entry(main)
    )
    with tempfile.TemporaryDirectory(prefix="kernlore-sample-") as folder:
        workdir = Path(folder)
        signature = signature_of(toolchain.sample_arguments)
        compiled = chain.compile(bundle, target, workdir, (signature,))
        if not compiled.ok:
            return SampleRun(False, message=_end(compiled.log))
        if not toolchain.sample_arguments:
            return SampleRun(True)
        try:
            if toolchain.sample_reference:
                return _compared(chain, compiled, signature, workdir)
            return _run(chain, compiled, signature, workdir)
        except KernloreError as problem:
            return SampleRun(True, False, message=f"{problem.message}. {problem.hint}")


def signature_of(arguments: tuple[SampleArgument, ...]) -> Signature:
    """The arguments of a sample as an interface; weights are buffers."""
    return Signature(
        tuple(TensorSpec(a.name, ROLES[a.role], a.dtype, a.shape) for a in arguments)  # type: ignore[arg-type]
    )


def _run(
    chain: CommandToolchain, compiled: Compiled, signature: Signature, workdir: Path
) -> SampleRun:
    generator = torch.Generator().manual_seed(SEED)
    tensors = [_drawn(spec, generator) for spec in signature.of("input", "buffer")]
    outcome = chain.run(compiled, tensors, signature, workdir, SECONDS)
    if not outcome.ok:
        return SampleRun(True, False, message=_end(f"{outcome.log}\n{outcome.message}"))
    time = _time(outcome.cycles, outcome.time_us)
    return SampleRun(True, True, None, "; ".join(outcome.notes), outcome.metrics, time)


def _drawn(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    if dtype.is_floating_point:
        return torch.randn(spec.shape, generator=generator).to(dtype)
    return torch.randint(0, 2, spec.shape, generator=generator).to(dtype)


def _compared(
    chain: CommandToolchain, compiled: Compiled, signature: Signature, workdir: Path
) -> SampleRun:
    """By the evaluation of a problem that computes the reference."""
    problem = problem_sent(reference_source(chain.template))
    prepared = PreparedCase(open_case(problem, Case("sample", timed=False)), "cpu")
    stated = [(t.dtype, t.shape) for t in signature.of("output")]
    given = [(t.dtype, t.shape) for t in prepared.open.signature.of("output")]
    if stated != given:
        message = (
            f"sample_reference gives {_shapes(given)}, sample_arguments says {_shapes(stated)}"
        )
        return SampleRun(True, None, False, message)
    outcome = run_simulated(
        prepared, chain, compiled, seeds=(SEED,), workdir=workdir, seconds=SECONDS
    )
    timing = outcome.timing
    time = _time(timing.cycles, timing.candidate_us) if timing is not None else ""
    ran = outcome.validity == "correct" or bool(outcome.checks)
    right = outcome.validity == "correct" if ran else None
    message = outcome.message if ran else _end(f"{outcome.log}\n{outcome.message}")
    return SampleRun(True, ran, right, message, outcome.metrics or {}, time)


def reference_source(toolchain: ToolchainSpec) -> str:
    """A problem file that computes the sample's reference on its arguments."""
    inputs = [a for a in toolchain.sample_arguments if a.role == "input"]
    weights = [a for a in toolchain.sample_arguments if a.role == "weight"]
    lines = ["import torch", "", "class Model(torch.nn.Module):", "    def __init__(self):"]
    lines.append("        super().__init__()")
    lines += [f"        self.register_buffer({a.name!r}, {_made(a)})" for a in weights]
    lines.append(f"    def forward({', '.join(['self', *(a.name for a in inputs)])}):")
    lines += [f"        {a.name} = self.{a.name}" for a in weights]
    expression = " ".join(toolchain.sample_reference.split())
    lines += [f"        return ({expression})", "", "def get_inputs():"]
    lines.append(f"    return [{', '.join(_made(a) for a in inputs)}]")
    return "\n".join([*lines, "", "def get_init_inputs():", "    return []", ""])


def _made(argument: SampleArgument) -> str:
    shape, dtype = list(argument.shape), f"torch.{argument.dtype}"
    if argument.dtype.startswith(("float", "bfloat")):
        return f"torch.randn({shape}).to({dtype})"
    return f"torch.randint(0, 2, {shape}).to({dtype})"


def _shapes(outputs: list[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{dtype} {list(shape)}" for dtype, shape in outputs) or "nothing"


def _time(cycles: int | None, time_us: float | None) -> str:
    parts = [f"{cycles} cycles" if cycles else "", f"{time_us:.2f} us" if time_us else ""]
    return ", ".join(part for part in parts if part)


def _end(log: str) -> str:
    return log.strip()[-LOG_CHARS:] or "it failed and printed nothing"
