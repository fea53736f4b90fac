"""Python candidates: plain PyTorch, and Triton for NVIDIA and AMD GPUs.

Triton runs on a machine with an NVIDIA GPU. Everywhere else candidates are compiled for the named
chip, in a process that can be killed (`triton/child.py`), resource reports are read from PTX, ptxas
or the AMD code object, and correctness is checked in Triton's interpreter. Imports neither torch
nor triton.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.isolation import levels
from optimizer.evaluation.toolchains.base import (
    CACHE,
    Availability,
    CompileCase,
    Compiled,
    EvaluationTarget,
    Loader,
    Metric,
)
from optimizer.evaluation.toolchains.processes import (
    CommandLimits,
    CompileServer,
    FinishedCommand,
    can_fork,
    clean_env,
    run,
)
from optimizer.evaluation.toolchains.reports import parse_amdgcn, parse_ptx, parse_ptxas, whole

SOURCES, OUTPUT, REQUEST = "src", "triton", "request.json"


def missing_packages() -> Availability | None:
    """Which of torch and triton is not installed; None if both are."""
    for name in ("torch", "triton"):
        if importlib.util.find_spec(name) is None:
            return Availability(
                False, f"{name} is not installed", "Install the extra: pip install -e '.[kernels]'."
            )
    return None


def versions() -> str:
    """Versions of the packages that decide the compiled code."""
    named = []
    for name in ("triton", "torch"):
        try:
            named.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            named.append(f"{name} is not installed")
    return ", ".join(named)


# -- PyTorch

SYNTAX_LIMITS = CommandLimits(seconds=10.0, memory_bytes=2 << 30, file_bytes=16 << 20)
COMPILER = ("torch.compile", "torch._dynamo", "torch._inductor")
EXTENSIONS = "torch.utils.cpp_extension"
BUILD = """\
import runpy, sys
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
runpy.run_path(sys.argv[1], run_name="subject")
"""
CHECK = "import ast, sys; ast.parse(open(sys.argv[1], encoding='utf-8').read(), sys.argv[1])"


class TorchPython:
    """A `ModelNew` of torch operators, also with torch.compile. Only the syntax is checked before
    it runs."""

    name = "torch"
    languages: tuple[str, ...] = ("torch",)

    def available(self, target: EvaluationTarget) -> Availability:
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
        return f"{versions()}, python {sys.version_info.major}.{sys.version_info.minor}"

    def compile(
        self,
        bundle: Bundle,
        target: EvaluationTarget,
        workdir: Path,
        cases: tuple[CompileCase, ...],
    ) -> Compiled:
        """Check the syntax of the main file, and build extensions for a GPU."""
        del cases
        path = bundle.write(workdir / SOURCES)
        command = [sys.executable, "-I", "-S", "-c", CHECK, f"{SOURCES}/{bundle.main}"]
        done = run(command, cwd=workdir, limits=SYNTAX_LIMITS, env=clean_env(workdir))
        if not done.ok:
            return Compiled(False, log=done.log, seconds=done.seconds, timed_out=done.timed_out)
        if target.device == "cuda" and any(EXTENSIONS in x for x in bundle.files.values()):
            _build_extensions(path, target, workdir)
        compiles = any(name in text for text in bundle.files.values() for name in COMPILER)
        loader = Loader("python", path, bundle.entry, compiles)
        return Compiled(True, loader=loader, seconds=done.seconds)


def _build_extensions(path: Path, target: EvaluationTarget, workdir: Path) -> None:
    """Import a candidate without a device, so that its extensions are built where its runner looks
    for them: building takes a minute, in which a runner would hold the device's lock. What fails
    fails again in the runner, which reports it."""
    arch = target.capability
    if arch is None:
        return
    cache = workdir / CACHE
    cache.mkdir(exist_ok=True)
    env = clean_env(
        workdir,
        TMPDIR=str(cache),
        TORCH_EXTENSIONS_DIR=str(cache / "extensions"),
        # As torch chooses for the device; with other flags the runner would build again.
        TORCH_CUDA_ARCH_LIST=f"{arch // 10}.{arch % 10}+PTX",
        **HIDDEN,
    )
    command = [sys.executable, "-I", "-c", BUILD, str(path)]
    isolated = levels.command(levels.level_for("auto", "cuda"), command)
    run(isolated, cwd=workdir, limits=LIMITS, env=env)


# -- Triton

LIMITS = CommandLimits(seconds=90.0, memory_bytes=24 << 30, file_bytes=1 << 30)
OLDEST = 75  # the oldest compute capability that Triton 3.6 and 3.7 compile for
Reader = Callable[[str, str], dict[str, Metric]]  # assembly and log -> raw metrics


@dataclass(frozen=True)
class TritonTarget:
    """The fields of Triton's GPUTarget."""

    backend: str
    arch: str
    warp_size: int


