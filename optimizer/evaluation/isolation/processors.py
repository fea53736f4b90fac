"""How many processors other work left to us over a while, by the kernel's own account.

What a thread waits in the run queue does not show everything: on a virtual machine under load the
host takes time that no guest thread is said to have waited for. Standard library only, Linux only;
elsewhere nothing is known.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
# Columns of /proc/stat that are work or stolen: user, nice, system, irq, softirq, steal (proc(5)).
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class Account:
    """Seconds since boot that our processors were busy, that our own processes used, and now."""

    busy: float
    own: float
    at: float
    processors: int


def account(processes: Sequence[int]) -> Account | None:
    """processes: of ours, beside this one. None where the kernel keeps no such account."""
    if not _STAT.is_file() or not hasattr(os, "sched_getaffinity"):
        return None
    mine = os.sched_getaffinity(0)
    tick = os.sysconf("SC_CLK_TCK")
    busy = 0
    for line in _STAT.read_text(encoding="ascii").splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in mine:
            busy += sum(int(counts[column]) for column in _BUSY if column < len(counts))
    own = time.process_time() + sum(_used(pid) for pid in processes) / tick
    return Account(busy / tick, own, time.monotonic(), len(mine))


def left_between(before: Account | None, after: Account | None) -> float | None:
    """Processors that others left to us on average; None where that is not known."""
    if before is None or after is None or after.at - before.at < MIN_SECONDS:
        return None
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return after.processors - max(0.0, foreign) / (after.at - before.at)


MIN_SECONDS = 0.2  # the account is kept in hundredths of a second


def _used(pid: int) -> int:
    """Ticks of all threads of a process; 0 when it is gone."""
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(told[11]) + int(told[12])
