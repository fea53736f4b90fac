"""Any accelerator through the command templates of its hardware.toml: a compiler that is called,
and a runner or simulator that reads and writes the ABI as files (see `manifest`).

Templates are split into words and run without a shell. A program that fails, hangs or writes
nonsense is an answer. Does not judge the outputs, and knows nothing of what the commands do.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import stat
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from kb.errors import InvalidRequest
from kb.hardware.toolchains import ScalarFormula, compile_scalar, named
from kb.hardware.spec import ScalarSpec, ToolchainSpec
from kb.plain import plain
from optimizer.evaluation.abi import Role, Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.isolation.levels import Level
from optimizer.evaluation.isolation.levels import command as isolated
from optimizer.evaluation.records import TimingState
from optimizer.evaluation.toolchains.base import (
    Availability,
    Compiled,
    EvaluationTarget,
    Loader,
    Metric,
)
from optimizer.evaluation.toolchains.processes import CommandLimits, FinishedCommand, clean_env, run

if TYPE_CHECKING:
    import torch


SOURCES, BUILT, RUN = "src", "program.out", "run"
PLACEMENTS = ".placements.json"
COMPILE_LIMITS = CommandLimits(seconds=120.0)
RUN_LIMITS = CommandLimits(memory_bytes=16 << 30)
FILE_ROOM = 64 << 20  # for what a simulator writes beside the outputs
HASHED = 16 << 20
Failure = Literal["", "crashed", "timed_out", "output"]


@dataclass(frozen=True)
class CommandRun:
    """One call of the program on one case.

    `failure` is why there are no outputs, "" when there are; `message` explains it. `cycles` and
    `time_us` are those of one call, as the program reports them; `timing` states whose time that
    is, and is `none` without a report. `seconds` is the time of the whole command, simulator and
    start-up included; it is never a kernel's time.
    """

    failure: Failure = ""
    message: str = ""
    outputs: tuple[torch.Tensor, ...] = ()
    cycles: int | None = None
    time_us: float | None = None
    timing: TimingState = "none"
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    log: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there are outputs."""
        return not self.failure


