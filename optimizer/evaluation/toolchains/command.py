"""Compile and run by the command templates of a hardware.toml: a compiler, and a runner or
simulator that reads a manifest with the input arrays and writes output arrays and a report.

Templates are split into words and run without a shell. A program that fails, hangs or writes
invalid output is a result, not an exception. Does not compare outputs.
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
import tempfile
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import metadata
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from kb.errors import InvalidRequest
from kb.hardware.spec import CostKind, ScalarSpec, ToolchainSpec
from kb.hardware.toolchains import ScalarFormula, argument_name, compile_scalar
from kb.plain import plain
from optimizer.evaluation.abi import Role, Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.isolation.levels import Level
from optimizer.evaluation.isolation.levels import command as isolated
from optimizer.evaluation.records import TimingState
from optimizer.evaluation.toolchains.base import (
    Availability,
    CompileCase,
    Compiled,
    EvaluationTarget,
    Loader,
    Metric,
)
from optimizer.evaluation.toolchains.processes import CommandLimits, FinishedCommand, clean_env, run

if TYPE_CHECKING:
    import torch


SOURCES, BUILT, RUN = "src", "program.out", "run"
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
COMPILE_LIMITS = CommandLimits(seconds=120.0)
RUN_LIMITS = CommandLimits(memory_bytes=16 << 30)
ASKED = CommandLimits(seconds=10.0)  # for a version
MOST_BANNER = 120  # characters
_RELEASE = re.compile(r"\d+\.\d+")
OTHER_FILE_BYTES = 64 << 20  # written by a simulator in addition to the largest output
MAX_HASHED = 16 << 20  # larger programs are identified by size and modification time

FORMAT = 1
MANIFEST = "manifest.json"
REPORT = "report.json"
STORED: Mapping[str, str] = {"bfloat16": "uint16"}  # dtypes that numpy lacks
MAX_HEADER_BYTES = 64 * 1024  # of a .npy file of version 1
MAX_REPORT_BYTES = 1 << 20
MAX_METRICS = 1000
MAX_NAMES = 12  # in a message

Failure = Literal["", "crashed", "timed_out", "output"]
Number = int | float


@dataclass(frozen=True)
class CommandRun:
    """One call of the program on one case.

    `failure` is "" if there are outputs; `message` explains it. `cycles` and `time_us` of one call
    come from the program's report; `timing` is their source, `none` without a report. A toolchain
    whose `cost` is another kind (`counted`) reports `count` in place of both. `seconds` is
    the duration of the whole command, including simulator and start-up, never a kernel's time.
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
    count: int | None = None
    counted: str = ""

    @property
    def ok(self) -> bool:
        """Whether the program returned outputs."""
        return not self.failure


