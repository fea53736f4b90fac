"""Garbage collection and memory use of processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kb.memory import THRESHOLDS

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