class CommandToolchain:
    """One language of one hardware, by the templates of its hardware.toml."""

    name = "command"

    def __init__(
        self,
        language: str,
        template: ToolchainSpec,
        limits: CommandLimits = COMPILE_LIMITS,
        level: Level = "process",
    ) -> None:
        self.languages: tuple[str, ...] = (language,)
        self.template = template
        self._limits = limits
        self._level = level

    # -- what is there

    def available(self, target: EvaluationTarget) -> Availability:
        """Whether every program and every file that the templates name is here."""
        if not self.template.run and not self.template.profile:
            return Availability(
                False, "no run template", "Add run = ... to the toolchain in hardware.toml."
            )
        for template in self._templates:
            if "{arch}" in template and not target.arch:
                return Availability(
                    False,
                    f"{target.hardware} has no {{arch}}",
                    "State the fact compute_capability in its hardware.toml.",
                )
            words = _plain_words(template)
            program = shlex.split(template)[0]
            if program in words and shutil.which(program, path=_path()) is None:
                return Availability(
                    False,
                    f"{program} is not installed",
                    "Install it, or give its path in the template in hardware.toml.",
                )
            for word in words:
                if Path(word).is_absolute() and not Path(word).exists():
                    return Availability(
                        False, f"{word} does not exist", "Correct the path in hardware.toml."
                    )
        return Availability(True)

    @property
    def _templates(self) -> tuple[str, ...]:
        steps = (self.template.compile, self.template.run, self.template.profile)
        return tuple(step for step in steps if step)

    def version(self) -> str:
        """A digest of the templates and of the files that they name."""
        digest = hashlib.sha256()
        named = [*self._templates, self.template.suffix, self.template.timing]
        digest.update(json.dumps([named, sorted(self.template.env.items())]).encode())
        handed = [plain(self.template.arguments), plain(self.template.scalars)]
        if any(handed):
            digest.update(json.dumps(handed, sort_keys=True).encode())
        for template in self._templates:
            for word in _plain_words(template):
                program = shutil.which(word, path=_path()) or word
                if Path(program).is_file():
                    digest.update(_state_of(Path(program)))
        return f"command {digest.hexdigest()[:16]}"

    # -- compile

    def compile(
        self,
        bundle: Bundle,
        target: EvaluationTarget,
        workdir: Path,
        cases: tuple[CompileCase, ...],
    ) -> Compiled:
        """Compile by the compile template. Without it the source is what is run."""
        workdir = workdir.resolve()  # commands run in it, so a relative path would be another
        workdir.mkdir(parents=True, exist_ok=True)
        source = _write_source(bundle, workdir / SOURCES, self.template.suffix)
        output = workdir / BUILT if self.template.compile else source
        placed = {
            "source": str(source.relative_to(workdir)),
            "output": str(output.relative_to(workdir)),
            "workdir": str(workdir),
            "arch": target.arch or "",
            "hardware": target.hardware,
            "entry": bundle.entry,
        }
        absolute = {**placed, "source": str(source), "output": str(output)}
        _placements_path(output).write_text(json.dumps(absolute), encoding="utf-8")
        loader = Loader("command", output, bundle.entry)
        if not self.template.compile:
            return Compiled(ok=True, loader=loader, notes=("not compiled, run as source",))
        output.unlink(missing_ok=True)
        command = _filled(self.template.compile, placed)
        finished = self._run(command, workdir, self._limits, placed)
        return self._compiled(finished, tuple(command), loader)

    def _compiled(
        self, finished: FinishedCommand, command: tuple[str, ...], loader: Loader
    ) -> Compiled:
        log, ok = finished.log, finished.ok
        if finished.timed_out:
            log = f"{log}\nthe compiler was stopped after {finished.seconds:.1f} s".lstrip()
        elif not ok and not log:
            log = f"the compiler {_ending(finished.code)} and printed nothing"
        elif ok and not loader.path.exists():
            ok, log = False, f"{log}\nthe compiler ended well and wrote no {BUILT}".lstrip()
        return Compiled(
            ok=ok,
            log=log,
            loader=loader if ok else None,
            command=command,
            seconds=finished.seconds,
            timed_out=finished.timed_out,
            notes=("its log was cut",) if finished.truncated else (),
        )

    # -- run

    def run(
        self,
        compiled: Compiled,
        tensors: list[torch.Tensor],
        signature: Signature,
        workdir: Path,
        seconds: float,
        constants: Mapping[str, object] | None = None,
    ) -> CommandRun:
        """Run what `compile` made on one case, for at most `seconds`. A program that fails is an
        answer. `constants` are the numbers of the reference that scalars may read. Raises
        InvalidRequest for a scalar that has no value.

        `tensors` are inputs, then parameters and buffers. A simulator is run by its profile
        template where there is one: what it counts does not change its time. Real hardware is timed
        by the run template alone.
        """
        if compiled.loader is None:
            return CommandRun("crashed", "there is nothing to run: it did not compile")
        folder = workdir.resolve() / RUN
        if folder.exists():
            shutil.rmtree(folder)  # outputs of an earlier call must not pass for this one's
        folder.mkdir(parents=True)
        placed = json.loads(_placements_path(compiled.loader.path).read_text(encoding="utf-8"))
        own = self.template
        manifest = write_manifest(
            tensors,
            signature,
            folder,
            entry=compiled.loader.entry,
            hardware=placed["hardware"],
            arguments=argument_names(signature, own),
            scalars=scalar_values(signature, own, constants or {}) if own.scalars else None,
        )
        report = folder / REPORT
        placed |= {"input": str(manifest), "report": str(report), "workdir": str(folder)}
        finished = self._run(
            _filled(self._run_template, placed), folder, _run_limits(signature, seconds), placed
        )
        outcome = CommandRun(log=finished.log, seconds=finished.seconds)
        failed = _failure(finished, seconds)
        if failed is not None:
            return replace(outcome, failure=failed[0], message=failed[1])
        try:
            outputs = read_outputs(signature, folder)
        except BadOutput as problem:
            return replace(outcome, failure="output", message=str(problem))
        return self._timed(replace(outcome, outputs=tuple(outputs)), report)

    @property
    def _run_template(self) -> str:
        simulated = self.template.timing == "simulator" and self.template.profile
        return simulated or self.template.run

    def _timed(self, outcome: CommandRun, path: Path) -> CommandRun:
        """With what the report says; a bad one costs the figures, not the outputs."""
        try:
            report = read_report(path)
        except BadOutput as problem:
            return replace(outcome, notes=(f"no time: {problem}",))
        state = self._timing(report)
        return replace(
            outcome,
            cycles=report.cycles,
            time_us=report.time_us,
            timing=state,
            metrics=report.metrics,
            notes=() if state != "none" else ("no time: the report has none",),
        )

    def _timing(self, report: Report) -> TimingState:
        if self.template.timing == "simulator":
            return "none" if report.cycles is None and report.time_us is None else "simulator"
        return "none" if report.time_us is None else "measured"

    def _run(
        self, command: list[str], cwd: Path, limits: CommandLimits, placed: Mapping[str, str]
    ) -> FinishedCommand:
        chosen = {name: value.format(**placed) for name, value in self.template.env.items()}
        env = clean_env(cwd, **{"PATH": _path(), **chosen})
        return run(isolated(self._level, command), cwd=cwd, limits=limits, env=env)