class CommandToolchain:
    """The toolchain of one language in a hardware.toml."""

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

    def available(self, target: EvaluationTarget) -> Availability:
        """Whether all programs and files that the templates name exist."""
        if not self.template.run and not self.template.profile:
            return Availability(
                False, "no run template", "Add run = ... to the toolchain in hardware.toml."
            )
        absent = [name for name in self.template.programs if not shutil.which(name, path=_path())]
        if absent:
            install = self.template.install
            hint = f"Run `{install}`." if install else "Install it, or correct hardware.toml."
            return Availability(False, f"{', '.join(absent)} is not installed", hint)
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
        texts = [*self._templates, self.template.suffix, self.template.timing]
        texts += [self.template.cost] if self.template.cost != "cycles" else []
        digest.update(json.dumps([texts, sorted(self.template.env.items())]).encode())
        arguments = [plain(self.template.arguments), plain(self.template.scalars)]
        if any(arguments):
            digest.update(json.dumps(arguments, sort_keys=True).encode())
        words = [word for template in self._templates for word in _plain_words(template)]
        for word in (*words, *self.template.programs):
            program = shutil.which(word, path=_path()) or word
            if Path(program).is_file():
                digest.update(_file_digest(Path(program)))
        return f"command {digest.hexdigest()[:16]}"

    def banner(self) -> str:
        """The lines with which the compiler and the programs that the run names state their
        versions, and the releases of programs that are packages of this Python; "" without any."""
        programs = self.template.programs
        used = [word for word in programs if word in self.template.run]
        words = dict.fromkeys([*_plain_words(self.template.compile)[:1], *used])
        stated = [_stated_version(shutil.which(word, path=_path())) for word in words]
        for word in programs:
            with suppress(metadata.PackageNotFoundError):
                stated.append(f"{word} {metadata.version(word)}")
        return "; ".join(dict.fromkeys(filter(None, stated)))

    def compile(
        self,
        bundle: Bundle,
        target: EvaluationTarget,
        workdir: Path,
        cases: tuple[CompileCase, ...],
    ) -> Compiled:
        """Run the compile template; without one, `run` executes the source."""
        workdir = workdir.resolve()  # the commands' working directory: relative paths would break
        workdir.mkdir(parents=True, exist_ok=True)
        source = _write_source(bundle, workdir / SOURCES, self.template.suffix)
        output = workdir / BUILT if self.template.compile else source
        placeholders = {
            "source": str(source.relative_to(workdir)),
            "output": str(output.relative_to(workdir)),
            "workdir": str(workdir),
            "arch": target.arch or "",
            "hardware": target.hardware,
            "entry": bundle.entry,
            "examples": str(EXAMPLES),
        }
        absolute = {**placeholders, "source": str(source), "output": str(output)}
        _placeholders_path(output).write_text(json.dumps(absolute), encoding="utf-8")
        loader = Loader("command", output, bundle.entry)
        if not self.template.compile:
            return Compiled(ok=True, loader=loader, notes=("not compiled, run as source",))
        output.unlink(missing_ok=True)
        command = _command(self.template.compile, placeholders)
        finished = self._run(command, workdir, self._limits, placeholders)
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

    def run(
        self,
        compiled: Compiled,
        tensors: list[torch.Tensor],
        signature: Signature,
        workdir: Path,
        seconds: float,
        numbers: Mapping[str, object] | None = None,
    ) -> CommandRun:
        """Run the compiled program on one case, for at most `seconds`.

        `tensors` are inputs, then parameters and buffers. `numbers` are those of the reference that
        scalars may use; raises InvalidRequest for a scalar without a value. A simulator runs by its
        profile template if it has one, because counting does not change simulated time; real
        hardware is timed by the run template.
        """
        if compiled.loader is None:
            return CommandRun("crashed", "there is nothing to run: it did not compile")
        folder = workdir.resolve() / RUN
        if folder.exists():
            shutil.rmtree(folder)  # else outputs of an earlier call could be read
        folder.mkdir(parents=True)
        path = _placeholders_path(compiled.loader.path)
        placeholders = json.loads(path.read_text(encoding="utf-8"))
        template = self.template
        manifest = write_manifest(
            tensors,
            signature,
            folder,
            entry=compiled.loader.entry,
            hardware=placeholders["hardware"],
            arguments=argument_names(signature, template),
            scalars=scalar_values(signature, template, numbers or {}) if template.scalars else None,
        )
        report = folder / REPORT
        placeholders |= {"input": str(manifest), "report": str(report), "workdir": str(folder)}
        finished = self._run(
            _command(self._run_template, placeholders),
            folder,
            _run_limits(signature, seconds),
            placeholders,
        )
        outcome = CommandRun(log=finished.log, seconds=finished.seconds)
        failed = _failure(finished, seconds)
        if failed is not None:
            return replace(outcome, failure=failed[0], message=failed[1])
        try:
            outputs = read_outputs(signature, folder)
        except BadOutput as problem:
            return replace(outcome, failure="output", message=str(problem))
        return self._with_report(replace(outcome, outputs=tuple(outputs)), report)

    @property
    def _run_template(self) -> str:
        simulated = self.template.timing == "simulator" and self.template.profile
        return simulated or self.template.run

    def _with_report(self, outcome: CommandRun, path: Path) -> CommandRun:
        """Add time and metrics of the report. An invalid report becomes a note."""
        try:
            report = read_report(path, self.template.cost)
        except BadOutput as problem:
            return replace(outcome, notes=(f"no time: {problem}",))
        state = self._timing(report)
        return replace(
            outcome,
            cycles=report.cycles,
            time_us=report.time_us,
            timing=state,
            metrics=report.metrics,
            notes=() if state != "none" else (f"no cost: the report has no {self._wanted}",),
            count=report.count,
            counted=report.counted,
        )

    @property
    def _wanted(self) -> str:
        return "time" if self.template.cost == "cycles" else self.template.cost

    def _timing(self, report: Report) -> TimingState:
        if self.template.timing == "simulator":
            costs = (report.cycles, report.time_us, report.count)
            return "none" if all(cost is None for cost in costs) else "simulator"
        return "none" if report.time_us is None else "measured"

    def _run(
        self, command: list[str], cwd: Path, limits: CommandLimits, placeholders: Mapping[str, str]
    ) -> FinishedCommand:
        chosen = {name: value.format(**placeholders) for name, value in self.template.env.items()}
        env = clean_env(cwd, **{"PATH": _path(), **chosen})
        return run(isolated(self._level, command), cwd=cwd, limits=limits, env=env)


