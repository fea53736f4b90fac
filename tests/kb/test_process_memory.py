"""How often processes of this program collect garbage."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kb.memory import THRESHOLDS

pytestmark = pytest.mark.slow(seconds=8)

SAID = (
    "import atexit, gc; atexit.register(lambda: print(gc.get_threshold(), gc.get_freeze_count()))"
)
STARTS = {
    "the command line": "import sys; sys.argv[1:] = []; from api.cli.main import run; run()",
    "a run": "from api.run_worker import main; main('no JSON')",
}


@pytest.mark.parametrize("start", STARTS)
def test_a_process_collects_rarely_and_nothing_at_its_end(start: str) -> None:
    # What is registered first is asked last: after the end of collecting.
    program = f"{SAID}; {STARTS[start]}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    thresholds, _, frozen = done.stdout.splitlines()[-1].rpartition(" ")
    assert thresholds == str(THRESHOLDS) and int(frozen) > 10_000, done.stderr
