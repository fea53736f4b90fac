"""Barriers of the simulated Gluon Blackwell calls, for one block and a pair of blocks."""

from __future__ import annotations

import threading

PATIENCE = 10.0  # seconds after which a wait counts as endless

_here = threading.local()  # the block of this thread, and its rank in a pair


class WaitsForever(Exception):
    """The phase of a barrier was never reached."""


def rank() -> int:
    """0 or 1 in a pair, else 0."""
    return getattr(_here, "rank", 0)


class Barrier:
    """mbarrier: a phase ends when all have arrived and all expected bytes have been copied."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = self.missing = self.bytes = self.completed = 0

    def init(self, count: int) -> None:
        self.count = self.missing = count

    def add(self, arrivals: int = 0, expected: int = 0, came: int = 0) -> None:
        with self.changed:
            assert self.count, "a barrier that was not initialised"
            self.missing -= arrivals
            self.bytes += expected - came
            assert self.missing >= 0, "more arrivals than the barrier counts"
            if self.missing == 0 and self.bytes == 0:
                self.completed += 1
                self.missing = self.count
                self.changed.notify_all()

    def wait(self, parity: int) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.completed & 1 != int(parity), PATIENCE):
                raise WaitsForever(f"phase {parity}, {self.completed} completed")


class Barriers:
    """An array of barriers; a single one is the array itself. A pair has one array per block, or
    one for both: `shared` barriers belong to the first block, as in Triton 3.7.1. There the first
    block waits and expects the bytes of both, and an arrival of the second is lost.
    """

    def __init__(self, blocks: list[list[Barrier]], shared: bool = False):
        self.blocks, self.shared = blocks, shared

    @staticmethod
    def make(count: int, ranks: int, shared: bool = False) -> Barriers:
        blocks = [[Barrier() for _ in range(count)] for _ in range(1 if shared else ranks)]
        return Barriers(blocks, shared)

    def index(self, i: int) -> Barriers:
        return Barriers([[block[i]] for block in self.blocks], self.shared)

    @property
    def own(self) -> Barrier:
        return self.blocks[0 if self.shared else rank()][0]

    @property
    def left_out(self) -> bool:
        return self.shared and rank() > 0

    def init(self, count: int) -> None:
        if not self.left_out:
            self.own.init(count)

    def expect(self, size: int, ranks: int) -> None:
        if not self.left_out:
            self.own.add(arrivals=1, expected=size * (ranks if self.shared else 1))

    def arrive(self, count: int = 1) -> None:
        if not self.left_out:
            self.own.add(arrivals=count)

    def wait(self, parity: int) -> None:
        if not self.left_out:
            self.own.wait(parity)

    def commit(self) -> None:
        """A signal of the tensor core reaches every block."""
        for block in self.blocks:
            block[0].add(arrivals=1)
