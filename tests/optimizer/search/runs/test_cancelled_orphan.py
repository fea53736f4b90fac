"""A cancelled run of a killed service: the answer says that it has not ended yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from kb import clock
from kb.catalog.tables import problems
from kb.ids import derived_id
from kb.settings import Settings
from optimizer.search.goal import Goal
from optimizer.search.runs import processes
from optimizer.search.runs.processes import ServiceRuns
from optimizer.search.runs.run_store import RunLock, run_store
from optimizer.search.store import RunRow
from retrieval.knowledge_base import KnowledgeBase
from tests.catalogs import builtin_data_dir

SHA = "0" * 64


@pytest.mark.slow
def test_cancel_reports_process_that_is_still_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "CANCEL_SECONDS", 0.3)
    base = KnowledgeBase(Settings(data_dir=builtin_data_dir(tmp_path / "data")))
    with base.catalog.write() as connection:
        row = {"id": derived_id("prb", SHA), "name": "softmax", "sha256": SHA, "provider": "file"}
        rest = {"op_family": "softmax", "blob_key": "", "policy": {}, "created_at": clock.now()}
        connection.execute(problems.insert().values(**row, **rest, access_scope="all"))
    store = run_store(base)
    store.begin(RunRow("run_1", "/p/softmax.py", SHA, "x86-64", Goal()))
    service = ServiceRuns(base, ())
    with RunLock(base, "run_1", 0.0):  # the process left by a killed service
        answer = service.cancel("run_1")
        assert "still works on it" in answer["note"] and store.cancelled("run_1")
    answer = service.cancel("run_1")
    assert answer["state"] == "cancelled" and "note" not in answer
    service.close()
