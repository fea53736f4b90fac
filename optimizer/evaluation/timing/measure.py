"""How long the candidate takes compared with the reference: two processes, driven alternately in
blocks of random length (A B B A), one at a time, the idle one stopped.

The supervisor's clock decides: the time that a runner reports counts only while it agrees with the
wall around the block. After every block the last outputs of both sides are compared.
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

from optimizer.evaluation.isolation.machine import CROWD, OtherWork, account, left_between
from optimizer.evaluation.isolation.runner_process import (
    RunnerDied,
    RunnerForged,
    RunnerHung,
    RunnerProcess,
)
from optimizer.evaluation.loaded_kernel import WAITING, CandidateFailed, LoadedKernel, TimedBlock
from optimizer.evaluation.records import CaseTiming, Flag, Interval, Violation
from optimizer.evaluation.runner.defences import Defences
from optimizer.evaluation.timing.integrity import (
    MIN_BLOCKS,
    BlockPair,
    charged_late_ns,
    clock_flags,
    hidden_ns,
    report_flags,
)
from optimizer.evaluation.timing.policy import TimingPolicy
from optimizer.evaluation.timing.statistics import log_ratio, ratio_interval

MAX_CALIBRATION = 5  # blocks of each side
SLOW_CALIBRATION_NS = 1_000_000_000
BUSY_FROM_THE_START = 10  # pairs, all of them disturbed, after which measuring is given up
DISAGREEMENT = 2.0  # factor between the speed-ups of blocks, above which there is no figure
ROUGHLY = 1.5  # the same for the fastest calls of both halves of the blocks
CALM_SHARE = 0.5  # of a block, summed over its threads
OWN_WAITS_NS = 10_000  # a call; shorter waits are not explained by other work
CLOCK_NS = 100.0  # allowed difference of two processes in the cost of starting and stopping a clock
SHORT_NS = 20_000.0
# Findings that a delay of the machine can cause.
BY_CLOCKS = {
    Violation.SIDE_STREAM,
    Violation.BACKGROUND_WORK,
    Violation.HIDDEN_TIME,
    Violation.LATE_OUTPUT,
}
T = TypeVar("T")
CompareOutputs = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], str | None]
CompareSamples = Callable[[TimedBlock, TimedBlock], str | None]
RUNNER_FAILED = (RunnerDied, RunnerHung, RunnerForged, CandidateFailed)


class BaselineFailed(Exception):
    """The reference's process failed, which is no verdict about the candidate."""


@dataclass
class TimedSide:
    """One of the two sides: its runner, its kernel, and the time of a call by calibration.
    `trusted` marks the reference."""

    name: str
    runner: RunnerProcess
    kernel: LoadedKernel
    trusted: bool = False
    per_call_ns: float = 0.0
    wall_per_call_ns: float = 0.0  # of the baseline, including the work between two calls
    left_processes: bool = False  # whether processes that it started were alive after a block
    other_work: OtherWork | None = None  # where waits for a processor matter

    def run(self, seed: int, calls: int, seconds: float, secret: int = 0) -> TimedBlock:
        """Run one block and stop the runner. Raises BaselineFailed if the trusted side fails, else
        as `LoadedKernel.block` does."""
        if self.other_work is None:
            return self._awake(lambda: self.kernel.block(seed, calls, seconds, secret))
        then = self.other_work.now()
        block = self._awake(lambda: self.kernel.block(seed, calls, seconds, secret))
        if block.waited_ns <= OWN_WAITS_NS * len(block.times):
            return block
        others = self.other_work.since(then, self.runner.pid, block.waited_ns / WAITING)
        return replace(block, others_ns=others)

    def _awake(self, act: Callable[[], T]) -> T:
        try:
            self.runner.wake()
            done = act()
            self.runner.pause()
            # It is stopped, but processes that it started run on during the other side's blocks.
            if not self.trusted and self.runner.settings.device == "cpu":
                self.left_processes = self.left_processes or bool(self.runner.children())
        except RUNNER_FAILED as failed:
            if self.trusted:
                raise BaselineFailed(str(failed)) from failed
            raise
        return done


@dataclass(frozen=True)
class TimingResult:
    """The timing of one case, the flags that measuring raised, and the mismatch of outputs that
    ended it."""

    timing: CaseTiming
    flags: tuple[Flag, ...] = ()
    mismatch: str | None = None

    @property
    def doubtful(self) -> bool:
        """Whether only clocks speak against the candidate."""
        kinds = {flag.defence for flag in self.flags}
        return self.mismatch is None and bool(kinds) and kinds <= BY_CLOCKS


