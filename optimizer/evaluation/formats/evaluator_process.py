"""The process of a task's own evaluator: `python -I -B evaluator_process.py REQUEST`, where REQUEST
is a JSON file in the only folder that it may write to. It gives up privileges, runs the evaluator,
and writes its result to `result.json` in the same folder.

The submission runs in this process too, because evaluators import it.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

RESULT = "result.json"
TEXT_CHARS = 4_000
OUTPUT_BYTES = 4 << 20  # of a command, the last ones
DEPTH = 4  # of nested metrics


def _plain(value: Any, depth: int = DEPTH) -> Any:
    """A metric as JSON: numbers that JSON lacks and other objects become text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping) and depth:
        return {str(name)[:200]: _plain(part, depth - 1) for name, part in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [_plain(part, depth - 1) for part in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return _plain(value.item(), depth and depth - 1)  # a scalar of numpy or torch
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    return str(value)[:TEXT_CHARS]


def _openevolve(request: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics of `evaluate(program_path)`: a dict, or an object with `metrics`."""
    evaluator = Path(request["evaluator"])
    sys.path.insert(0, str(evaluator.parent))
    spec = importlib.util.spec_from_file_location("evaluation_module", evaluator)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # no code of the submission has run
        return {"unusable": f"{evaluator.name} cannot be imported: {_described(error)}"}
    try:
        returned = module.evaluate(request["submission"])
    except BaseException as error:
        traceback.print_exc()
        return {"raised": _described(error)}
    metrics = getattr(returned, "metrics", returned)
    if not isinstance(metrics, Mapping):
        return {"raised": f"evaluate returned {type(returned).__name__}, no metrics"}
    return {"metrics": _plain(metrics)}


class _Recorder:
    """Outcome and duration of each test, as a plugin of pytest."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            row = {"outcome": str(report.outcome), "seconds": float(report.duration)}
            self.tests[str(report.nodeid)] = row


def _pytest(request: Mapping[str, Any]) -> dict[str, Any]:
    """Exit code of pytest, outcomes, and the statistics of pytest-benchmark in seconds."""
    import pytest

    tests, folder = Path(request["evaluator"]), Path(request["folder"])
    # The submission comes before a module of its name next to the tests.
    sys.path[:0] = [str(Path(request["submission"]).parent), str(tests.parent)]
    empty, measured = folder / "pytest.ini", folder / "benchmarks.json"
    empty.write_text("[pytest]\n", encoding="utf-8")  # no configuration of folders above
    options = ["-c", str(empty), f"--rootdir={tests.parent}", "--import-mode=importlib", "-q"]
    options += ["-p", "no:cacheprovider"]
    if importlib.util.find_spec("pytest_benchmark") is not None:
        options.append(f"--benchmark-json={measured}")
    recorder = _Recorder()
    code = pytest.main([*options, str(tests)], plugins=[recorder])
    result: dict[str, Any] = {"code": int(code), "tests": recorder.tests}
    if measured.is_file() and measured.stat().st_size:
        rows = json.loads(measured.read_text(encoding="utf-8"))["benchmarks"]
        names = ("min", "median", "mean", "stddev", "rounds")
        result["benchmarks"] = {
            row["fullname"]: {name: _plain(row["stats"][name]) for name in names} for row in rows
        }
    return result


# -- AgentKernelArena

# Places of reports, and their keys of device times, in the order in which the format tries them.
REPORTS = (
    *("build/performance_report.json", "performance_report.json", "build/perf_report.json"),
    *("perf_report.json", "perf/benchmark_results.json"),
)
DEVICE_TIMES = (
    *("device_time_ms", "gpu_time_ms", "kernel_time_ms", "cuda_event_time_ms"),
    *("cuda_graph_time_ms", "execution_time_ms"),
)
HOST_TIMES = frozenset(
    f"{kind}_ms"
    for kind in ("host_time", "wall_time", "elapsed_time", "total_time", "end_to_end_time")
)
PRINTED = (
    r"Test ?case\s+(?P<id>\d+)[:\s]+(?P<ms>[\d.]+)\s*ms",
    r"shape[:\s]+\[(?P<id>[\d,\s]+)\][:\s]+(?P<ms>[\d.]+)\s*ms",
    r"GEAK_RESULT_LATENCY_MS=(?P<ms>[\d.]+)",
    r"Performance:\s*(?P<ms>[\d.]+)\s*ms",
    r"(?:execution|elapsed|avg)[_\s]time[:\s]+(?P<ms>[\d.]+)\s*ms",
    r"(?P<ms>[\d.]+)\s*ms\b",
)
Cases = dict[str, dict[str, Any]]


def _agent_kernel_arena(request: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of task_result.yaml as metrics, and the times of each case as benchmarks. The
    original is timed before the submission replaces it."""
    task, folder = Path(request["evaluator"]).parent, Path(request["folder"])
    original, copy = folder / "original", folder / "task"
    for place in (original, copy):
        _workspace(task, place, request["helpers"])
    baseline = _timed(request, original, baseline=True)
    for file in (submitted := folder / "submission").rglob("*"):
        if file.is_file():
            (copy / file.relative_to(submitted)).write_bytes(file.read_bytes())
    errors = {"compilation": _failure(request, "compile", copy), "correctness": None}
    lacks, message = "No module named", errors["compilation"] or ""
    if lacks in message and lacks in (_failure(request, "compile", original) or ""):
        return {"unusable": f"the original of {task.name} does not compile here: {message}"}
    if errors["compilation"] is None:
        missing = _stubs(request, copy) if request["task_type"] == "torch2flydsl" else []
        named = f"not implemented: {', '.join(missing)}" if missing else None
        errors["correctness"] = named or _failure(request, "correctness", copy)
    passed = [step for step in errors if errors[step] is None]
    right = len(passed) == 2
    optimized = _timed(request, copy) if right else {}
    means = [
        sum(case["ms"] for case in cases.values()) / len(cases) if cases else 0.0
        for cases in (baseline, optimized)
    ]
    speedup, reason = _speedup(baseline, optimized) if right else (0.0, None)
    rows = [[case.get("method") for case in cases.values()] for cases in (baseline, optimized)]
    methods = [sorted({method for method in row if method}) for row in rows]
    result = {
        "task_name": task.name,
        "pass_compilation": errors["compilation"] is None,
        "compilation_error_message": errors["compilation"],
        "pass_correctness": right,
        "correctness_error_message": errors["correctness"],
        "base_execution_time": means[0],
        "best_optimized_execution_time": means[1],
        "speedup_ratio": speedup,
        "baseline_benchmark_methods": methods[0],
        "optimized_benchmark_methods": methods[1],
        "benchmark_method_consistent": len(methods[0]) == 1 and methods[0] == methods[1],
        "valid_baseline_cases": len(baseline),
        "valid_optimized_cases": len(optimized),
        "speedup_calculation_error_message": reason,
        "optimization_summary": "Judged by kernlore",
        "score": 20.0 * ("compilation" in passed) + right * (100.0 + 100.0 * speedup),
    }
    times = {name: {"baseline_ms": case["ms"]} for name, case in baseline.items()}
    for name, case in optimized.items():
        times.setdefault(name, {})["optimized_ms"] = case["ms"]
    return {"metrics": _plain(result), "benchmarks": times}


def _workspace(task: Path, place: Path, helpers: Mapping[str, str]) -> None:
    """A copy of the task, with the timing helpers of the format where it has stubs."""
    shutil.copytree(task, place)
    pytest_helper, block = place / "performance_utils_pytest.py", place / "scripts/task_runner.py"
    if pytest_helper.is_file() and (text := helpers.get(pytest_helper.name)):
        pytest_helper.write_text(text, encoding="utf-8")
    text, shared = (
        block.read_text(encoding="utf-8") if block.is_file() else "",
        helpers.get("vllm_cuda_graph_block.py", ""),
    )
    start, end = text.find("# >>> AKA-GENERATED"), text.find("# <<< AKA-GENERATED")
    if shared and -1 < start < end:
        functions = shared[shared.index("def ") :]
        block.write_text(text[:start] + functions + text[end:], encoding="utf-8")


def _ran(request: Mapping[str, Any], step: str, text: str, place: Path) -> tuple[int, str]:
    """Exit code and output of a command, with this Python as python, python3 and pytest."""
    first, _, rest = text.strip().partition(" ")
    python = shlex.quote(sys.executable)
    names = {"python": python, "python3": python, "pytest": f"{python} -m pytest"}
    line = f"{names.get(first, first)} {rest}"
    simple = not re.search(r"[;&|<>$`\n]", line)
    # In a file, whose size is limited, and which a process that the command leaves may keep open.
    with tempfile.TemporaryFile(dir=place.parent) as file:
        try:
            done = subprocess.run(
                # Without a shell between: only the restricted process has its own /proc/self.
                ["/bin/sh", "-c", f"exec {line}" if simple else line],
                preexec_fn=request["restrict"],
                cwd=place,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=request["seconds"][step],
            )
        except subprocess.TimeoutExpired:
            return -1, f"{text} did not end within {request['seconds'][step]:g} seconds"
        file.seek(max(0, os.fstat(file.fileno()).st_size - OUTPUT_BYTES))
        output = file.read().decode(errors="replace")
    print(f"$ {text}\n{output[-TEXT_CHARS:]}")
    return done.returncode, output


def _failure(request: Mapping[str, Any], step: str, place: Path) -> str | None:
    """Why a step failed: a command's output, or None."""
    for text in request["commands"][step]:
        code, output = _ran(request, step, text, place)
        words = output.lower() if step == "correctness" else ""
        if code != 0 or ("fail" in words and "pass" not in words):
            return output[-TEXT_CHARS:].strip() or f"{text}: exit code {code}"
    return None if request["commands"][step] else f"the task has no {step}_command"


def _stubs(request: Mapping[str, Any], place: Path) -> list[str]:
    """Targets that no Python source defines, or whose only statement raises."""
    bodies: dict[str, list[ast.stmt]] = {}
    for name in request["sources"]:
        if name.endswith(".py"):
            tree = ast.parse((place / name).read_text(encoding="utf-8"))
            bodies |= {n.name: n.body for n in tree.body if isinstance(n, ast.FunctionDef)}
    work = {
        name: [s for s in body if not isinstance(s, ast.Pass) and not _is_text(s)]
        for name, body in bodies.items()
    }
    targets = request["targets"]
    return [n for n in targets if n not in work or [type(s) for s in work[n]] == [ast.Raise]]


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _timed(request: Mapping[str, Any], place: Path, baseline: bool = False) -> Cases:
    """Times of the first performance command that reports any, in ms by case."""
    against = request["task_type"] == "torch2hip"
    for text in request["commands"]["performance"]:
        for name in REPORTS:
            (place / name).unlink(missing_ok=True)
        command = f"{text} --baseline_only" if against and baseline else text
        code, output = _ran(request, "performance", command, place)
        own = ("ori_time" if baseline else "opt_time",) if against else ()
        reports = [place / name for name in REPORTS if (place / name).is_file()]
        for cases in (*(_reported(path, own) for path in reports), _printed(output)):
            if code == 0 and cases:
                return cases
    return {}


def _reported(path: Path, own: tuple[str, ...]) -> Cases:
    """Times of a report: a list of cases, an object with `test_cases`, or one case."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    rows = report.get("test_cases", [report]) if isinstance(report, dict) else report
    cases: Cases = {}
    for number, row in enumerate(rows if isinstance(rows, list) else []):
        ms = _milliseconds(row, own) if isinstance(row, dict) else None
        if ms:
            identity = row.get("params") or row.get("shape") or row.get("shapes")
            name = str(row.get("test_case_id") or f"test_case_{number}")
            key = json.dumps(identity, sort_keys=True, default=str) if identity else name
            cases[key] = {"ms": ms, "method": row.get("benchmark_method")}
    return cases


def _milliseconds(row: Mapping[str, Any], own: tuple[str, ...]) -> float | None:
    """The device time of a case; host times count for nothing."""
    for name in (*own, *DEVICE_TIMES, "execution_time", "time_ms", "time"):
        value = _positive(row.get(name))
        if value is not None:
            return value * (1e3 if name in ("execution_time", "time") and value >= 1e3 else 1.0)
    timing = row.get("timing_ms")
    names = ("mean", "median", "min")
    spread = [timing.get(name) for name in names] if isinstance(timing, dict) else []
    spread += [row[n] for n in sorted(row) if n.endswith("_ms") and n not in HOST_TIMES]
    return next((ms for value in spread if (ms := _positive(value)) is not None), None)


def _positive(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _printed(output: str) -> Cases:
    """Times in the text of a command, by the first pattern that fits."""
    for pattern in PRINTED:
        found = list(re.finditer(pattern, output, re.IGNORECASE))
        if found:
            several = "?P<id>" in pattern or "Performance" in pattern
            return {
                str(match.groupdict().get("id", number)): {"ms": float(match["ms"])}
                for number, match in enumerate(found if several else found[:1])
                if _positive(match["ms"])
            }
    return {}


def _speedup(baseline: Cases, optimized: Cases) -> tuple[float, str | None]:
    """The mean of the speed-ups of all cases, 0 with a reason if they do not correspond."""
    if not baseline or not optimized:
        return 0.0, f"no times of the {'submission' if baseline else 'original'}"
    if len(baseline) == len(optimized) == 1:
        baseline = dict(zip(optimized, baseline.values(), strict=True))
    if baseline.keys() != optimized.keys():
        return 0.0, "the cases of original and submission differ"
    ratios = [baseline[name]["ms"] / optimized[name]["ms"] for name in optimized]
    return sum(ratios) / len(ratios), None


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:TEXT_CHARS]


EVALUATORS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "agent-kernel-arena": _agent_kernel_arena,
    "openevolve": _openevolve,
    "pytest": _pytest,
}
BY_COMMAND = ("agent-kernel-arena",)


def main(path: str) -> None:
    """Run the evaluator of the request in confinement, and write its result.

    Commands of a task are restricted one by one: CUDA writes to /proc/self, and a process may write
    only to the folder that this was when it was restricted.
    """
    request = json.loads(Path(path).read_text(encoding="utf-8"))
    home = str(Path(__file__).resolve().parents[3])
    sys.path[:] = [home, *(name for name in sys.path if name != str(Path(__file__).parent))]
    from optimizer.evaluation.runner.confine import (
        confine,
        forbid_calls,
        leave_ipc,
        only_writes_to,
        private_shared_memory,
    )

    sys.path.remove(home)
    folder = Path(request["folder"])
    writable = [folder, *private_shared_memory()]
    applied = confine(writable, request["limits"], landlock=False) + leave_ipc()

    def restrict() -> list[str]:
        files = ["landlock"] if only_writes_to(*writable) else []
        return files + forbid_calls(metadata=request["device"] == "cpu")

    if request["format"] in BY_COMMAND:
        request["restrict"] = restrict
        applied += _in_a_fork(restrict)
    else:
        applied += restrict()
    result = {"applied": applied, **EVALUATORS[request["format"]](request)}
    (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # threads that the submission left do not keep it alive


def _in_a_fork(call: Callable[[], list[str]]) -> list[str]:
    """The result of a call in another process."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        os.write(writer, json.dumps(call()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as file:
        names: list[str] = json.loads(file.read())
    os.waitpid(pid, 0)
    return names


if __name__ == "__main__":
    main(sys.argv[1])
