"""Compile the sample kernels that ship with the knowledge, each with the tool and for the chip of
its row. The chip need not be in this machine.

A kernel of a chip with command templates, such as those of an emulator, also runs. Others are
compiled or parsed: correctness needs the device, and the rows record where it was verified.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ingestion.builtin import builtin_hardware
from ingestion.builtin.samples import ShippedSample, shipped_samples
from kb import clock
from kb.errors import NotFound
from kb.hardware.lineage import effective_facts, lineage
from kb.hardware.spec import HardwareSpec
from optimizer.evaluation.targets import command_toolchains
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.cuda import SPECIFIC, Nvcc, code_for, find_nvcc
from optimizer.evaluation.toolchains.processes import CommandLimits, clean_env, run

LIMITS = CommandLimits(seconds=180.0, memory_bytes=None, file_bytes=512 << 20)
CHILD = Path(__file__).with_name("toolchains") / "triton" / "sample_child.py"
GPP = ("-std=c++17", "-O2", "-shared", "-fPIC", "-fopenmp")
MAX_DETAIL = 2_000  # characters of a compiler's message


@dataclass(frozen=True)
class SampleCheck:
    """The check of one sample. `outcome` is `right`, `compiles`, `parses`, `refused`, `wrong` or
    `not checked`; `broken`: it is refused or wrong, and was not when its row was recorded. `detail`
    is the tool's message, or why it was not checked."""

    sample: str
    title: str
    outcome: str
    toolchain: str
    target: str
    date: str
    detail: str
    recorded: str
    broken: bool

    def as_json(self) -> dict[str, Any]:
        """The output of the command."""
        return asdict(self)


@dataclass(frozen=True)
class _Result:
    outcome: str
    toolchain: str
    target: str = ""
    detail: str = ""


def check_samples(folder: Path, hardware: str | None = None) -> Iterator[SampleCheck]:
    """Check the samples of a knowledge folder, all or those of a hardware id and its ancestors.
    Raises NotFound for an id without samples."""
    specs = {spec.id: spec for spec in builtin_hardware(folder)}
    wanted = lineage(hardware, specs) if hardware in specs else ()
    samples = [s for s in shipped_samples(folder) if hardware is None or s.hardware in wanted]
    if not samples:
        raise NotFound(f"no sample for {hardware!r}", hint="`kernlore hardware list` names ids.")
    for sample in samples:
        yield check_sample(folder, sample, specs)


def check_sample(
    folder: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec]
) -> SampleCheck:
    """Compile or parse one sample."""
    with tempfile.TemporaryDirectory(prefix="kernlore-sample-") as scratch:
        result = _TOOLS[sample.check](folder / sample.path, sample, specs, Path(scratch))
    compiled_before = sample.status in ("compiles", "runs", "right")
    return SampleCheck(
        sample=sample.path,
        title=sample.title,
        outcome=result.outcome,
        toolchain=result.toolchain,
        target=result.target,
        date=clock.now()[:10],
        detail=result.detail.strip()[-MAX_DETAIL:],
        recorded=sample.evidence,
        broken=compiled_before and result.outcome in ("refused", "wrong"),
    )


def _arch(sample: ShippedSample, specs: Mapping[str, HardwareSpec]) -> str:
    """The row's architecture, or the compute capability of its hardware."""
    if sample.arch:
        return sample.arch
    facts = effective_facts(sample.hardware, specs) if sample.hardware in specs else {}
    stated = facts.get("compute_capability")
    return str(stated.fact.value) if stated is not None else ""


def _cuda_arch(sample: ShippedSample, specs: Mapping[str, HardwareSpec]) -> str:
    """An architecture such as "90a"; "" if unknown."""
    arch = EvaluationTarget(sample.hardware, (), arch=_arch(sample, specs) or None).capability
    return f"{arch}{'a' if arch in SPECIFIC else ''}" if arch else ""


def _command(tool: str, target: str, command: list[str], scratch: Path) -> _Result:
    done = run(command, cwd=scratch, limits=LIMITS, env=clean_env(scratch))
    return _Result("compiles" if done.ok else "refused", tool, target, "" if done.ok else done.log)


def _nvcc(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], scratch: Path
) -> _Result:
    nvcc, arch = find_nvcc(), _cuda_arch(sample, specs)
    if nvcc is None or not arch:
        return _Result("not checked", "", detail="nvcc is not installed" if arch else "no target")
    options = ["-cubin", "-O3", "-std=c++17", code_for(arch), *sample.flags]
    command = [nvcc, *options, "-x", "cu", "-o", "sample.cubin", str(path)]
    return _command(Nvcc().version(), f"sm_{arch}", command, scratch)


