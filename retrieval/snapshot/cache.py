"""The cache of values between requests: by snapshot and key, bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sized
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
MIB = 1024 * 1024
DEFAULT_BYTES = 96 * MIB


class Cache:
    """Values by key; the least recently used are evicted first. Safe to share between threads; two
    threads may compute the same value at once."""

    def __init__(self, most_bytes: int = DEFAULT_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()  # protects _values and bytes
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self.bytes = 0

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The cached value of a key, computed by `make` on a miss."""
        with self._lock:
            known = self._values.get(key)
            if known is not None:
                self._values.move_to_end(key)
                value: T = known[0]
                return value
        value = make()
        size = size_of(value) + 200
        with self._lock:
            if key not in self._values:
                self._values[key] = (value, size)
                self.bytes += size
            while self.bytes > self._most and len(self._values) > 1:
                _, (_, dropped) = self._values.popitem(last=False)
                self.bytes -= dropped
        return value


def size_of(value: Any) -> int:
    """Approximate size of a value in bytes, computed cheaply: texts and arrays by their length, 100
    bytes for each element of a collection, which may share its contents."""
    if isinstance(value, str | bytes):
        return 50 + len(value)
    if isinstance(value, np.ndarray):
        return 112 + (value.nbytes if value.base is None else 0)
    if isinstance(value, tuple | list):
        arrays = sum([v.nbytes for v in value if type(v) is np.ndarray])
        return 64 + 100 * len(value) + arrays
    if isinstance(value, Sized):
        return 64 + 200 * len(value)
    texts = (v for v in getattr(value, "__dict__", {}).values() if isinstance(v, str))
    return 400 + sum(map(len, texts))
