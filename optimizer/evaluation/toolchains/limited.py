"""Starts a command under limits: `python -I -S limited.py LIMITS COMMAND...`, LIMITS as JSON.

A separate program, because a process with threads (the service) must not run Python between fork
and exec. The kernel ends the command with its supervisor. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1


def set_limits(resources: dict[str, int]) -> None:
    """Limit this process and its children. Keys are names of the module `resource`."""
    for name, value in resources.items():
        kind = getattr(resource, name)
        # The soft limit of processor time comes first, because its signal identifies the limit.
        pair = (value, value + 1) if name == "RLIMIT_CPU" else (value, value)
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            pair = (min(pair[0], hard), min(pair[1], hard))
        resource.setrlimit(kind, pair)


def main(arguments: list[str]) -> None:
    """Apply the limits, then execute the command."""
    limits = json.loads(arguments[0])
    set_limits(limits["resources"])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != limits["parent"]:
            sys.exit("the supervisor is gone")
    try:
        os.execvp(arguments[1], arguments[1:])
    except OSError as problem:
        sys.exit(f"{arguments[1]}: {problem.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
