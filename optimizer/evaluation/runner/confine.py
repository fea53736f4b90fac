"""The runner gives up what a candidate has no need of, just before candidate code is loaded:
writing outside its own folders (Landlock), memory, processor time, large files, many processes.

Irreversible for this process and its children. Network and process namespaces are set up by the
supervisor, at start.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_CHILD_SUBREAPER = 36
_PATH_BENEATH = 1
# WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR .. MAKE_SYM, REFER (ABI 2), TRUNCATE (ABI 3); see
# the kernel's Documentation/userspace-api/landlock.rst. Reading and executing stay free.
_WRITES = (1 << 1) | sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_FILE_RIGHTS = (1 << 1) | _TRUNCATE  # of a rule about a file that is not a folder
# Devices by name: /dev as a whole holds /dev/shm, where files outlive their writer.
_WRITABLE = (
    "/proc/self",
    *(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "kfd")),
    "/dev/dri",
)
_GPU_DEVICES = "nvidia*"
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE, _MNT_DETACH = 0x00020000, 4096, 0x4000, 0x40000, 2
_SECRETS = tuple(Path("/etc") / name for name in ("shadow", "gshadow", "shadow-", "gshadow-"))
_RESERVED_NUMBERS = 300  # process numbers that are not given out a second time


def confine(
    writable: Sequence[Path], limits: Mapping[str, int], landlock: bool = True
) -> list[str]:
    """Apply what this system supports, and return the names of what was applied. `writable` lists
    folders; `limits` has the keys memory_bytes, cpu_seconds, file_bytes and processes, each
    optional."""
    applied = []
    if "memory_bytes" in limits:
        _limit(resource.RLIMIT_AS, _address_space() + limits["memory_bytes"])
        applied.append("memory")
    for name, which in (
        ("cpu_seconds", resource.RLIMIT_CPU),
        ("file_bytes", resource.RLIMIT_FSIZE),
    ):
        if name in limits:
            _limit(which, limits[name])
            applied.append(name.partition("_")[0])
    if os.getpid() == 1 and _hide(_SECRETS):
        applied.append("secrets")
    if "processes" in limits and _bound_processes(limits["processes"]):
        applied.append("processes")
    _limit(resource.RLIMIT_CORE, 0)
    if sys.platform.startswith("linux"):
        # What its children leave behind becomes its own child, so that it is seen as one.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if landlock and only_writes_to(*writable):
        applied.append("landlock")
    return applied


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (ceiling, ceiling))


def _own_mounts(libc: ctypes.CDLL) -> bool:
    """Let what this process mounts be seen by nobody else."""
    done: bool = (
        libc.unshare(_CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
    )
    return done


def leave_ipc() -> list[str]:
    """Share System V memory, semaphores and message queues with no other process. Returns the name
    of what was applied; nothing outside a user namespace of the runner's own."""
    libc = ctypes.CDLL(None, use_errno=True)
    return ["ipc"] if os.getpid() == 1 and libc.unshare(_CLONE_NEWIPC) == 0 else []


def _hide(files: Sequence[Path]) -> bool:
    """Cover files that only root may read: a runner that root started is root to them. False where
    one of them stays readable."""
    libc = ctypes.CDLL(None, use_errno=True)
    readable = [file for file in files if os.access(file, os.R_OK)]
    if not readable:
        return True
    return _own_mounts(libc) and all(
        libc.mount(b"/dev/null", bytes(file), None, _MS_BIND, None) == 0 for file in readable
    )


def _bound_processes(count: int) -> bool:
    """Bound the processes and threads of this runner to about `count`. False where that cannot be
    done: a limit of a user does not bind root."""
    if os.getpid() == 1 and _bound_numbers(count + _RESERVED_NUMBERS):
        return True
    _limit(resource.RLIMIT_NPROC, count + _tasks_of_user())
    outer = Path("/proc/self/uid_map").read_text(encoding="ascii").split()[1]
    return os.getuid() != 0 or outer != "0"


def _bound_numbers(largest: int) -> bool:
    """Give this process namespace so many process numbers. Linux 6.14 and later; the setting is
    reached through a /proc of the namespace's own, which is taken away again."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not _own_mounts(libc) or libc.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
        return False
    try:
        Path("/proc/sys/kernel/pid_max").write_text(str(largest), encoding="ascii")
    except OSError:
        return False
    finally:
        libc.umount2(b"/proc", _MNT_DETACH)
    return True


def _tasks_of_user() -> int:
    """Threads that this user has already: the system counts them all against one limit."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if folder.stat().st_uid == os.getuid():
                count += sum(1 for _ in (folder / "task").iterdir())
    return count


def _address_space() -> int:
    """What is mapped already: torch alone maps gigabytes that it never touches."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def landlock_abi() -> int:
    """The version of Landlock that this kernel has; 0 for none."""
    if not sys.platform.startswith("linux"):
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE_RULESET, None, 0, 1)))


def can_forbid_writing() -> bool:
    """Whether `only_writes_to` forbids all that changes a file. Before version 3 of Landlock one
    could still be truncated."""
    return landlock_abi() >= 3


def only_writes_to(*writable: Path) -> bool:
    """Forbid this process to write anywhere else. False where the kernel has no Landlock."""
    libc, abi = ctypes.CDLL(None, use_errno=True), landlock_abi()
    if not abi:
        return False
    rights = _WRITES | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    rules = libc.syscall(_CREATE_RULESET, struct.pack("Q", rights), 8, 0)
    if rules < 0:
        return False
    for place in (*writable, *map(Path, _WRITABLE), *Path("/dev").glob(_GPU_DEVICES)):
        _allow(libc, rules, place, rights)
    done: bool = (
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        and libc.syscall(_RESTRICT_SELF, rules, 0) == 0
    )
    os.close(rules)
    return done


def _allow(libc: ctypes.CDLL, rules: int, place: Path, rights: int) -> None:
    if not place.exists():
        return
    if not place.is_dir():
        rights &= _FILE_RIGHTS
    fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
    libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    os.close(fd)
