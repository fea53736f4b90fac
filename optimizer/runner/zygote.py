"""`python -I THIS_FILE SOCKET THREADS NAMESPACES DEVICE`: has torch imported and never uses it;
every request is a new runner, forked in milliseconds.

A process in which torch has computed must not be forked (the child hangs at its first parallel
region), so this one only imports. Each runner gets a process namespace of its own where that is
allowed: it is the namespace's first process, and everything it starts dies with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import Any

_CLONE_NEWPID = 0x20000000
_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    sock, threads, namespaces, device = arguments
    root = str(Path(__file__).resolve().parents[2])
    sys.path.insert(0, root)
    import torch  # noqa: F401  (imported for the children)

    from optimizer.runner.serve import Runner  # noqa: F401
    from optimizer.runner.wire import Wire, WireClosed

    if device == "cuda":
        with contextlib.suppress(ImportError):  # a candidate that needs it will say so
            importlib.import_module("triton")
    sys.path.remove(root)
    sys.argv = ["runner"]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the go-betweens
    wire = Wire(socket.socket(fileno=int(sock)), "")
    wire.send({"ready": True})
    while True:
        try:
            message, fds = wire.receive()
        except WireClosed:
            os._exit(0)
        if os.fork() == 0:
            os.close(int(sock))
            _go_between(message, fds, int(threads), device, namespaces == "1")
        for fd in fds:
            os.close(fd)


def _go_between(
    message: dict[str, Any], fds: list[int], threads: int, device: str, namespaces: bool
) -> None:
    """Fork the runner into a namespace of its own, tell its number, wait, tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    talk, tokens, log, status = fds
    # CUDA looks itself up in /proc by its process number.
    own_proc = namespaces and device == "cuda"
    flags = _CLONE_NEWPID | (_CLONE_NEWNS if own_proc else 0)
    if namespaces and _libc.unshare(flags) != 0:
        os.write(status, struct.pack("=ii", -1, ctypes.get_errno()))
        os._exit(1)
    runner = os.fork()
    if runner == 0:
        os.close(status)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        if own_proc:
            _mount_proc()
        _become_runner(message, talk, tokens, log, threads, device)
    for fd in (talk, tokens, log):
        os.close(fd)
    os.write(status, struct.pack("=ii", runner, 0))
    _, code = os.waitpid(runner, 0)
    with contextlib.suppress(BrokenPipeError):  # whoever asked has ended
        os.write(status, struct.pack("=ii", runner, os.waitstatus_to_exitcode(code)))
    os._exit(0)


def _mount_proc() -> None:
    _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    if _libc.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
        os._exit(1)


def _become_runner(
    message: dict[str, Any], talk: int, tokens: int, log: int, threads: int, device: str
) -> None:
    from optimizer.runner.serve import Runner, settle_torch
    from optimizer.runner.wire import Wire, WireClosed

    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    os.environ.clear()
    os.environ.update(message["environment"])
    os.chdir(message["scratch"])
    settle_torch(threads, device)
    runner = Runner(Wire(socket.socket(fileno=talk), message["secret"]), tokens, device)
    try:
        runner.serve()
    except WireClosed:
        pass
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
