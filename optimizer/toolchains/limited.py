"""Starts a command under limits: `python -I -S limited.py LIMITS COMMAND...`, LIMITS as JSON.

A program of its own, because a process with threads (the service) must not run Python between fork
and exec. Asks the kernel to end the command with its supervisor. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    limits = json.loads(arguments[0])
    for name, value in limits["resources"].items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
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
