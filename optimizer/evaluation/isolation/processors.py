"""The processors of this machine: which they are, and how many of them other work left to us.

A name such as "AMD EPYC", and the name that a compiler gives to `-march=native`, are shared by
generations of which one computes 512 bits at a time and another twice 256: what one runs fastest,
the other does not. What a thread waits in the run queue does not show everything either: on a
virtual machine under load the host takes time that no guest thread is reported to have waited for.
Standard library only. The account of the kernel is read on Linux only; elsewhere it is unknown.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# Keys of /proc/cpuinfo: CPUID leaf 1 on x86, MIDR_EL1 on Arm.
KEYS = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "CPU variant")


def signature(cpuinfo: str) -> str:
    """The identification of the first processor; empty where the text has none of it."""
    first: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        first.setdefault(key.strip(), value.strip())
    return " ".join(first[key] for key in KEYS if first.get(key))


@cache
def processor() -> str:
    """This machine's processor, such as "AuthenticAMD 25 17" (family, model) or "0x41 0xd4f 0x0";
    else the architecture."""
    text = CPUINFO.read_text(encoding="utf-8", errors="replace") if CPUINFO.is_file() else ""
    return signature(text) or platform.machine()


def usable_processors() -> int:
    """How many this process may use: fewer than the machine has under `taskset` and in a container
    with a set of processors of its own."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_STAT = Path("/proc/stat")
# Columns of /proc/stat that are work or stolen: user, nice, system, irq, softirq, steal (proc(5)).
_BUSY = (0, 1, 2, 5, 6, 7)


@dataclass(frozen=True)
class Account:
    """Seconds since boot that our processors were busy, seconds that our own processes used, the
    time of the account, and the number of processors."""

    busy: float
    own: float
    at: float
    processors: int


def account(processes: Sequence[int]) -> Account | None:
    """The kernel's account now. `processes` are ours, beside this one. None where the kernel keeps
    no such account."""
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
    """Processors that other work left to us on average; None where that is not known."""
    if before is None or after is None or after.at - before.at < MIN_SECONDS:
        return None
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return after.processors - max(0.0, foreign) / (after.at - before.at)


MIN_SECONDS = 0.2  # the account is kept in hundredths of a second


def _used(pid: int) -> int:
    """Ticks of all threads of a process; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
