"""A catalog and a small problem for trials of skills."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.evaluation.problem.spec import Problem
from tests.skills.trials.curated import problem_in


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return problem_in(tmp_path / "problem")
