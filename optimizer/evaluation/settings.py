"""How an evaluation is done: limits, seeds, timing, and which defences are on."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from kb.errors import InvalidRequest
from optimizer.evaluation.isolation.levels import Wanted
from optimizer.evaluation.isolation.processors import usable_processors
from optimizer.evaluation.records import TIMING
from optimizer.evaluation.timing.blocks import TimingPolicy

HARNESS = "16"  # raised whenever the same candidate could get another verdict
GIB = 1 << 30
MIB = 1 << 20
# Four short pairs of blocks, of whose time the threads may have waited half for a processor: with
# more, clocks say nothing about a candidate either.
BRIEF = TimingPolicy(block_ms=5.0, min_pairs=4, max_pairs=10, narrow=math.inf, tolerated=0.5)


def timing_policy() -> TimingPolicy:
    """How candidates are timed where nobody says it, by the environment. It reaches every process
    that evaluates: services, runs, and sessions on another machine. Raises InvalidRequest."""
    named = os.environ.get(TIMING, "full")
    if named not in ("full", "brief"):
        raise InvalidRequest(f"{TIMING} is {named!r}", hint="Set it to full or brief.")
    return BRIEF if named == "brief" else TimingPolicy()


@dataclass(frozen=True)
class EvaluationSettings:
    """How candidates are evaluated.

    `seeds` counts correctness runs of each case. `call_seconds` and `load_seconds` are deadlines.
    `memory_bytes` is beyond what a runner has mapped before a candidate is loaded. `golden_bytes`
    is what goldens of a case may take that are kept for later candidates; those of one seed are
    kept in any case. `without` holds rows of the exploit table whose defence is off; only
    `kernlore doctor --exploits` sets it.
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
    without: frozenset[int] = frozenset()

    @property
    def brief(self) -> bool:
        """Whether a result has to say that it was timed briefly."""
        return self.timing == BRIEF

    def on(self, *defences: int) -> bool:
        """Whether the defences of these rows of the exploit table are all on. A check that serves
        several rows names them all, so that switching one row off switches it off."""
        return self.without.isdisjoint(defences)

    @property
    def freshens(self) -> bool:
        """Whether every input with a second draw is written anew before each timed call, so that
        what it held before matters to none."""
        return self.on(7, 8, 33, 34, 35)

    def limits(self, device: str) -> Mapping[str, int]:
        """The limits that a runner takes on, in bytes and seconds. CUDA reserves address space far
        beyond its use, so there is no memory limit there."""
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
        """A digest of everything that decides a result."""
        values = asdict(self)
        values["without"] = sorted(self.without)
        return hashlib.sha256(json.dumps([HARNESS, values], sort_keys=True).encode()).hexdigest()[
            :16
        ]
