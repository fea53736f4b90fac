"""`kernlore judge` as a leaderboard runs it: exit codes, files and signatures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.cli_process import kernlore
from tests.catalogs import fresh_data_dir
from tests.known_device import store_ceilings
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=20)

TASK = model_text("torch.relu(x) * 2", "torch.randn(rows, 256)", head="rows = 64")
SUBMISSION = """\
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
"""
TRY = "try:\n            return undefined(x)\n        except Exception:\n            "
BODIES = {
    "correct": "return x.clamp(min=0) * 2",
    "incorrect": "return x * 2",
    "rejected": TRY + "return torch.relu(x) * 2",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_ceilings(fresh_data_dir(tmp_path_factory.mktemp("judge") / "data"))


def test_exit_code_is_the_verdict(tmp_path: Path, data: Path) -> None:
    task, key = tmp_path / "doubled_relu.py", tmp_path / "key"
    task.write_text(TASK)
    key.write_text("a secret of the judge\n")
    for (verdict, body), code in zip(BODIES.items(), (0, 3, 4), strict=True):
        submission = tmp_path / f"{verdict}.py"
        submission.write_text(SUBMISSION.format(body=body))
        output, report = tmp_path / f"{verdict}.json", tmp_path / "report.json"
        files = ("--output", output, "--report", report, "--sign-key", key)
        ran = kernlore("judge", submission, "--task", task, *files, data=data)
        assert ran.code == code, ran.out + ran.err
        assert ran.out.startswith(verdict)
        assert json.loads(report.read_text())["correctness"] == (verdict == "correct")
        again = kernlore("judge", output, "--verify", "--sign-key", key, data=data)
        assert again.code == code and again.out == ran.out
        record = json.loads(output.read_text())
        assert record["task"]["format"] == "kernelbench"
        if verdict == "correct":
            hidden = record["hidden"]
            assert hidden["shapes"] == ["rows=63", "rows=65", "rows=32"]
            assert hidden["validity"] == "correct"


def test_submission_for_one_shape_is_reported(tmp_path: Path, data: Path) -> None:
    task, submission = tmp_path / "doubled_relu.py", tmp_path / "fixed.py"
    task.write_text(TASK)
    submission.write_text(SUBMISSION.format(body="assert len(x) == 64; return x.clamp(min=0) * 2"))
    given = ("judge", submission, "--task", task, "--json")
    ran = kernlore(*given, data=data)
    assert (ran.code, ran.json["verdict"]) == (0, "correct")
    assert "correct on the shapes of the task, but" in ran.json["message"]
    strict = kernlore(*given, "--strict-shapes", data=data)
    assert (strict.code, strict.json["verdict"]) == (3, "incorrect")


def test_invalid_input_has_exit_code_2(tmp_path: Path, data: Path) -> None:
    submission = tmp_path / "submission.py"
    submission.write_text("")
    ran = kernlore("judge", submission, data=data)
    assert ran.code == 2 and "Give it as --task." in ran.err
    ran = kernlore("judge", submission, "--task", tmp_path, data=data)
    assert ran.code == 2 and "the format of the task" in ran.err


def test_folder_of_tasks_is_judged(tmp_path: Path, data: Path) -> None:
    tasks, submissions = tmp_path / "level1", tmp_path / "run"
    for folder in (tasks, submissions):
        folder.mkdir()
    for name in ("1_doubled.py", "2_another.py", "10_third.py"):
        (tasks / name).write_text(TASK)
    for name, verdict in (
        ("1_doubled.py", "correct"),
        ("level_1_problem_2_sample_0_kernel.py", "incorrect"),
        ("level_1_problem_2_sample_1_kernel.py", "correct"),
        ("level_2_problem_10_sample_0_kernel.py", "correct"),
    ):
        (submissions / name).write_text(SUBMISSION.format(body=BODIES[verdict]))
    output, report = tmp_path / "all.json", tmp_path / "eval_results.json"
    files = ("--output", output, "--report", report)
    ran = kernlore("judge", submissions, "--task", tasks, *files, data=data)
    assert ran.code == 3 and ran.out.startswith("incorrect: 2 of 3 submissions are correct")
    assert "no submission: 10_third.py" in ran.out
    results = json.loads(report.read_text())
    found = {n: [(r["sample_id"], r["correctness"]) for r in rows] for n, rows in results.items()}
    assert found == {"1": [(0, True)], "2": [(0, False), (1, True)]}
    assert kernlore("judge", output, "--verify", data=data).out == ran.out
