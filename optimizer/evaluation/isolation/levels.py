"""Which isolation this machine can give a runner, and the command line that gives it.

`namespaces`: own user, network, IPC and process namespaces through util-linux's `unshare`, so that
there is no network and one kill ends every process. `container`: the same through a container
engine (see `container`), only where it is asked for: each runner takes seconds to start. `process`:
an own process group and limits. Landlock, where the kernel has it, is added inside the runner at
all levels.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import lru_cache
from typing import Literal

from kb.errors import Unavailable
from optimizer.evaluation.isolation.container import engine
from optimizer.evaluation.runner.confine import landlock_abi

Level = Literal["namespaces", "container", "process"]
Wanted = Literal["auto", "namespaces", "container", "process"]
WANTED: tuple[Wanted, ...] = ("auto", "namespaces", "container", "process")
_UNSHARE = (
    "unshare",
    "--user",
    "--map-root-user",
    "--net",
    "--ipc",
    "--pid",
    "--fork",
    "--kill-child=SIGKILL",
)
_OWN_PROC = "--mount-proc"


@lru_cache(maxsize=1)
def can_unshare() -> bool:
    """Whether this user may make namespaces here; tried once, not guessed."""
    return _works(*_UNSHARE)


@lru_cache(maxsize=1)
def can_mount_proc() -> bool:
    """Whether a process namespace can have its own /proc; many containers forbid it."""
    return _works(*_UNSHARE, _OWN_PROC)


def _works(*shell: str) -> bool:
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*shell, "--", "true"], capture_output=True, timeout=10, check=False)
    return tried.returncode == 0


def level_for(wanted: Wanted, device: str = "cpu") -> Level:
    """The level to run at. Raises Unavailable for a level that was chosen by name and cannot be
    had.

    CUDA looks itself up in /proc by its process number, so there a process namespace needs a /proc
    of its own.
    """
    if wanted == "process":
        return "process"
    if wanted == "container":
        if device == "cuda":
            raise Unavailable(
                "kernels for a GPU are not run in containers",
                hint="Choose --isolation auto: it takes namespaces where they are allowed.",
            )
        engine()
        return "container"
    if can_unshare() and (device != "cuda" or can_mount_proc()):
        return "namespaces"
    if wanted == "namespaces":
        raise Unavailable(
            "this machine cannot isolate candidates in namespaces",
            hint="Allow unprivileged user namespaces, or choose --isolation container (podman or"
            " docker) or process.",
        )
    return "process"


def available() -> str:
    """What this machine has, in words: the level that `auto` takes first."""
    level = level_for("auto")
    parts = [f"--isolation auto is {level}"]
    if level == "process":
        parts.append("kernels keep the network, because namespaces are not allowed")
    elif not can_mount_proc():
        parts.append("kernels for a GPU get process, because no namespace may mount /proc")
    try:
        parts.append(f"container: {engine()}")
    except Unavailable:
        parts.append("container: neither podman nor docker runs here")
    abi = landlock_abi()
    parts.append(f"Landlock {abi}" if abi else "no Landlock: files are kept apart by rights only")
    return "; ".join(parts)


def command(level: Level, argv: list[str]) -> list[str]:
    """The command line that runs `argv` at this level, which is none of a container."""
    if level == "process":
        return argv
    own_proc = [_OWN_PROC] if can_mount_proc() else []
    return [*_UNSHARE, *own_proc, "--", *argv]
