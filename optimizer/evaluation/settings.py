"""How an evaluation is done: limits, seeds, timing and defences."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from kb.errors import InvalidRequest
from optimizer.evaluation.isolation.levels import Wanted
from optimizer.evaluation.isolation.machine import usable_processors
from optimizer.evaluation.records import TIMING
from optimizer.evaluation.runner.defences import Defences

# -- how a case is timed: lengths, numbers and tolerances of blocks, by kind of device

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


# -- settings

HARNESS = "23"  # raised whenever the same candidate could get another verdict
GIB = 1 << 30
MIB = 1 << 20
# Four short pairs of blocks, whose threads may have waited for a processor half of the time: with
# more waiting, clocks say nothing about a candidate either.
BRIEF = TimingPolicy(block_ms=5.0, min_pairs=4, max_pairs=10, narrow=math.inf, tolerated=0.5)


def timing_policy() -> TimingPolicy:
    """The default timing, by the environment, which reaches every process that evaluates: services,
    runs, and sessions on other machines. Raises InvalidRequest."""
    named = os.environ.get(TIMING, "full")
    if named not in ("full", "brief"):
        raise InvalidRequest(f"{TIMING} is {named!r}", hint="Set it to full or brief.")
    return BRIEF if named == "brief" else TimingPolicy()


@dataclass(frozen=True)
class EvaluationSettings:
    """How candidates are evaluated.

    `seeds` counts correctness runs of each case. `call_seconds` and `load_seconds` are deadlines.
    `memory_bytes` is in addition to the memory that a runner maps before it loads a candidate.
    `golden_bytes` limits the goldens of a case that stay for later candidates; those of one seed
    always do. `profile` runs every profiler on each correct candidate, `lines` samples the lines of
    those that are the fastest so far.
    """

    seeds: int = 2
    threads: int = field(default_factory=usable_processors)
    isolation: Wanted = "auto"
    call_seconds: float = 30.0
    load_seconds: float = 120.0
    memory_bytes: int = 8 * GIB
    golden_bytes: int = 4 * GIB
    file_bytes: int = 512 * MIB
    processes: int = 1024
    timing: TimingPolicy = field(default_factory=timing_policy)
    profile: bool = False
    lines: bool = False
    defences: Defences = field(default_factory=Defences)

    @property
    def brief(self) -> bool:
        """Whether a result has to state that it was timed briefly."""
        return self.timing == BRIEF

    @property
    def freshens(self) -> bool:
        """Whether every input with a second draw is overwritten before each timed call, so that its
        earlier content does not matter."""
        return self.defences.fresh_values == "all"

    def limits(self, device: str) -> Mapping[str, int]:
        """The limits of a runner, in bytes and seconds. No memory limit on a GPU, because CUDA
        reserves far more address space than it uses."""
        limits = {
            "file_bytes": self.file_bytes,
            "processes": self.processes,
            "cpu_seconds": int((self.load_seconds + self.timing.seconds) * self.threads) + 1,
        }
        if device == "cpu":
            limits["memory_bytes"] = self.memory_bytes
        return limits

    @property
    def fingerprint(self) -> str:
        """A digest of everything that decides a result; part of the keys of stored evaluations."""
        values = asdict(self)
        # Samples are taken after the measurement; they only add to the diagnosis.
        del values["defences"], values["lines"]
        values["without"] = self.defences.weakened
        digest = hashlib.sha256(json.dumps([HARNESS, values], sort_keys=True).encode())
        return digest.hexdigest()[:16]


# One sample by line takes 10 to 20 s of an H200 (benchmarks/results/foreign_problems.md).
MINUTES_WITH_LINES = 5.0


def settings_of_search(minutes: float | None = None) -> EvaluationSettings:
    """The settings of a search of at most `minutes`: the fastest candidates are sampled by line,
    except with brief timing and in searches too short for it."""
    settings = EvaluationSettings()
    short = minutes is not None and minutes < MINUTES_WITH_LINES
    return replace(settings, lines=not settings.brief and not short)
