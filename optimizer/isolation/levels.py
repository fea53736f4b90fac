"""Which isolation this machine can give a runner, and the command line that gives it.

`namespaces`: own user, network and process namespaces through util-linux's `unshare`, so that
there is no network and one kill ends every process. `process`: an own process group and limits.
Landlock, where the kernel has it, is added inside the runner at both levels.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import lru_cache
from typing import Literal

from kb.errors import Unavailable

Level = Literal["namespaces", "process"]
Wanted = Literal["auto", "namespaces", "process"]
WANTED: tuple[Wanted, ...] = ("auto", "namespaces", "process")
_UNSHARE = (
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "--pid",
    "--fork",
    "--kill-child=SIGKILL",
    "--",
)


@lru_cache(maxsize=1)
def can_unshare() -> bool:
    """Whether this user may make namespaces here; tried once, not guessed."""
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*_UNSHARE, "true"], capture_output=True, timeout=10, check=False)
    return tried.returncode == 0


def level_for(wanted: Wanted) -> Level:
    """The level to run at; a level that was asked for by name and is not to be had is refused."""
    if wanted == "process":
        return "process"
    if can_unshare():
        return "namespaces"
    if wanted == "namespaces":
        raise Unavailable(
            "this machine cannot isolate candidates in namespaces",
            hint="Allow unprivileged user namespaces, or choose --isolation process.",
        )
    return "process"


def command(level: Level, argv: list[str]) -> list[str]:
    return [*_UNSHARE, *argv] if level == "namespaces" else argv
