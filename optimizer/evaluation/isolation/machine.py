"""This machine: its processors, their use by other work, and locks that keep measurements
on one device apart.

Processors of one name can be of several generations (one computes 512 bits at a time, another twice
256), so the model identifies a processor. The kernel's accounts are read on Linux only; elsewhere
they are unknown. Standard library only; torch for a GPU's uuid.
"""

from __future__ import annotations

import fcntl
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

CPUINFO = Path("/proc/cpuinfo")
# Keys of /proc/cpuinfo: CPUID leaf 1 on x86, MIDR_EL1 on Arm.
KEYS = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "CPU variant")


def signature(cpuinfo: str) -> str:
    """The model of the first processor; empty if the text has none of the keys."""
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
    """The number that this process may use: fewer than the machine has under `taskset` and in
    containers with a set of processors."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# -- processors that other work leaves, over a longer time Time that a hypervisor takes counts too,
# although no thread is reported to have waited for it.

_STAT = Path("/proc/stat")
# Columns of /proc/stat that are work or stolen: user, nice, system, irq, softirq, steal (proc(5)).
_BUSY = (0, 1, 2, 5, 6, 7)
MIN_SECONDS = 0.2  # the resolution of the account is a hundredth of a second
CROWD = 0.5  # processors that other work may use before nothing can be timed
LOOK_SECONDS = 0.3
WAIT_SECONDS = 2.0  # between two looks while waiting for other work to end
SAID_EVERY = 60.0
NAMED = 3  # processes
NOTABLE = 0.1  # processors that a process uses
OWN_MODULES = ("api.", "ingestion.", "retrieval.", "optimizer.", "kb.", "skills.")


@dataclass(frozen=True)
class ProcessorAccount:
    """Seconds since boot for which our processors were busy, seconds that our own processes used,
    the time of the account, and the number of processors."""

    busy: float
    own: float
    at: float
    processors: int


def account(processes: Sequence[int]) -> ProcessorAccount | None:
    """The kernel's account now; `processes` and this one are ours. None if it keeps none."""
    if not _STAT.is_file() or not hasattr(os, "sched_getaffinity"):
        return None
    usable = os.sched_getaffinity(0)
    tick = os.sysconf("SC_CLK_TCK")
    busy = 0
    for line in _STAT.read_text(encoding="ascii").splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in usable:
            busy += sum(int(counts[column]) for column in _BUSY if column < len(counts))
    own = time.process_time() + sum(_ticks(pid) for pid in processes) / tick
    return ProcessorAccount(busy / tick, own, time.monotonic(), len(usable))


def left_between(before: ProcessorAccount | None, after: ProcessorAccount | None) -> float | None:
    """Processors that other work left to us on average; None if unknown."""
    if before is None or after is None or after.at - before.at < MIN_SECONDS:
        return None
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return after.processors - max(0.0, foreign) / (after.at - before.at)


def other_work(threads: int, seconds: float = LOOK_SECONDS) -> str:
    """What leaves too few processors to time anything, with its processes; empty if nothing does,
    or if that is unknown. Watches for `seconds`."""
    before, then = account(()), _all_ticks()
    if before is None:
        return ""
    time.sleep(seconds)
    after = account(())
    left = left_between(before, after)
    if left is None or left >= threads - CROWD:
        return ""
    assert after is not None
    busiest = _busiest(then, after.at - before.at)
    others = f" ({', '.join(busiest)})" if busiest else ""
    return (
        f"other work{others} leaves about {max(0.0, left):.1f} of {before.processors} processors,"
        f" and timing needs {threads}"
    )


def too_busy(threads: int, seconds: float = LOOK_SECONDS) -> str:
    """`other_work` with advice; empty without it."""
    if not (work := other_work(threads, seconds)):
        return ""
    return (
        f"{work}: kernels are checked, but most get no figure until it ends. Stop it, wait for its"
        " end (--wait-idle MINUTES), or search again while the machine is idle: that search begins"
        " with the correct candidates"
    )


def wait_until_quiet(threads: int, seconds: float, log: Callable[[str], None]) -> bool:
    """Wait until other work leaves enough processors, at most `seconds`; whether it does. `log`
    gets the processes that are busy, once a minute."""
    until, said = time.monotonic() + seconds, -math.inf
    while busy := too_busy(threads):
        now = time.monotonic()
        if now >= until:
            return False
        if now - said >= SAID_EVERY:
            log(f"waiting, for at most {max(1.0, (until - now) / 60):.0f} minutes: {busy}")
            said = now
        time.sleep(min(WAIT_SECONDS, until - now))
    return True


def _all_ticks() -> dict[int, int]:
    """Ticks of every visible process but this one."""
    own = os.getpid()
    pids = (int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit())
    return {pid: _ticks(pid) for pid in pids if pid != own}


def _busiest(then: Mapping[int, int], seconds: float) -> list[str]:
    """The processes that used most of the processors since `then`, in words."""
    tick = os.sysconf("SC_CLK_TCK")
    used = {pid: (now - then.get(pid, now)) / tick / seconds for pid, now in _all_ticks().items()}
    most = sorted(used, key=lambda pid: -used[pid])[:NAMED]
    return [f"{_named(pid)}: {used[pid]:.1f}" for pid in most if used[pid] >= NOTABLE]


