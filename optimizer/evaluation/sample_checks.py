"""Compile the sample kernels that ship with the knowledge, each with the tool and for the chip of
its row. The chip need not be in this machine.

A kernel of a chip with command templates, such as those of an emulator, also runs. Others are
compiled or parsed: correctness needs the device, and the rows record where it was verified.
`optimizer.knowledge_check` records what a version of a tool confirms or refuses.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ingestion.builtin import builtin_hardware
from ingestion.builtin.samples import ShippedSample, shipped_samples
from kb import clock
from kb.errors import NotFound
from kb.hardware.detection import installed
from kb.hardware.lineage import effective_facts, lineage
from kb.hardware.spec import HardwareSpec
from kb.validity import read_versions, seen_with
from optimizer.evaluation.targets import command_toolchains
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.cuda import SPECIFIC, code_for, find_nvcc
from optimizer.evaluation.toolchains.processes import CommandLimits, clean_env, run

LIMITS = CommandLimits(seconds=180.0, memory_bytes=None, file_bytes=512 << 20)
CHILD = Path(__file__).with_name("toolchains") / "triton" / "sample_child.py"
GPP = ("-std=c++17", "-O2", "-shared", "-fPIC", "-fopenmp")
# The tools of a row's `check`; those of `toolchain` are the chip's.
CHECKERS: Mapping[str, frozenset[str]] = {
    "nvcc": frozenset({"cuda"}),
    "triton": frozenset({"triton"}),
    "cute-dsl": frozenset({"cutlass"}),
    "g++": frozenset({"gcc"}),
    "clang": frozenset({"clang"}),
    "hipcc": frozenset({"rocm"}),
    "parse": frozenset(),
}
MAX_DETAIL = 2_000  # characters of a compiler's message


@dataclass(frozen=True)
class SampleCheck:
    """The check of one sample. `outcome` is `right`, `compiles`, `parses`, `refused`, `wrong` or
    `not checked`; `broken`: it is refused or wrong, and was not when its row was recorded. `detail`
    is the tool's message, or why it was not checked. `versions` are those of the tools used."""

    sample: str
    title: str
    outcome: str
    toolchain: str
    target: str
    date: str
    detail: str
    recorded: str
    broken: bool
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Result:
    outcome: str
    toolchain: str
    target: str = ""
    detail: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ToolPlace:
    """The folder in which a tool runs, and the folder of a toolchain whose programs, those in its
    `bin`, and Python packages precede the installed ones."""

    scratch: Path
    toolchain: Path | None

    @property
    def env(self) -> dict[str, str]:
        env = clean_env(self.scratch)
        if self.toolchain is not None:
            own = (str(self.toolchain / "bin"), str(self.toolchain))
            env["PATH"] = os.pathsep.join((*own, env.get("PATH", "")))
            env["PYTHONPATH"] = str(self.toolchain)
        return env

    def which(self, program: str) -> str | None:
        """The path of a program of the toolchain, else of an installed one."""
        return installed(program, self.env.get("PATH"))


def check_samples(
    folder: Path,
    hardware: str | None = None,
    toolchain: Path | None = None,
    tools: Collection[str] = (),
) -> Iterator[SampleCheck]:
    """Check the samples of a knowledge folder, all or those of a hardware id and its ancestors, or
    those that some tools check, by id. The programs and packages of `toolchain` precede the
    installed ones. Raises NotFound for an id without samples."""
    specs = {spec.id: spec for spec in builtin_hardware(folder)}
    wanted = lineage(hardware, specs) if hardware in specs else ()
    samples = [s for s in shipped_samples(folder) if hardware is None or s.hardware in wanted]
    if not samples:
        raise NotFound(f"no sample for {hardware!r}", hint="`kernlore hardware list` names ids.")
    for sample in samples:
        if tools and CHECKERS.get(sample.check, set(tools)).isdisjoint(tools):
            continue
        yield check_sample(folder, sample, specs, toolchain)


def check_sample(
    folder: Path,
    sample: ShippedSample,
    specs: Mapping[str, HardwareSpec],
    toolchain: Path | None = None,
) -> SampleCheck:
    """Compile or parse one sample."""
    with tempfile.TemporaryDirectory(prefix="kernlore-sample-") as scratch:
        place = ToolPlace(Path(scratch), toolchain)
        result = _TOOLS[sample.check](folder / sample.path, sample, specs, place)
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
        versions=result.versions,
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


def _command(tool: str, target: str, command: list[str], place: ToolPlace) -> _Result:
    done = run(command, cwd=place.scratch, limits=LIMITS, env=place.env)
    outcome, detail = ("compiles", "") if done.ok else ("refused", done.log)
    versions = {v.tool: v.max for v in seen_with(tool, checked="compiled")} or read_versions(tool)
    return _Result(outcome, tool, target, detail, versions)


