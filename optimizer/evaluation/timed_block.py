"""What is known of calls that were timed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COLD_NS, COLD_SHARE = 5_000_000, 0.2  # of a block: the clock's warm-up
WARM_SPANS = 3
GRACE_NS = 20_000  # waits that wake-ups cost on a quiet machine
WAITING = 2  # threads that wait, at most, where other work has a processor


@dataclass(frozen=True)
class Block:
    """Calls that were timed together. All times are in nanoseconds.

    `times` has one entry for each call by the device's clock, `walls` by the wall clock. Each span
    is a number of calls, their time, and how long threads were ready and had no processor
    meanwhile. `looks` has the bytes of some elements of each call's outputs, `draws` what decided
    which they are; `looks` is empty where nobody looks. `waited_ns` is the wait over the whole
    block; `delayed_ns` is how long the supervisor itself waited, so that it saw the end too late.
    `busy_ns` is processor time of the runner's main thread, by the kernel's account. `threads`
    counts Python threads before and after. `patched` says that timers or comparison functions were
    replaced. `worked_ns` is processor time of all of the runner's threads. `inputs` has the bytes
    of some elements of what each call left in its inputs, and `late` counts calls whose outputs
    changed after they had ended; both are there only where the supervisor looked itself. `seeds`
    decided each call's fresh values. `idles` holds how long after each call's end on its stream a
    GPU had nothing left to do, where that is known. `diverted` says that functions which tell times
    began otherwise than at the start, `moded` that a mode of torch's dispatcher was on after a
    call. `inside_ns` is what of `busy_ns` lay in the calls, as the runner says. `others_ns` is
    processor time that anybody else used meanwhile, None where that is not known.
    """

    times: tuple[int, ...]
    walls: tuple[int, ...]
    spans: tuple[tuple[int, int, int], ...]
    refresh_ns: int
    touch_ns: int
    total_ns: int
    wall_ns: int
    waited_ns: int
    delayed_ns: int
    busy_ns: int
    threads: tuple[int, int]
    patched: bool
    draws: tuple[bytes, ...] = ()
    looks: tuple[bytes, ...] = ()
    inputs: tuple[bytes, ...] = ()
    late: int = 0
    worked_ns: int = 0
    seeds: tuple[int, ...] = ()
    idles: tuple[int, ...] = ()
    diverted: bool = False
    moded: bool = False
    inside_ns: int = 0
    others_ns: float | None = None

    @property
    def disturbed_ns(self) -> float:
        """Of the time that was waited, what other work may have caused; for the rest its threads
        waited for each other, or for a processor to wake up."""
        if self.others_ns is None:
            return self.waited_ns
        return min(self.waited_ns, WAITING * self.others_ns)

    @property
    def mean_ns(self) -> float:
        """The mean call."""
        return sum(self.times) / len(self.times)

    def quiet_mean_ns(self, share: float) -> float | None:
        """The mean call in spans that waited for no more than this share; None if those are less
        than half of the calls.

        A block begins with caches that hold the other side's data and with threads that sleep: its
        first spans do not count where there are enough others.
        """
        spans = self._warm_spans()
        quiet = [(calls, ns) for calls, ns, waited in spans if waited <= share * ns + GRACE_NS]
        calls = sum(calls for calls, _ in quiet)
        if not calls or 2 * calls < sum(calls for calls, _, _ in spans):
            return None
        return sum(ns for _, ns in quiet) / calls

    def waiting_mean_ns(self, share: float) -> float | None:
        """The mean call of a block that waited by itself: while other work used less than this
        share of a processor, and less than would explain the waits. None where it did not, or
        where that is not known."""
        if self.others_ns is None or self.others_ns > share * self.wall_ns:
            return None
        if sum(waited for _, _, waited in self.spans) <= WAITING * self.others_ns:
            return None
        spans = self._warm_spans()
        return sum(ns for _, ns, _ in spans) / sum(calls for calls, _, _ in spans)

    def _warm_spans(self) -> Sequence[tuple[int, int, int]]:
        cold = min(COLD_NS, COLD_SHARE * sum(self.times))
        passed = skipped = 0
        for _, ns, _ in self.spans:
            if passed >= cold:
                break
            passed += ns
            skipped += 1
        return self.spans[skipped:] if len(self.spans) - skipped >= WARM_SPANS else self.spans
