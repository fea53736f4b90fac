"""Tasks that bring their own evaluator: it is run with the submission in a confined process, and
verdict and times are its own.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from kb.errors import InvalidRequest, NotFound, Unavailable
from optimizer.evaluation.formats.evaluator_process import RESULT
from optimizer.evaluation.formats.task import read_yaml
from optimizer.evaluation.isolation.levels import Level, Wanted, command, level_for
from optimizer.evaluation.isolation.machine import DeviceLock, usable_processors
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
    result as JSON, `submitted` the SHA-256 of the submission; `applied` names the restrictions of
    its process."""

    verdict: str
    message: str
    report: Mapping[str, Any]
    evaluator: Path
    submitted: str
    level: Level
    applied: tuple[str, ...]
    seconds: float
    log: str


@dataclass(frozen=True)
class EvaluatorFormat:
    """One convention of tasks with their own evaluator. `evaluator` is the file of a task that is
    run, or that lists the commands; `places` gives the files of a submission by their names in the
    task; `decide` gives verdict and message; `settings` are further fields of the request to its
    process."""

    name: str
    task: str
    recognises: Callable[[Path], bool]
    evaluator: Callable[[Path], Path]
    places: Callable[[Path, Path], Mapping[str, Path]]
    decide: Callable[[Mapping[str, Any]], tuple[str, str]]
    seconds: Callable[[Path], float] = lambda task: SECONDS
    settings: Callable[[Path], Mapping[str, Any]] = lambda task: {}
    write_back: Callable[[Mapping[str, Any]], str] = lambda report: json.dumps(report, indent=2)

    def evaluate(self, task: Path, submission: Path, isolation: Wanted) -> OwnResult:
        """Run the evaluator with a copy of the submission. Raises InvalidRequest, NotFound, or
        Unavailable if this machine lacks what it imports."""
        if not submission.exists():
            raise NotFound(f"there is no file {submission}", hint="Give a submission.")
        if isolation == "container":
            raise Unavailable(
                "a task's own evaluator is not run in a container",
                hint="Choose --isolation auto, namespaces or process.",
            )
        device = "cuda" if any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd"))) else "cpu"
        level = level_for(isolation, device)
        evaluator, seconds = self.evaluator(task).resolve(), self.seconds(task)
        files = {n: p.read_bytes() for n, p in self.places(evaluator, submission).items()}
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
        several = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
        with tempfile.TemporaryDirectory(prefix="kernlore-evaluator-") as name:
            folder = Path(name).resolve()
            for place, data in files.items():
                copy = folder / "submission" / place
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(data)
            limits = dict(EvaluationSettings().limits(device))
            limits["cpu_seconds"] = int(seconds * usable_processors()) + 1
            request = folder / "request.json"
            fields = {"format": self.name, "device": device, "limits": limits}
            paths = {"evaluator": evaluator, "submission": copy, "folder": folder}
            texts = {name: str(path) for name, path in paths.items()}
            request.write_text(json.dumps({**fields, **texts, **self.settings(task)}))
            child = str(Path(__file__).with_name("evaluator_process.py"))
            argv = command(level, [sys.executable, "-I", "-B", child, str(request)])
            allowed = CommandLimits(seconds, limits["cpu_seconds"], memory_bytes=None)
            with DeviceLock(device):
                ran = run(argv, cwd=folder, limits=allowed, env=clean_env(folder))
            report = _report(folder / RESULT)
        applied = tuple(map(str, report.pop("applied", ())))
        verdict, message = self.decide(report) if report else ("incorrect", _ended(ran, seconds))
        return OwnResult(
            verdict,
            message,
            report,
            evaluator,
            several if len(files) > 1 else next(iter(digests.values())),
            level,
            applied,
            ran.seconds,
            ran.log[-LOG_CHARS:],
        )


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


def one_file(submission: Path) -> Path:
    """The submission, if it is a file. Raises InvalidRequest."""
    if not submission.is_file():
        raise InvalidRequest(f"{submission} is no file", hint="Give one file as submission.")
    return submission


def read_config(task: Path) -> dict[str, Any]:
    """The mapping in config.yaml of a task; empty without one. Raises InvalidRequest."""
    path = task / "config.yaml"
    return read_yaml(path, "Correct it.") if path.is_file() else {}


def _ended(ran: FinishedCommand, seconds: float) -> str:
    if ran.timed_out:
        return f"the evaluator did not end within {seconds:g} seconds"
    return f"the evaluator's process ended with code {ran.code} and no result"