class _Triton(ABC):
    """Triton for the chips of one vendor."""

    languages: tuple[str, ...] = ("triton",)

    def __init__(self, limits: CommandLimits = LIMITS) -> None:
        self._limits = limits

    def available(self, target: EvaluationTarget) -> Availability:
        """Whether Triton is installed and compiles for the target."""
        return missing_packages() or self.supports(target)

    @abstractmethod
    def supports(self, target: EvaluationTarget) -> Availability:
        """Whether Triton compiles for the target."""

    @abstractmethod
    def chip(self, target: EvaluationTarget) -> TritonTarget:
        """The target as Triton names it."""

    @abstractmethod
    def read(self, assembly: str, log: str) -> dict[str, Metric]:
        """Metrics of one kernel."""

    def compile(
        self,
        bundle: Bundle,
        target: EvaluationTarget,
        workdir: Path,
        cases: tuple[CompileCase, ...],
    ) -> Compiled:
        """Compile all kernels that the candidate launches on its cases."""
        chip = self.chip(target)
        return compile_triton(bundle, target, chip, workdir, cases, self.read, self._limits)


class TritonNvidia(_Triton):
    """Triton to PTX and cubin."""

    name = "triton-nvidia"

    def supports(self, target: EvaluationTarget) -> Availability:
        """Whether the compute capability is known and recent enough."""
        arch = target.capability
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

    def chip(self, target: EvaluationTarget) -> TritonTarget:
        return TritonTarget("cuda", str(target.capability), 32)

    def read(self, assembly: str, log: str) -> dict[str, Metric]:
        """Metrics of one kernel from its PTX and from the output of ptxas."""
        metrics: dict[str, Metric] = parse_ptx(assembly)
        for row in parse_ptxas(log).values():
            metrics |= row
        return metrics


@lru_cache(maxsize=1)
def _ptxas_version() -> str:
    spec = importlib.util.find_spec("triton")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    tool = folder / "backends" / "nvidia" / "bin" / "ptxas" if folder else None
    if tool is None or not tool.is_file():
        return "ptxas is not installed"
    printed = subprocess.run([str(tool), "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"V[\d.]+", printed.stdout)
    return f"ptxas {version[0] if version else 'of unknown version'}"


class TritonAmd(_Triton):
    """Triton to AMDGCN assembly and code object."""

    name = "triton-amd"

    def supports(self, target: EvaluationTarget) -> Availability:
        """Whether the architecture is known."""
        if gfx(target) is not None:
            return Availability(True)
        return Availability(
            False,
            f"no gfx architecture is known for {target.hardware}",
            'Give its hardware.toml the fact compute_capability, as "gfx942".',
        )

    def version(self) -> str:
        return versions()

    def chip(self, target: EvaluationTarget) -> TritonTarget:
        arch = str(gfx(target))
        return TritonTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)

    def read(self, assembly: str, log: str) -> dict[str, Metric]:
        """Metrics of one kernel's assembly. The AMD compiler prints nothing useful."""
        del log
        return parse_amdgcn(assembly)


def gfx(target: EvaluationTarget) -> str | None:
    """The architecture, such as "gfx942", from the target or its fact compute_capability; None if
    unknown."""
    arch = str(target.arch or target.facts.get("compute_capability", ""))
    return arch if re.fullmatch(r"gfx\d+[a-z]?", arch) else None


# -- compiling Triton

CHILD = Path(__file__).with_name("triton") / "child.py"
SERVER = Path(__file__).with_name("triton") / "server.py"
HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}  # nothing is launched
ENOUGH_PROCESSORS = 4
BF16_NOTE = "bf16 not checked: the interpreter is wrong there"
NOT_RUN_NOTE = "compiled only, not run on the device; correctness is the interpreter's"


