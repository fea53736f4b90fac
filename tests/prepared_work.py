"""The work of forks in `test_fork_server.py`. Each import of this module is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from optimizer.evaluation.isolation.launch import ForkServer
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.machine import usable_processors

state = {"changes": 0}
with Path(os.environ["IMPORTS"]).open("a", encoding="utf-8") as _trace:
    _trace.write(f"{os.getpid()}\n")


def work(arguments: Sequence[str]) -> int:
    """By the first argument: print the state, exit in some way, or wait, alone or with a child."""
    what, *rest = arguments
    if what == "say":
        state["changes"] += 1
        print(state["changes"], os.environ.get("WORD"), Path.cwd(), *rest)
        print("complaint", file=sys.stderr)
    if what == "leave":
        sys.exit(int(rest[0]))
    if what == "raise":
        raise ValueError("no such thing")
    if what == "die":
        os.abort()
    if what == "runners":
        settings = usable_processors(), level_for("auto", "cpu")
        server = ForkServer.shared(*settings)
        print(server is ForkServer.shared(*settings), server.ended)
        print(sorted(_children()))
    if what == "stay":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, flush=True)
    if what in ("stay", "wait"):
        time.sleep(600)
    return 3 if what == "three" else 0


def _children() -> list[str]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return path.read_text(encoding="ascii").split()
