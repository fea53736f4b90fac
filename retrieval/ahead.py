"""The order of sections for each bare signal and chip, made while nobody asks.

It is most of what such a request costs, signals and chips are few, and between two requests of an
optimizer a kernel is compiled and measured (docs/adr/041-orders-are-made-while-nobody-asks.md).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import structlog

from kb.memory import return_freed_memory

LOOK_SECONDS = 1.0  # between two looks at the catalog; still for so long, orders are made
IDLE_SECONDS = 0.25  # without a request, before the next order is made

log = structlog.get_logger(__name__)


class Attendance:
    """Whether somebody is being answered, and since when nobody is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # protects both
        self._present = 0
        self._left = time.monotonic()

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Around each answer."""
        with self._lock:
            self._present += 1
        try:
            yield
        finally:
            with self._lock:
                self._present -= 1
                self._left = time.monotonic()

    @property
    def alone(self) -> bool:
        """Whether no more than one is being answered."""
        with self._lock:
            return self._present <= 1

    @property
    def idle_seconds(self) -> float:
        """How long nobody has been asking; 0 while somebody is."""
        with self._lock:
            return 0.0 if self._present else time.monotonic() - self._left


class Orders(Protocol):
    """What makes orders, and keeps them: a retriever."""

    @property
    def attendance(self) -> Attendance: ...

    def searched(self) -> Hashable:
        """What kept orders depend on; None where what they need is not in memory yet."""
        ...

    def signals_and_chips(self, most: int) -> Sequence[tuple[str, str]]:
        """At most so many pairs, those first that will be asked about first."""
        ...

    def make_order(self, signal: str, hardware: str) -> None:
        """Make and keep the order for a request that names both and nothing else."""
        ...


class OrdersAhead:
    """A thread of its own between `start` and `stop`, which makes at most `most` orders after each
    change of the knowledge. With 0 it never starts.
    """

    def __init__(
        self,
        orders: Orders,
        most: int,
        busy: Callable[[], bool] = lambda: False,
        look_seconds: float = LOOK_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """While `busy`, nothing is made: kernels are timed on this machine, say."""
        self._orders = orders
        self._busy = busy
        self._most = most
        self._look_seconds = look_seconds
        self._idle_seconds = idle_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orders-ahead", daemon=True)

    def start(self) -> None:
        """Make orders from now on."""
        if self._most:
            self._thread.start()

    def stop(self) -> None:
        """End the thread; the order that it is making is finished first."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        seen: Hashable = None
        made: Hashable = None
        while not self._stop.wait(self._look_seconds):
            try:
                state = self._orders.searched()
                quiet = state is not None and state == seen != made and not self._busy()
                if quiet and self._make_all(state):
                    made = state
                seen = state
            except Exception:  # the thread's boundary: requests make what they need themselves
                log.exception("no orders are made ahead")
                made = seen

    def _make_all(self, state: Hashable) -> bool:
        """Whether all were made before anything changed."""
        started, pairs = time.monotonic(), self._orders.signals_and_chips(self._most)
        for signal, hardware in pairs:
            while self._orders.attendance.idle_seconds < self._idle_seconds:
                if self._stop.wait(self._idle_seconds / 5):
                    return False
            if self._stop.is_set() or self._busy() or self._orders.searched() != state:
                return False
            self._orders.make_order(signal, hardware)
        return_freed_memory()
        seconds = round(time.monotonic() - started, 1)
        log.info("orders of bare signals are made", orders=len(pairs), seconds=seconds)
        return True
