"""Evaluations as rows: one per key, also after a kill and a repeated request."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from kb.blobs import open_blobs
from kb.catalog import Catalog, open_catalog
from kb.catalog import tables as t
from kb.catalog.evaluations import Evaluations
from kb.plain import from_json
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.catalog_journal import CatalogJournal
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.launch import PreparedProcesses
from optimizer.evaluation.isolation.runner_process import RunnerPool
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Evaluation, EvaluationVerdict
from optimizer.evaluation.settings import EvaluationSettings, TimingPolicy
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.python import TorchPython
from tests.catalogs import environment_of, fresh_data_dir
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=15)

PROBLEM = model_text("x * 2", "torch.randn(64, 64)")
CANDIDATE = """
import time
import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        time.sleep({sleep})
        return x + x
"""
CPU = EvaluationTarget("x86-64", ("x86-64",), "native", "cpu")
SETTINGS = EvaluationSettings(
    threads=1,
    call_seconds=20.0,
    timing=TimingPolicy(block_ms=1.0, min_pairs=4, max_pairs=4, quiet=1e6, seconds=30.0),
)


def evaluate(folder: Path, sleep: float, pool: RunnerPool | None = None) -> None:
    """One evaluation with the store in `folder`; without a pool it has its own runners."""
    catalog = open_catalog(folder, os.environ.get("KERNLORE_CATALOG"))
    blobs = open_blobs(folder, os.environ.get("KERNLORE_BLOB_URL"))
    journal = CatalogJournal(Evaluations(catalog), blobs)
    bundle = Bundle({"m.py": CANDIDATE.format(sleep=sleep)}, "m.py", "torch", "ModelNew")
    problem = load_problem(folder / "double.py")
    with Evaluator(problem, CPU, SETTINGS, journal, pool=pool) as evaluator:
        evaluation = evaluator.evaluate(bundle, TorchPython())
    assert evaluation.correct, evaluation
    catalog.close()


def work(arguments: Sequence[str]) -> int:
    """In a separate process: evaluate one candidate into the store of the test."""
    folder, sleep = arguments
    evaluate(Path(folder), float(sleep))
    return 0


@pytest.fixture(scope="module")
def processes() -> Iterator[PreparedProcesses]:
    """Forks of a process with the needed imports, as in a service."""
    prepared = PreparedProcesses("tests.optimizer.evaluation.test_journal:work")
    yield prepared
    prepared.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[tuple[Path, Catalog]]:
    (tmp_path / "double.py").write_text(PROBLEM)
    catalog = open_catalog(fresh_data_dir(tmp_path))
    yield tmp_path, catalog
    catalog.close()


def rows(catalog: Catalog, table: sa.Table) -> list[sa.Row[object]]:
    with catalog.read() as connection:
        return list(connection.execute(sa.select(table)).all())


def test_evaluation_is_one_row_and_reused(store: tuple[Path, Catalog], pool: RunnerPool) -> None:
    folder, catalog = store
    evaluate(folder, 0, pool)
    evaluate(folder, 0, pool)
    (row,) = rows(catalog, t.evaluations)
    assert row.state == "finished" and row.validity == "correct"
    assert len(rows(catalog, t.candidates)) == len(rows(catalog, t.problems)) == 1
    (case,) = rows(catalog, t.evaluation_cases)
    assert case.correct and case.baseline_us > 0
    record = Evaluations(catalog).find(row.key).record  # type: ignore[union-attr]
    assert record is not None
    assert json.loads(json.dumps(from_json(Evaluation, record).as_json())) == record


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks are for Linux")
@pytest.mark.parametrize("stage", ["parse", "correctness"])
def test_killed_evaluation_resumes(
    store: tuple[Path, Catalog], pool: RunnerPool, processes: PreparedProcesses, stage: str
) -> None:
    """Killed during correctness or during the benchmark; the second process finishes it, with one
    row.
    """
    folder, catalog = store
    environment = os.environ | environment_of(folder)
    # Slow enough to be killed in the stage after the stored one.
    child = processes.start([str(folder), "0.1"], environment, folder, output=(1, 2))
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if any(row.stage == stage for row in rows(catalog, t.evaluations)):
            break
        time.sleep(0.02)
    child.end()
    (before,) = rows(catalog, t.evaluations)
    assert before.state == "running"
    evaluate(folder, 0.1, pool)
    (after,) = rows(catalog, t.evaluations)
    assert after.id == before.id and after.state == "finished"
    notes = Evaluations(catalog).find(after.key).record["notes"]  # type: ignore[union-attr, index]
    assert any("interrupted" in note for note in notes) == (stage == "correctness")
    assert len(rows(catalog, t.evaluation_cases)) == 1


def test_verdict_keeps_its_stored_form() -> None:
    stored = {
        "signals": [{"id": "memory_bound", "confidence": "B", "evidence": [{"name": "x"}]}],
        "unrecognised": [],
        "ruled_out": [{"signal": "poor_reuse"}],
        "abstained": [],
        "measure_next": ["ipc"],
        "signatures": [],
        "hint": "",
        "lines": [],
        "metrics": {"call_us": 3.0},
        "problem": {"flops": 4},
        "case": "main",
        "primary": "memory_bound",
        "kernels": [{"name": "add", "us": 3.0}],
        "not_measured": {"perf": "no counters"},
        "op": "matmul",
    }
    assert json.dumps(from_json(EvaluationVerdict, stored).as_json()) == json.dumps(stored)
    assert from_json(EvaluationVerdict, {}).as_json() == {}
    older = from_json(
        EvaluationVerdict,
        {"signals": [{"id": "poor_reuse", "confidence": ""}], "of_a_newer_harness": 1},
    )
    assert older.signal_ids == ("poor_reuse",) and older.metrics == {}