def _python_tool(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], scratch: Path
) -> _Result:
    package, name = ("triton", "triton") if sample.check == "triton" else ("cutlass", "cute-dsl")
    if importlib.util.find_spec(package) is None:
        return _Result("not checked", "", detail=f"{package} is not installed")
    arch = _arch(sample, specs)
    target: Any = f"sm_{_cuda_arch(sample, specs)}"
    if name == "triton":
        amd = arch.startswith("gfx")
        number = (
            None if amd else EvaluationTarget(sample.hardware, (), arch=arch or None).capability
        )
        wave = 64 if arch.startswith("gfx9") else 32
        target = ["hip", arch, wave] if amd else ["cuda", number, 32]
    request = scratch / "request.json"
    calls = [asdict(call) for call in sample.compile]
    fields = {"file": str(path), "tool": name, "target": target, "calls": calls}
    request.write_text(json.dumps(fields), encoding="utf-8")
    tool = f"{name} {_package_version(name)}"
    shown = target if isinstance(target, str) else str(target[1])
    return _command(tool, shown, [sys.executable, str(CHILD), str(request)], scratch)


def _gpp(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], scratch: Path
) -> _Result:
    del specs
    compiler = shutil.which("g++")
    if compiler is None:
        return _Result("not checked", "", detail="g++ is not installed")
    march = [f"-march={sample.arch}"] if sample.arch else []
    command = [compiler, *GPP, *march, *sample.flags, "-o", "sample.so", str(path)]
    return _command(_first_line(compiler), sample.arch or "any", command, scratch)


def _hipcc(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], scratch: Path
) -> _Result:
    compiler, arch = shutil.which("hipcc"), _arch(sample, specs)
    if compiler is None:
        return _Result("not checked", "", detail="hipcc is not installed")
    options = ["--genco", "-O3", f"--offload-arch={arch}", *sample.flags]
    command = [compiler, *options, "-o", "sample.hsaco", str(path)]
    return _command(_first_line(compiler), arch, command, scratch)


def _own_toolchain(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], scratch: Path
) -> _Result:
    from optimizer.evaluation.hardware_check import run_sample
    from optimizer.evaluation.toolchains.command import CommandToolchain

    del path, scratch
    line = lineage(sample.hardware, specs)
    spec = command_toolchains(specs, line).get(sample.language)
    if spec is None:
        return _Result("not checked", "", detail=f"no command templates for {sample.language}")
    kernel = replace(
        spec,
        sample=sample.code,
        sample_arguments=sample.arguments,
        sample_reference=sample.reference,
    )
    target = EvaluationTarget(sample.hardware, line)
    present = CommandToolchain(sample.language, kernel).available(target)
    if not present.ok:
        return _Result("not checked", "", detail=f"{present.reason}. {present.hint}")
    ran = run_sample(sample.language, kernel, target)
    outcome = "right" if ran.correct else "wrong" if ran.compiled else "refused"
    return _Result(outcome, " ".join(spec.programs[:2]), sample.hardware, ran.message or ran.time)


def _parse(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], scratch: Path
) -> _Result:
    del specs, scratch
    if path.suffix != ".py":
        return _Result("not checked", "", detail=f"nothing here reads {sample.language}")
    tool = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    try:
        ast.parse(sample.code)
    except SyntaxError as error:
        return _Result("refused", tool, detail=str(error))
    return _Result("parses", tool, detail="parsed only, not compiled")


@lru_cache(maxsize=8)
def _first_line(compiler: str) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        done = run([compiler, "--version"], cwd=Path(scratch), limits=LIMITS)
    return done.stdout.strip().split("\n")[0]


def _package_version(name: str) -> str:
    package = {"triton": "triton", "cute-dsl": "nvidia-cutlass-dsl"}[name]
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"


_Check = Callable[[Path, ShippedSample, Mapping[str, HardwareSpec], Path], _Result]
_TOOLS: Mapping[str, _Check] = {
    "nvcc": _nvcc,
    "triton": _python_tool,
    "cute-dsl": _python_tool,
    "g++": _gpp,
    "hipcc": _hipcc,
    "toolchain": _own_toolchain,
    "parse": _parse,
}
