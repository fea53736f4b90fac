"""What forks of a prepared process do in `test_prepared.py`. Importing it leaves a trace."""

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
    """By the first argument: say what is there, leave somehow, or stay."""
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
        kept = ForkServer.kept(usable_processors(), level_for("auto", "cpu"))
        print(kept is ForkServer.kept(usable_processors(), level_for("auto", "cpu")), kept.ended)
        print(sorted(_children()))
    if what == "stay":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(child.pid, flush=True)
        time.sleep(600)
    return 3 if what == "three" else 0


def _children() -> list[str]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return path.read_text(encoding="ascii").split()
