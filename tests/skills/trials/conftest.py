"""A catalog and a small problem for trials of skills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kb.catalog import Catalog, open_catalog
from optimizer.evaluation.problem.spec import Problem
from tests.catalogs import fresh_data_dir
from tests.skills.trials.curated import problem_in


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = open_catalog(fresh_data_dir(tmp_path / "data"))
    yield opened
    opened.close()


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return problem_in(tmp_path / "problem")
