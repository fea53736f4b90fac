"""How long the candidate takes beside the reference: two processes, driven alternately in blocks of
random length (A B B A), one at a time, the idle one stopped.

The supervisor's clock decides: the time that a runner reports counts only while it agrees with the
wall around the block. Every block ends with a comparison of both sides' last outputs.
"""

from __future__ import annotations

import math
import random
import secrets
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from optimizer.evaluation.isolation.others import Others
from optimizer.evaluation.isolation.processors import account, left_between
from optimizer.evaluation.isolation.runner_process import (
    RunnerDied,
    RunnerForged,
    RunnerHung,
    RunnerProcess,
)
from optimizer.evaluation.loaded_kernel import KernelFailed, LoadedKernel
from optimizer.evaluation.records import CaseTiming, Flag, Interval
from optimizer.evaluation.timed_block import WAITING, Block
from optimizer.evaluation.timing.device_clocks import charged_late_ns
from optimizer.evaluation.timing.host_clocks import TELLING_BLOCKS, WALL, On, hidden_ns, integrity
from optimizer.evaluation.timing.statistics import log_ratio, ratio_interval
from optimizer.evaluation.timing.tampering import tampering

CROWD = 0.5  # processors that other work may use
MAX_CALIBRATION = 5  # blocks of each side
SLOW_CALIBRATION_NS = 1_000_000_000
BUSY_FROM_THE_START = 10  # pairs, none of them quiet, after which there is no hope of a figure
CALM_SHARE = 0.5  # of a block, summed over its threads
OWN_WAITS_NS = 10_000  # a call, up to which nobody is asked for whom its threads waited
# How long a block may take at all, in aimed lengths, by kind of device: calls of microseconds are
# short beside what is done between them. With three or four calls a block on a GPU, a kernel of
# torch.compile had a speed-up of 0.40 in place of 1.04, which was not looked into; there are five
# to eleven of 25 us now that fresh values are one kernel for each tensor.
WALL_BLOCKS = {"cpu": 1.0, "cuda": 1.25}
# Half-width, in log units, within the two processes at which measuring stops, by kind of device: on
# a CPU, where two processes differ by as much, more blocks hardly make an interval narrower.
NARROW = {"cpu": 0.035, "cuda": 0.02}
# Standard deviation, in log units, of the ratio of two processes that run the same code, by kind of
# device (`python -m benchmarks.evaluation.checks`).
BETWEEN = {"cpu": 0.018, "cuda": 0.005}
CLOCK_NS = 100.0  # by which two processes may differ in what starting and stopping a clock adds
# Standard deviation of what short calls of two processes differ by, as their arrays lie elsewhere,
# by kind of device, in nanoseconds: on an H200 one process took 10.2 to 11.4 us for the same three
# launches over 1 MB. It is less where a call is longer than SHORT_NS.
PLACES_NS = {"cpu": 0.0, "cuda": 300.0}
SHORT_NS = 20_000.0
# Share of a span of calls that its threads may wait for a processor, by kind of device: a GPU is
# held while a call is launched, so waits of the host are mostly not in its time.
QUIET = {"cpu": 0.05, "cuda": 100.0}
# Aimed length of a block, by kind of device: an interrupt or a neighbour takes milliseconds of a
# processor; a GPU is nobody else's meanwhile.
BLOCK_MS = {"cpu": 20.0, "cuda": 15.0}
CLOCKS = (1, 2, 13, 36)  # what it flags, and what the time to read outputs does
T = TypeVar("T")
Compare = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], str | None]
CompareLooks = Callable[[Block, Block], str | None]
RUNNER_FAILED = (RunnerDied, RunnerHung, RunnerForged, KernelFailed)


class BaselineFailed(Exception):
    """The reference's own process failed. That is no verdict about the candidate."""


