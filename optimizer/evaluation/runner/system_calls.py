"""A seccomp filter for candidates: system calls that carry data past Landlock (metadata of files,
System V IPC, message queues, keyrings, io_uring), that look into another process or a pipe, or that
handle page faults in user space, fail with EPERM. Modes and times of files stay as they are and no
error is raised: copying a file sets them, and honest kernels copy files. Setting the times of a
path to now fails instead, because `pathlib.Path.touch` takes success for proof that the file is
there; after an error it opens the file, which makes it.

See the kernel's Documentation/userspace-api/seccomp_filter.rst. The numbers are those of x86-64;
other architectures get no filter, and its name is then missing from what was applied.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 38, 22, 2
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
    """Make these calls fail, or do nothing, in this process and its children, for good. `metadata`
    says whether those on metadata of files are among them. Returns the names of what was applied.
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
    """The filter: another architecture's calls and those of `failing` fail, those of `ignored`
    return success and do nothing, the rest is allowed."""
    ends = {_ALLOW: 0, _ERRNO: 1, _ERRNO | errno.EPERM: 2}  # in this order behind the tests
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
    """utimensat(directory, path, times, flags): EPERM where `times` is NULL and `path` is not,
    success without effect otherwise. Other calls go on behind this block."""
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
