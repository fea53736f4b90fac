"""SIGKILL at random moments of a real run (`benchmarks/search/killed_run.py` does it ten times)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.known_device import store_ceilings
from tests.shared import small_map_id

pytestmark = pytest.mark.slow(seconds=17)

ROOT = Path(__file__).parents[3]
KILLS = 1  # `tests/api/test_killed_service.py` kills twice


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are found through /proc")
def test_killed_run_loses_and_repeats_no_candidate_and_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.search.killed_run", "--json", "--candidates", "3"]
    command += ["--kills", str(KILLS), "--earliest", "3", "--latest", "6"]
    command += ["--devices", str(store_ceilings(tmp_path) / "devices")]
    command += ["--problem", str(small_map_id(tmp_path))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["refused"] == []
    assert len(result["kills"]) == KILLS
    for kill in result["kills"]:
        assert kill["unchanged"] and kill["lock_free"] and kill["left"] == 0
    assert result["ended"] == "finished: 3 candidates were tried"
    assert result["candidates"] == 3
    assert result["twice"] == [] and result["orphaned"] == []
    assert result["difference"] == "" and result["good"]