def measure(
    case: str,
    *,
    baseline: TimedSide,
    candidate: TimedSide,
    policy: TimingPolicy,
    compare: CompareOutputs,
    compare_samples: CompareSamples,
    seed: int,
    defences: Defences,
) -> TimingResult:
    """Time both sides of a case against each other, by a policy for this kind of device.

    `compare` returns how the last outputs of both sides (candidate, baseline) disagree, or None;
    `compare_samples` the same for the samples of two blocks. `seed` decides block lengths and fresh
    values. Raises BaselineFailed if the reference fails, else as the candidate's kernel does.
    """
    chance = random.Random(seed)
    if policy.waits < 1:
        baseline.other_work = candidate.other_work = OtherWork()
    _calibrate(baseline, candidate, chance, policy)
    undisturbed: list[BlockPair] = []  # by other work
    pairs: list[BlockPair] = []
    disturbed: list[BlockPair] = []
    processes = [side.runner.pid for side in (baseline, candidate)]
    before = account(processes)
    for first, second in order_of(baseline, candidate, policy.max_pairs):
        pair = _pair(first, second, chance, policy)
        blocks = pair if first is baseline else (pair[1], pair[0])
        mismatch = compare(candidate.kernel.outputs, baseline.kernel.outputs)
        mismatch = mismatch or compare_samples(blocks[1], blocks[0])
        if mismatch:
            return TimingResult(CaseTiming(case, "none", reason=mismatch), (), mismatch)
        if any(_mean_of(block, policy) is None for block in blocks):
            disturbed.append(blocks)
            if _hopeless(len(pairs), len(disturbed), policy):
                break
            continue
        undisturbed.append(blocks)
        pairs = _counted(undisturbed, policy)
        if len(pairs) >= policy.min_pairs and _narrow_enough(pairs, policy):
            break
    left = left_between(before, account(processes))
    calm = [pair for pair in pairs if all(_calm(block, policy) for block in pair)]
    charged = hidden_ns(calm, policy.threads) if defences.charge_hidden_work else 0.0
    charged += charged_late_ns(pairs) if defences.charge_late_work else 0.0
    noisy = len(disturbed) + len(undisturbed) - len(pairs)
    timing = _unless_crowded(_conclude(case, pairs, noisy, policy, charged), left, policy)
    if timing.state == "measured" and len(calm) < MIN_BLOCKS:
        reason = "timing must be repeated: the machine was too restless to vouch for the clocks"
        timing = CaseTiming(case, "repeat", calls=timing.calls, reason=reason)
    if timing.state == "repeat":
        timing = _with_rough(timing, [*undisturbed, *disturbed])
    sides = [b for b, _ in calm], [c for _, c in calm]
    flags = [*_left_running(candidate, defences), *report_flags(sides[1], defences)]
    if timing.state == "measured":  # clocks that give no figure are no evidence either
        flags += clock_flags(*sides, defences)
    return TimingResult(timing, tuple(flags))


def order_of(baseline: T, candidate: T, pairs: int) -> Iterator[tuple[T, T]]:
    """A B, B A, A B, ...: drift that is linear in time cancels within four blocks."""
    for number in range(pairs):
        yield (candidate, baseline) if number % 2 else (baseline, candidate)


def _calibrate(
    baseline: TimedSide, candidate: TimedSide, chance: random.Random, policy: TimingPolicy
) -> None:
    """Warm up, and learn roughly how long a call takes. Both sides make the same calls, so that
    they hold the same values afterwards."""
    baseline.per_call_ns = candidate.per_call_ns = math.inf
    calls = 1
    before: TimedBlock | None = None
    for _ in range(MAX_CALIBRATION):
        seed, secret = chance.getrandbits(30), secrets.randbits(64)
        ours, theirs = (
            side.run(seed, policy.calls or calls, policy.seconds, secret)
            for side in (baseline, candidate)
        )
        for side, block in ((baseline, ours), (candidate, theirs)):
            side.per_call_ns = min(side.per_call_ns, max(1.0, min(block.times)))
        # The work between two calls is the same on both sides.
        around = baseline.wall_per_call_ns = _wall_per_call(before, ours)
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


def _wall_per_call(shorter: TimedBlock | None, block: TimedBlock) -> float:
    """Nanoseconds of a call with the work between two of them, without the fixed costs of a block:
    the difference of two blocks, and no less than is known of one."""
    known = sum(block.times) + block.refresh_ns + block.touch_ns
    more = len(block.times) - len(shorter.times) if shorter else 0
    if shorter is None or more <= 0:
        return max(block.total_ns, known) / len(block.times)
    return max((block.wall_ns - shorter.wall_ns) / more, known / len(block.times))


def _pair(
    first: TimedSide, second: TimedSide, chance: random.Random, policy: TimingPolicy
) -> tuple[TimedBlock, TimedBlock]:
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
    # Not from `chance`, because a runner sees other numbers of it.
    secret = secrets.randbits(64)
    blocks = [side.run(seed, calls, policy.seconds, secret) for side in (first, second)]
    return blocks[0], blocks[1]


# -- which blocks count


def _mean_of(block: TimedBlock, policy: TimingPolicy) -> float | None:
    """The mean of its calls, in nanoseconds; None if other work disturbed them."""
    quiet = block.quiet_mean_ns(policy.waits)
    return block.waiting_mean_ns(policy.waits) if quiet is None else quiet


