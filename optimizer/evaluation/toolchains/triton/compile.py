"""Compile every Triton kernel of a candidate for a named chip, in a process that can be killed.

NVIDIA's and AMD's toolchains share this; the work itself is in `child`. Beside the signature, a
Python candidate is constructed with init arguments, constants and the values of plain numbers:
these are handed over as a file in the working directory. Without the file the candidate's own
`get_init_inputs` is used, if it has one. Imports neither torch nor triton.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.isolation import levels
from optimizer.evaluation.toolchains.base import (
    CACHE,
    Availability,
    Compiled,
    Loader,
    Metric,
    Target,
)
from optimizer.evaluation.toolchains.processes import (
    Finished,
    ForkServer,
    Limits,
    can_fork,
    clean_env,
    run,
)
from optimizer.evaluation.toolchains.reports import whole

SETUPS = "setups.json"


@dataclass(frozen=True)
class CaseSetup:
    """What a candidate is constructed with for one case, beside its signature. Everything is JSON.

    `dtype` is that of the floating weights, None as the candidate makes them. `scalars` are values
    of inputs that are plain numbers, by name.
    """

    init_args: Sequence[Any] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    scalars: Mapping[str, int | float | bool] = field(default_factory=dict)


def write_setups(workdir: Path, setups: Sequence[CaseSetup]) -> None:
    """Write one setup for each signature, in the same order."""
    text = json.dumps([asdict(setup) for setup in setups])
    (workdir / SETUPS).write_text(text, encoding="utf-8")


def case_requests(workdir: Path, signatures: Sequence[Signature]) -> list[dict[str, Any]]:
    """Each signature with its setup, as the compiling process reads them."""
    path = workdir / SETUPS
    setups = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    setups += [{}] * (len(signatures) - len(setups))
    return [
        {**setup, "tensors": [tensor.as_json() for tensor in signature.tensors]}
        for setup, signature in zip(setups, signatures, strict=False)
    ]


CHILD = Path(__file__).with_name("child.py")
SERVER = Path(__file__).with_name("server.py")
HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}  # nothing is launched
LIMITS = Limits(seconds=90.0, memory_bytes=24 << 30, file_bytes=1 << 30)
ENOUGH_PROCESSORS = 4
SOURCES, OUTPUT, REQUEST = "src", "triton", "request.json"
BF16_NOTE = "bf16 not checked: the interpreter is wrong there"
NOT_RUN_NOTE = "compiled only, not run on the device; correctness is the interpreter's"

Kernel = dict[str, Metric]
Reader = Callable[[str, str], Kernel]  # assembly and log -> raw metrics


@dataclass(frozen=True)
class Chip:
    """The fields of Triton's GPUTarget."""

    backend: str
    arch: str
    warp_size: int


def missing_packages() -> Availability | None:
    """Which of torch and triton is not installed; None when both are."""
    for name in ("torch", "triton"):
        if importlib.util.find_spec(name) is None:
            return Availability(
                False, f"{name} is not installed", "Install the extra: pip install -e '.[kernels]'."
            )
    return None


def versions() -> str:
    """Versions of the packages that decide what is compiled."""
    named = []
    for name in ("triton", "torch"):
        try:
            named.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            named.append(f"{name} is not installed")
    return ", ".join(named)


def triton_folder() -> Path | None:
    """The folder of Triton's wheel, found without importing it."""
    spec = importlib.util.find_spec("triton")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def compile_triton(
    bundle: Bundle,
    target: Target,
    chip: Chip,
    workdir: Path,
    signatures: tuple[Signature, ...],
    reader: Reader,
    limits: Limits = LIMITS,
) -> Compiled:
    """Compile for `chip` all that the candidate launches on its cases. `reader` makes metrics of a
    kernel's assembly and log."""
    path = bundle.write(workdir / SOURCES)
    output = workdir / OUTPUT
    output.mkdir(exist_ok=True)
    request = {
        "path": str(path),
        "entry": bundle.entry,
        "target": {"backend": chip.backend, "arch": chip.arch, "warp_size": chip.warp_size},
        "facts": {key: v for key, v in target.facts.items() if isinstance(v, int | float)},
        "cases": case_requests(workdir, signatures),
        "at_once": cases_at_once(),
        "runs_here": target.device == "cuda",
    }
    (workdir / REQUEST).write_text(json.dumps(request), encoding="utf-8")
    done = _run_child(workdir, limits)
    return _answer(bundle, target, signatures, Events.read(output), done, reader, limits, path)