def _write_source(bundle: Bundle, folder: Path, suffix: str) -> Path:
    """The bundle's files; its main file also under the suffix that the compiler wants."""
    if folder.exists():
        shutil.rmtree(folder)
    source = bundle.write(folder)
    if not suffix or source.name.endswith(suffix):
        return source
    renamed = source.with_name(source.stem + suffix)
    renamed.write_text(bundle.source, encoding="utf-8")
    return renamed


def _placements_path(output: Path) -> Path:
    return output.with_name(output.name + PLACEMENTS)


def _filled(template: str, placed: Mapping[str, str]) -> list[str]:
    """Words first, then their placeholders: a path with a space stays one word."""
    return [word.format(**placed) for word in shlex.split(template)]


def _plain_words(template: str) -> list[str]:
    """The words of a template that hold no placeholder."""
    plain = []
    for word in shlex.split(template):
        without = word.replace("{{", "").replace("}}", "")
        if "{" not in without:
            plain.append(word.replace("{{", "{").replace("}}", "}"))
    return plain


def _path() -> str:
    """Where programs are looked for: `python` in a template is the Python of this service."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def _state_of(path: Path) -> bytes:
    status = path.stat()
    if status.st_size <= HASHED:
        return hashlib.sha256(path.read_bytes()).digest()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode()


def _run_limits(signature: Signature, seconds: float) -> CommandLimits:
    largest = max((tensor.bytes for tensor in signature.of("output")), default=0)
    return replace(RUN_LIMITS, seconds=seconds, file_bytes=largest + FILE_ROOM)


def _failure(finished: FinishedCommand, seconds: float) -> tuple[Failure, str] | None:
    if finished.timed_out:
        return "timed_out", f"the run was stopped after {seconds:g} s"
    if finished.code == 0:
        return None
    lines = finished.log.splitlines()
    last = f": {lines[-1][:300]}" if lines else " and printed nothing"
    return "crashed", f"the run {_ending(finished.code)}{last}"


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


# -- launch: What a program of a chip's own toolchain is handed beside the files: the names of its

Number = int | float
ROLES: Mapping[Role, str] = {
    "input": "input",
    "parameter": "weight",
    "buffer": "weight",
    "output": "output",
}
_OF_TENSOR = re.compile(r"(.+)\.(shape\[(-?\d+)\]|ndim|elements)")
_PLACE = re.compile(r"(input|weight|output)\[(\d+)\]")
SHOWN = 12  # names in a message


def argument_names(signature: Signature, toolchain: ToolchainSpec) -> tuple[str, ...]:
    """The name of each tensor in the program, in the order of the interface; its own where the
    toolchain has no pattern for its role. Empty for a toolchain without patterns.

    Raises InvalidRequest where two tensors get the same name.
    """
    patterns = toolchain.arguments
    if not patterns:
        return ()
    names = []
    for role, index, tensor, count in _by_role(signature):
        pattern = patterns.get(f"single_{role}") if count == 1 else None
        pattern = pattern or patterns.get(role)
        names.append(named(pattern, index, tensor.name) if pattern else tensor.name)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(
            f"two tensors of this problem are called {twice[0]!r} in the program",
            hint="Use {index} in the patterns of [toolchains.LANGUAGE.arguments] in hardware.toml.",
            details={"names": names},
        )
    return tuple(names)


def _by_role(signature: Signature) -> Iterator[tuple[str, int, TensorSpec, int]]:
    """(role, index in the role, tensor, tensors of the role), in the order of the interface."""
    grouped = tensors_by_role(signature)
    seen = dict.fromkeys(grouped, 0)
    for tensor in signature.tensors:
        role = ROLES[tensor.role]
        yield role, seen[role], tensor, len(grouped[role])
        seen[role] += 1


def tensors_by_role(signature: Signature) -> dict[str, list[TensorSpec]]:
    """The tensors under `input`, `weight` and `output`."""
    grouped: dict[str, list[TensorSpec]] = {"input": [], "weight": [], "output": []}
    for tensor in signature.tensors:
        grouped[ROLES[tensor.role]].append(tensor)
    return grouped


def scalar_values(
    signature: Signature, toolchain: ToolchainSpec, constants: Mapping[str, object]
) -> dict[str, Number]:
    """The scalars of one case by name. `constants` are numbers of the reference, by plain names
    (`eps`) and by names of traits (`model.eps`, `convolution.stride[0]`).

    Raises InvalidRequest for a scalar that has no value and is not optional; it names the scalar,
    its expression and what there is.
    """
    values = {}
    for name, scalar in toolchain.scalars.items():
        value = _scalar(name, scalar, signature, constants)
        if value is not None:
            values[name] = value
    return values


def _scalar(
    name: str, scalar: ScalarSpec, signature: Signature, constants: Mapping[str, object]
) -> Number | None:
    formula = compile_scalar(scalar.value)
    values = {
        r: v for r in formula.references if (v := _value(r, signature, constants)) is not None
    }
    result = formula.compute(values)
    if isinstance(result.value, int | float) and not isinstance(result.value, bool):
        return result.value
    if scalar.optional and result.missing:
        return None
    raise InvalidRequest(
        f"the scalar {name} = {scalar.value!r} has no value for this problem: "
        + _why(formula, result.missing, result.reasons),
        hint=f"There are {_what_exists(signature, constants)}. Correct {name} under "
        "[toolchains.LANGUAGE.scalars] in hardware.toml, or write "
        f'{name} = {{value = "{scalar.value}", optional = true}}.',
        details={"scalar": name, "expression": scalar.value, "missing": list(result.missing)},
    )


def _why(formula: ScalarFormula, missing: Sequence[str], reasons: Sequence[str]) -> str:
    if missing:
        return f"there is no {', no '.join(missing)}"
    return "; ".join(reasons) or f"{formula.text} is no number"


def _value(reference: str, signature: Signature, constants: Mapping[str, object]) -> Number | None:
    match = _OF_TENSOR.fullmatch(reference)
    tensor = _tensor(match[1], signature) if match else None
    if match is None or tensor is None:
        return _constant(reference, constants)
    if match[2] == "ndim":
        return len(tensor.shape)
    if match[2] == "elements":
        return prod(tensor.shape)
    index = int(match[3])
    return tensor.shape[index] if -len(tensor.shape) <= index < len(tensor.shape) else None


def _tensor(name: str, signature: Signature) -> TensorSpec | None:
    """By its own name, else by role and position."""
    own = next((tensor for tensor in signature.tensors if tensor.name == name), None)
    place = _PLACE.fullmatch(name)
    if own is not None or place is None:
        return own
    group = tensors_by_role(signature)[place[1]]
    return group[int(place[2])] if int(place[2]) < len(group) else None


def _constant(name: str, constants: Mapping[str, object]) -> Number | None:
    """By its whole name; else by the last part of the names of traits, where all of them agree:
    `eps` for `native_layer_norm.eps`."""
    if name in constants:
        return _number(constants[name])
    same = {_number(value) for key, value in constants.items() if key.rpartition(".")[2] == name}
    return next(iter(same)) if len(same) == 1 else None


def _number(value: object) -> Number | None:
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float) else None


def _what_exists(signature: Signature, constants: Mapping[str, object]) -> str:
    tensors = [f"{tensor.name} {list(tensor.shape)}" for tensor in signature.tensors]
    numbers = sorted(name for name, value in constants.items() if _number(value) is not None)
    numbers.sort(key=lambda name: name.count("."))
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    known = f"the constants {', '.join(numbers[:SHOWN])}{more}" if numbers else "no constants"
    return f"the tensors {', '.join(tensors[:SHOWN])}, and {known}"


# -- manifest: The ABI as files: `.npy` arrays, the JSON manifest that names them, and the report

FORMAT = 1
MANIFEST = "manifest.json"
REPORT = "report.json"
STORED: Mapping[str, str] = {"bfloat16": "uint16"}
HEADER_ROOM = 64 * 1024  # the longest header of a version 1 file
MAX_REPORT = 1 << 20
MAX_METRICS = 1000


class BadOutput(Exception):
    """What a program wrote does not follow the manifest; the message explains how."""


@dataclass(frozen=True)
class Report:
    """A program's report. `cycles` and `time_us` are those of one call, None where the report has
    none."""

    cycles: int | None = None
    time_us: float | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)


def file_of(number: int, tensor: TensorSpec) -> str:
    """The file name of a tensor. Names come from arguments and state_dict keys; only their letters
    and digits are kept."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in tensor.name)[:60]
    return f"{number:03d}_{plain}.npy"