@dataclass(frozen=True)
class TimingPolicy:
    """How a case is timed.

    `block_ms` is the aimed length of one block, None for that of the device. `min_pairs` and
    `max_pairs` bound the pairs of blocks, in steps of two. `narrow` is the half-width (log units)
    within the two processes at which measuring stops early, None for that of the device. `between`
    is described at `ratio_interval`; None stands for that of the device. `threads` counts
    processors that both sides need for themselves, 0 where that does not matter. `quiet` is the
    share of a span of calls that its threads may wait for a processor, None for `tolerated`, by
    default that of the device; with `quiet`, clocks of blocks that waited as much are evidence too.
    `seconds` is the deadline of a block. `calls` is the number of calls of every block, 0 for a
    random number that follows from block_ms; a known number can be counted to. `walls` is how long
    a block may take at all, in aimed lengths, None for that of the device; `places_ns` is how much
    short calls differ by where arrays lie, likewise.
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

    @property
    def wall_ns(self) -> float:
        """How long a block may take at all, in nanoseconds; `walls` must be set."""
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


@dataclass
class Side:
    """One of the two sides: its runner, its kernel, and the time of a call by calibration.
    `trusted` marks the reference."""

    name: str
    runner: RunnerProcess
    kernel: LoadedKernel
    trusted: bool = False
    per_call_ns: float = 0.0
    wall_per_call_ns: float = 0.0  # of the baseline, with all that is done between two calls
    beside: bool = False  # whether processes of its were alive after a block
    others: Others | None = None  # where waits for a processor matter

    def run(self, seed: int, calls: int, seconds: float, secret: int = 0) -> Block:
        """Run one block and stop the runner. Raises BaselineFailed where the trusted side fails,
        else what the kernel raises."""
        if self.others is None:
            return self._awake(lambda: self.kernel.block(seed, calls, seconds, secret))
        then = self.others.now()
        block = self._awake(lambda: self.kernel.block(seed, calls, seconds, secret))
        if block.waited_ns <= OWN_WAITS_NS * len(block.times):
            return block
        others = self.others.since(then, self.runner.pid, block.waited_ns / WAITING)
        return replace(block, others_ns=others)

    def _awake(self, act: Callable[[], T]) -> T:
        """Whatever goes wrong on the trusted side is no verdict about a candidate."""
        try:
            self.runner.wake()
            done = act()
            self.runner.pause()
            # It is stopped, but what it started goes on beside the other side's blocks.
            if not self.trusted and self.runner.settings.device == "cpu":
                self.beside = self.beside or bool(self.runner.children())
        except RUNNER_FAILED as failed:
            if self.trusted:
                raise BaselineFailed(str(failed)) from failed
            raise
        return done


@dataclass(frozen=True)
class Measured:
    """The timing of one case, the flags that measuring raised, and the mismatch of outputs that
    ended it."""

    timing: CaseTiming
    flags: tuple[Flag, ...] = ()
    mismatch: str | None = None

    @property
    def doubtful(self) -> bool:
        """Whether only clocks speak against the candidate."""
        rows = {flag.defence for flag in self.flags}
        return self.mismatch is None and bool(rows) and rows <= set(CLOCKS)


def measure(
    case: str,
    *,
    baseline: Side,
    candidate: Side,
    policy: TimingPolicy,
    compare: Compare,
    looks: CompareLooks,
    seed: int,
    on: On,
) -> Measured:
    """Time both sides of a case against each other.

    `compare` returns how the last outputs of both sides (candidate, baseline) disagree, or None;
    `looks` the same for what was read of every call of two blocks. `seed` decides block lengths and
    fresh values. `on` returns whether the defences of some rows of the exploit table are all on.
    Raises BaselineFailed where the reference fails, else what the candidate's kernel raises.
    """
    chance = random.Random(seed)
    if policy.waits < 1:
        baseline.others = candidate.others = Others()
    _calibrate(baseline, candidate, chance, policy)
    calmer: list[tuple[Block, Block]] = []  # all but those that other work disturbed
    pairs: list[tuple[Block, Block]] = []
    disturbed: list[tuple[Block, Block]] = []
    processes = [side.runner.pid for side in (baseline, candidate)]
    before = account(processes)
    for first, second in order_of(baseline, candidate, policy.max_pairs):
        pair = _pair(first, second, chance, policy)
        blocks = pair if first is baseline else (pair[1], pair[0])
        mismatch = compare(candidate.kernel.outputs, baseline.kernel.outputs) or looks(
            blocks[1], blocks[0]
        )
        if mismatch:
            return Measured(CaseTiming(case, "none", reason=mismatch), (), mismatch)
        if any(_mean_of(block, policy) is None for block in blocks):
            disturbed.append(blocks)
            if _hopeless(len(pairs), len(disturbed), policy):
                break
            continue
        calmer.append(blocks)
        pairs = _counted(calmer, policy)
        if len(pairs) >= policy.min_pairs and _narrow_enough(pairs, policy):
            break
    left = left_between(before, account(processes))
    calm = [pair for pair in pairs if all(_calm(block, policy) for block in pair)]
    charged = hidden_ns(calm, policy.threads) if on(*WALL, 40) else 0.0
    charged += charged_late_ns(pairs) if on(1, 44, 45, 50) else 0.0
    noisy = len(disturbed) + len(calmer) - len(pairs)
    timing = _crowded(_conclude(case, pairs, noisy, policy, charged), left, policy)
    if timing.state == "measured" and len(calm) < TELLING_BLOCKS:
        reason = "timing must be repeated: the machine was too restless to vouch for the clocks"
        timing = CaseTiming(case, "repeat", calls=timing.calls, reason=reason)
    if timing.state == "repeat":
        timing = _with_rough(timing, [*calmer, *disturbed])
    sides = [b for b, _ in calm], [c for _, c in calm]
    flags = [*_left_running(candidate, on), *tampering(sides[1], on)]
    if timing.state == "measured":  # clocks that give no figure are no evidence either
        flags += integrity(*sides, on)
    return Measured(timing, tuple(flags))


def _with_rough(timing: CaseTiming, pairs: Sequence[tuple[Block, Block]]) -> CaseTiming:
    """With the fastest call of each side over all blocks: other work only adds to a time."""
    if not pairs:
        return timing
    baseline, candidate = (
        min(ns for pair in pairs for ns in pair[side].times) / 1e3 for side in (0, 1)
    )
    return replace(timing, rough_us=candidate, rough_baseline_us=baseline)


def _crowded(timing: CaseTiming, left: float | None, policy: TimingPolicy) -> CaseTiming:
    """No figure where other work used the processors that the two sides need."""
    ignored = policy.waits >= 1 or not policy.threads
    if timing.state != "measured" or left is None or ignored:
        return timing
    if left >= policy.threads - CROWD:
        return timing
    reason = (
        f"timing must be repeated: other work left {max(0.0, left):.1f} of the {policy.threads}"
        " processors that it needs; stop it and evaluate again"
    )
    return CaseTiming(timing.case, "repeat", calls=timing.calls, reason=reason)


def _calm(block: Block, policy: TimingPolicy) -> bool:
    """Whether its clocks can be held against each other: others let its threads run mostly."""
    return block.disturbed_ns <= max(CALM_SHARE, policy.quiet or 0.0) * block.wall_ns


def order_of(baseline: T, candidate: T, pairs: int) -> Iterator[tuple[T, T]]:
    """A B, B A, A B, ...: drift that is linear in time cancels within four blocks."""
    for number in range(pairs):
        yield (candidate, baseline) if number % 2 else (baseline, candidate)


def _calibrate(
    baseline: Side, candidate: Side, chance: random.Random, policy: TimingPolicy
) -> None:
    """Warm up, and learn roughly how long one call takes. Both sides do the same calls, so that
    they hold the same values afterwards."""
    baseline.per_call_ns = candidate.per_call_ns = math.inf
    calls = 1
    before: Block | None = None
    for _ in range(MAX_CALIBRATION):
        seed, secret = chance.getrandbits(30), secrets.randbits(64)
        ours, theirs = (
            side.run(seed, policy.calls or calls, policy.seconds, secret)
            for side in (baseline, candidate)
        )
        for side, block in ((baseline, ours), (candidate, theirs)):
            side.per_call_ns = min(side.per_call_ns, max(1.0, min(block.times)))
        # What is done between two calls is the same on both sides.
        around = baseline.wall_per_call_ns = _wall_of_a_call(before, ours)
        before = ours
        slower = max(baseline.per_call_ns, candidate.per_call_ns)
        shown = max(calls * slower, calls * around * policy.block_ns / policy.wall_ns)
        if calls >= 3 and shown * 4 >= policy.block_ns:
            break
        # A single call after waking means little: at least a few, and at most a quarter of a block.
        most = min(policy.block_ns / slower, policy.wall_ns / around) / 4
        last, calls = calls, max(min(4 * calls, 3), min(4 * calls, int(most)))
        if calls == last or calls * slower > SLOW_CALIBRATION_NS:
            break


def _wall_of_a_call(shorter: Block | None, block: Block) -> float:
    """Nanoseconds that a call takes with all that is done between two of them, without what a block
    costs however few calls it has: the difference of two blocks, and no less than is known of one.
    """
    known = sum(block.times) + block.refresh_ns + block.touch_ns
    more = len(block.times) - len(shorter.times) if shorter else 0
    if shorter is None or more <= 0:
        return max(block.total_ns, known) / len(block.times)
    return max((block.wall_ns - shorter.wall_ns) / more, known / len(block.times))


def _pair(
    first: Side, second: Side, chance: random.Random, policy: TimingPolicy
) -> tuple[Block, Block]:
    """Two blocks with the same fresh values, so that their last outputs must agree."""
    seed = chance.getrandbits(30)
    slower = max(first.per_call_ns, second.per_call_ns)
    trusted = first if first.trusted else second
    around = max(0.0, trusted.wall_per_call_ns - trusted.per_call_ns)
    aim = min(policy.block_ns / slower, policy.wall_ns / (slower + around))
    calls = max(1, min(policy.max_calls, round(aim * chance.uniform(0.6, 1.4))))
    if calls == 1:
        calls = chance.choice((1, 2))
    calls = policy.calls or calls
    secret = secrets.randbits(64)  # of no generator whose other numbers a runner sees
    blocks = [side.run(seed, calls, policy.seconds, secret) for side in (first, second)]
    return blocks[0], blocks[1]


def _counted(
    calmer: Sequence[tuple[Block, Block]], policy: TimingPolicy
) -> list[tuple[Block, Block]]:
    """Those in which threads did not wait; all, where most waited by themselves: then that is what
    these calls are like, and no processor that two threads happened to share for a while."""
    quiet = [
        pair for pair in calmer if all(b.quiet_mean_ns(policy.waits) is not None for b in pair)
    ]
    return quiet if 2 * len(quiet) >= len(calmer) else list(calmer)


def _mean_of(block: Block, policy: TimingPolicy) -> float | None:
    """The mean of its calls, in nanoseconds; None where other work disturbed them."""
    quiet = block.quiet_mean_ns(policy.waits)
    return block.waiting_mean_ns(policy.waits) if quiet is None else quiet


def _hopeless(quiet: int, noisy: int, policy: TimingPolicy) -> bool:
    """Whether other work keeps the processors so busy that going on is in vain: min_pairs cannot be
    reached any more, or every pair was disturbed and there were enough of them to tell."""
    too_few = noisy > policy.max_pairs - policy.min_pairs
    return too_few or (not quiet and noisy >= BUSY_FROM_THE_START)


def _narrow_enough(pairs: Sequence[tuple[Block, Block]], policy: TimingPolicy) -> bool:
    assert policy.narrow is not None
    return log_ratio(*_sides(pairs, policy))[1] <= policy.narrow


def _ratio(pairs: Sequence[tuple[Block, Block]], policy: TimingPolicy, charged: float) -> Interval:
    assert policy.between is not None
    baseline, candidate = _sides(pairs, policy)
    candidate = [mean + charged for mean in candidate]
    shortest = min(*baseline, *candidate)
    # The clocks of calls that take microseconds are that much coarser.
    places = (policy.places_ns or 0.0) * min(1.0, SHORT_NS / shortest)
    between = math.hypot(policy.between, CLOCK_NS / shortest, places / shortest)
    return ratio_interval(baseline, candidate, between)


def _sides(
    pairs: Sequence[tuple[Block, Block]], policy: TimingPolicy
) -> tuple[list[float], list[float]]:
    """The means of the baseline's blocks, and of the candidate's."""
    return [_quiet(b, policy) for b, _ in pairs], [_quiet(c, policy) for _, c in pairs]


def _quiet(block: Block, policy: TimingPolicy) -> float:
    """The mean of its undisturbed calls, in nanoseconds."""
    return _mean_of(block, policy) or block.mean_ns


def _conclude(
    case: str,
    pairs: Sequence[tuple[Block, Block]],
    noisy: int,
    policy: TimingPolicy,
    charged: float,
) -> CaseTiming:
    calls = sum(len(c.times) for _, c in pairs)
    if len(pairs) < policy.min_pairs:
        return CaseTiming(
            case,
            "repeat",
            calls=calls,
            reason=f"timing must be repeated: the processors were busy in {noisy} of "
            f"{noisy + len(pairs)} pairs of blocks; stop other work and evaluate again",
        )
    speedup = _ratio(pairs, policy, charged)
    return CaseTiming(
        case,
        "measured",
        baseline_us=_typical([_quiet(b, policy) for b, _ in pairs]),
        candidate_us=_typical([_quiet(c, policy) + charged for _, c in pairs]),
        speedup=speedup,
        calls=calls,
        charged_us=charged / 1e3,
    )


def _typical(means: Sequence[float]) -> float:
    """Median over blocks of the mean call, in microseconds."""
    return statistics.median(means) / 1e3


def _left_running(candidate: Side, on: On) -> Iterator[Flag]:
    """Processes that the candidate left running: a stopped runner's go on, beside the reference. On
    a GPU compilers keep processes of their own.
    """
    if candidate.runner.settings.device != "cpu" or not on(2):
        return
    if candidate.runner.children():
        yield Flag(2, "reject", "processes that it started are still alive after its calls")
    elif candidate.beside:
        yield Flag(2, "reject", "processes that it started ran beside the reference's calls")