def compile_triton(
    bundle: Bundle,
    target: EvaluationTarget,
    chip: TritonTarget,
    workdir: Path,
    cases: tuple[CompileCase, ...],
    reader: Reader,
    limits: CommandLimits = LIMITS,
) -> Compiled:
    """Compile for `chip` all kernels that the candidate launches on its cases. `reader` extracts
    the metrics of a kernel."""
    path = bundle.write(workdir / SOURCES)
    output = workdir / OUTPUT
    output.mkdir(exist_ok=True)
    request = {
        "path": str(path),
        "entry": bundle.entry,
        "target": {"backend": chip.backend, "arch": chip.arch, "warp_size": chip.warp_size},
        "facts": {key: v for key, v in target.facts.items() if isinstance(v, int | float)},
        "cases": [_case_request(case) for case in cases],
        "at_once": cases_at_once(),
        "runs_here": target.device == "cuda",
    }
    (workdir / REQUEST).write_text(json.dumps(request), encoding="utf-8")
    done = _run_child(workdir, limits)
    return _answer(bundle, target, cases, CompileEvents.read(output), done, reader, limits, path)


def _case_request(case: CompileCase) -> dict[str, Any]:
    return {
        "tensors": [tensor.as_json() for tensor in case.signature.tensors],
        "init_args": case.init_args,
        "init_source": case.init_source,
        "gradients": case.gradients,
        "dtype": case.dtype,
        "scalars": case.scalars,
    }


def cases_at_once() -> int:
    """Cases of one candidate that are compiled in parallel; 1 on few processors, because cases
    share kernels, which each process would compile again."""
    count = len(os.sched_getaffinity(0)) if can_fork() else 1
    return count if count >= ENOUGH_PROCESSORS else 1


def prepare() -> None:
    """Start the interpreter that compiles candidates, whose imports take seconds, in the
    background. Does nothing if Triton is not installed."""
    if can_fork() and missing_packages() is None:
        _server().start()


def _run_child(workdir: Path, limits: CommandLimits) -> FinishedCommand:
    """It runs the candidate's Python, so it gets the isolation of a runner."""
    arguments = [REQUEST, OUTPUT]
    env = clean_env(
        workdir,
        # Runners look there too, so that they compile nothing again.
        TRITON_CACHE_DIR=str(workdir / CACHE / "triton"),
        TRITON_DUMP_PTXAS_LOG="1",
        **HIDDEN,
    )
    if can_fork():
        return _server().run(arguments, cwd=workdir, limits=limits, env=env)
    command = [sys.executable, "-I", str(CHILD), *arguments]
    isolated = levels.command(levels.level_for("auto"), command)
    return run(isolated, cwd=workdir, limits=limits, env=env)


@lru_cache(maxsize=1)
def _server() -> CompileServer:
    return CompileServer(SERVER, HIDDEN)


@dataclass(frozen=True)
class CompileEvents:
    """The child's report.

    `kernels` has each kernel once, with the folder of its assembly. `failed` are traces of compile
    errors, `not_called` reasons why a case showed no kernel. `called`: the file was imported.
    `compiling` is the kernel that was being compiled when it ended, `ended` the exit status of a
    case's process that could not report its end.
    """

    kernels: tuple[tuple[Path, Mapping[str, Any]], ...]
    failed: tuple[str, ...]
    not_called: tuple[str, ...]
    autotuned: tuple[str, ...]
    called: bool
    compiling: str | None
    ended: int | None
    finished: bool

    @classmethod
    def read(cls, folder: Path) -> CompileEvents:
        """Read the common events, then those of the cases in their order."""
        parts = [_events_in(folder), *map(_events_in, sorted(folder.glob("[0-9][0-9][0-9]")))]
        every = [event for _, events in parts for event in events]
        last = [events[-1] if events else {} for _, events in parts]
        kernels: dict[str, tuple[Path, Mapping[str, Any]]] = {}
        for place, event in ((p, e) for p, events in parts for e in events if "kernel" in e):
            known = kernels.setdefault(str(event["hash"]), (place, event))
            if event["log"] and not known[1]["log"]:  # ptxas prints for the first case only
                kernels[str(event["hash"])] = (place, event)
        return cls(
            tuple(kernels.values()),
            tuple(str(event["trace"]) for event in every if "failed" in event),
            tuple(str(event["not_called"]) for event in every if "not_called" in event),
            tuple(_autotuned(event) for event in every if "autotuned" in event),
            any("calling" in event for event in every),
            next((str(event["compiling"]) for event in last if "compiling" in event), None),
            next((int(event["ended"]) for event in every if "ended" in event), None),
            all("done" in event for event in last),
        )

    def rows(self, reader: Reader) -> dict[str, dict[str, Metric]]:
        """Metrics by kernel. The same kernel with other constants gets a number."""
        rows: dict[str, dict[str, Metric]] = {}
        for folder, event in self.kernels:
            assembly = (folder / event["assembly"]).read_text(encoding="utf-8")
            row = reader(assembly, event["log"])
            row |= {"shared": int(event["shared"]), "num_warps": int(event["num_warps"])}
            if event.get("num_stages") is not None:
                row["num_stages"] = int(event["num_stages"])
            row |= {f"constant.{name}": value for name, value in event["constants"].items()}
            number = sum(name.partition("#")[0] == event["kernel"] for name in rows) + 1
            rows[event["kernel"] if number == 1 else f"{event['kernel']}#{number}"] = row
        return rows