def write_manifest(
    tensors: Sequence[torch.Tensor],
    signature: Signature,
    folder: Path,
    *,
    entry: str,
    hardware: str,
    arguments: Sequence[str] = (),
    scalars: Mapping[str, int | float] | None = None,
) -> Path:
    """Write what the program reads, and return the manifest's path. `tensors` are inputs,
    parameters and buffers in ABI order. `arguments` are the program's own names of all tensors,
    outputs included; `scalars` are handed over where they are not None. Raises InvalidRequest where
    the tensors do not fit the signature."""
    specs = signature.of("input", "parameter", "buffer")
    if len(tensors) != len(specs):
        raise InvalidRequest(
            f"{len(tensors)} tensors for {len(specs)} inputs and parameters",
            hint="Pass inputs, then parameters and buffers, without the outputs.",
        )
    waiting = iter(tensors)
    rows = []
    for number, spec in enumerate(signature.tensors):
        name = file_of(number, spec)
        stored = STORED.get(spec.dtype, spec.dtype)
        if spec.role != "output":
            _write_array(next(waiting), spec, folder / name)
        own = {"argument": arguments[number]} if arguments else {}
        rows.append({**spec.as_json(), **own, "stored": stored, "file": name})
    header: dict[str, Any] = {
        "format": FORMAT,
        "entry": entry,
        "hardware": hardware,
        "report": REPORT,
    }
    if scalars is not None:
        header["scalars"] = dict(scalars)
    path = folder / MANIFEST
    path.write_text(json.dumps({**header, "tensors": rows}, indent=1) + "\n", encoding="utf-8")
    return path


