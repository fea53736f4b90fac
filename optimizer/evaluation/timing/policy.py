"""How a case is timed: lengths, numbers and tolerances of blocks, by kind of device."""

from __future__ import annotations

from dataclasses import dataclass, replace

# How long a block may take at all, in aimed lengths, by kind of device: calls of microseconds are
# short compared with the work between them. With three or four calls a block on a GPU, a kernel of
# torch.compile had a speed-up of 0.40 instead of 1.04, for unknown reasons; there are five to
# eleven of 25 us since fresh values are one kernel for each tensor.
WALL_BLOCKS = {"cpu": 1.0, "cuda": 1.25}
# Half-width, in log units, within the two processes at which measuring stops, by kind of device: on
# a CPU, where two processes differ by as much, more blocks hardly make an interval narrower.
NARROW = {"cpu": 0.035, "cuda": 0.02}
# Standard deviation, in log units, of the ratio of two processes that run the same code, by kind of
# device (`python -m benchmarks.evaluation.checks`).
BETWEEN = {"cpu": 0.018, "cuda": 0.005}
# Standard deviation of the difference of short calls in two processes, by the addresses of their
# arrays, by kind of device, in nanoseconds: on an H200 one process took 10.2 to 11.4 us for the
# same three launches over 1 MB. It is less for calls longer than SHORT_NS.
PLACES_NS = {"cpu": 0.0, "cuda": 300.0}
# Share of a span of calls that its threads may wait for a processor, by kind of device: a GPU is
# held while a call is launched, so waits of the host are mostly not in its time.
QUIET = {"cpu": 0.05, "cuda": 100.0}
# Aimed length of a block, by kind of device: an interrupt or a neighbour takes milliseconds of a
# processor; a GPU is not shared meanwhile.
BLOCK_MS = {"cpu": 20.0, "cuda": 15.0}


@dataclass(frozen=True)
class TimingPolicy:
    """How a case is timed. None means the default of the kind of device.

    `block_ms` is the aimed length of a block, `walls` the time that it may take at all, in aimed
    lengths. `min_pairs` and `max_pairs` bound the pairs of blocks, in steps of two; measuring stops
    early at `narrow`, the half-width in log units within the two processes. `between` is described
    at `ratio_interval`, `places_ns` at `PLACES_NS`. `threads` is the number of processors that both
    sides need for themselves, 0 if that does not matter. `tolerated` is the share of a span of
    calls that its threads may wait for a processor; `quiet`, if set, replaces it, and then the
    clocks of blocks that waited as much are evidence too. `seconds` is the deadline of a block.
    `calls` is the number of calls of every block, 0 for a random number that follows from
    `block_ms`; a known number can be counted to.
    """

    block_ms: float | None = None
    min_pairs: int = 6
    max_pairs: int = 24
    narrow: float | None = None
    between: float | None = None
    threads: int = 0
    quiet: float | None = None
    tolerated: float | None = None
    seconds: float = 60.0
    max_calls: int = 2_000
    calls: int = 0
    walls: float | None = None
    places_ns: float | None = None

    def for_device(self, device: str, threads: int) -> TimingPolicy:
        """With the defaults of this kind of device; on a CPU both sides need `threads`."""

        def default(value: float | None, defaults: dict[str, float]) -> float:
            return defaults[device] if value is None else value

        return replace(
            self,
            threads=threads if device == "cpu" else self.threads,
            between=default(self.between, BETWEEN),
            narrow=default(self.narrow, NARROW),
            places_ns=default(self.places_ns, PLACES_NS),
            walls=default(self.walls, WALL_BLOCKS),
            block_ms=default(self.block_ms, BLOCK_MS),
            tolerated=max(self.tolerated or 0.0, QUIET[device]),
        )

    @property
    def wall_ns(self) -> float:
        """Nanoseconds that a block may take at all; `walls` must be set."""
        assert self.walls is not None
        return self.walls * self.block_ns

    @property
    def block_ns(self) -> float:
        """The aimed length in nanoseconds; `block_ms` must be set."""
        assert self.block_ms is not None
        return self.block_ms * 1e6

    @property
    def waits(self) -> float:
        """The share of a span that its threads may wait; `tolerated` or `quiet` must be set."""
        share = self.tolerated if self.quiet is None else self.quiet
        assert share is not None
        return share
