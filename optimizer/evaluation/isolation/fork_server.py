"""`python -I THIS_FILE SOCKET NAMESPACES MODULE:FUNCTION`: imports a module. Each request is
answered by a fork that calls the function with the arguments and the environment of the request,
and exits with its result."""

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

# Called with command-line arguments; returns the exit code.
CommandFunction = Callable[[Sequence[str]], int]


def main(arguments: list[str]) -> None:
    """Import the module, then serve forks until the other side closes the socket."""
    sock, _, entry = arguments
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from kb.memory import collect_rarely
    from optimizer.evaluation.runner.forks import ForkOptions, serve

    collect_rarely()
    module, _, function = entry.partition(":")
    called: CommandFunction = getattr(import_module(module), function)
    gc.freeze()  # forks do not search the objects that they share

    def become(message: dict[str, Any], fds: list[int]) -> None:
        _become(called, message, fds)

    serve(int(sock), become, ForkOptions(namespaces=False))


def _become(called: CommandFunction, message: dict[str, Any], fds: list[int]) -> None:
    from optimizer.evaluation.isolation.launch import ForkServer
    from optimizer.evaluation.runner.forks import settle

    out, err, *lent = fds
    settle(message["environment"], message["folder"], out, err)
    if lent:
        ForkServer.lent(socket.socket(fileno=lent[0])).share(**message["runners"])
    os._exit(_exit_code(called, message["arguments"]))


def _exit_code(called: CommandFunction, arguments: Sequence[str]) -> int:
    """The function's exit code, after everything that an interpreter does at its end."""
    code: int | str | None = 1
    try:
        code = called(arguments)
    except SystemExit as left:
        code = left.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:  # as an interpreter does with an uncaught exception
        traceback.print_exc()
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # its reader has gone
            stream.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    main(sys.argv[1:])