def _write_array(tensor: torch.Tensor, spec: TensorSpec, path: Path) -> None:
    import numpy
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if (dtype, tuple(tensor.shape)) != (spec.dtype, spec.shape):
        raise InvalidRequest(
            f"{spec.name} is {dtype} {tuple(tensor.shape)}, not {spec.dtype} {spec.shape}",
            hint="Pass the tensors of the case that the signature belongs to.",
        )
    plain = tensor.detach().cpu().contiguous()
    if dtype in STORED:
        plain = plain.view(torch.uint16)
    numpy.save(path, plain.numpy(), allow_pickle=False)


# ---------------------------------------------------------------- outputs


def read_outputs(signature: Signature, folder: Path) -> list[torch.Tensor]:
    """The outputs in ABI order. Raises BadOutput when one is missing or not as the manifest
    asks."""
    return [
        _read_array(spec, folder / file_of(number, spec))
        for number, spec in enumerate(signature.tensors)
        if spec.role == "output"
    ]


def _read_array(spec: TensorSpec, path: Path) -> torch.Tensor:
    import numpy
    import torch

    stored = numpy.dtype(STORED.get(spec.dtype, spec.dtype))
    with _plain_file(path, f"output {spec.name}", spec.bytes + HEADER_ROOM) as stream:
        shape, column_major, dtype = _header(stream, spec.name)
        if dtype != stored:
            raise BadOutput(f"output {spec.name} has dtype {dtype}, expected {stored}")
        if shape != spec.shape:
            raise BadOutput(f"output {spec.name} has shape {shape}, expected {spec.shape}")
        data = bytearray(stream.read(spec.bytes + 1))
    if len(data) != spec.bytes:
        held = "more" if len(data) > spec.bytes else f"{len(data):,}"
        raise BadOutput(f"output {spec.name} holds {held} bytes of data, expected {spec.bytes:,}")
    flat = numpy.frombuffer(data, stored)
    array = flat.reshape(shape, order="F" if column_major else "C")
    tensor = torch.from_numpy(numpy.ascontiguousarray(array).reshape(shape))
    return tensor.view(torch.bfloat16) if spec.dtype == "bfloat16" else tensor


