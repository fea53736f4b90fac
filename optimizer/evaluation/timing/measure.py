"""How long the candidate takes compared with the reference: two processes, driven alternately in
blocks of random length (A B B A), one at a time, the idle one stopped.

The supervisor's clock decides: the time that a runner reports counts only while it agrees with the
wall around the block. After every block the last outputs of both sides are compared.
"""

from __future__ import annotations

import math
import operator
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
from optimizer.evaluation.settings import TimingPolicy
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
    learnt = _calibrate(baseline, candidate, chance, policy)
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
    reported = [*learnt, *(ours for _, ours in [*undisturbed, *disturbed])]
    flags = [*_left_running(candidate, defences), *report_flags(reported, defences)]
    if timing.state == "measured":  # clocks that give no figure are no evidence either
        flags += clock_flags(*sides, defences)
    return TimingResult(timing, tuple(flags))


def order_of(baseline: T, candidate: T, pairs: int) -> Iterator[tuple[T, T]]:
    """A B, B A, A B, ...: drift that is linear in time cancels within four blocks."""
    for number in range(pairs):
        yield (candidate, baseline) if number % 2 else (baseline, candidate)


def _calibrate(
    baseline: TimedSide, candidate: TimedSide, chance: random.Random, policy: TimingPolicy
) -> list[TimedBlock]:
    """Warm up, and learn roughly how long a call takes. Both sides make the same calls, so that
    they hold the same values afterwards. Returns the candidate's blocks."""
    baseline.per_call_ns = candidate.per_call_ns = math.inf
    calls = 1
    before: TimedBlock | None = None
    blocks: list[TimedBlock] = []
    for _ in range(MAX_CALIBRATION):
        seed, secret = chance.getrandbits(30), secrets.randbits(64)
        ours, theirs = (
            side.run(seed, policy.calls or calls, policy.seconds, secret)
            for side in (baseline, candidate)
        )
        blocks.append(theirs)
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
    return blocks


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
    the threads of the calls wait for each other."""
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


# -- evidence of clocks and of a runner's own reports against a candidate
#
# Compared with the reference: time and processor time of its blocks that are not in the times of
# its calls, work that a GPU continues after a call, and functions that were replaced.

MIN_BLOCKS = 4  # with fewer, chance explains much
# How much the candidate's clocks may miss and still be a delay of the machine: shares of a block
# and of a call, and what waking a process and copying outputs take.
HIDDEN_SHARE, HIDDEN_NS = 0.15, 2_000_000
OUTSIDE_SHARE, OUTSIDE_NS = 0.3, 50_000
HOST_SHARE = 0.3  # difference of two processes in the host's work between calls on a GPU
BUSY_SHARE, BUSY_NS = 0.1, 50_000
# How much longer than the reference's the outputs may take to be read: a share of a call, plus.
TOUCH_SHARE, TOUCH_NS = 0.1, 40_000
# What reading a byte of a page may take where it is in no cache, as after streaming stores: a miss
# of memory and of the translation. It is charged to the candidate, as other hidden time is.
PAGE_NS = 250
# Above which time that its own clock misses counts as a candidate's: a share of a call, plus.
CHARGED_SHARE, CHARGED_NS = 0.05, 15_000
# Above which time between a grant and the next request that the runner did not report counts as the
# candidate's, on a CPU: a share of a call, plus. Of each block the longest are left out.
OUTER_SHARE, OUTER_NS, OUTER_LEFT = 0.02, 2_000, 0.05
SPAN_NS = 50_000  # for reading the kernel's account after a span
PAIR_NS = 400_000  # allowed difference of the fixed costs of a pair's two blocks
REFILL_SHARE = 0.1  # of the time that was waited, in which other processes used the caches
BLOCK_NS = 1_000_000  # of a block of any content: messages, first touch, copying outputs
# Above which work of a GPU after a call counts as the candidate's: a share of a call, plus. By
# events on the device, and by the host's clock, for which a process has to wake up.
IDLE_SHARE, IDLE_NS = 0.02, 4_000  # joining a stream costs 1 to 3 us
WALL_SHARE, WALL_NS = 0.05, 25_000

BlockPair = tuple[TimedBlock, TimedBlock]  # of the reference, of the candidate


def clock_flags(
    baseline: Sequence[TimedBlock], candidate: Sequence[TimedBlock], defences: Defences
) -> Iterator[Flag]:
    """Findings of the clocks; none for fewer than MIN_BLOCKS blocks."""
    if len(candidate) < MIN_BLOCKS:
        return
    if defences.read_outputs:
        yield from _waiting_for_a_reader(baseline, candidate)
    if defences.compare_clocks:
        yield from _hidden_work(baseline, candidate)


def report_flags(candidate: Sequence[TimedBlock], defences: Defences) -> Iterator[Flag]:
    """Findings that the runner itself reported, on however busy a machine. The first block may
    start threads that a kernel keeps."""
    if any(block.patched for block in candidate):
        message = "timers or comparison functions of torch or time were replaced"
        yield Flag(Violation.REPLACED_FUNCTIONS, "reject", message)
    if any(block.library_patched for block in candidate):
        message = "functions of a library that tell times were changed"
        yield Flag(Violation.PATCHED_LIBRARY, "reject", message)
    if defences.reject_dispatch_modes and any(block.mode_left for block in candidate):
        message = "a mode of torch's dispatcher was still on after its calls"
        yield Flag(Violation.DISPATCH_MODE, "reject", message)
    background = any(block.threads[1] > block.threads[0] for block in candidate[1:])
    if defences.reject_background_work and background:
        message = "Python threads were started by timed calls and are still alive"
        yield Flag(Violation.BACKGROUND_WORK, "reject", message)


# -- on the host


def hidden_ns(pairs: Sequence[BlockPair], threads: int) -> float:
    """Nanoseconds of a candidate's call that its own clock misses, beyond the reference's, if they
    exceed the noise of a machine. They count as its time, so hiding work gains nothing, and a
    kernel that leaves some of its cost to the caller pays it.

    The least over all pairs: a delay is in one of them, hidden work in each. With one thread,
    processor time of its other threads counts too: no other processor can take it over.
    """
    if len(pairs) < MIN_BLOCKS or any(b.walls != b.times for pair in pairs for b in pair):
        return 0.0
    kinds = [(_unseen_ns, _preparing_ns), (_outside_ns, _outside_ns)]
    if threads == 1:
        kinds.append((_all_threads_ns, _preparing_threads_ns))
    most = max(min(ours(c) - theirs(b) for b, c in pairs) for ours, theirs in kinds)
    own = statistics.median(c.mean_ns for _, c in pairs)
    charged = most if most > CHARGED_SHARE * own + CHARGED_NS else 0.0
    return max(charged, unreported_ns(pairs))


def unreported_ns(pairs: Sequence[BlockPair]) -> float:
    """Nanoseconds of a candidate's call by the supervisor's clock that its runner did not report,
    beyond the reference's, if those of three pairs in four exceed the noise of a machine: the
    median. On a GPU 0."""
    if len(pairs) < MIN_BLOCKS or not all(block.outer for pair in pairs for block in pair):
        return 0.0
    beyond = sorted(_unreported_ns(ours) - _unreported_ns(theirs) for theirs, ours in pairs)
    own = statistics.median(ours.mean_ns for _, ours in pairs)
    surely = beyond[len(beyond) // 4]
    return statistics.median(beyond) if surely > OUTER_SHARE * own + OUTER_NS else 0.0


def _unreported_ns(block: TimedBlock) -> float:
    """The mean over its calls without the longest, or without known waits if that is less: then the
    machine did something else."""
    missing: list[int] = sorted(map(operator.sub, block.outer, block.times))
    usual = statistics.fmean(missing[: max(1, round((1 - OUTER_LEFT) * len(missing)))])
    unwaited = statistics.fmean(missing) - _waits_between_ns(block) / len(missing)
    return min(usual, max(missing[0], unwaited))


def _hidden_work(baseline: Sequence[TimedBlock], candidate: Sequence[TimedBlock]) -> Iterator[Flag]:
    """The supervisor's clock against the runner's. Hidden work is in every block, a delay of the
    machine is not, so the candidate's best block counts."""
    own = statistics.median(b.mean_ns for b in candidate)
    calls = min(len(b.times) for b in candidate)
    spans = max(len(b.spans) / len(b.times) for b in candidate)
    # The two blocks of a pair have the same number of calls, so their fixed costs cancel.
    pairs = zip(baseline, candidate, strict=True)
    cold = _cold_pages_ns(baseline, candidate)
    unseen = min(_unseen_ns(c) - _preparing_ns(b) for b, c in pairs) - cold
    if unseen > BUSY_SHARE * own + BUSY_NS + PAIR_NS / calls + SPAN_NS * spans:
        message = f"{unseen / 1e3:.0f} us a call of processor time are not in its times"
        yield Flag(Violation.HIDDEN_TIME, "reject", message)
    hidden = min(map(_hidden_ns, candidate)) - max(0, *map(_hidden_ns, baseline))
    if hidden > HIDDEN_SHARE * min(b.wall_ns for b in candidate) + HIDDEN_NS:
        message = f"{hidden / 1e6:.1f} ms of a block are missing from its own clock"
        yield Flag(Violation.HIDDEN_TIME, "reject", message)
    # On the CPU there are no streams: the two clocks of a call are one.
    streams = any(b.walls != b.times for b in candidate)
    outside = min(map(_outside_ns, candidate)) - max(map(_outside_ns, baseline)) - cold
    late = late_ns(candidate) - late_ns(baseline)
    usual = HOST_SHARE * statistics.median(map(_outside_ns, baseline)) if streams else 0.0
    if outside > OUTSIDE_SHARE * own + OUTSIDE_NS + BLOCK_NS / calls + usual:
        kind = Violation.SIDE_STREAM if streams else Violation.BACKGROUND_WORK
        yield _outside_flag(kind, outside)
    elif late > OUTSIDE_SHARE * own + OUTSIDE_NS:
        yield _outside_flag(Violation.SIDE_STREAM, late)


