"""Levels of isolation that this machine can give a runner, and the command lines that give them.

`namespaces`: own user, network, IPC and process namespaces through util-linux's `unshare`; there is
no network, and one kill ends every process. `container`: the same through podman or docker, only on
request, because each runner takes seconds to start. `process`: a process group and limits. Where
the kernel has Landlock, the runner adds it at all levels. Does not know the work of a runner.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from kb.errors import Unavailable
from optimizer.evaluation.runner.confine import landlock_abi

Level = Literal["namespaces", "container", "process"]
Wanted = Literal["auto", "namespaces", "container", "process"]
WANTED: tuple[Wanted, ...] = ("auto", "namespaces", "container", "process")
_UNSHARE = (
    *("unshare", "--user", "--map-root-user", "--net", "--ipc", "--pid", "--fork"),
    "--kill-child=SIGKILL",
)
_OWN_PROC = "--mount-proc"


def level_for(wanted: Wanted, device: str = "cpu") -> Level:
    """The level to run at. Raises Unavailable if a level other than `auto` cannot be had.

    CUDA finds its process in /proc by its number, so on a GPU a process namespace needs its own
    /proc.
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
    """A sentence about this machine's levels, beginning with the one that `auto` takes."""
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
    parts.append(f"Landlock {abi}" if abi else "no Landlock: files are protected by rights only")
    return "; ".join(parts)


def command(level: Level, argv: list[str]) -> list[str]:
    """The command line that runs `argv` at this level, which is not `container`."""
    if level == "process":
        return argv
    own_proc = [_OWN_PROC] if can_mount_proc() else []
    return [*_UNSHARE, *own_proc, "--", *argv]


@lru_cache(maxsize=1)
def can_unshare() -> bool:
    """Whether this user may make namespaces here, by trying once."""
    return _works(*_UNSHARE)


@lru_cache(maxsize=1)
def can_mount_proc() -> bool:
    """Whether a process namespace can have its own /proc, which many containers forbid."""
    return _works(*_UNSHARE, _OWN_PROC)


def _works(*shell: str) -> bool:
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*shell, "--", "true"], capture_output=True, timeout=10, check=False)
    return tried.returncode == 0


# -- containers
#
# For machines where this user may not make namespaces but may use a container engine: podman, with
# or without root, or docker. No image is fetched: the container sees the system's programs and
# libraries read-only, and the runner's scratch folder. It has no network and no capabilities. The
# runner connects to a socket in the scratch folder, because engines differ in passing descriptors.

ENGINE, OPTIONS = "KERNLORE_CONTAINER_ENGINE", "KERNLORE_CONTAINER_OPTIONS"
IMAGE = "kernlore-empty"  # docker needs an image; this one is made here and is empty
CHANNEL = "channel"  # the socket, in the scratch folder
ENDED_SECONDS = 30.0  # an engine cleans up after its container
PROCESSES = 4096
_PROBE_SECONDS, _PEER = 30.0, struct.Struct("3i")  # of SO_PEERCRED: process, user, group
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt")
# crun refuses systems that mix both versions of cgroups; runc mounts them only on request.
_ENGINES = (("podman", ()), ("podman --runtime runc", ("--cgroupns", "host")), ("docker", ()))


@dataclass(frozen=True)
class Engine:
    """A container engine: its command, and options for each start. `keeps_user`: this user has the
    same number inside. Podman without root needs a range of further numbers for that (/etc/subuid);
    without one this user is root inside, without privileges."""

    command: tuple[str, ...]
    options: tuple[str, ...] = ()
    keeps_user: bool = True

    @property
    def is_docker(self) -> bool:
        """Whether it needs an image, and maps users by itself."""
        return Path(self.command[0]).name == "docker"

    def __str__(self) -> str:
        return shlex.join(self.command)


def engine() -> Engine:
    """The first engine that works here. Raises Unavailable with the error of each."""
    found, errors = _working(os.environ.get(ENGINE, ""), os.environ.get(OPTIONS, ""))
    if found is None:
        raise Unavailable(
            "no container engine runs here: " + "; ".join(errors),
            hint=f"Install podman or start docker, or name the command in {ENGINE} and further"
            f" options of `run` in {OPTIONS}; or choose --isolation process.",
        )
    return found


@cache
def _working(named: str, options: str) -> tuple[Engine | None, tuple[str, ...]]:
    rows = ((named, tuple(shlex.split(options))),) if named else _ENGINES
    errors = []
    for command, extra in rows:
        tried = Engine(tuple(shlex.split(command)), extra)
        error = _error(tried)
        if error and os.getuid() and not tried.is_docker:
            mapped = replace(tried, keeps_user=False)
            if not _error(mapped):
                return mapped, ()
        if not error:
            return tried, ()
        errors.append(f"{tried}: {error}")
    return None, tuple(errors)


