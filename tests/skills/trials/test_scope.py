"""Sizes of a case in the words of predicates, and whether a skill could be offered there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kb.catalog import open_catalog
from optimizer.evaluation.problem.spec import Problem
from skills.trials.trial import can_be_offered, case_sizes
from tests.catalogs import fresh_data_dir
from tests.skills.trials.curated import TEMPLATE, problem_in, skill_in

FACTS = {"cores": 8}
BYTES = (96 * 1024 + 96) * 4  # the input once and a sum for each row


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return problem_in(tmp_path / "problem")


def test_what_it_moves_and_how_long_its_sums_are(problem: Problem) -> None:
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
        ("problem.language == 'triton'", False),  # it is about C++
        ("facts.cores > 8", False),
        # Nothing ran yet: a verdict may have a signal, or lack it.
        ("signals.memory_bound and problem.op in ['reduction']", True),
        ("not signals.memory_bound and metrics.ipc < 1", True),
        ("signals.memory_bound and problem.reduction_length < 64", False),
    ],
)
def test_a_precondition_leaves_a_case_in_unless_it_is_certainly_out(
    problem: Problem, tmp_path: Path, predicate: str, offered: bool
) -> None:
    catalog = open_catalog(fresh_data_dir(tmp_path / "data"))
    metadata = {"kb.languages": "cpp", **({"kb.predicate": predicate} if predicate else {})}
    skill = skill_in(catalog, tmp_path, TEMPLATE, metadata=metadata)
    catalog.close()
    assert can_be_offered(skill, problem, problem.cases[0], FACTS) is offered
