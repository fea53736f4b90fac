"""Evidence of clocks and of a runner's own reports against a candidate, compared with the
reference: time and processor time of its blocks that are not in the times of its calls, work that a
GPU goes on with after a call, and functions that were replaced."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterable, Iterator, Sequence

from optimizer.evaluation.loaded_kernel import TimedBlock
from optimizer.evaluation.records import Flag, Violation
from optimizer.evaluation.runner.defences import Defences

MIN_BLOCKS = 4  # with fewer, chance explains much
# How much the candidate's clocks may miss and still be a delay of the machine: shares of a block
# and of a call, and what waking a process and copying outputs take.
HIDDEN_SHARE, HIDDEN_NS = 0.15, 2_000_000
OUTSIDE_SHARE, OUTSIDE_NS = 0.3, 50_000
HOST_SHARE = 0.3  # difference of two processes in the host's work between calls on a GPU
BUSY_SHARE, BUSY_NS = 0.1, 50_000
# How much longer than the reference's the outputs may take to be read: a share of a call, plus.
TOUCH_SHARE, TOUCH_NS = 0.1, 40_000
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
    """Findings that the runner itself reported, on however busy a machine."""
    if any(block.patched for block in candidate):
        message = "timers or comparison functions of torch or time were replaced"
        yield Flag(Violation.REPLACED_FUNCTIONS, "reject", message)
    if defences.driver_times and any(block.library_patched for block in candidate):
        message = "functions of a library that tell times were changed"
        yield Flag(Violation.PATCHED_LIBRARY, "reject", message)
    if defences.reject_dispatch_modes and any(block.mode_left for block in candidate):
        message = "a mode of torch's dispatcher was still on after its calls"
        yield Flag(Violation.DISPATCH_MODE, "reject", message)
    background = any(block.threads[1] > block.threads[0] for block in candidate)
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
        kinds.append((_all_threads_ns, _all_threads_ns))
    most = max(min(ours(c) - theirs(b) for b, c in pairs) for ours, theirs in kinds)
    own = _median(c.mean_ns for _, c in pairs)
    charged = most if most > CHARGED_SHARE * own + CHARGED_NS else 0.0
    return max(charged, unreported_ns(pairs))


def unreported_ns(pairs: Sequence[BlockPair]) -> float:
    """Nanoseconds of a candidate's call by the supervisor's clock that its runner did not report,
    beyond the reference's, if those of three pairs in four exceed the noise of a machine: the
    median. On a GPU 0."""
    if len(pairs) < MIN_BLOCKS or not all(block.outer for pair in pairs for block in pair):
        return 0.0
    beyond = sorted(_unreported_ns(ours) - _unreported_ns(theirs) for theirs, ours in pairs)
    own = _median(ours.mean_ns for _, ours in pairs)
    surely = beyond[len(beyond) // 4]
    return _median(beyond) if surely > OUTER_SHARE * own + OUTER_NS else 0.0


def _unreported_ns(block: TimedBlock) -> float:
    """The mean over its calls, without the longest: then the machine did something else."""
    missing = sorted(map(operator.sub, block.outer, block.times))
    return statistics.fmean(missing[: max(1, round((1 - OUTER_LEFT) * len(missing)))])


def _hidden_work(baseline: Sequence[TimedBlock], candidate: Sequence[TimedBlock]) -> Iterator[Flag]:
    """The supervisor's clock against the runner's. Hidden work is in every block, a delay of the
    machine is not, so the candidate's best block counts."""
    own = _median(b.mean_ns for b in candidate)
    calls = min(len(b.times) for b in candidate)
    spans = max(len(b.spans) / len(b.times) for b in candidate)
    # The two blocks of a pair have the same number of calls, so their fixed costs cancel.
    pairs = zip(baseline, candidate, strict=True)
    unseen = min(_unseen_ns(c) - _preparing_ns(b) for b, c in pairs)
    if unseen > BUSY_SHARE * own + BUSY_NS + PAIR_NS / calls + SPAN_NS * spans:
        message = f"{unseen / 1e3:.0f} us a call of processor time are not in its times"
        yield Flag(Violation.HIDDEN_TIME, "reject", message)
    hidden = min(map(_hidden_ns, candidate)) - max(map(_hidden_ns, baseline))
    if hidden > HIDDEN_SHARE * min(b.wall_ns for b in candidate) + HIDDEN_NS:
        message = f"{hidden / 1e6:.1f} ms of a block are missing from its own clock"
        yield Flag(Violation.HIDDEN_TIME, "reject", message)
    # On the CPU there are no streams: the two clocks of a call are one.
    streams = any(b.walls != b.times for b in candidate)
    outside = min(map(_outside_ns, candidate)) - max(map(_outside_ns, baseline))
    late = late_ns(candidate) - late_ns(baseline)
    usual = HOST_SHARE * _median(map(_outside_ns, baseline)) if streams else 0.0
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
    """Work that waits until the outputs are read is in every block: the candidate's best against
    the reference's median."""
    late = min(map(_touch_ns, candidate)) - _median(map(_touch_ns, baseline))
    if late > TOUCH_SHARE * _median(b.mean_ns for b in candidate) + TOUCH_NS:
        message = f"{late / 1e3:.0f} us a call of work wait for a reader"
        yield Flag(Violation.LATE_OUTPUT, "reject", message)


def _touch_ns(block: TimedBlock) -> float:
    """Time to read the outputs of a call."""
    return block.touch_ns / len(block.times)


def _hidden_ns(block: TimedBlock) -> int:
    """Time that the supervisor's wall saw and the runner's did not. A busy machine delays the
    answer of an honest block; a false clock does so in every one."""
    return _wall_ns(block) - block.total_ns


def _wall_ns(block: TimedBlock) -> int:
    """Without the machine's share: waiting for a processor on either side."""
    return block.wall_ns - round(block.disturbed_ns) - block.delayed_ns


def _all_threads_ns(block: TimedBlock) -> float:
    """Processor time a call, of all threads, that the clock of the calls missed."""
    return (block.worked_ns - sum(block.times)) / len(block.times)


def _unseen_ns(block: TimedBlock) -> float:
    """Processor time a call that the clock of the calls missed: on both sides the preparation of a
    call. Other processes do not add to it. On a GPU the clock is another one."""
    return _beyond_ns(block, sum(block.times))


def _preparing_ns(reference: TimedBlock) -> float:
    """Processor time that prepares a call. The reference's process reports how much of its calls it
    had a processor; for a candidate's the most that is possible is assumed, the whole call."""
    return _beyond_ns(reference, reference.inside_ns or sum(reference.times))


def _beyond_ns(block: TimedBlock, inside_ns: float) -> float:
    if block.walls != block.times:
        return 0.0
    # A process that lost its processor finds cold caches when it comes back.
    refill = REFILL_SHARE * (block.disturbed_ns + block.delayed_ns)
    return (block.busy_ns - refill - inside_ns) / len(block.times)


def _outside_ns(block: TimedBlock) -> float:
    """Nanoseconds a call that the wall saw and the clock of the calls missed."""
    return (_wall_ns(block) - sum(block.times)) / len(block.times)


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


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