def _counted(undisturbed: Sequence[BlockPair], policy: TimingPolicy) -> list[BlockPair]:
    """The pairs whose threads did not wait. All pairs, if most waited without a disturbance: then
    the threads of the calls wait for each other.
    """
    quiet = [
        pair for pair in undisturbed if all(b.quiet_mean_ns(policy.waits) is not None for b in pair)
    ]
    return quiet if 2 * len(quiet) >= len(undisturbed) else list(undisturbed)


def _hopeless(quiet: int, noisy: int, policy: TimingPolicy) -> bool:
    """Whether other work makes measuring pointless: min_pairs cannot be reached any more, or all of
    the first pairs were disturbed."""
    too_few = noisy > policy.max_pairs - policy.min_pairs
    return too_few or (not quiet and noisy >= BUSY_FROM_THE_START)


def _narrow_enough(pairs: Sequence[BlockPair], policy: TimingPolicy) -> bool:
    assert policy.narrow is not None
    return log_ratio(*_sides(pairs, policy))[1] <= policy.narrow


def _calm(block: TimedBlock, policy: TimingPolicy) -> bool:
    """Whether its clocks can be compared: other work mostly let its threads run."""
    return block.disturbed_ns <= max(CALM_SHARE, policy.quiet or 0.0) * block.wall_ns


# -- figures


def _conclude(
    case: str, pairs: Sequence[BlockPair], noisy: int, policy: TimingPolicy, charged: float
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
    baseline, candidate = _sides(pairs, policy)
    candidate = [mean + charged for mean in candidate]
    ratios = [ours / theirs for ours, theirs in zip(baseline, candidate, strict=True)]
    if policy.waits < 1 and (apart := _apart(ratios)):  # else other work does not matter
        return CaseTiming(case, "repeat", calls=calls, reason=apart)
    return CaseTiming(
        case,
        "measured",
        baseline_us=statistics.median(baseline) / 1e3,
        candidate_us=statistics.median(candidate) / 1e3,
        speedup=_ratio(baseline, candidate, policy),
        calls=calls,
        charged_us=charged / 1e3,
    )


def _apart(ratios: Sequence[float]) -> str:
    """Why repeated blocks give no speed-up: they disagree, but for an eighth at each end; ""."""
    ordered = sorted(ratios)
    cut = len(ordered) // 8
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    if high <= DISAGREEMENT * low:
        return ""
    return (
        f"timing must be repeated: the blocks disagree about the speed-up, from {low:.2g}x to"
        f" {high:.2g}x; stop other work and evaluate again"
    )


def _sides(pairs: Sequence[BlockPair], policy: TimingPolicy) -> tuple[list[float], list[float]]:
    """Means of the baseline's blocks, and of the candidate's, in nanoseconds."""
    baseline, candidate = (
        [_mean_of(pair[side], policy) or pair[side].mean_ns for pair in pairs] for side in (0, 1)
    )
    return baseline, candidate


def _ratio(baseline: Sequence[float], candidate: Sequence[float], policy: TimingPolicy) -> Interval:
    assert policy.between is not None
    shortest = min(*baseline, *candidate)
    # The clocks of calls that take microseconds are that much coarser.
    places = (policy.places_ns or 0.0) * min(1.0, SHORT_NS / shortest)
    between = math.hypot(policy.between, CLOCK_NS / shortest, places / shortest)
    return ratio_interval(baseline, candidate, between)


def _unless_crowded(timing: CaseTiming, left: float | None, policy: TimingPolicy) -> CaseTiming:
    """Without figures if other work used the processors that the two sides need."""
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


def _with_rough(timing: CaseTiming, pairs: Sequence[BlockPair]) -> CaseTiming:
    """With the fastest call of each side over all blocks: other work only adds to a time. Without
    them if both halves of the blocks do not confirm their ratio."""
    halves = [_fastest(pairs[half::2]) for half in (0, 1) if pairs[half::2]]
    ratios = [baseline / candidate for baseline, candidate in halves]
    if len(halves) < 2 or max(ratios) > ROUGHLY * min(ratios):
        return timing
    baseline, candidate = (ns / 1e3 for ns in _fastest(pairs))
    return replace(timing, rough_us=candidate, rough_baseline_us=baseline)


def _fastest(pairs: Sequence[BlockPair]) -> tuple[float, float]:
    baseline, candidate = (min(ns for pair in pairs for ns in pair[side].times) for side in (0, 1))
    return baseline, candidate


def _left_running(candidate: TimedSide, defences: Defences) -> Iterator[Flag]:
    """Processes that the candidate left running: those of a stopped runner run on during the
    reference's calls. On a GPU compilers start processes too."""
    if candidate.runner.settings.device != "cpu" or not defences.reject_background_work:
        return
    if candidate.runner.children():
        message = "processes that it started are still alive after its calls"
        yield Flag(Violation.BACKGROUND_WORK, "reject", message)
    elif candidate.left_processes:
        message = "processes that it started ran beside the reference's calls"
        yield Flag(Violation.BACKGROUND_WORK, "reject", message)
