"""Serves forks of an interpreter that has imported what they need. Each request comes with file
descriptors; a process of its own answers it, and the way that process ended is reported.

A process in which torch has computed must not be forked (the child hangs at its first parallel
region), so the serving process only imports. Each fork gets a process namespace of its own where
that is allowed: it is the namespace's first process, and everything it starts dies with it.
Standard library only; no function here touches a device.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from optimizer.evaluation.runner.wire import Wire, WireClosed

_CLONE_NEWPID = 0x20000000
_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)

# Serves one request in a process of its own, with the descriptors that came; must not return.
Become = Callable[[dict[str, Any], list[int]], None]


@dataclass(frozen=True)
class Separate:
    """How forks are kept apart. `namespaces` says whether each fork gets a process namespace,
    `own_proc` whether it also gets a /proc that shows this namespace alone."""

    namespaces: bool
    own_proc: bool = False


def serve(
    sock: int,
    become: Become,
    separate: Separate,
    idle_seconds: float | None = None,
    prepare: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Serve requests until the other side closes, or sends none for `idle_seconds`; then end the
    process. `prepare` is called with each request before its fork, in this process: it must not
    compute with torch.

    The first message reports that it is ready. The last descriptor of a request is where its status
    is written: first the process's number (-1 and an error number where there is none), then its
    exit code. A request with `serve` gets a fork of this process that serves requests as it does,
    over the one descriptor that came, until that is closed or this process ends.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the go-betweens
    wire = Wire(socket.socket(fileno=sock), "")
    with contextlib.suppress(WireClosed):  # noticed below
        wire.send({"ready": True})
    while True:
        readable, _, _ = select.select([sock], [], [], idle_seconds)
        if not readable:
            if _all_ended():
                os._exit(0)
            continue
        try:
            message, fds = wire.receive()
        except WireClosed:
            os._exit(0)
        if message.get("serve"):
            if os.fork() == 0:
                os.close(sock)
                _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                serve(fds[0], become, separate, prepare=prepare)
            os.close(fds[0])
            continue
        if prepare is not None:
            with _children_reported():
                prepare(message)
        if os.fork() == 0:
            os.close(sock)
            _go_between(message, fds, become, separate)
        for fd in fds:
            os.close(fd)


@contextlib.contextmanager
def _children_reported() -> Iterator[None]:
    """A context in which this process can wait for what it starts."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # go-betweens that ended meanwhile


def _all_ended() -> bool:
    """Whether no fork is at work. The system has reaped those that ended."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def _go_between(message: dict[str, Any], fds: list[int], become: Become, own: Separate) -> None:
    """Fork the process into a namespace of its own, tell its number, wait, tell how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    *passed, status = fds
    own_proc = own.namespaces and own.own_proc
    flags = _CLONE_NEWPID | (_CLONE_NEWNS if own_proc else 0)
    if own.namespaces and _libc.unshare(flags) != 0:
        os.write(status, struct.pack("=ii", -1, ctypes.get_errno()))
        os._exit(1)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        if own_proc:
            _mount_proc()
        try:
            become(message, passed)
        finally:
            os._exit(1)
    for fd in passed:
        os.close(fd)
    with contextlib.suppress(BrokenPipeError):  # the process that asked has ended
        os.write(status, struct.pack("=ii", pid, 0))
        _, code = os.waitpid(pid, 0)
        os.write(status, struct.pack("=ii", pid, os.waitstatus_to_exitcode(code)))
    os._exit(0)


def settle(environment: Mapping[str, str], folder: str, out: int, err: int) -> None:
    """Give a fork what an interpreter of its own would have begun with: its environment and working
    directory, and these descriptors, which are closed, as standard output and error."""
    for descriptor, standard in ((out, 1), (err, 2)):
        os.dup2(descriptor, standard)
    for descriptor in {out, err}:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # it may have been looked up before
    os.chdir(folder)


def _mount_proc() -> None:
    _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    if _libc.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
        os._exit(1)


def work_out() -> None:
    """Make Triton compute the hash over its own files once, half a gigabyte that every first
    compilation asks for: done before forks, it is done for all of them. Nothing happens where
    another Triton keeps it elsewhere: forks then compute it themselves."""
    key = getattr(import_module("triton.runtime.cache"), "triton_key", None)
    if key is not None:
        key()