def _header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, Any]:
    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        version = npy.read_magic(stream)
        if version not in readers:
            raise BadOutput(f"output {name} is .npy of version {version}, expected 1.0")
        shape, column_major, dtype = readers[version](stream)
    except (ValueError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as problem:
        raise BadOutput(f"output {name} is not a .npy file: {str(problem)[:200]}") from problem
    return tuple(shape), bool(column_major), dtype


@contextmanager
def _plain_file(path: Path, label: str, limit: int) -> Iterator[IO[bytes]]:
    """Open a regular file of at most `limit` bytes: no link, and no pipe that would block."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BadOutput(f"{label} was not written: there is no {path.name}") from None
    except OSError as problem:
        raise BadOutput(f"{label} cannot be read: {problem.strerror}") from problem
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise BadOutput(f"{label}: {path.name} is not a regular file")
    with os.fdopen(descriptor, "rb") as stream:
        if status.st_size > limit:
            raise BadOutput(f"{label} is too large: {status.st_size:,} bytes, at most {limit:,}")
        yield stream


# ---------------------------------------------------------------- report


def read_report(path: Path) -> Report:
    """The report of a run. Raises BadOutput when it is missing or garbled."""
    with _plain_file(path, "the report", MAX_REPORT) as stream:
        data = stream.read(MAX_REPORT + 1)
    try:
        report = json.loads(data, parse_constant=_not_finite)
    except (ValueError, RecursionError) as problem:
        raise BadOutput(f"the report is not JSON: {str(problem)[:200]}") from problem
    if not isinstance(report, dict):
        raise BadOutput("the report is not a JSON object with cycles or time_us, and metrics")
    cycles = _positive(report, "cycles")
    return Report(
        cycles=None if cycles is None else int(cycles),
        time_us=_positive(report, "time_us"),
        metrics=_metrics(report.get("metrics", {})),
    )


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _positive(report: Mapping[str, Any], key: str) -> float | None:
    value = report.get(key)
    if value is None:
        return None
    number = _finite(value)
    if number is None or number <= 0:
        raise BadOutput(f"the report's {key} is {str(value)[:40]!r}, expected a positive number")
    return number


def _finite(value: object) -> float | None:
    """A finite number; JSON's integers have no upper bound and 1e999 reads as infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and value.bit_length() > 1000:
        return None
    return float(value) if math.isfinite(value) else None


def _metrics(reported: object) -> Mapping[str, Metric]:
    if not isinstance(reported, dict) or len(reported) > MAX_METRICS:
        raise BadOutput(f"the report's metrics are not an object of at most {MAX_METRICS} entries")
    metrics: dict[str, Metric] = {}
    for name, value in reported.items():
        if isinstance(value, bool):
            metrics[name] = float(value)
        elif isinstance(value, str) and len(value) <= 200:
            metrics[name] = value
        elif (number := _finite(value)) is not None:
            metrics[name] = number
        else:
            raise BadOutput(f"the report's metric {name[:60]!r} is neither number nor short text")
    return metrics