def _named(pid: int) -> str:
    """A process by its program and number, as `python (123)`; one of Kernlore by its command."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    program = Path(words[0]).name if words and words[0] else "a process"
    own = [word for word in words if word.startswith(OWN_MODULES) or Path(word).name == "kernlore"]
    if own:
        after = words[words.index(own[0]) + 1 :]
        about = [word for word in after[:1] if not word.startswith("{")]
        program = " ".join(["Kernlore's", Path(own[0]).name, *about]).strip()
    return f"{program} ({pid})"


def _ticks(pid: int) -> int:
    """Ticks of all threads of a process; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


# -- processor time of other work, during one block
#
# Threads of one program wait for each other, and a processor takes a while to wake up, also on an
# idle machine. So waits count as a disturbance only if others ran: the processor time of every
# visible process, in nanoseconds, plus that of the processors as a whole, in hundredths of a
# second, for processes that are not visible or ended meanwhile.

STEP_NS = 10_000_000  # of the account of each processor
KNOWN_NS = 400_000_000  # period over which that account is meaningful
LOADAVG = Path("/proc/loadavg")
FRESH_NS = 200_000_000  # for which a reading of it, half a millisecond, is reused


@dataclass(frozen=True)
class Moment:
    """Nanoseconds: the clock, processor time of the calling thread, and of each process."""

    at: int
    own: int
    used: dict[int, int]


class OtherWork:
    """The kernel's account from construction on. Not thread-safe."""

    def __init__(self) -> None:
        self._visible: Collection[int] = ()
        self._newest = b""
        self._list()
        self._begun = self.now()
        self._account = account(())
        self._hidden: tuple[int, float | None] = (self._begun.at - FRESH_NS, None)

    def now(self) -> Moment:
        """The account now, of the processes last listed: a system call of a third of a microsecond
        for each."""
        used = {pid: ns for pid in self._visible if (ns := _used_ns(pid)) is not None}
        return Moment(time.monotonic_ns(), time.thread_time_ns(), used)

    def since(self, then: Moment, ours: int, enough: float) -> float | None:
        """Nanoseconds of processor time used by anything but the calling thread, the process `ours`
        and its children. None if unknown: at the beginning, and without such an account. Counting
        stops at `enough`."""
        self._list()
        now = self.now()
        used = {pid: ns - then.used.get(pid, 0) for pid, ns in now.used.items()}
        used[os.getpid()] = used.get(os.getpid(), 0) - (now.own - then.own)
        seen = 0.0
        for ns, pid in sorted(((ns, pid) for pid, ns in used.items() if ns > 0), reverse=True):
            seen += ns if _competes(pid, ours) else 0
            if seen >= enough:
                return seen
        hidden = self._hidden_share(now)
        return None if hidden is None else seen + hidden * (now.at - then.at)

    def _hidden_share(self, now: Moment) -> float | None:
        """Average number of processors busy with work that no visible process shows; None if
        unknown."""
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
        """List the processes, if one has started since the last time."""
        if not sys.platform.startswith("linux"):
            return
        newest = LOADAVG.read_bytes().split()[-1]  # the number of the newest process
        if newest != self._newest:
            self._newest = newest
            with os.scandir("/proc") as entries:
                self._visible = [int(entry.name) for entry in entries if entry.name.isdigit()]


def _competes(pid: int, ours: int) -> bool:
    """Whether a process is not `ours` or its child, and may use one of our processors."""
    try:
        near = not os.sched_getaffinity(pid).isdisjoint(os.sched_getaffinity(0))
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return True  # it has ended
    return near and ours not in (pid, int(fields[1]))


def _used_ns(pid: int) -> int | None:
    """Processor time of all threads of a process; None if there is no such process."""
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)  # CPUCLOCK_SCHED, see clock_getcpuclockid(3)
    except OSError:
        return None


# -- devices


class DeviceLock:
    """A context in which no other process of this machine measures on the device. The kernel
    releases the lock however the process ends.

    Processes that were measured may still be ending when the lock is released. A mark is held until
    they are gone (`departing`), and nothing is timed while there is one (`alone`).
    """

    def __init__(self, device: str, folder: Path | None = None, number: int = 0) -> None:
        folder, device = folder or Path(tempfile.gettempdir()), physical(device, number)
        self._path = folder / f"kernlore-device-{device}-{os.getuid()}.lock"
        self._marks = self._path.with_suffix(".ending")
        self._file: IO[bytes] | None = None

    def __enter__(self) -> DeviceLock:
        self._file = self._path.open("ab")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """The lock if no other process has it now; the value says whether it is held."""
        with self._path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def departing(self) -> IO[bytes]:
        """A mark that measured processes are still ending, until it is closed. Only while the lock
        is held."""
        mark = self._marks.open("ab")
        fcntl.flock(mark, fcntl.LOCK_SH)
        return mark

    def alone(self) -> None:
        """Wait until no process holds a mark. Only while the lock is held, so that none is made
        meanwhile."""
        with self._marks.open("ab") as marks:
            fcntl.flock(marks, fcntl.LOCK_EX)


def physical(device: str, number: int = 0) -> str:
    """A name of the device with this number in this process. Processes that see different GPUs, by
    CUDA_VISIBLE_DEVICES, count each from 0 and need not wait for one another."""
    plain = device if number == 0 else f"{device}{number}"
    if device != "cuda":
        return plain
    import torch  # takes seconds

    if not torch.cuda.is_available():
        return plain
    return f"{device}-{torch.cuda.get_device_properties(number).uuid}"
