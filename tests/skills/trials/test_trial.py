"""Unseen cases: held-out ones first, then other sizes; their quantities and preconditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kb.catalog import open_catalog
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Problem
from skills.trials.trial import HeldOutCase, as_only, can_be_offered, case_sizes, held_out_cases
from tests.catalogs import fresh_data_dir
from tests.skills.trials.curated import TEMPLATE, problem_in, skill_in


def first_cases(
    problem: Problem, device: str, count: int, seed: int, known: Sequence[str] = ()
) -> list[HeldOutCase]:
    return list(islice(held_out_cases(problem, device, seed, known), count))


def test_held_out_cases_come_first_each_timed_alone(tmp_path: Path) -> None:
    problem = problem_in(tmp_path)
    cases = first_cases(problem, "cpu", 4, seed=0)
    assert [target.why for target in cases] == ["held out", *["other sizes"] * 3]
    for target in cases:
        assert target.problem.searched == (target.case,) and not target.problem.held_out
        assert target.case.timed and target.problem.sha256 == problem.sha256
    sizes = [target.case.constants for target in cases]
    searched = [case.constants for case in problem.searched]
    assert all(size not in searched for size in sizes)
    assert len({tuple(size.values()) for size in sizes}) == 4
    shapes = [OpenCase(target.problem, target.case).signature.tensors[0].shape for target in cases]
    assert shapes == [(size["rows"], size["cols"]) for size in sizes]


def test_equal_seeds_draw_equal_sizes_without_known_ones(tmp_path: Path) -> None:
    problem = problem_in(tmp_path)
    names = [target.case.name for target in first_cases(problem, "cpu", 4, seed=3)]
    assert names == [target.case.name for target in first_cases(problem, "cpu", 4, seed=3)]
    left = first_cases(problem, "cpu", 3, seed=3, known=names[:1])
    assert [target.case.name for target in left] == names[1:]


def test_case_names_distinguish_sizes(tmp_path: Path) -> None:
    """An evaluation is stored by the names of its cases, so two sizes must differ in name."""
    problem = problem_in(tmp_path)
    by_name: dict[str, Mapping[str, Any]] = {}
    for seed in range(6):
        for target in first_cases(problem, "cpu", 6, seed=seed):
            sizes = by_name.setdefault(target.case.name, target.case.constants)
            assert sizes == target.case.constants
    assert len(by_name) > 6


def test_sizes_that_fail_in_problem_are_not_cases(tmp_path: Path) -> None:
    path = tmp_path / "square.py"
    path.write_text(
        "import torch\nimport torch.nn as nn\nrows = 64\ncols = 64\n"
        "class Model(nn.Module):\n    def forward(self, x):\n        return x @ torch.ones(64)\n"
        "def get_inputs():\n    return [torch.randn(rows, cols)]\n",
        encoding="utf-8",
    )
    path.with_suffix(".toml").write_text(
        'name = "square"\nop = "matmul"\n[[cases]]\nname = "main"\n'
        "constants = {rows = 64, cols = 64}\n",
        encoding="utf-8",
    )
    cases = first_cases(load_problem(path), "cpu", 9, seed=0)
    assert cases and {target.case.constants["cols"] for target in cases} == {64}


def test_case_for_another_device_is_excluded(tmp_path: Path) -> None:
    problem = problem_in(tmp_path)
    cases = tuple(replace(case, devices=("cuda",)) for case in problem.cases)
    assert first_cases(replace(problem, cases=cases), "cpu", 3, seed=0) == []
    only = as_only(problem, problem.held_out[0], "held out")
    assert only.problem.cases == (only.case,) and not only.case.held_out


# -- sizes of a case in the terms of predicates, and whether a skill applies

FACTS = {"cores": 8}
BYTES = (96 * 1024 + 96) * 4  # the input once, and a sum for each row


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return problem_in(tmp_path / "problem")


def test_moved_bytes_and_reduction_length_of_a_case(problem: Problem) -> None:
    main = problem.cases[0]
    assert case_sizes(problem, main) == {"compulsory_bytes": BYTES, "reduction_length": 1024}
    broken = replace(main, constants={**main.constants, "rows": -1})
    assert case_sizes(problem, broken) == {}


@pytest.mark.parametrize(
    ("predicate", "offered"),
    [
        ("", True),
        ("problem.op in ['reduction'] and problem.reduction_length <= 4096", True),
        ("problem.op in ['softmax']", False),
        (f"problem.compulsory_bytes > {BYTES}", False),
        ("problem.dtype == 'float16'", False),
        ("problem.language == 'triton'", False),  # the skill is about C++
        ("facts.cores > 8", False),
        # Nothing has run yet: a verdict may have a signal, or lack it.
        ("signals.memory_bound and problem.op in ['reduction']", True),
        ("not signals.memory_bound and metrics.ipc < 1", True),
        ("signals.memory_bound and problem.reduction_length < 64", False),
    ],
)
def test_precondition_excludes_case_only_if_certainly_false(
    problem: Problem, tmp_path: Path, predicate: str, offered: bool
) -> None:
    catalog = open_catalog(fresh_data_dir(tmp_path / "data"))
    metadata = {"kb.languages": "cpp", **({"kb.predicate": predicate} if predicate else {})}
    skill = skill_in(catalog, tmp_path, TEMPLATE, metadata=metadata)
    catalog.close()
    assert can_be_offered(skill, problem, problem.cases[0], FACTS) is offered
