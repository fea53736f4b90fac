"""Garbage collection and memory use of a process of this program."""

from __future__ import annotations

import atexit
import ctypes
import gc

# Objects until a collection of the youngest generation, and collections until one of the next
# older. Python's defaults are 700, 10 and 10.
THRESHOLDS = (10_000, 20, 50)
_SERVICE_THRESHOLD = 20_000  # 700 are allocated by few requests: 3 ms for each collection
_ARENAS = 2
_M_ARENA_MAX = -8  # in glibc's malloc.h


def collect_rarely() -> None:
    """Raise the thresholds of the collector and skip the collection at exit. To be called before
    large imports."""
    gc.set_threshold(*THRESHOLDS)
    atexit.register(gc.freeze)


def collect_once_and_freeze() -> None:
    """Collect now and exclude the live objects from later collections, which would otherwise take
    up to a third of a second within a request."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_SERVICE_THRESHOLD)


def return_freed_memory() -> None:
    """Collect, and return freed memory to the system if the C library is glibc."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def limit_arenas() -> None:
    """Limit the malloc arenas of glibc to two. By default there are eight per processor, each
    retains its freed memory, and answering threads wait for each other anyway
    (docs/adr/042-sqlite-memory.md)."""
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None and hasattr(ctypes.CDLL(None), "gnu_get_libc_version"):
        option(_M_ARENA_MAX, _ARENAS)
