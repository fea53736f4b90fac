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
from optimizer.evaluation.timing.policy import TimingPolicy

HARNESS = "22"  # raised whenever the same candidate could get another verdict
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
