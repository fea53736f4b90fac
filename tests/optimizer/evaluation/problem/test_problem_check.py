"""Problems that cannot distinguish right from wrong are detected; shipped ones can."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb.errors import Conflict, InvalidRequest
from optimizer.evaluation.problem.check import CaseFault, check_problem
from optimizer.evaluation.problem.load import load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.problem.template import write_problem
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=5)


def problem_of(tmp_path: Path, forward: str, inputs: str = "torch.randn(64, 128)") -> Problem:
    weights = "self.weight = nn.Parameter(torch.rand(128) + 0.5)\n"
    weights += "self.bias = nn.Parameter(torch.zeros(128))"
    path = tmp_path / "p.py"
    text = model_text(forward, f"{inputs}, torch.randn(64, 128)", takes="x, y", init=weights)
    path.write_text(text, encoding="utf-8")
    return load_problem(path)


def invalid(findings: list[CaseFault]) -> list[str]:
    return [finding.message for finding in findings if finding.severity == "invalid"]


def test_honest_problem_passes(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "return x * self.weight + self.bias + y")
    assert not invalid(check_problem(problem))


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        ("return (x + y) * 0 * (self.weight + self.bias)", "all zeros would pass"),
        ("return x + 1e-9 * (self.weight + self.bias + y)", "a copy of the input x would pass"),
        ("s = (x * y * self.weight + self.bias); return s.mean()", "the mean of the right result"),
        ("return torch.softmax(x, 0).sum(0) + 0 * y.sum()", "is the same everywhere"),
        ("return x + y + torch.rand_like(x) * self.weight + self.bias", "in the next call"),
        ("return x * self.weight + self.bias", "no output depends on the input y"),
        ("return x * y + self.weight", "no output depends on the weight bias"),
        ("return (x + y) * self.weight / (self.bias - self.bias)", "nowhere finite"),
    ],
)
def test_invalid_problem_has_reasons(tmp_path: Path, forward: str, message: str) -> None:
    found = invalid(check_problem(problem_of(tmp_path, forward)))
    assert any(message in one for one in found), found


def test_bound_wider_than_result_is_found(tmp_path: Path) -> None:
    """Long sums in bfloat16: the allowed error exceeds the variation of the result."""
    problem = problem_of(
        tmp_path, "return (x * self.weight + y + self.bias).sum(1)", "torch.rand(64, 128) + 99"
    )
    assert not invalid(check_problem(problem))
    narrow = check_problem(problem, cases=[Case("bf16", dtype="bfloat16")])
    assert any("would pass" in message for message in invalid(narrow))


def test_small_case_is_a_warning_only_if_timed(tmp_path: Path) -> None:
    problem = problem_of(tmp_path, "return x * self.weight + self.bias + y")
    (warning,) = check_problem(problem)
    assert warning.severity == "warning" and "too little to time" in warning.message
    assert check_problem(problem, cases=[Case("small", timed=False)]) == []


@pytest.mark.parametrize("name", shipped_problems())
def test_shipped_problem_is_trusted(name: str) -> None:
    problem = load_problem(Path(name))
    assert problem.declared and problem.name == name and problem.op != "unknown"
    timed = [case for case in problem.searched if case.timed and case.fits("cpu")]
    assert timed and any(case.timed and case.fits("cuda") for case in problem.searched)
    assert any(case.timed and case.fits("cpu") for case in problem.held_out)
    small = [case for case in problem.cases if not case.timed]
    assert check_problem(problem, cases=small[:1]) == []


@pytest.mark.parametrize("op", ["elementwise", "softmax", "gemm", "made_up"])
def test_new_problem_passes_as_written(tmp_path: Path, op: str) -> None:
    folder = write_problem("my_kernel", tmp_path, op)
    problem = load_problem(folder)
    assert problem.held_out and problem.declared
    small = [case for case in problem.cases if not case.timed]
    assert check_problem(problem, cases=small) == []
    with pytest.raises(Conflict):
        write_problem("my_kernel", tmp_path, op)


def test_new_problem_needs_valid_file_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        write_problem("../My Kernel", tmp_path)
