"""SIGKILL at random moments of a real run (`benchmarks/search/killed_run.py` does it ten times)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(seconds=10)

ROOT = Path(__file__).parents[3]
KILLS = 3


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are found through /proc")
def test_a_killed_run_loses_and_repeats_nothing_and_leaves_nobody_behind() -> None:
    command = [sys.executable, "-m", "benchmarks.search.killed_run", "--json", "--candidates", "8"]
    moments = ["--kills", str(KILLS), "--earliest", "2", "--latest", "7"]
    done = subprocess.run(
        [*command, *moments], cwd=ROOT, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["refused"] == []
    assert len(result["kills"]) == KILLS
    for kill in result["kills"]:
        assert kill["kept"] and kill["lock_free"] and kill["left"] == 0
    assert result["ended"] == "finished: 8 candidates were tried"
    assert result["candidates"] == 8
    assert result["twice"] == [] and result["orphaned"] == []
    assert result["told"] == "" and result["good"]