def _nvcc(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], place: ToolPlace
) -> _Result:
    nvcc, arch = find_nvcc(place.env), _cuda_arch(sample, specs)
    if nvcc is None or not arch:
        return _Result("not checked", "", detail="nvcc is not installed" if arch else "no target")
    options = ["-cubin", "-O3", "-std=c++17", code_for(arch), *sample.flags]
    command = [nvcc, *options, "-x", "cu", "-o", "sample.cubin", str(path)]
    banner = read_versions(_banner(nvcc, place.toolchain)).get("cuda", "of unknown version")
    return _command(f"nvcc {banner}", f"sm_{arch}", command, place)


def _python_tool(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], place: ToolPlace
) -> _Result:
    package, name = ("triton", "triton") if sample.check == "triton" else ("cutlass", "cute-dsl")
    version = _package_version(name, place.toolchain)
    if not version:
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
    request = place.scratch / "request.json"
    calls = [asdict(call) for call in sample.compile]
    fields = {"file": str(path), "tool": name, "target": target, "calls": calls}
    request.write_text(json.dumps(fields), encoding="utf-8")
    tool = f"{name.replace('-', ' ')} {version}"
    shown = target if isinstance(target, str) else str(target[1])
    return _command(tool, shown, [sys.executable, str(CHILD), str(request)], place)


def _gpp(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], place: ToolPlace
) -> _Result:
    del specs
    march = [f"-march={sample.arch}"] if sample.arch else []
    options = [*GPP, *march, *sample.flags, "-o", "sample.so", str(path)]
    return _compiled("g++", sample.arch or "any", options, place)


def _clang(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], place: ToolPlace
) -> _Result:
    """Compile to object code for the processor in `arch`, without a library."""
    del specs
    options = ["-O3", "-std=c++17", "-ffreestanding", "-fopenmp", "-c", *sample.flags]
    options = [f"--target={sample.arch}", *options, "-o", "sample.o", str(path)]
    return _compiled("clang++", sample.arch, options, place)


def _hipcc(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], place: ToolPlace
) -> _Result:
    arch = _arch(sample, specs)
    options = ["--genco", "-O3", f"--offload-arch={arch}", *sample.flags]
    return _compiled("hipcc", arch, [*options, "-o", "sample.hsaco", str(path)], place)


def _compiled(name: str, target: str, options: Sequence[str], place: ToolPlace) -> _Result:
    """The result of a compiler that names its version in the first line of its banner."""
    compiler = place.which(name)
    if compiler is None:
        return _Result("not checked", "", detail=f"{name} is not installed")
    tool = _banner(compiler, place.toolchain).split("\n")[0]
    return _command(tool, target, [compiler, *options], place)


def _own_toolchain(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], place: ToolPlace
) -> _Result:
    from optimizer.evaluation.hardware_check import run_sample
    from optimizer.evaluation.toolchains.command import CommandToolchain

    del path
    if place.toolchain is not None:
        return _Result("not checked", "", detail="command templates name their own programs")
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
    found = [program for name in spec.programs if (program := place.which(name))]
    versions = read_versions("\n".join(_banner(program, None) for program in found))
    tool = " ".join(spec.programs[:2])
    return _Result(outcome, tool, sample.hardware, ran.message or ran.time, versions)


def _parse(
    path: Path, sample: ShippedSample, specs: Mapping[str, HardwareSpec], place: ToolPlace
) -> _Result:
    del specs, place
    if path.suffix != ".py":
        return _Result("not checked", "", detail=f"nothing here reads {sample.language}")
    tool = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    try:
        ast.parse(sample.code)
    except SyntaxError as error:
        return _Result("refused", tool, detail=str(error))
    return _Result("parses", tool, detail="parsed only, not compiled")


@lru_cache(maxsize=64)
def banner(command: tuple[str, ...], toolchain: Path | None) -> str:
    """What a command prints about versions."""
    with tempfile.TemporaryDirectory() as scratch:
        place = ToolPlace(Path(scratch), toolchain)
        done = run(list(command), cwd=place.scratch, limits=LIMITS, env=place.env)
    return done.stdout.strip()


def _banner(program: str, toolchain: Path | None) -> str:
    return banner((program, "--version"), toolchain)


@lru_cache(maxsize=32)
def _package_version(name: str, toolchain: Path | None) -> str:
    """The version of the package that Python finds, "" if it finds none."""
    package = {"triton": "triton", "cute-dsl": "nvidia-cutlass-dsl"}[name]
    code = f"from importlib.metadata import version; print(version({package!r}))"
    with tempfile.TemporaryDirectory() as scratch:
        place = ToolPlace(Path(scratch), toolchain)
        command = [sys.executable, "-c", code]
        done = run(command, cwd=place.scratch, limits=LIMITS, env=place.env)
    return done.stdout.strip() if done.ok else ""


_Check = Callable[[Path, ShippedSample, Mapping[str, HardwareSpec], ToolPlace], _Result]
_TOOLS: Mapping[str, _Check] = {
    "nvcc": _nvcc,
    "triton": _python_tool,
    "cute-dsl": _python_tool,
    "g++": _gpp,
    "clang": _clang,
    "hipcc": _hipcc,
    "toolchain": _own_toolchain,
    "parse": _parse,
}
