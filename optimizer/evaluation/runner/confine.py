"""Privileges and limits that a runner gives up just before candidate code is loaded: writing
outside its own folders (Landlock), system calls that carry data past that (seccomp), memory,
processor time, large files, many processes.

Irreversible for this process and its children. The supervisor sets up network and process
namespaces at start.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
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
# the kernel's Documentation/userspace-api/landlock.rst. Reading and executing stay allowed.
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
_RESERVED_NUMBERS = 300  # process numbers that the kernel does not reuse


def confine(
    writable: Sequence[Path], limits: Mapping[str, int], landlock: bool = True
) -> list[str]:
    """Apply the restrictions that this system supports, and return their names. `writable` lists
    folders; `limits` may have memory_bytes, cpu_seconds, file_bytes and processes."""
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
        # Orphans of its children become its own children, so that they are counted.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if landlock and only_writes_to(*writable):
        applied.append("landlock")
    return applied


def _limit(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (ceiling, ceiling))


def _private_mounts(libc: ctypes.CDLL) -> bool:
    """Make mounts of this process invisible to others."""
    done: bool = (
        libc.unshare(_CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0
    )
    return done


def leave_ipc() -> list[str]:
    """Stop sharing System V memory, semaphores and message queues. Returns the name of the
    restriction; possible only in the runner's own user namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    return ["ipc"] if os.getpid() == 1 and libc.unshare(_CLONE_NEWIPC) == 0 else []


def private_shared_memory() -> list[Path]:
    """Replace /dev/shm, where files outlive their writer, by an empty one that ends with this
    process. Returns the folder, which may then be writable; possible only in the process's own
    namespaces, else empty."""
    libc, folder = ctypes.CDLL(None, use_errno=True), Path("/dev/shm")
    own = os.getpid() == 1 and folder.is_dir() and _private_mounts(libc)
    done = own and libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, None) == 0
    return [folder] if done else []


def _hide(files: Sequence[Path]) -> bool:
    """Hide files that only root may read, which a runner that root started could read. Returns
    False if one of them stays readable."""
    libc = ctypes.CDLL(None, use_errno=True)
    readable = [file for file in files if os.access(file, os.R_OK)]
    if not readable:
        return True
    return _private_mounts(libc) and all(
        libc.mount(b"/dev/null", bytes(file), None, _MS_BIND, None) == 0 for file in readable
    )


def _bound_processes(count: int) -> bool:
    """Limit the processes and threads of this runner to about `count`. False if that is impossible:
    a user's limit does not bind root."""
    if os.getpid() == 1 and _limit_numbers(count + _RESERVED_NUMBERS):
        return True
    _limit(resource.RLIMIT_NPROC, count + _tasks_of_user())
    outer = Path("/proc/self/uid_map").read_text(encoding="ascii").split()[1]
    return os.getuid() != 0 or outer != "0"


def _limit_numbers(largest: int) -> bool:
    """Limit the process numbers of this namespace, from Linux 6.14 on. The setting is reached
    through a /proc of the namespace, which is then unmounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not _private_mounts(libc) or libc.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
        return False
    try:
        Path("/proc/sys/kernel/pid_max").write_text(str(largest), encoding="ascii")
    except OSError:
        return False
    finally:
        libc.umount2(b"/proc", _MNT_DETACH)
    return True


def _tasks_of_user() -> int:
    """Threads of this user, which the system counts against one limit."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if folder.stat().st_uid == os.getuid():
                count += sum(1 for _ in (folder / "task").iterdir())
    return count


def _address_space() -> int:
    """Bytes mapped already: torch alone maps gigabytes that it never touches."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def landlock_abi() -> int:
    """The kernel's version of Landlock; 0 for none."""
    if not sys.platform.startswith("linux"):
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(_CREATE_RULESET, None, 0, 1)))


def can_forbid_writing() -> bool:
    """Whether `only_writes_to` forbids every change of a file. Before version 3 Landlock allowed
    truncating."""
    return landlock_abi() >= 3


def only_writes_to(*writable: Path) -> bool:
    """Forbid this process to write anywhere else. False without Landlock."""
    libc, abi = ctypes.CDLL(None, use_errno=True), landlock_abi()
    if not abi:
        return False
    rights = _WRITES | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    rules = libc.syscall(_CREATE_RULESET, struct.pack("Q", rights), 8, 0)
    if rules < 0:
        return False
    for path in (*writable, *map(Path, _WRITABLE), *Path("/dev").glob(_GPU_DEVICES)):
        _allow(libc, rules, path, rights)
    done: bool = (
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        and libc.syscall(_RESTRICT_SELF, rules, 0) == 0
    )
    os.close(rules)
    return done


