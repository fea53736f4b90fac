"""Background work of a process: renewed leases, worker threads, child processes."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kb.settings import Settings
from kb.workers import ChildProcess, WorkerThread, keep_lease


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
    deadline = time.monotonic() + 60
    while not beats.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.end(grace_seconds=0.2)
    assert not child.alive
    time.sleep(0.2)  # a partial write is complete now
    size = beats.stat().st_size
    time.sleep(0.3)
    assert beats.stat().st_size == size
