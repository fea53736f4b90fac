"""Background work of a process: renewed leases, worker threads, child processes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kb.memory import THRESHOLDS
from kb.settings import Settings
from kb.workers import ChildProcess, WorkerThread, keep_lease
from tests.waiting import until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "data")


def test_lease_is_renewed_until_it_is_lost() -> None:
    answers = [True, True, False]
    with keep_lease(lambda: answers.pop(0), 0.08, "test") as lost:
        assert lost.wait(30)
    assert answers == []


def test_worker_continues_after_failure_and_stops_on_request() -> None:
    done = threading.Event()
    pieces = ["broken", "whole"]

    def work() -> bool:
        if not pieces:
            done.set()
            return False
        if pieces.pop(0) == "broken":
            raise RuntimeError("one piece of work failed")
        return True

    worker = WorkerThread("test", work, idle_seconds=0.02)
    with capture_logs() as entries:
        worker.wake()
        assert done.wait(30)
    assert [entry["event"] for entry in entries] == ["worker failed"]
    worker.stop(30)
    assert worker.stopped
    done.clear()
    worker.wake()
    assert not done.wait(0.1)


def test_child_answers_or_times_out(settings: Settings) -> None:
    printed = "import os; print(os.environ['KERNLORE_DATA_DIR'])"
    child = ChildProcess([sys.executable, "-c", printed], settings)
    assert child.answer(60) == (f"{settings.data_dir.absolute()}\n", "")
    child.end()
    child = ChildProcess([sys.executable, "-c", "import time; time.sleep(600)"], settings)
    with pytest.raises(TimeoutError):
        child.answer(0.1)
    assert child.alive
    child.end()
    assert not child.alive


def test_ending_child_ends_its_descendants(settings: Settings, tmp_path: Path) -> None:
    beats = tmp_path / "beats"
    grandchild = f"while True: open({str(beats)!r}, 'a').write('.'); import time; time.sleep(0.02)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    child = ChildProcess([sys.executable, "-c", parent], settings, output=tmp_path / "log")
    until(beats.exists, pause=0.02)
    child.end(grace_seconds=0.2)
    assert not child.alive
    time.sleep(0.2)  # a partial write is complete now
    size = beats.stat().st_size
    time.sleep(0.3)
    assert beats.stat().st_size == size


# -- garbage collection and memory use of processes

SAID = (
    "import atexit, gc; atexit.register(lambda: print(gc.get_threshold(), gc.get_freeze_count()))"
)
STARTS = {
    "the command line": "import sys; sys.argv[1:] = []; from api.cli.main import run; run()",
    "a run": "from api.run_worker import main; main('no JSON')",
}


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize("start", STARTS)
def test_process_collects_rarely_and_not_at_exit(start: str) -> None:
    # Handlers run in reverse order, so this one runs after the freeze.
    program = f"{SAID}; {STARTS[start]}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    thresholds, _, frozen = done.stdout.splitlines()[-1].rpartition(" ")
    assert thresholds == str(THRESHOLDS) and int(frozen) > 10_000, done.stderr


# In a separate process, because the option applies to all later threads.
_THREADS = """
import ctypes, threading
from kb.memory import return_freed_memory, limit_arenas
limit_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
barrier, addresses = threading.Barrier(12), []
def work():
    barrier.wait()
    addresses.append(libc.malloc(3000))
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(12)]
[t.start() for t in threads]
[t.join() for t in threads]
return_freed_memory()
print(len({address >> 26 for address in addresses}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="an option of glibc")
def test_threads_share_few_malloc_arenas() -> None:
    """Each arena but the first occupies a separate region of 64 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", _THREADS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= 3  # two, and the first may cross a boundary
