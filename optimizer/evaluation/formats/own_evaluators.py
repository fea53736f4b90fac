"""Tasks that bring their own evaluator: it is run with the submission in a confined process, and
verdict and times are its own.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kb.errors import NotFound, Unavailable
from optimizer.evaluation.formats.evaluator_process import RESULT
from optimizer.evaluation.isolation.levels import Level, Wanted, command, level_for
from optimizer.evaluation.isolation.machine import usable_processors
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.processes import CommandLimits, FinishedCommand, clean_env, run

SECONDS = 300.0  # the default of OpenEvolve
RESULT_BYTES = 4 << 20
SECTIONS = ("metrics", "tests", "benchmarks")  # of a result, each by name
LOG_CHARS = 8_000
NOTE = (
    "Verdict and times are those of the task's own evaluator, not of Kernlore. The submission was"
    " isolated, but nothing else was checked: it runs in the evaluator's process and could forge"
    " what that reports; inputs, error bounds and clocks are the evaluator's."
)


@dataclass(frozen=True)
class OwnResult:
    """What a task's own evaluator said. `verdict` is correct, incorrect or none; `report` is its
    result as JSON; `applied` names the restrictions of its process."""

    verdict: str
    message: str
    report: Mapping[str, Any]
    evaluator: Path
    level: Level
    applied: tuple[str, ...]
    seconds: float
    log: str


@dataclass(frozen=True)
class EvaluatorFormat:
    """One convention of tasks with their own evaluator. `evaluator` is the file of a task that is
    run, `place` the name under which it gets the submission; `decide` gives verdict and message."""

    name: str
    task: str
    recognises: Callable[[Path], bool]
    evaluator: Callable[[Path], Path]
    place: Callable[[Path, Path], str]
    decide: Callable[[Mapping[str, Any]], tuple[str, str]]
    seconds: Callable[[Path], float] = lambda task: SECONDS

    def evaluate(self, task: Path, submission: Path, isolation: Wanted) -> OwnResult:
        """Run the evaluator with a copy of the submission. Raises InvalidRequest, NotFound, or
        Unavailable if this machine lacks what it imports."""
        if not submission.is_file():
            raise NotFound(f"there is no file {submission}", hint="Give one file as submission.")
        if isolation == "container":
            raise Unavailable(
                "a task's own evaluator is not run in a container",
                hint="Choose --isolation auto, namespaces or process.",
            )
        device = "cuda" if any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd"))) else "cpu"
        level = level_for(isolation, device)
        evaluator, seconds = self.evaluator(task).resolve(), self.seconds(task)
        with tempfile.TemporaryDirectory(prefix="kernlore-evaluator-") as name:
            folder = Path(name).resolve()
            copy = folder / "submission" / self.place(evaluator, submission)
            copy.parent.mkdir()
            copy.write_bytes(submission.read_bytes())
            limits = dict(EvaluationSettings().limits(device))
            limits["cpu_seconds"] = int(seconds * usable_processors()) + 1
            request = folder / "request.json"
            fields = {"format": self.name, "device": device, "limits": limits}
            paths = {"evaluator": evaluator, "submission": copy, "folder": folder}
            texts = {name: str(path) for name, path in paths.items()}
            request.write_text(json.dumps(fields | texts), encoding="utf-8")
            child = str(Path(__file__).with_name("evaluator_process.py"))
            argv = command(level, [sys.executable, "-I", "-B", child, str(request)])
            allowed = CommandLimits(seconds, limits["cpu_seconds"], memory_bytes=None)
            ran = run(argv, cwd=folder, limits=allowed, env=clean_env(folder))
            report = _report(folder / RESULT)
        applied = tuple(map(str, report.pop("applied", ())))
        verdict, message = self.decide(report) if report else ("incorrect", _ended(ran, seconds))
        log = ran.log[-LOG_CHARS:]
        return OwnResult(verdict, message, report, evaluator, level, applied, ran.seconds, log)


def _report(path: Path) -> dict[str, Any]:
    """The result that the process wrote; empty without one of its form, because a submission may
    have written it."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > RESULT_BYTES:
        return {}
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return {}
    whole = isinstance(report, dict) and isinstance(report.get("applied"), list)
    return report if whole and all(isinstance(report.get(n, {}), dict) for n in SECTIONS) else {}


def _ended(ran: FinishedCommand, seconds: float) -> str:
    if ran.timed_out:
        return f"the evaluator did not end within {seconds:g} seconds"
    return f"the evaluator's process ended with code {ran.code} and no result"


def defines(path: Path, fits: Callable[[str], bool]) -> bool:
    """Whether a Python file defines a function or class whose name fits, at its top level."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    kinds = (ast.FunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) and fits(node.name) for node in tree.body)