def _error(tried: Engine) -> str:
    """Why it cannot run a container, by trying; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "needs Linux"
    if shutil.which(tried.command[0]) is None:
        return "not installed"
    try:
        if tried.is_docker:
            empty = bytes(10_240)  # a tar archive without a file
            importing = [*tried.command, "import", "-", IMAGE]
            subprocess.run(
                importing, input=empty, capture_output=True, timeout=_PROBE_SECONDS, check=True
            )
        argv = run_command(tried, ["/bin/sh", "-c", "true"], {}, None)
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)[:200]
    lines = done.stderr.strip().splitlines()
    return (lines[-1] if lines else f"exit code {done.returncode}") if done.returncode else ""


def run_command(
    which: Engine, argv: Sequence[str], environment: Mapping[str, str], scratch: Path | None
) -> list[str]:
    """The command line that runs `argv` in a container. It may write to `scratch` only, and read
    other folders for temporary files."""
    mounts = [f"{folder}:{folder}:ro" for folder in readable_folders()]
    if scratch is not None:
        mounts.append(f"{scratch}:{scratch}:rw")
    users = ["--user", f"{os.getuid()}:{os.getgid()}" if which.keeps_user else "0:0"]
    if not which.is_docker and os.getuid() and which.keeps_user:
        users.append("--userns=keep-id")  # without root the same user outside and inside
    return [
        *which.command,
        *("run", "--rm", "--network", "none"),
        *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--pids-limit", str(PROCESSES)),
        *("--ulimit", "nofile=4096:4096", "--ulimit", f"nproc={PROCESSES}:{PROCESSES}"),
        *users,
        *(word for mount in mounts for word in ("--volume", mount)),
        *(["--workdir", str(scratch)] if scratch is not None else []),
        *(word for name, value in environment.items() for word in ("--env", f"{name}={value}")),
        *which.options,
        *([IMAGE] if which.is_docker else ["--rootfs", str(_root())]),
        *argv,
    ]


def readable_folders() -> list[Path]:
    """Folders that a runner reads: the system's programs and libraries, this Python with its
    packages, this program, and temporary files, among which candidates are."""
    here = Path(__file__).resolve().parents[3]
    own = [Path(p) for p in (sys.prefix, sys.base_prefix, tempfile.gettempdir())]
    system = [Path(name) for name in _SYSTEM if Path(name).is_dir() and not Path(name).is_symlink()]
    outermost: list[Path] = []
    for folder in sorted({folder.resolve() for folder in (*system, *own, here)}):
        if not any(folder.is_relative_to(other) for other in outermost):
            outermost.append(folder)
    return outermost


@lru_cache(maxsize=1)
def _root() -> Path:
    """The root of containers: a folder with only the system's links, such as /bin."""
    root = Path(tempfile.mkdtemp(prefix="kernlore-root-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for name in _SYSTEM:
        if Path(name).is_symlink():
            (root / name[1:]).symlink_to(Path(name).readlink())
    return root


class MeetingSocket:
    """A listening socket in a scratch folder, to which the runner in the container connects twice:
    for messages, and for tokens."""

    def __init__(self, scratch: Path) -> None:
        self.path = scratch / CHANNEL
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(self.path))
        self._listening.listen(2)

    def accept(self, seconds: float, ended: Callable[[], bool]) -> tuple[int, list[socket.socket]]:
        """The runner's process number as this process sees it, and both sockets; then the socket is
        closed to others. Raises TimeoutError, or EOFError once `ended` is true."""
        self._listening.settimeout(0.2)
        until = time.monotonic() + seconds
        accepted: list[socket.socket] = []
        try:
            while len(accepted) < 2:
                try:
                    accepted.append(self._listening.accept()[0])
                except TimeoutError:
                    if ended():
                        raise EOFError from None
                    if time.monotonic() > until:
                        raise
        except (TimeoutError, EOFError):
            for sock in accepted:
                sock.close()
            raise
        finally:
            self._listening.close()
            self.path.unlink(missing_ok=True)
        for sock in accepted:
            sock.settimeout(None)
        peer = accepted[0].getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return _PEER.unpack(peer)[0], accepted


class Contained:
    """A runner in a container. `pid` is known after `connect`."""

    def __init__(
        self,
        which: Engine,
        program: Sequence[str],
        arguments: Sequence[str],
        environment: Mapping[str, str],
        scratch: Path,
        log: int,
    ) -> None:
        """`program` gets the path of the socket, twice, and the arguments. Its output goes to the
        descriptor `log`."""
        self.pid = -1
        self._meeting = MeetingSocket(scratch)
        channel = str(self._meeting.path)
        argv = [sys.executable, "-I", *program, channel, channel, *arguments]
        # The engine needs this process's environment; the container gets only `environment`.
        self._process = subprocess.Popen(
            run_command(which, argv, environment, scratch),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def connect(self, seconds: float) -> list[socket.socket]:
        """The sockets for messages and for tokens. Raises TimeoutError, or EOFError if the
        container has ended."""
        self.pid, sockets = self._meeting.accept(seconds, lambda: self._process.poll() is not None)
        return sockets

    def wait(self, seconds: float) -> int | None:
        """As `Launched.wait`."""
        try:
            return self._process.wait(max(seconds, ENDED_SECONDS))
        except subprocess.TimeoutExpired:
            return None
