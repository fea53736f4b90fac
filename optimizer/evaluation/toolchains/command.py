"""Any accelerator through the command templates of its hardware.toml: a compiler that is called,
and a runner or simulator that reads and writes the ABI as files (see `manifest`).

Templates are split into words and run without a shell. A program that fails, hangs or writes
nonsense is an answer. Does not judge the outputs, and knows nothing of what the commands do.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kb.hardware.spec import ToolchainSpec
from kb.plain import plain
from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.isolation.levels import Level
from optimizer.evaluation.isolation.levels import command as isolated
from optimizer.evaluation.records import TimingState
from optimizer.evaluation.toolchains.base import Availability, Compiled, Loader, Metric, Target
from optimizer.evaluation.toolchains.launch import argument_names, scalar_values
from optimizer.evaluation.toolchains.manifest import (
    REPORT,
    BadOutput,
    Report,
    read_outputs,
    read_report,
    write_manifest,
)
from optimizer.evaluation.toolchains.processes import Finished, Limits, clean_env, run

if TYPE_CHECKING:
    import torch

SOURCES, BUILT, RUN = "src", "program.out", "run"
PLACEMENTS = ".placements.json"
COMPILE_LIMITS = Limits(seconds=120.0)
RUN_LIMITS = Limits(memory_bytes=16 << 30)
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
        limits: Limits = COMPILE_LIMITS,
        level: Level = "process",
    ) -> None:
        self.languages: tuple[str, ...] = (language,)
        self.template = template
        self._limits = limits
        self._level = level

    # -- what is there

    def available(self, target: Target) -> Availability:
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
        self, bundle: Bundle, target: Target, workdir: Path, signatures: tuple[Signature, ...]
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

    def _compiled(self, finished: Finished, command: tuple[str, ...], loader: Loader) -> Compiled:
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
        self, command: list[str], cwd: Path, limits: Limits, placed: Mapping[str, str]
    ) -> Finished:
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


def _run_limits(signature: Signature, seconds: float) -> Limits:
    largest = max((tensor.bytes for tensor in signature.of("output")), default=0)
    return replace(RUN_LIMITS, seconds=seconds, file_bytes=largest + FILE_ROOM)


def _failure(finished: Finished, seconds: float) -> tuple[Failure, str] | None:
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