def _write_source(bundle: Bundle, folder: Path, suffix: str) -> Path:
    """Write the bundle, and its main file again with the compiler's suffix if it has another."""
    if folder.exists():
        shutil.rmtree(folder)
    source = bundle.write(folder)
    if not suffix or source.name.endswith(suffix):
        return source
    renamed = source.with_name(source.stem + suffix)
    renamed.write_text(bundle.source, encoding="utf-8")
    return renamed


def _placeholders_path(output: Path) -> Path:
    return output.with_name(f"{output.name}.placeholders.json")


def _command(template: str, placeholders: Mapping[str, str]) -> list[str]:
    """Split before replacing placeholders, so that a path with a space stays one word."""
    return [word.format(**placeholders) for word in shlex.split(template)]


def _plain_words(template: str) -> list[str]:
    """The words of a template without placeholders other than {examples}."""
    plain = []
    for word in shlex.split(template):
        if word.startswith("{examples}"):
            word = str(EXAMPLES) + word.removeprefix("{examples}")
        without = word.replace("{{", "").replace("}}", "")
        if "{" not in without:
            plain.append(word.replace("{{", "{").replace("}}", "}"))
    return plain


def _path() -> str:
    """Search path of programs; `python` in a template is the interpreter of this service."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


@lru_cache(maxsize=64)
def _stated_version(program: str | None) -> str:
    """The first line with a version that a program prints when asked for it. Interpreters, which
    run a tool, are not asked."""
    if program is None or Path(program).name.startswith("python"):
        return ""
    with tempfile.TemporaryDirectory(prefix="kernlore-version-") as folder:
        place = Path(folder)
        asked = run([program, "--version"], cwd=place, limits=ASKED, env=clean_env(place))
    lines = asked.log.splitlines() if asked.ok else []
    return next((line.strip()[:MOST_BANNER] for line in lines if _RELEASE.search(line)), "")


def _file_digest(path: Path) -> bytes:
    status = path.stat()
    if status.st_size <= MAX_HASHED:
        return _content_digest(path, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode()


@lru_cache(maxsize=256)
def _content_digest(path: Path, inode: int, modified: int, changed: int) -> bytes:
    """The digest of a file with this status. Every evaluation needs those of its tools, and an
    emulator has some 10 MB."""
    return hashlib.sha256(path.read_bytes()).digest()


def _run_limits(signature: Signature, seconds: float) -> CommandLimits:
    largest = max((tensor.bytes for tensor in signature.of("output")), default=0)
    return replace(RUN_LIMITS, seconds=seconds, file_bytes=largest + OTHER_FILE_BYTES)


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


# -- names of arguments and values of scalars

ROLES: Mapping[Role, str] = {
    "input": "input",
    "parameter": "weight",
    "buffer": "weight",
    "output": "output",
}
_ATTRIBUTE = re.compile(r"(.+)\.(shape\[(-?\d+)\]|ndim|elements)")
_POSITION = re.compile(r"(input|weight|output)\[(\d+)\]")


def argument_names(signature: Signature, toolchain: ToolchainSpec) -> tuple[str, ...]:
    """The name of each tensor in the program, in ABI order: by the toolchain's pattern for its
    role, or unchanged. () for a toolchain without patterns.

    Raises InvalidRequest if two tensors get the same name.
    """
    patterns = toolchain.arguments
    if not patterns:
        return ()
    names = []
    for role, index, tensor, count in _by_role(signature):
        pattern = patterns.get(f"single_{role}") if count == 1 else None
        pattern = pattern or patterns.get(role)
        names.append(argument_name(pattern, index, tensor.name) if pattern else tensor.name)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(
            f"two tensors of this problem are called {twice[0]!r} in the program",
            hint="Use {index} in the patterns of [toolchains.LANGUAGE.arguments] in hardware.toml.",
            details={"names": names},
        )
    return tuple(names)


def _by_role(signature: Signature) -> Iterator[tuple[str, int, TensorSpec, int]]:
    """(role, index in the role, tensor, count of the role), in ABI order."""
    grouped = _tensors_by_role(signature)
    seen = dict.fromkeys(grouped, 0)
    for tensor in signature.tensors:
        role = ROLES[tensor.role]
        yield role, seen[role], tensor, len(grouped[role])
        seen[role] += 1


def _tensors_by_role(signature: Signature) -> dict[str, list[TensorSpec]]:
    grouped: dict[str, list[TensorSpec]] = {"input": [], "weight": [], "output": []}
    for tensor in signature.tensors:
        grouped[ROLES[tensor.role]].append(tensor)
    return grouped


def scalar_values(
    signature: Signature, toolchain: ToolchainSpec, numbers: Mapping[str, object]
) -> dict[str, Number]:
    """The scalars of one case by name. `numbers` are those of the reference, by plain names (`eps`)
    and by names of traits (`model.eps`, `convolution.stride[0]`).

    Raises InvalidRequest for a required scalar without a value; the message has its expression and
    all known names.
    """
    values = {}
    for name, scalar in toolchain.scalars.items():
        value = _scalar(name, scalar, signature, numbers)
        if value is not None:
            values[name] = value
    return values


def _scalar(
    name: str, scalar: ScalarSpec, signature: Signature, numbers: Mapping[str, object]
) -> Number | None:
    formula = compile_scalar(scalar.value)
    values = {r: v for r in formula.references if (v := _value(r, signature, numbers)) is not None}
    result = formula.compute(values)
    if isinstance(result.value, int | float) and not isinstance(result.value, bool):
        return result.value
    if scalar.optional and result.missing:
        return None
    raise InvalidRequest(
        f"the scalar {name} = {scalar.value!r} has no value for this problem: "
        + _why(formula, result.missing, result.reasons),
        hint=f"There are {_known_names(signature, numbers)}. Correct {name} under "
        "[toolchains.LANGUAGE.scalars] in hardware.toml, or write "
        f'{name} = {{value = "{scalar.value}", optional = true}}.',
        details={"scalar": name, "expression": scalar.value, "missing": list(result.missing)},
    )


def _why(formula: ScalarFormula, missing: Sequence[str], reasons: Sequence[str]) -> str:
    if missing:
        return f"there is no {', no '.join(missing)}"
    return "; ".join(reasons) or f"{formula.text} is no number"


def _value(reference: str, signature: Signature, numbers: Mapping[str, object]) -> Number | None:
    match = _ATTRIBUTE.fullmatch(reference)
    tensor = _tensor(match[1], signature) if match else None
    if match is None or tensor is None:
        return _named_number(reference, numbers)
    if match[2] == "ndim":
        return len(tensor.shape)
    if match[2] == "elements":
        return prod(tensor.shape)
    index = int(match[3])
    return tensor.shape[index] if -len(tensor.shape) <= index < len(tensor.shape) else None


def _tensor(name: str, signature: Signature) -> TensorSpec | None:
    """By name, or by role and position."""
    by_name = next((tensor for tensor in signature.tensors if tensor.name == name), None)
    position = _POSITION.fullmatch(name)
    if by_name is not None or position is None:
        return by_name
    group = _tensors_by_role(signature)[position[1]]
    return group[int(position[2])] if int(position[2]) < len(group) else None


def _named_number(name: str, numbers: Mapping[str, object]) -> Number | None:
    """By the whole name, or by the last part of trait names (`eps` for `native_layer_norm.eps`) if
    all of them have the same value."""
    if name in numbers:
        return _number(numbers[name])
    same = {_number(value) for key, value in numbers.items() if key.rpartition(".")[2] == name}
    return next(iter(same)) if len(same) == 1 else None


def _number(value: object) -> Number | None:
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float) else None


def _known_names(signature: Signature, numbers: Mapping[str, object]) -> str:
    tensors = [f"{tensor.name} {list(tensor.shape)}" for tensor in signature.tensors]
    names = sorted(name for name, value in numbers.items() if _number(value) is not None)
    names.sort(key=lambda name: name.count("."))
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    known = f"the constants {', '.join(names[:MAX_NAMES])}{more}" if names else "no constants"
    return f"the tensors {', '.join(tensors[:MAX_NAMES])}, and {known}"


# -- the manifest and the arrays


class BadOutput(Exception):
    """Output of the program that violates the manifest; the message explains how."""


def _file_name(number: int, tensor: TensorSpec) -> str:
    """The file name of a tensor, whose name comes from an argument or a state_dict key."""
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
    """Write the input arrays and the manifest; returns its path. `tensors` are inputs, parameters
    and buffers in ABI order. `arguments` are the program's names of all tensors, outputs included.
    Raises InvalidRequest if the tensors do not match the signature."""
    specs = signature.of("input", "parameter", "buffer")
    if len(tensors) != len(specs):
        raise InvalidRequest(
            f"{len(tensors)} tensors for {len(specs)} inputs and parameters",
            hint="Pass inputs, then parameters and buffers, without the outputs.",
        )
    remaining = iter(tensors)
    rows = []
    for number, spec in enumerate(signature.tensors):
        name = _file_name(number, spec)
        stored = STORED.get(spec.dtype, spec.dtype)
        if spec.role != "output":
            _write_array(next(remaining), spec, folder / name)
        argument = {"argument": arguments[number]} if arguments else {}
        rows.append({**spec.as_json(), **argument, "stored": stored, "file": name})
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
    array = tensor.detach().cpu().contiguous()
    if dtype in STORED:
        array = array.view(torch.uint16)
    numpy.save(path, array.numpy(), allow_pickle=False)


def read_outputs(signature: Signature, folder: Path) -> list[torch.Tensor]:
    """The outputs in ABI order. Raises BadOutput if one is missing or violates the manifest."""
    return [
        _read_array(spec, folder / _file_name(number, spec))
        for number, spec in enumerate(signature.tensors)
        if spec.role == "output"
    ]


def _read_array(spec: TensorSpec, path: Path) -> torch.Tensor:
    import numpy
    import torch

    stored = numpy.dtype(STORED.get(spec.dtype, spec.dtype))
    with _regular_file(path, f"output {spec.name}", spec.bytes + MAX_HEADER_BYTES) as stream:
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
def _regular_file(path: Path, label: str, limit: int) -> Iterator[IO[bytes]]:
    """Open a file of at most `limit` bytes that is neither a link nor a pipe, which would block."""
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


# -- the report


@dataclass(frozen=True)
class Report:
    """A program's report, with cycles and time of one call, or with the `count` of another kind of
    cost, `counted`, and then without the two."""

    cycles: int | None = None
    time_us: float | None = None
    count: int | None = None
    counted: str = ""
    metrics: Mapping[str, Metric] = field(default_factory=dict)


def read_report(path: Path, cost: CostKind = "cycles") -> Report:
    """The report of a run, with its cost of this kind. Raises BadOutput if it is missing or
    invalid."""
    with _regular_file(path, "the report", MAX_REPORT_BYTES) as stream:
        data = stream.read(MAX_REPORT_BYTES + 1)
    try:
        report = json.loads(data, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as problem:
        raise BadOutput(f"the report is not JSON: {str(problem)[:200]}") from problem
    if not isinstance(report, dict):
        raise BadOutput("the report is not a JSON object with cycles or time_us, and metrics")
    metrics = _metrics(report.get("metrics", {}))
    cycles = _positive(report, cost)
    if cost != "cycles":
        return Report(metrics=metrics, count=None if cycles is None else int(cycles), counted=cost)
    return Report(
        cycles=None if cycles is None else int(cycles),
        time_us=_positive(report, "time_us"),
        metrics=metrics,
    )


def _reject_constant(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")


def _positive(report: Mapping[str, Any], key: str) -> float | None:
    value = report.get(key)
    if value is None:
        return None
    number = _finite_number(value)
    if number is None or number <= 0:
        raise BadOutput(f"the report's {key} is {str(value)[:40]!r}, expected a positive number")
    return number


def _finite_number(value: object) -> float | None:
    """The number, None if it is not finite: JSON integers are unbounded and 1e999 is infinite."""
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
        elif (number := _finite_number(value)) is not None:
            metrics[name] = number
        else:
            raise BadOutput(f"the report's metric {name[:60]!r} is neither number nor short text")
    return metrics