def cases_at_once() -> int:
    """Cases of one candidate that are compiled side by side. On few processors one after the other:
    cases share kernels, which each process of its own would compile again."""
    count = len(os.sched_getaffinity(0)) if can_fork() else 1
    return count if count >= ENOUGH_PROCESSORS else 1


def _run_child(workdir: Path, limits: Limits) -> Finished:
    """The candidate's own Python runs there, so it gets the isolation of a runner."""
    arguments, env = [REQUEST, OUTPUT], _env(workdir)
    if can_fork():
        return _server().run(arguments, cwd=workdir, limits=limits, env=env)
    command = [sys.executable, "-I", str(CHILD), *arguments]
    isolated = levels.command(levels.level_for("auto"), command)
    return run(isolated, cwd=workdir, limits=limits, env=env)


def prepare() -> None:
    """Start the interpreter that candidates are compiled in, beside whatever comes next: its
    imports take seconds. Nothing happens where Triton is not installed."""
    if can_fork() and missing_packages() is None:
        _server().start()


@lru_cache(maxsize=1)
def _server() -> ForkServer:
    return ForkServer(SERVER, HIDDEN)


def _env(workdir: Path) -> Mapping[str, str]:
    return clean_env(
        workdir,
        # Where its runners look too, so that what is compiled here is not compiled again there.
        TRITON_CACHE_DIR=str(workdir / CACHE / "triton"),
        TRITON_DUMP_PTXAS_LOG="1",
        **HIDDEN,
    )


@dataclass(frozen=True)
class Events:
    """What the child reported.

    `kernels` has each kernel once, with the folder that holds its assembly. `failed` are traces of
    compile errors, `not_called` reasons why no kernel could be learnt from a case. `called` says
    whether the file was imported. `compiling` is the kernel that it was compiling when it ended,
    `ended` the exit status of a case's process that could not report its own end.
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
    def read(cls, folder: Path) -> Events:
        """Read the events of the whole, then of its cases in their order."""
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

    def rows(self, reader: Reader) -> dict[str, Kernel]:
        """Metrics by kernel. The same kernel with other constants gets a number."""
        rows: dict[str, Kernel] = {}
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
    """A line; None for one that the deadline cut."""
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        return None
    return event if isinstance(event, dict) else None


def _answer(
    bundle: Bundle,
    target: Target,
    signatures: tuple[Signature, ...],
    events: Events,
    done: Finished,
    reader: Reader,
    limits: Limits,
    path: Path,
) -> Compiled:
    rows = events.rows(reader)
    # A call that is slow here, without its device, is not a kernel that cannot be compiled.
    slow = done.timed_out and events.called and events.compiling is None
    ok = (events.finished or slow) and not events.failed
    on_device = target.device == "cuda"
    notes = _notes(events, rows)
    if slow and ok:
        notes += [f"static report incomplete: the call did not end within {limits.seconds:g} s"]
    if ok and not on_device:
        notes += [NOT_RUN_NOTE]
        if _uses_bf16(signatures, events):
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


def _uses_bf16(signatures: tuple[Signature, ...], events: Events) -> bool:
    tensors = any(t.dtype == "bfloat16" for signature in signatures for t in signature.tensors)
    return tensors or any("bf16" in kind for _, event in events.kernels for kind in event["types"])


def _notes(events: Events, rows: Mapping[str, Kernel]) -> list[str]:
    notes = [f"no static report of a case: {why}" for why in dict.fromkeys(events.not_called)]
    notes += dict.fromkeys(events.autotuned)
    if not rows and events.finished and not events.failed and not notes:
        notes.append("no static report: no Triton kernel was launched")
    return notes


_DUMP = re.compile(r"^={20,}$.*?^={20,}$", re.MULTILINE | re.DOTALL)


def _log(events: Events, done: Finished, limits: Limits, ok: bool) -> str:
    """Errors first, then what ptxas printed for each kernel."""
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
        # Where ptxas refuses, Triton prints all of the PTX between two rules.
        parts.append(_DUMP.sub("", done.log).strip())
    parts += [str(event["log"]).strip() for _, event in events.kernels]
    return "\n".join(part for part in parts if part)
