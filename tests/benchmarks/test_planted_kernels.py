"""Declarations of the planted kernels, on which a GPU run depends."""

from __future__ import annotations

import pytest

from benchmarks.evaluation.gpu_machine import target_of
from benchmarks.evaluation.planted_kernels import FOLDER, Planted, all_planted
from optimizer.evaluation.evaluator import source_flags
from optimizer.evaluation.problem.check import check_problem
from optimizer.evaluation.problem.load import load_problem
from retrieval.diagnose.signals import load_signals

PROBLEMS = sorted(path.stem for path in (FOLDER / "problems").glob("*.py"))


@pytest.mark.parametrize("planted", all_planted(), ids=lambda planted: planted.name)
def test_every_kernel_has_known_signals_case_and_honest_source(planted: Planted) -> None:
    assert {*planted.expect} <= {*load_signals().ids}
    problem, case = planted.load()
    assert case.fits("cuda") and case in problem.searched
    assert source_flags(planted.bundle) == []


def test_every_kernel_file_is_declared() -> None:
    files = {path.name for path in (FOLDER / "kernels").iterdir() if path.suffix in (".py", ".cu")}
    assert files == {planted.file for planted in all_planted()}


@pytest.mark.parametrize("name", PROBLEMS)
def test_control_passes_none_of_their_problems(name: str) -> None:
    assert check_problem(load_problem(FOLDER / "problems" / f"{name}.py")) == []


def test_target_comes_from_hardware_files() -> None:
    target = target_of("h200", None)
    assert target.lineage == ("h200", "hopper", "nvidia", "any")
    assert (target.arch, target.device) == ("90", None)
    # From the data sheet, though a measured one exists too.
    assert target.facts["memory_bandwidth"] == 4.8e12
