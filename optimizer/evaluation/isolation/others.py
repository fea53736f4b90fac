"""How much of the processors other work took while something of ours was timed.

A thread that waits for a processor does not say for whom. Threads of one program wait for each
other too, and a processor that slept takes a while to wake up: a reference of a thousand small
operators waits so in each of them, also where nothing else runs. So waits count as a disturbance
only where others ran, by the account of the kernel: the processor time of every process that is
visible here, in nanoseconds, and that of the processors as a whole, in hundredths of a second, for
what is not visible or ended in between. Standard library only. On Linux; elsewhere nothing is
known.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from optimizer.evaluation.isolation.processors import account

# The account of the processors is kept in hundredths of a second, for each by itself.
STEP_NS = 10_000_000
KNOWN_NS = 400_000_000  # from this much of it on it says something
LOADAVG = Path("/proc/loadavg")
FRESH_NS = 200_000_000  # how long what it said is good for: reading it takes half a millisecond


@dataclass(frozen=True)
class Moment:
    """Nanoseconds: the clock, processor time of the calling thread, and that of each process."""

    at: int
    own: int
    used: dict[int, int]


class Others:
    """The account of the kernel since this was made. Not for several threads."""

    def __init__(self) -> None:
        self._visible: Collection[int] = ()
        self._newest = b""
        self._list()
        self._begun = self.now()
        self._account = account(())
        self._hidden: tuple[int, float | None] = (self._begun.at - FRESH_NS, None)

    def now(self) -> Moment:
        """The account now, of the processes that were there when they were last listed: a call
        of the system for each, a third of a microsecond."""
        used = {pid: ns for pid in self._visible if (ns := _used_ns(pid)) is not None}
        return Moment(time.monotonic_ns(), time.thread_time_ns(), used)

    def since(self, then: Moment, ours: int, enough: float) -> float | None:
        """Nanoseconds of processor time that anybody but the calling thread, the process `ours`
        and its children used. None where that is not known: at the beginning, and where the system
        keeps no such account. From `enough` on, it is not looked for more."""
        self._list()
        now = self.now()
        used = {pid: ns - then.used.get(pid, 0) for pid, ns in now.used.items()}
        used[os.getpid()] = used.get(os.getpid(), 0) - (now.own - then.own)
        seen = 0.0
        for ns, pid in sorted(((ns, pid) for pid, ns in used.items() if ns > 0), reverse=True):
            seen += ns if _beside(pid, ours) else 0
            if seen >= enough:
                return seen
        hidden = self._hidden_share(now)
        return None if hidden is None else seen + hidden * (now.at - then.at)

    def _hidden_share(self, now: Moment) -> float | None:
        """Processors, on average since the beginning, that were busy with what no process here
        shows; None where that is not known."""
        if now.at - self._hidden[0] >= FRESH_NS:
            self._hidden = (now.at, self._counted_share(now))
        return self._hidden[1]

    def _counted_share(self, now: Moment) -> float | None:
        took = now.at - self._begun.at
        after = account(())
        if self._account is None or after is None or took < KNOWN_NS:
            return None
        shown = sum(ns - self._begun.used.get(pid, 0) for pid, ns in now.used.items())
        busy = 1e9 * (after.busy - self._account.busy)
        return max(0.0, busy - shown - STEP_NS * after.processors) / took

    def _list(self) -> None:
        """List the processes, where one has begun since they were listed."""
        if not sys.platform.startswith("linux"):
            return
        newest = LOADAVG.read_bytes().split()[-1]  # the number of the process that began last
        if newest != self._newest:
            self._newest = newest
            with os.scandir("/proc") as entries:
                self._visible = [int(entry.name) for entry in entries if entry.name.isdigit()]


def _beside(pid: int, ours: int) -> bool:
    """Whether a process is another's than `ours`, and may use a processor that this one may use."""
    try:
        near = not os.sched_getaffinity(pid).isdisjoint(os.sched_getaffinity(0))
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return True  # it has ended
    return near and ours not in (pid, int(fields[1]))


def _used_ns(pid: int) -> int | None:
    """Processor time of all threads of a process; None where there is no such process."""
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)  # CPUCLOCK_SCHED, see clock_getcpuclockid(3)
    except OSError:
        return None
