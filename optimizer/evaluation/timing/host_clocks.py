"""What the clocks of the host say about a candidate's honesty, beside the reference's: time and
processor time of its blocks that are not in the times of its calls."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence

from optimizer.evaluation.records import Flag
from optimizer.evaluation.timed_block import Block
from optimizer.evaluation.timing.device_clocks import late_ns

TELLING_BLOCKS = 4  # with fewer, chance explains much
# How much may be missing from the candidate's clocks and still pass for a delay of the machine:
# shares of a block and of a call, and what waking a process and copying outputs take.
HIDDEN_SHARE, HIDDEN_NS = 0.15, 2_000_000
OUTSIDE_SHARE, OUTSIDE_NS = 0.3, 50_000
HOST_SHARE = 0.3  # by which two processes differ in what a host does between calls on a GPU
BUSY_SHARE, BUSY_NS = 0.1, 50_000
# How much longer than the reference's the outputs may take to be read: a share of a call, and more.
TOUCH_SHARE, TOUCH_NS = 0.1, 40_000
# From where on time that its own clock misses counts as a candidate's: a share of a call, and more.
CHARGED_SHARE, CHARGED_NS = 0.05, 15_000
SPAN_NS = 50_000  # for reading the kernel's account after a span
PAIR_NS = 400_000  # by which the fixed costs of a pair's two blocks may differ
REFILL_SHARE = 0.1  # of the time that was waited, in which other processes used the caches
BLOCK_NS = 1_000_000  # of a block, whatever it holds: messages, first touch, copying outputs
# Rows of the exploit table that the comparison of the two clocks serves.
WALL = (1, 2, 3, 4, 13)
# Whether the defences of some rows of the exploit table are all on.
On = Callable[..., bool]


def integrity(baseline: Sequence[Block], candidate: Sequence[Block], on: On) -> Iterator[Flag]:
    """What the clocks say about the candidate's honesty; nothing where there are few blocks."""
    if len(candidate) < TELLING_BLOCKS:
        return
    if on(36):
        yield from _waiting_for_a_reader(baseline, candidate)
    if on(*WALL):
        yield from _wall(baseline, candidate)


def hidden_ns(pairs: Sequence[tuple[Block, Block]], threads: int) -> float:
    """Nanoseconds a call of the candidate that its own clock does not show, beside the reference's,
    where they are more than a machine makes them. They count as its time: who hides work gains
    nothing by it, and a kernel that leaves some of its cost to its caller pays it.

    The least over all pairs: a delay is in one of them, hidden work in each. With one thread,
    processor time of its other threads counts too: nobody else's processor can take it over.
    """
    if len(pairs) < TELLING_BLOCKS or any(b.walls != b.times for pair in pairs for b in pair):
        return 0.0
    kinds = [(_unseen_ns, _preparing_ns), (_outside_ns, _outside_ns)]
    if threads == 1:
        kinds.append((_beside_ns, _beside_ns))
    most = max(min(ours(c) - theirs(b) for b, c in pairs) for ours, theirs in kinds)
    own = _median(c.mean_ns for _, c in pairs)
    return most if most > CHARGED_SHARE * own + CHARGED_NS else 0.0


def _beside_ns(block: Block) -> float:
    """Processor time a call, of all threads, that the clock of the calls did not see."""
    return (block.worked_ns - sum(block.times)) / len(block.times)


def _wall(baseline: Sequence[Block], candidate: Sequence[Block]) -> Iterator[Flag]:
    """What the supervisor's clock says about the runner's. Work that is hidden is hidden in every
    block; a delay of the machine is not, so it is the candidate's best block that tells."""
    own = _median(b.mean_ns for b in candidate)
    calls = min(len(b.times) for b in candidate)
    spans = max(len(b.spans) / len(b.times) for b in candidate)
    # The two blocks of a pair have as many calls, so what a block costs at all cancels out.
    pairs = zip(baseline, candidate, strict=True)
    unseen = min(_unseen_ns(c) - _preparing_ns(b) for b, c in pairs)
    if unseen > BUSY_SHARE * own + BUSY_NS + PAIR_NS / calls + SPAN_NS * spans:
        yield Flag(
            13, "reject", f"{unseen / 1e3:.0f} us a call of processor time are not in its times"
        )
    hidden = min(map(_hidden_ns, candidate)) - max(map(_hidden_ns, baseline))
    if hidden > HIDDEN_SHARE * min(b.wall_ns for b in candidate) + HIDDEN_NS:
        yield Flag(13, "reject", f"{hidden / 1e6:.1f} ms of a block are missing from its own clock")
    # On the CPU there are no streams: there the two clocks of a call are one.
    streams = any(b.walls != b.times for b in candidate)
    outside = min(map(_outside_ns, candidate)) - max(map(_outside_ns, baseline))
    late = late_ns(candidate) - late_ns(baseline)
    usual = HOST_SHARE * _median(map(_outside_ns, baseline)) if streams else 0.0
    if outside > OUTSIDE_SHARE * own + OUTSIDE_NS + BLOCK_NS / calls + usual:
        yield _outside_flag(1 if streams else 2, outside)
    elif late > OUTSIDE_SHARE * own + OUTSIDE_NS:
        yield _outside_flag(1, late)


def _outside_flag(row: int, ns: float) -> Flag:
    message = f"{ns / 1e3:.0f} us a call of its work happen outside the timed call"
    return Flag(row, "reject", message)


def _waiting_for_a_reader(baseline: Sequence[Block], candidate: Sequence[Block]) -> Iterator[Flag]:
    """What waits for a reader of the outputs waits in every block: the candidate's best one tells,
    beside the reference's usual one.
    """
    late = min(map(_touch_ns, candidate)) - _median(map(_touch_ns, baseline))
    if late > TOUCH_SHARE * _median(b.mean_ns for b in candidate) + TOUCH_NS:
        yield Flag(36, "reject", f"{late / 1e3:.0f} us a call of work wait for a reader")


def _touch_ns(block: Block) -> float:
    """How long the outputs of a call took to be read."""
    return block.touch_ns / len(block.times)


def _hidden_ns(block: Block) -> int:
    """What the supervisor's wall saw and the runner's did not. A busy machine delays the answer of
    an honest block; a clock that lies does so in every one."""
    return _wall_ns(block) - block.total_ns


def _wall_ns(block: Block) -> int:
    """Without what the machine, not the candidate, took: waiting for a processor on either side."""
    return block.wall_ns - round(block.disturbed_ns) - block.delayed_ns


def _unseen_ns(block: Block) -> float:
    """Processor time a call that the clock of the calls did not see: what prepares a call, on both
    sides alike. Other processes do not add to it. Where a GPU works, its clock is another one."""
    return _beyond_ns(block, sum(block.times))


def _preparing_ns(reference: Block) -> float:
    """Processor time a call that prepares it. The reference's process says itself for how much of
    its calls it had a processor; of a candidate's the most that can be is taken, the whole call."""
    return _beyond_ns(reference, reference.inside_ns or sum(reference.times))


def _beyond_ns(block: Block, inside_ns: float) -> float:
    if block.walls != block.times:
        return 0.0
    # A process that lost its processor finds cold caches when it comes back.
    refill = REFILL_SHARE * (block.disturbed_ns + block.delayed_ns)
    return (block.busy_ns - refill - inside_ns) / len(block.times)


def _outside_ns(block: Block) -> float:
    """Nanoseconds a call that the wall saw and the clock of the calls did not."""
    return (_wall_ns(block) - sum(block.times)) / len(block.times)


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)
