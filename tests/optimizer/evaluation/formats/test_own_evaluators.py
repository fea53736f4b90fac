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
