"""Tasks with their own evaluator, run in confined processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kb.errors import InvalidRequest, NotFound, Unavailable
from optimizer.evaluation.formats import evaluator_format_of, format_of
from optimizer.evaluation.formats.own_evaluators import OwnResult
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.runner.confine import landlock_abi
from tests.api.cli_process import kernlore

pytestmark = pytest.mark.slow(seconds=15)

EVALUATOR = """\
import importlib.util
import time

from helper import INPUT


class Result:
    def __init__(self, metrics):
        self.metrics = metrics


def evaluate(program_path):
    spec = importlib.util.spec_from_file_location("program", program_path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    began = time.perf_counter()
    output = program.doubled(INPUT)
    seconds = time.perf_counter() - began
    if output is None:
        return {"combined_score": 0.0}
    right = sum(y == 2 * x for x, y in zip(INPUT, output)) / len(INPUT)
    return Result({"correctness": right, "seconds": seconds, "worst": float("inf")})
"""
RIGHT = "def doubled(values):\n    return [x + x for x in values]\n"
TESTS = """\
import pytest
from solution import doubled


@pytest.mark.parametrize("n", [1, 5])
def test_right(n):
    assert doubled(list(range(n))) == [2 * x for x in range(n)]
"""


@pytest.fixture
def evolve(tmp_path: Path) -> Path:
    folder = tmp_path / "doubling"
    folder.mkdir()
    (folder / "evaluator.py").write_text(EVALUATOR)
    (folder / "initial_program.py").write_text(RIGHT)
    (folder / "helper.py").write_text("INPUT = [1.0, 2.5, 4.0, -3.0]\n")
    (folder / "config.yaml").write_text("evaluator:\n  timeout: 60\n")
    return folder


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    folder = tmp_path / "checks"
    folder.mkdir()
    (folder / "solution.py").write_text("def doubled(values):\n    raise NotImplementedError\n")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    path = folder / "test_doubled.py"
    path.write_text(TESTS)
    return path


def evaluated(task: Path, text: str, name: str = "mine.py") -> OwnResult:
    submission = task.parent / name
    submission.write_text(text)
    form = evaluator_format_of(task)
    assert form is not None
    return form.evaluate(task, submission, "auto")


def test_metrics_of_an_evaluator_are_verdict(evolve: Path) -> None:
    result = evaluated(evolve, RIGHT)
    assert (result.verdict, result.message) == ("correct", "")
    assert result.report["metrics"]["correctness"] == 1.0
    assert 0 < result.report["metrics"]["seconds"] < 60
    assert result.report["metrics"]["worst"] == "inf"  # not a JSON number
    result = evaluated(evolve, RIGHT.replace("x + x", "x + 2.5"))
    assert result.verdict == "incorrect" and "correctness is 0.25" in result.message
    result = evaluated(evolve, RIGHT.replace("return", "raise OSError;"))
    assert result.verdict == "incorrect" and "the evaluator failed: OSError" in result.message
    result = evaluated(evolve, RIGHT.replace("[x + x for x in values]", "None"))
    assert result.verdict == "none" and "metrics: combined_score" in result.message


def test_submission_that_ends_or_delays_evaluator_is_incorrect(evolve: Path) -> None:
    result = evaluated(evolve, "import os\n\nos._exit(0)\n")
    assert result.verdict == "incorrect" and "code 0 and no result" in result.message
    (evolve / "config.yaml").write_text("evaluator:\n  timeout: 2\n")
    result = evaluated(evolve, "import time\n\ntime.sleep(60)\n")
    assert result.verdict == "incorrect" and "within 2 seconds" in result.message
    assert result.seconds < 30
    text = json.dumps({"applied": [], "metrics": 1})
    forged = f"import os\n\nopen('result.json', 'w', 1).write({text!r} + chr(10))\nos._exit(0)\n"
    result = evaluated(evolve, forged)
    assert result.verdict == "incorrect" and result.report == {}


@pytest.mark.skipif(
    level_for("auto") != "namespaces" or not landlock_abi(), reason="needs namespaces and Landlock"
)
def test_evaluator_is_isolated(evolve: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    tries = {
        f"open({str(outside)!r}, 'w')": "PermissionError",
        "__import__('socket').create_connection(('192.0.2.1', 9), 1)": "Network is unreachable",
    }
    for attempt, error in tries.items():
        result = evaluated(evolve, f"{attempt}\n{RIGHT}")
        assert result.verdict == "incorrect" and error in result.message
    assert not outside.exists()
    assert evaluated(evolve, f"open('inside', 'w')\n{RIGHT}").verdict == "correct"
    shared = Path("/dev/shm/kernlore-test-own-evaluators")
    pool = f"import multiprocessing\n\nmultiprocessing.Lock()\nopen({str(shared)!r}, 'w')\n{RIGHT}"
    assert evaluated(evolve, pool).verdict == "correct" and not shared.exists()
    assert result.level == "namespaces" and "landlock" in result.applied


def test_unimportable_evaluator_is_an_error_of_task(evolve: Path) -> None:
    (evolve / "helper.py").unlink()
    with pytest.raises(Unavailable, match="No module named 'helper'"):
        evaluated(evolve, RIGHT)
    (evolve / "config.yaml").write_text("evaluator:\n  timeout: soon\n")
    with pytest.raises(InvalidRequest, match="soon"):
        evaluated(evolve, RIGHT)


def test_pytest_results_are_verdict(tests: Path) -> None:
    result = evaluated(tests, RIGHT)  # its name differs, and the stub next to the tests is not used
    assert (result.verdict, result.message) == ("correct", "")
    names = ["test_doubled.py::test_right[1]", "test_doubled.py::test_right[5]"]
    assert list(result.report["tests"]) == names
    assert all(test["seconds"] >= 0 for test in result.report["tests"].values())
    result = evaluated(tests, RIGHT.replace("x + x", "x * x"))
    assert (result.verdict, result.message) == ("incorrect", "pytest: 1 failed, 1 passed")
    assert "assert" in result.log
    result = evaluated(tests, "import os\n\nos._exit(0)\n", "solution.py")
    assert result.verdict == "incorrect"
    result = evaluated(tests, "import pytest\n\npytest.skip(allow_module_level=True)\n")
    assert result.verdict == "none"


def test_classes_of_unittest_are_tests(tests: Path) -> None:
    case = (
        "import unittest\nfrom solution import doubled\n\n\nclass DoubledTest(unittest.TestCase):\n"
    )
    tests.write_text(f"{case}    def test_it(self):\n        assert doubled([1]) == [2]\n")
    assert evaluated(tests, RIGHT).verdict == "correct"
    assert evaluated(tests, RIGHT.replace("x + x", "x + 2")).verdict == "incorrect"


def test_submission_replaces_only_module_under_test(tests: Path) -> None:
    with pytest.raises(NotFound, match="no file"):
        form = evaluator_format_of(tests)
        assert form is not None
        form.evaluate(tests, tests.parent / "absent.py", "auto")
    assert evaluated(tests, RIGHT, "pytest.py").verdict == "correct"  # as solution.py
    tests.write_text("import json\n\n\ndef test_nothing():\n    assert json\n")
    with pytest.raises(InvalidRequest, match="imports no module 'mine'"):
        evaluated(tests, RIGHT)


def test_formats_are_recognised(evolve: Path, tests: Path) -> None:
    assert [form.name for form in map(evaluator_format_of, (evolve, tests)) if form] == [
        "openevolve",
        "pytest",
    ]
    assert evaluator_format_of(tests.parent / "solution.py") is None
    with pytest.raises(InvalidRequest, match="is no task of openevolve"):
        evaluator_format_of(tests, "openevolve")
    (evolve / "evaluator.py").write_text("")
    assert evaluator_format_of(evolve) is None
    with pytest.raises(InvalidRequest, match="is unknown") as raised:
        format_of(evolve)
    assert "openevolve: a folder" in (raised.value.hint or "")


def test_command_names_source_of_verdict(evolve: Path, tmp_path: Path) -> None:
    submission, output = tmp_path / "wrong.py", tmp_path / "judgement.json"
    submission.write_text(RIGHT.replace("x + x", "x"))
    given = ("judge", submission, "--task", evolve)
    ran = kernlore(*given, "--output", output, "--report", tmp_path / "r", data=tmp_path / "data")
    assert ran.code == 3 and ran.out.startswith("incorrect: by the evaluator's metrics")
    assert "note: Verdict and times are those of the task's own evaluator" in ran.out
    assert json.loads((tmp_path / "r").read_text())["metrics"]["correctness"] == 0.0
    verified = kernlore("judge", output, "--verify", data=tmp_path / "data")
    assert verified.code == 3 and verified.out == ran.out
    refused = kernlore(*given, "--strict-shapes", data=tmp_path / "data")
    assert refused.code == 2 and "own evaluator chooses" in refused.err


# -- AgentKernelArena

ARENA_CONFIG = """\
task_type: triton2triton
source_file_path: [source/doubling.py]
target_kernel_functions: [doubled]
compile_command: [python3 -m py_compile source/doubling.py]
correctness_command: ["python3 scripts/task_runner.py correctness"]
performance_command: ["python3 scripts/task_runner.py performance"]
compile_timeout: 60
correctness_timeout: 60
performance_timeout: 60
"""
ARENA_RUNNER = """\
import json
import pathlib
import subprocess
import sys

sys.path.insert(0, "source")
from doubling import doubled

subprocess.Popen(["sleep", "90"])  # longer than the command may take; it keeps stdout open

# >>> AKA-GENERATED: shared >>>
def measured(*args):
    raise RuntimeError("stub")
# <<< AKA-GENERATED <<<

pathlib.Path("/proc/self/comm").write_text("named")  # as CUDA names its threads
if sys.argv[1] == "correctness":
    sys.exit(doubled([1, 2]) != [2, 4])
rows = [{"test_case_id": f"n{n}", "shape": [n], **measured(doubled, n)} for n in (4, 8)]
pathlib.Path("build").mkdir(exist_ok=True)
pathlib.Path("build/performance_report.json").write_text(json.dumps(rows))
"""
ARENA_HELPER = """\
import nothing_that_tasks_have


def measured(function, n):
    function([0] * n)
    return {"execution_time_ms": COST * n, "benchmark_method": "counted"}
"""


@pytest.fixture
def arena(tmp_path: Path) -> Path:
    checkout = tmp_path / "arena"
    task = checkout / "tasks" / "triton2triton" / "doubling"
    helpers = checkout / "src" / "tools" / "perf"
    for folder in (task / "source", task / "scripts", helpers):
        folder.mkdir(parents=True)
    (task / "config.yaml").write_text(ARENA_CONFIG)
    (task / "scripts" / "task_runner.py").write_text(
        ARENA_RUNNER.replace("import doubled", "import COST, doubled")
    )
    (task / "source" / "doubling.py").write_text("COST = 3.0\n" + RIGHT)
    (helpers / "vllm_cuda_graph_block.py").write_text(ARENA_HELPER)
    return task


def test_arena_task_is_judged_by_its_commands(arena: Path) -> None:
    result = evaluated(arena, "COST = 1.5\n" + RIGHT, "doubling.py")
    assert (result.verdict, result.message) == ("correct", ""), result.log
    metrics = result.report["metrics"]
    assert metrics["base_execution_time"] == 18.0
    assert metrics["best_optimized_execution_time"] == 9.0
    assert (metrics["speedup_ratio"], metrics["score"]) == (2.0, 320.0)
    assert metrics["optimized_benchmark_methods"] == ["counted"]
    form = evaluator_format_of(arena)
    assert form is not None and form.name == "agent-kernel-arena"
    assert "speedup_ratio: 2.0\n" in form.write_back(result.report)
    wrong = evaluated(arena, "COST = 1.5\n" + RIGHT.replace("x + x", "x + 1"), "doubling.py")
    assert wrong.verdict == "incorrect" and wrong.report["metrics"]["score"] == 20.0
    broken = evaluated(arena, "COST = (\n", "doubling.py")
    assert "compilation failed" in broken.message and "SyntaxError" in broken.message


def test_arena_submission_is_one_of_its_files_or_a_folder(arena: Path, tmp_path: Path) -> None:
    form = evaluator_format_of(arena)
    assert form is not None
    folder = tmp_path / "mine"
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "doubling.py").write_text("COST = 3.0\n" + RIGHT)
    assert form.evaluate(arena, folder, "auto").verdict == "correct"
    (folder / "source" / "doubling.py").rename(folder / "doubling.py")
    with pytest.raises(InvalidRequest, match="replaces no source file of doubling"):
        form.evaluate(arena, folder, "auto")
    (arena / "config.yaml").write_text(ARENA_CONFIG + "platform_support: {required_arch: gfx942}\n")
    with pytest.raises(Unavailable, match="it is for gfx942"):
        form.evaluate(arena, folder / "doubling.py", "auto")