def _outside_flag(kind: Violation, ns: float) -> Flag:
    return Flag(
        kind, "reject", f"{ns / 1e3:.0f} us a call of its work happen outside the timed call"
    )


def _waiting_for_a_reader(
    baseline: Sequence[TimedBlock], candidate: Sequence[TimedBlock]
) -> Iterator[Flag]:
    """Work that waits until the outputs are read is in every block."""
    late = _touched_later_ns(baseline, candidate) - _cold_pages_ns(baseline, candidate)
    if late > TOUCH_SHARE * statistics.median(b.mean_ns for b in candidate) + TOUCH_NS:
        message = f"{late / 1e3:.0f} us a call of work wait for a reader"
        yield Flag(Violation.LATE_OUTPUT, "reject", message)


def _touched_later_ns(baseline: Sequence[TimedBlock], candidate: Sequence[TimedBlock]) -> float:
    """How much longer a call's outputs take to be read: the candidate's best block against the
    reference's median."""
    return min(map(_touch_ns, candidate)) - statistics.median(map(_touch_ns, baseline))


def _cold_pages_ns(baseline: Sequence[TimedBlock], candidate: Sequence[TimedBlock]) -> float:
    """The part of that which misses of caches explain."""
    most = PAGE_NS * max(block.pages for block in candidate)
    return min(most, max(0.0, _touched_later_ns(baseline, candidate)))


