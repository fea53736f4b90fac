"""Serves forks of an interpreter that has its imports done: each request, with its file
descriptors, is answered in a separate process, whose exit is reported.

A process in which torch has computed must not be forked (the child hangs at its first parallel
region), so the serving process only imports. Where allowed, each fork is the first process of a new
process namespace, and everything it starts dies with it. Standard library only; no function here
touches a device.
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

# Answers one request in a fork, with the descriptors that came; must not return.
Become = Callable[[dict[str, Any], list[int]], None]


@dataclass(frozen=True)
class ForkOptions:
    """`namespaces`: each fork gets a process namespace. `own_proc`: and a /proc that shows only
    this namespace."""

    namespaces: bool
    own_proc: bool = False


def serve(
    sock: int,
    become: Become,
    options: ForkOptions,
    idle_seconds: float | None = None,
    prepare: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Serve requests until the other side closes, or sends none for `idle_seconds`; then end the
    process. `prepare` is called with each request before its fork, in this process; it must not
    compute with torch.

    The first message reports readiness. The last descriptor of a request receives its status: first
    the process number (-1 and an error number if no process could be made), then the exit code. A
    request with `serve` makes a fork of this process serve requests in the same way over the one
    descriptor that came, until that is closed or this process ends.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps the parents of the forks
    wire = Wire(socket.socket(fileno=sock), "")
    with contextlib.suppress(WireClosed):  # noticed below
        wire.send({"ready": True})
    own = os.getpid()
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
                _end_with(own)
                serve(fds[0], become, options, prepare=prepare)
            os.close(fds[0])
            continue
        if prepare is not None:
            with _children_reported():
                prepare(message)
        if os.fork() == 0:
            os.close(sock)
            _end_with(own)
            _fork_and_report(message, fds, become, options)
        for fd in fds:
            os.close(fd)


@contextlib.contextmanager
def _children_reported() -> Iterator[None]:
    """In this context the process can wait for its children."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # parents of forks that ended meanwhile


def _all_ended() -> bool:
    """Whether no fork is running. The system has reaped those that ended."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def _end_with(parent: int) -> None:
    """Have the system kill this process when its parent ends, and end it if that has happened
    already. In an own namespace the number of the parent is 0."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() not in (parent, 0):
        os._exit(0)


def _fork_and_report(
    message: dict[str, Any], fds: list[int], become: Become, options: ForkOptions
) -> None:
    """Fork the answering process, in a namespace if wanted; report its number and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *passed, status = fds
    own_proc = options.namespaces and options.own_proc
    flags = _CLONE_NEWPID | (_CLONE_NEWNS if own_proc else 0)
    if options.namespaces and _libc.unshare(flags) != 0:
        os.write(status, struct.pack("=ii", -1, ctypes.get_errno()))
        os._exit(1)
    own, pid = os.getpid(), os.fork()
    if pid == 0:
        os.close(status)
        _end_with(own)
        os.setsid()
        if own_proc:
            _mount_proc()
        try:
            become(message, passed)
        finally:
            os._exit(1)
    for fd in passed:
        os.close(fd)
    with contextlib.suppress(BrokenPipeError):  # the requesting process has ended
        os.write(status, struct.pack("=ii", pid, 0))
        _, code = os.waitpid(pid, 0)
        os.write(status, struct.pack("=ii", pid, os.waitstatus_to_exitcode(code)))
    os._exit(0)


def settle(environment: Mapping[str, str], folder: str, out: int, err: int) -> None:
    """Set up a fork as a new interpreter would start: environment, working directory, and these
    descriptors, which are then closed, as standard output and error."""
    for descriptor, standard in ((out, 1), (err, 2)):
        os.dup2(descriptor, standard)
    for descriptor in {out, err}:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # it may be cached
    os.chdir(folder)


def _mount_proc() -> None:
    _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    if _libc.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
        os._exit(1)


def hash_triton() -> None:
    """Make Triton compute and cache the hash of its files, half a gigabyte, which every first
    compilation needs. Does nothing if this Triton keeps it elsewhere: each fork computes it then.
    """
    key = getattr(import_module("triton.runtime.cache"), "triton_key", None)
    if key is not None:
        key()
