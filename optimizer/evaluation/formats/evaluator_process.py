"""The process of a task's own evaluator: `python -I -B evaluator_process.py REQUEST`, where REQUEST
is a JSON file in the only folder that it may write to. It gives up privileges, runs the evaluator,
and writes its result to `result.json` in the same folder.

The submission runs in this process too, because evaluators import it.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

RESULT = "result.json"
TEXT_CHARS = 4_000
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


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:TEXT_CHARS]


EVALUATORS: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "openevolve": _openevolve,
    "pytest": _pytest,
}


def main(path: str) -> None:
    """Confine this process, run the evaluator of the request, and write its result."""
    request = json.loads(Path(path).read_text(encoding="utf-8"))
    home = str(Path(__file__).resolve().parents[3])
    sys.path[:] = [home, *(name for name in sys.path if name != str(Path(__file__).parent))]
    from optimizer.evaluation.runner.confine import (
        confine,
        forbid_calls,
        leave_ipc,
        private_shared_memory,
    )

    sys.path.remove(home)
    folder = Path(request["folder"])
    applied = confine([folder, *private_shared_memory()], request["limits"])
    applied += leave_ipc() + forbid_calls(metadata=request["device"] == "cpu")
    result = {"applied": applied, **EVALUATORS[request["format"]](request)}
    (folder / RESULT).write_text(json.dumps(result), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # threads that the submission left do not keep it alive


if __name__ == "__main__":
    main(sys.argv[1])