def _allow(libc: ctypes.CDLL, rules: int, path: Path, rights: int) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        rights &= _FILE_RIGHTS
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, fd), 0)
    os.close(fd)


# -- system calls

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: ld abs, jeq, jge, ret
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16  # of struct seccomp_data
_UTIMENSAT = 280
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # the latter with the number to return; 0 is success
_X86_64, _X32_BIT = 0xC000003E, 0x40000000

IGNORED = (
    *(90, 91, 268, 452),  # chmod, fchmod, fchmodat, fchmodat2
    *(132, 235, 261, _UTIMENSAT),  # utime, utimes, futimesat
)
METADATA = (
    *(92, 93, 94, 260),  # chown, fchown, lchown, fchownat
    *(188, 189, 190, 197, 198, 199, 463, 466, 469),  # setxattr .. removexattrat, file_setattr
)
CHANNELS = (
    *(29, 30, 31, 64, 65, 66, 220, 68, 69, 70, 71),  # shm*, sem*, msg*
    *(240, 241),  # mq_open, mq_unlink
    *(248, 249, 250),  # add_key, request_key, keyctl
    *(276, 425),  # tee; io_uring_setup, whose requests no filter sees
    *(101, 310, 311, 321, 323),  # ptrace, process_vm_*, bpf, userfaultfd
)


def forbid_calls(metadata: bool = True) -> list[str]:
    """Filter system calls of this process and its children by seccomp. Returns the names of what
    was applied.

    Calls that carry data past Landlock (System V IPC, message queues, keyrings, io_uring, with
    `metadata` also metadata of files), that look into another process or a pipe, or that handle
    page faults in user space, fail with EPERM. Changes of modes and times of files succeed without
    effect, because copying a file makes them and honest kernels copy files. Setting the times of a
    path to now fails instead: `pathlib.Path.touch` takes success as proof that the file exists, and
    creates it after an error.

    See the kernel's Documentation/userspace-api/seccomp_filter.rst. The numbers are those of
    x86-64; other architectures get no filter.
    """
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        return []
    failing = (*CHANNELS, *(METADATA if metadata else ()))
    program = _program(failing, IGNORED if metadata else ())
    code = ctypes.create_string_buffer(program)
    # struct sock_fprog: a count, padding, a pointer.
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    done = (
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        and libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(header), 0, 0) == 0
    )
    if not done:
        return []
    return ["seccomp", *(["metadata"] if metadata else [])]


def _program(failing: tuple[int, ...], ignored: tuple[int, ...]) -> bytes:
    """The filter: calls of other architectures and of `failing` fail, those of `ignored` return
    success and do nothing, the rest is allowed."""
    ends = {_ALLOW: 0, _ERRNO: 1, _ERRNO | errno.EPERM: 2}  # in this order after the tests
    tests = [(number, _ERRNO | errno.EPERM) for number in failing]
    tests += [(number, _ERRNO) for number in ignored]
    touch = _touch() if _UTIMENSAT in ignored else []
    count = len(tests)
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_EQUAL, 0, len(touch) + count + 4, _X86_64),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, len(touch) + count + 2, 0, _X32_BIT),
        *touch,
        *(
            (_EQUAL, count - 1 - at + ends[result], 0, number)
            for at, (number, result) in enumerate(tests)
        ),
        *((_RETURN, 0, 0, result) for result in ends),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def _touch() -> list[tuple[int, int, int, int]]:
    """utimensat(directory, path, times, flags): EPERM if `times` is NULL and `path` is not, else
    success without effect. Other calls continue after this block."""
    path, times = _ARGUMENTS_AT + 8, _ARGUMENTS_AT + 16  # 64 bits each, the low half first
    return [
        (_EQUAL, 0, 10, _UTIMENSAT),
        *((_LOAD, 0, 0, times), (_EQUAL, 0, 6, 0)),
        *((_LOAD, 0, 0, times + 4), (_EQUAL, 0, 4, 0)),
        *((_LOAD, 0, 0, path), (_EQUAL, 0, 3, 0)),
        *((_LOAD, 0, 0, path + 4), (_EQUAL, 0, 1, 0)),
        (_RETURN, 0, 0, _ERRNO),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]
