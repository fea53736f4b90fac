"""One service per data directory; the lock ends with its process."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kb.data_dir import ServiceLock, running_service
from kb.errors import Conflict

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys, time
from pathlib import Path
from kb.data_dir import ServiceLock
with ServiceLock(Path(sys.argv[1]), "http://127.0.0.1:9"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_second_service_is_refused_with_address_of_first(tmp_path: Path) -> None:
    assert running_service(tmp_path) is None
    with ServiceLock(tmp_path, "http://127.0.0.1:8321"):
        assert running_service(tmp_path) == "http://127.0.0.1:8321"
        second = ServiceLock(tmp_path, "http://127.0.0.1:8322")
        with pytest.raises(Conflict, match="8321") as refused, second:
            pass
        assert "--data-dir" in refused.value.hint
    assert running_service(tmp_path) is None
    with ServiceLock(tmp_path, "http://127.0.0.1:8322"):
        assert running_service(tmp_path) == "http://127.0.0.1:8322"


def test_killed_service_leaves_no_lock(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    assert running_service(tmp_path) == "http://127.0.0.1:9"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert running_service(tmp_path) is None
    with ServiceLock(tmp_path, "http://127.0.0.1:10"):
        pass


def test_looking_for_service_does_not_block_start(tmp_path: Path) -> None:
    with ServiceLock(tmp_path, "http://127.0.0.1:1"):
        pass
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            running_service(tmp_path)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(20):
            with ServiceLock(tmp_path, "http://127.0.0.1:1"):
                pass
    finally:
        stop.set()
        thread.join()
