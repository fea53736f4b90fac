"""The memory of this process: what the collector looks through, what goes back to the system."""

from __future__ import annotations

import atexit
import ctypes
import gc

# Objects that are made and stay, after which the collector looks at the new ones. By default 700:
# requests leave so many in what is kept, and paid 3 ms each for looking through it.
NEW_OBJECTS = 20_000

ARENAS = 2
_M_ARENA_MAX = -8  # of glibc's malloc.h


def collect_once_and_freeze() -> None:
    """Look through what stays for rubbish this once, and seldom from now on. Else it would be again
    and again in the middle of requests, up to a third of a second each time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


def give_back() -> None:
    """Give memory that was freed back to the system, where the C library keeps it: glibc does."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def share_arenas() -> None:
    """Let the C library have few places that threads take memory from, where it is glibc: each
    keeps what was freed in it, there are eight for each processor, and threads that answer wait for
    each other anyway (docs/adr/042-sqlite-memory.md).
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None and hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        option(_M_ARENA_MAX, ARENAS)


# -- garbage: How often a process of this program looks for garbage in cycles of objects.

# Objects until a collection of the youngest, and collections until one of the next older. Python's
# are 700, 10 and 10.
THRESHOLDS = (10_000, 20, 50)


def collect_rarely() -> None:
    """Call it once, before what is large is imported. The end of the process collects nothing."""
    gc.set_threshold(*THRESHOLDS)
    atexit.register(gc.freeze)
