"""Runners shared by tests: the interpreter that they are forked from takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerSettings


@pytest.fixture(scope="session")
def pool() -> Iterator[RunnerPool]:
    """Runners with one thread on the CPU, at the isolation level that evaluations choose here."""
    pool = RunnerPool(RunnerSettings("cpu", 1, level_for("auto")))
    yield pool
    pool.close()
