"""Several searches of one command, some of which end before any measurement."""

from __future__ import annotations

from pathlib import Path

from api.cli.commands.optimize import _answer, _Search
from kb import clock
from kb.catalog.tables import problems
from kb.ids import derived_id
from kb.settings import Settings
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.goal import Goal
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from retrieval.knowledge_base import KnowledgeBase
from tests.catalogs import builtin_data_dir

REASON = "work on a node failed: the process ended"


def test_search_that_fails_before_its_reference_has_reason(tmp_path: Path) -> None:
    """It used to end the whole command, with the answers of all others, in an IndexError."""
    base = KnowledgeBase(Settings(data_dir=builtin_data_dir(tmp_path / "data")))
    problem = load_problem(Path("softmax"))
    sha, path = problem.sha256, problem.path
    with base.catalog.write() as connection:
        row = {"id": derived_id("prb", sha), "name": "softmax", "sha256": sha, "provider": "file"}
        rest = {"op_family": "softmax", "blob_key": "", "policy": {}, "created_at": clock.now()}
        connection.execute(problems.insert().values(**row, **rest, access_scope="all"))
    run = RunRow("run_1", str(path), sha, "x86-64", Goal(), state="failed", ended=REASON)
    run_store(base).begin(run)
    answer = _answer(base, _Search(path, "softmax", "run_1"), tmp_path / "out")
    assert answer == {"problem": "softmax", "run": "run_1", "error": f"failed: {REASON}"}
    assert not (tmp_path / "out").exists()
    base.close()