def _touch_ns(block: TimedBlock) -> float:
    """Time to read the outputs of a call."""
    return block.touch_ns / len(block.times)


def _hidden_ns(block: TimedBlock) -> int:
    """Time that the supervisor's wall saw and the runner's did not. A busy machine delays the
    answer of an honest block; a false clock does so in every one."""
    return _wall_ns(block) - block.total_ns


def _wall_ns(block: TimedBlock) -> int:
    """Without the machine's share between its calls. Waits within them are in their times too."""
    return block.wall_ns - _waits_between_ns(block)


def _waits_between_ns(block: TimedBlock) -> int:
    """For how long either side waited for a processor outside the calls."""
    within = sum(waited for _, _, waited in block.spans)
    return max(0, round(block.disturbed_ns) - within) + block.delayed_ns


def _all_threads_ns(block: TimedBlock) -> float:
    """Processor time a call, of all threads, that the clock of the calls missed."""
    return (block.worked_ns - sum(block.times)) / len(block.times)


def _preparing_threads_ns(reference: TimedBlock) -> float:
    """The same of the reference, as in `_preparing_ns`."""
    inside_ns = reference.inside_ns or sum(reference.times)
    return (reference.worked_ns - inside_ns) / len(reference.times)


def _unseen_ns(block: TimedBlock) -> float:
    """Processor time a call that the clock of the calls missed: on both sides the preparation of a
    call. Other processes do not add to it. On a GPU the clock is another one."""
    if block.walls != block.times:
        return 0.0
    return (block.busy_ns - _refill_ns(block) - sum(block.times)) / len(block.times)