def _autotuned(event: Mapping[str, Any]) -> str:
    return (
        f"{event['autotuned']} is autotuned: its report is of the first that fits of "
        f"{event['configs']} configurations: {event['chosen']}"
    )


def _events_in(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    path = folder / "events"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return folder, [event for line in lines if (event := _event(line))]


def _event(line: str) -> dict[str, Any] | None:
    """A line as an event; None if the deadline cut it."""
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        return None
    return event if isinstance(event, dict) else None


def _answer(
    bundle: Bundle,
    target: EvaluationTarget,
    cases: tuple[CompileCase, ...],
    events: CompileEvents,
    done: FinishedCommand,
    reader: Reader,
    limits: CommandLimits,
    path: Path,
) -> Compiled:
    rows = events.rows(reader)
    # A call that is slow without its device does not mean that a kernel cannot be compiled.
    slow = done.timed_out and events.called and events.compiling is None
    ok = (events.finished or slow) and not events.failed
    on_device = target.device == "cuda"
    notes = _notes(events, rows)
    if slow and ok:
        notes += [f"static report incomplete: the call did not end within {limits.seconds:g} s"]
    if ok and not on_device:
        notes += [NOT_RUN_NOTE]
        if _uses_bf16(cases, events):
            notes += [BF16_NOTE]
    return Compiled(
        ok=ok,
        log=_log(events, done, limits, ok),
        metrics=whole(rows),
        kernels=rows,
        loader=Loader("python" if on_device else "interpreter", path, bundle.entry) if ok else None,
        command=(),
        seconds=done.seconds,
        timed_out=done.timed_out and not ok,
        notes=tuple(notes),
    )


def _uses_bf16(cases: tuple[CompileCase, ...], events: CompileEvents) -> bool:
    tensors = any(t.dtype == "bfloat16" for case in cases for t in case.signature.tensors)
    return tensors or any("bf16" in kind for _, event in events.kernels for kind in event["types"])


def _notes(events: CompileEvents, rows: Mapping[str, Mapping[str, Metric]]) -> list[str]:
    notes = [f"no static report of a case: {why}" for why in dict.fromkeys(events.not_called)]
    notes += dict.fromkeys(events.autotuned)
    if not rows and events.finished and not events.failed and not notes:
        notes.append("no static report: no Triton kernel was launched")
    return notes


_DUMP = re.compile(r"^={20,}$.*?^={20,}$", re.MULTILINE | re.DOTALL)


def _log(events: CompileEvents, done: FinishedCommand, limits: CommandLimits, ok: bool) -> str:
    """Errors first, then the output of ptxas for each kernel."""
    parts: list[str] = []
    if ok:
        pass
    elif done.timed_out:
        at = f" of kernel {events.compiling}" if events.compiling else ""
        parts.append(f"error: compilation{at} timed out after {limits.seconds:g} s")
    elif not events.finished:
        status = done.code if events.ended is None else events.ended
        parts.append(f"error: the compiler ended with status {status}")
    parts += dict.fromkeys(events.failed)
    if not ok:
        # When ptxas refuses, Triton prints all of the PTX between two rules.
        parts.append(_DUMP.sub("", done.log).strip())
    parts += [str(event["log"]).strip() for _, event in events.kernels]
    return "\n".join(part for part in parts if part)
