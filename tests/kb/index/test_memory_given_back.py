"""A service holds no more of freed memory than it has to."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In a process of its own: the option holds for all of its threads from then on.
_THREADS = """
import ctypes, threading
from kb.memory import give_back, share_arenas
share_arenas()
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
give_back()
print(len({address >> 26 for address in addresses}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="an option of glibc")
def test_threads_share_a_few_arenas() -> None:
    """An arena but the first lies in 64 MiB of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _THREADS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) <= 3  # two, and the first may reach over a border
