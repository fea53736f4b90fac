"""SIGKILL at random moments of a real service and of its parser, and a SIGTERM
(`benchmarks/knowledge/killed_service.py` does it twenty times).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(seconds=25)

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are found through /proc")
def test_killed_service_loses_and_repeats_no_job_and_leaves_no_process(model_cache: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.knowledge.killed_service", "--json"]
    command += ["--kills", "2", "--documents", "3", "--parser-every", "2", "--latest", "0.5"]
    command += ["--models", str(model_cache)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert [kill["target"] for kill in result["kills"]] == ["service", "a parser"]
    for kill in result["kills"]:
        assert kill["left"] == 0 and kill["half"] == 0
    assert result["documents"] == 6 and result["lost"] == 0
    assert result["untrue"] == 0 and result["running"] == 0 and result["twice"] == 0
    assert result["different"] == [] and result["good"]