def defines(path: Path, fits: Callable[[ast.FunctionDef | ast.ClassDef], bool]) -> bool:
    """Whether a function or class fits that a Python file defines at its top level."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return False
    return any(isinstance(n, ast.FunctionDef | ast.ClassDef) and fits(n) for n in tree.body)


# -- OpenEvolve

# Metrics of public evaluators that say whether a program is right. 1 or true means yes.
CORRECTNESS = (
    *("correct", "is_correct", "correctness", "correctness_score"),
    *("valid", "is_valid", "validity", "passed", "all_passed"),
)


def _is_openevolve(task: Path) -> bool:
    evaluates = defines(task / "evaluator.py", lambda node: node.name == "evaluate")
    return evaluates and any(task.glob("initial_program.*"))


def _configured_seconds(task: Path) -> float:
    """`evaluator.timeout` of config.yaml, in seconds."""
    settings = read_config(task).get("evaluator")
    return seconds_of(settings if isinstance(settings, dict) else {}, "timeout", SECONDS)


def seconds_of(settings: Mapping[str, Any], name: str, default: float) -> float:
    """A limit of config.yaml in seconds. Raises InvalidRequest if it is no number."""
    value = settings.get(name)
    try:
        return default if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"config.yaml: {name} is {value!r}", hint="Correct it: it is a number of seconds."
        ) from error


def usable(report: Mapping[str, Any]) -> None:
    """Raises Unavailable if the evaluator could not run here, whatever the submission."""
    if "unusable" in report:
        raise Unavailable(
            str(report["unusable"]),
            hint=f"Install what it imports for {sys.executable}, or correct the evaluator.",
        )


def _by_metrics(report: Mapping[str, Any]) -> tuple[str, str]:
    usable(report)
    if "metrics" not in report:
        return "incorrect", f"the evaluator failed: {report.get('raised')}"
    metrics = report["metrics"]
    found = {name: metrics[name] for name in CORRECTNESS if name in metrics}
    wrong = [f"{name} is {value}" for name, value in found.items() if value not in (True, 1)]
    if wrong:
        return "incorrect", f"by the evaluator's metrics: {', '.join(wrong)}"
    if found:
        return "correct", ""
    if isinstance(error := metrics.get("error"), str) and error:
        return "incorrect", f"the evaluator reports an error: {error}"
    names = ", ".join(map(str, metrics)) or "none"
    return "none", (
        f"no metric says whether the submission is right (metrics: {names}); known names:"
        f" {', '.join(CORRECTNESS)}"
    )


OPENEVOLVE = EvaluatorFormat(
    "openevolve",
    task="a folder with initial_program.py and evaluator.py, which defines evaluate",
    recognises=_is_openevolve,
    evaluator=lambda task: task / "evaluator.py",
    places=lambda evaluator, submission: {submission.name: one_file(submission)},
    decide=_by_metrics,
    seconds=_configured_seconds,
)


# -- AgentKernelArena

ARENA_SECONDS = 3600.0  # the default of each of its commands
STEPS = ("compile", "correctness", "performance")


def _is_arena(task: Path) -> bool:
    try:
        config = read_config(task)
    except InvalidRequest:
        return False
    return {"task_type", "compile_command", "correctness_command"} <= config.keys()


def _arena_settings(task: Path) -> dict[str, Any]:
    """Commands by step with their limits, and the text of the timing helpers that a checkout of the
    format puts into tasks. Raises InvalidRequest or Unavailable for a task that cannot run here."""
    config = read_config(task)
    if config.get("repo_url") or config.get("image_repo_path"):
        raise InvalidRequest(
            f"{task.name} optimizes a whole repository",
            hint="Only tasks with source_file_path are read.",
        )
    support = config.get("platform_support") or {}
    chip = str(support.get("required_arch") or "")
    if support.get("status") == "skip" or (chip and not Path("/dev/kfd").exists()):
        reason = support.get("skip_reason") or f"it is for {chip}"
        raise Unavailable(f"{task.name} does not run here: {reason}", hint="Choose another task.")
    checkout = next((p for p in task.resolve().parents if (p / "src/tools/perf").is_dir()), None)
    helpers = sorted((checkout / "src/tools/perf").glob("*.py")) if checkout else []
    return {
        "task_type": config["task_type"],
        "sources": _listed(config, "source_file_path"),
        "targets": _listed(config, "target_kernel_functions"),
        "commands": {step: _listed(config, f"{step}_command") for step in STEPS},
        "seconds": {step: seconds_of(config, f"{step}_timeout", ARENA_SECONDS) for step in STEPS},
        "helpers": {path.name: path.read_text(encoding="utf-8") for path in helpers},
    }


def _listed(config: Mapping[str, Any], name: str) -> list[str]:
    value = config.get(name) or []
    return [value] if isinstance(value, str) else [str(item) for item in value]


def _arena_seconds(task: Path) -> float:
    seconds = _arena_settings(task)["seconds"]
    return float(sum(seconds.values()) + seconds["performance"])  # the original is timed as well


def _sources(evaluator: Path, submission: Path) -> dict[str, Path]:
    """The files of a submission by the source file of the task that each replaces."""
    names = _listed(read_config(evaluator.parent), "source_file_path")
    if submission.is_file():
        fitting = [name for name in names if Path(name).name == submission.name]
        fitting = fitting or (names if len(names) == 1 else [])
        found = {name: submission for name in fitting[:1]}
    else:
        found = {name: submission / name for name in names if (submission / name).is_file()}
    if not found or any(Path(n).is_absolute() or ".." in Path(n).parts for n in found):
        raise InvalidRequest(
            f"{submission} replaces no source file of {evaluator.parent.name}",
            hint=f"Give one of these files, or a folder that has them: {', '.join(names)}.",
        )
    return found


def _by_task_result(report: Mapping[str, Any]) -> tuple[str, str]:
    usable(report)
    result = report.get("metrics", {})
    for step in ("compilation", "correctness"):
        if result.get(f"pass_{step}") is not True:
            return "incorrect", f"{step} failed: {result.get(f'{step}_error_message')}"
    return "correct", str(result.get("speedup_calculation_error_message") or "")


def _task_result(report: Mapping[str, Any]) -> str:
    """The text of task_result.yaml."""
    import yaml

    return yaml.safe_dump(dict(report.get("metrics", {})), sort_keys=False)


AGENT_KERNEL_ARENA = EvaluatorFormat(
    "agent-kernel-arena",
    task="a folder with config.yaml (task_type, source_file_path, compile_command,"
    " correctness_command)",
    recognises=_is_arena,
    evaluator=lambda task: task / "config.yaml",
    places=_sources,
    decide=_by_task_result,
    seconds=_arena_seconds,
    settings=_arena_settings,
    write_back=_task_result,
)


# -- pytest


def _is_tests(task: Path) -> bool:
    named = task.name.startswith("test_") or task.stem.endswith("_test")
    return named and task.suffix == ".py" and defines(task, _is_collected)


def _is_collected(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """Whether pytest collects it: by its name, or as a class of unittest."""
    bases = node.bases if isinstance(node, ast.ClassDef) else []
    unittest = any(ast.unparse(base).endswith("TestCase") for base in bases)
    return unittest or node.name.startswith(("test", "Test"))


def _imported_as(tests: Path, submission: Path) -> dict[str, Path]:
    """The submission by the file name under which the tests import it: its own, or that of the only
    module that they import and that is missing. Raises InvalidRequest or Unavailable."""
    one_file(submission)
    if not _installed("pytest"):
        raise Unavailable("pytest is not installed", hint="pip install pytest")
    names: set[str] = set()
    for node in ast.walk(ast.parse(tests.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    # A submission never replaces a library or the configuration of the tests.
    names = {n for n in names - sys.stdlib_module_names - {"conftest"} if not _installed(n)}
    if submission.stem in names:
        return {f"{submission.stem}.py": submission}
    here = {path.stem for path in tests.parent.iterdir()}
    missing = sorted(names - here) or sorted(names)
    if len(missing) == 1:
        return {f"{missing[0]}.py": submission}
    known = f"one of {', '.join(missing)}" if missing else "which they have to import"
    raise InvalidRequest(
        f"{tests.name} imports no module {submission.stem!r}, so it would not test the submission",
        hint=f"Name the submission as the module that the tests import, {known}.",
    )


def _installed(name: str) -> bool:
    here = Path.cwd()
    places = [place for place in sys.path if place and Path(place).resolve() != here]
    return name in sys.builtin_module_names or PathFinder.find_spec(name, places) is not None


def _by_tests(report: Mapping[str, Any]) -> tuple[str, str]:
    code = report.get("code")
    tests = report.get("tests", {}).values()
    outcomes = [str(test.get("outcome")) for test in tests if isinstance(test, dict)]
    counts = ", ".join(f"{outcomes.count(name)} {name}" for name in sorted(set(outcomes)))
    if code in (1, 2):
        return "incorrect", f"pytest: {counts or 'the tests could not be imported'}"
    if code == 0 and "passed" in outcomes:
        return "correct", ""
    return "none", f"pytest: {counts or 'no test ran'} (exit code {report['code']})"


PYTEST = EvaluatorFormat(
    "pytest",
    task="a file test_NAME.py of pytest that imports the submission",
    recognises=_is_tests,
    evaluator=lambda task: task,
    places=_imported_as,
    decide=_by_tests,
)
