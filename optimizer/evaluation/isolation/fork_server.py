"""`python -I THIS_FILE SOCKET NAMESPACES MODULE:FUNCTION`: a process that has imported a module and
never calls anything of it. Every request is a fork of it, which calls the function with the
arguments that came, in the environment that came, and ends with its exit code."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

# Called with the arguments of a command line; the exit code.
Work = Callable[[Sequence[str]], int]


def main(arguments: list[str]) -> None:
    """Import the module, then serve forks until the other side closes the socket."""
    sock, _, entry = arguments
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from kb.memory import collect_rarely
    from optimizer.evaluation.runner.forks import Separate, serve

    collect_rarely()
    module, _, function = entry.partition(":")
    work: Work = getattr(import_module(module), function)
    gc.freeze()  # no fork looks through what all of them share

    def become(message: dict[str, Any], fds: list[int]) -> None:
        _become(work, message, fds)

    serve(int(sock), become, Separate(namespaces=False))


def _become(work: Work, message: dict[str, Any], fds: list[int]) -> None:
    from optimizer.evaluation.isolation.launch import Zygote
    from optimizer.evaluation.runner.forks import settle

    out, err, *lent = fds
    settle(message["environment"], message["folder"], out, err)
    if lent:
        Zygote.lent(socket.socket(fileno=lent[0])).keep(**message["runners"])
    os._exit(_ended(work, message["arguments"]))


def _ended(work: Work, arguments: Sequence[str]) -> int:
    """The exit code of the work, after what a process does at its end."""
    code: int | str | None = 1
    try:
        code = work(arguments)
    except SystemExit as left:
        code = left.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:  # what an interpreter does with what nothing has caught
        traceback.print_exc()
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # its reader has gone
            stream.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    main(sys.argv[1:])