def _preparing_ns(reference: TimedBlock) -> float:
    """Processor time that prepares a call. The reference's process reports the share of its calls
    that had a processor, with what waits within them cost; for a candidate's the maximum is
    assumed, the whole call."""
    if reference.inside_ns == 0 or reference.walls != reference.times:
        return _unseen_ns(reference)
    return (reference.busy_ns - reference.inside_ns) / len(reference.times)


def _refill_ns(block: TimedBlock) -> float:
    """A process that lost its processor finds cold caches when it comes back."""
    return REFILL_SHARE * (block.disturbed_ns + block.delayed_ns)


def _outside_ns(block: TimedBlock) -> float:
    """Nanoseconds a call that the wall saw and the clock of the calls missed."""
    return (_wall_ns(block) - sum(block.times)) / len(block.times)


# -- on a GPU


def charged_late_ns(pairs: Sequence[BlockPair]) -> float:
    """Nanoseconds for which the device continues the candidate's work after its call, beyond the
    reference's, if they exceed chance. They count as its time, so a stream that is not waited for,
    or an end that is recorded too early, gains nothing. By the device's events, or else by the
    host's clock.

    The least over all pairs: a delay is in one of them, hidden work in each.
    """
    if not pairs or all(block.walls == block.times for pair in pairs for block in pair):
        return 0.0
    own = statistics.median(ours.mean_ns for _, ours in pairs)
    late = min(late_ns([ours]) - late_ns([theirs]) for theirs, ours in pairs)
    if late > IDLE_SHARE * own + IDLE_NS and all(b.idles for pair in pairs for b in pair):
        return late
    wall = min(_wall_late_ns([ours]) - _wall_late_ns([theirs]) for theirs, ours in pairs)
    return wall if wall > WALL_SHARE * own + WALL_NS else 0.0


def late_ns(blocks: Sequence[TimedBlock]) -> float:
    """Median time from the end of a call on its stream until the device is idle. Work on another
    stream is in most calls, not in all: some wait for the work of the previous one."""
    if all(block.idles for block in blocks):
        return statistics.median(ns for block in blocks for ns in block.idles)
    return _wall_late_ns(blocks)


def _wall_late_ns(blocks: Sequence[TimedBlock]) -> float:
    return statistics.median(
        wall - took for block in blocks for wall, took in zip(block.walls, block.times, strict=True)
    )
