"""A runner in a container of its own, for machines where this user may make no namespaces but may
ask a container engine: podman, with or without root, or docker.

No image is fetched: the container sees this system's programs and libraries read-only, the runner's
scratch folder, and nothing else. It has no network and no capabilities, and everything in it ends
with its first process. Runner and supervisor meet at a socket in the scratch folder, because no
engine passes descriptors on alike. Nothing here knows what a runner does.
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

from kb.errors import Unavailable

ENGINE, OPTIONS = "KERNLORE_CONTAINER_ENGINE", "KERNLORE_CONTAINER_OPTIONS"
IMAGE = "kernlore-empty"  # docker runs nothing without one; it is made here and holds nothing
CHANNEL = "channel"  # in the scratch folder
ENDED_SECONDS = 30.0  # an engine tidies up after its container
PROCESSES = 4096
_PROBE_SECONDS, _PEER = 30.0, struct.Struct("3i")  # of SO_PEERCRED: process, user, group
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt")
# crun refuses systems that mix both versions of cgroups; runc mounts them only when it is told so.
_TRIED = (
    ("podman", ()),
    ("podman --runtime runc", ("--cgroupns", "host")),
    ("docker", ()),
)


@dataclass(frozen=True)
class Engine:
    """How containers are started: the engine's command, and options for each start. `keeps_user`
    says whether this user has the same number inside; podman without root needs a range of further
    numbers for that (/etc/subuid), and without one this user is root inside, without rights."""

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
    """The engine to use here. Raises Unavailable where none runs a container, with what each one
    that was tried said."""
    found, said = _tried(os.environ.get(ENGINE, ""), os.environ.get(OPTIONS, ""))
    if found is None:
        raise Unavailable(
            "no container engine runs here: " + "; ".join(said),
            hint=f"Install podman or start docker, or name the command in {ENGINE} and further"
            f" options of `run` in {OPTIONS}; or choose --isolation process.",
        )
    return found


@cache
def _tried(named: str, options: str) -> tuple[Engine | None, tuple[str, ...]]:
    rows = ((named, tuple(shlex.split(options))),) if named else _TRIED
    said = []
    for command, extra in rows:
        tried = Engine(tuple(shlex.split(command)), extra)
        problem = _problem(tried)
        if problem and os.getuid() and not tried.is_docker:
            mapped = replace(tried, keeps_user=False)
            if not _problem(mapped):
                return mapped, ()
        if not problem:
            return tried, ()
        said.append(f"{tried}: {problem}")
    return None, tuple(said)


def _problem(tried: Engine) -> str:
    """Why it runs no container; empty where it does. Tried, not guessed."""
    if not sys.platform.startswith("linux"):
        return "only Linux is isolated so"
    if shutil.which(tried.command[0]) is None:
        return "not installed"
    try:
        if tried.is_docker:
            _import_image(tried)
        argv = run_command(tried, ["/bin/sh", "-c", "true"], {}, None)
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)[:200]
    lines = done.stderr.strip().splitlines()
    return (lines[-1] if lines else f"exit code {done.returncode}") if done.returncode else ""


def _import_image(tried: Engine) -> None:
    """Make the image that holds nothing. Raises CalledProcessError or TimeoutExpired."""
    empty = bytes(10_240)  # a tar archive without a file
    command = [*tried.command, "import", "-", IMAGE]
    subprocess.run(command, input=empty, capture_output=True, timeout=_PROBE_SECONDS, check=True)


def run_command(
    which: Engine, argv: Sequence[str], environment: Mapping[str, str], scratch: Path | None
) -> list[str]:
    """The command line that runs `argv` in a container. It may write to `scratch` alone; other
    folders for temporary files it may read."""
    mounts = [f"{place}:{place}:ro" for place in readable_places()]
    if scratch is not None:
        mounts.append(f"{scratch}:{scratch}:rw")
    named = {} if which.is_docker else {"rootfs": _root()}
    users = ["--user", f"{os.getuid()}:{os.getgid()}" if which.keeps_user else "0:0"]
    if not which.is_docker and os.getuid() and which.keeps_user:
        users.append("--userns=keep-id")  # without root the same user outside and inside
    return [
        *which.command,
        "run",
        "--rm",
        *("--network", "none"),
        *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--pids-limit", str(PROCESSES)),
        *("--ulimit", "nofile=4096:4096", "--ulimit", f"nproc={PROCESSES}:{PROCESSES}"),
        *users,
        *(word for mount in mounts for word in ("--volume", mount)),
        *(["--workdir", str(scratch)] if scratch is not None else []),
        *(word for name, value in environment.items() for word in ("--env", f"{name}={value}")),
        *which.options,
        *(["--rootfs", str(named["rootfs"])] if named else [IMAGE]),
        *argv,
    ]


def readable_places() -> list[Path]:
    """What a runner reads: the system's programs and libraries, this Python with its packages, this
    program, and temporary files, in which candidates and their libraries lie."""
    here = Path(__file__).resolve().parents[3]
    own = [Path(p) for p in (sys.prefix, sys.base_prefix, tempfile.gettempdir())]
    system = [Path(name) for name in _SYSTEM if Path(name).is_dir() and not Path(name).is_symlink()]
    kept: list[Path] = []
    for place in sorted({place.resolve() for place in (*system, *own, here)}):
        if not any(place.is_relative_to(other) for other in kept):
            kept.append(place)
    return kept


@lru_cache(maxsize=1)
def _root() -> Path:
    """A folder with the system's links, such as /bin, and nothing more: the root of containers."""
    root = Path(tempfile.mkdtemp(prefix="kernlore-root-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for name in _SYSTEM:
        if Path(name).is_symlink():
            (root / name[1:]).symlink_to(Path(name).readlink())
    return root


class Door:
    """A socket in a scratch folder, at which the runner in the container calls twice: for the
    conversation, and for the leave to make calls."""

    def __init__(self, scratch: Path) -> None:
        self.path = scratch / CHANNEL
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(self.path))
        self._listening.listen(2)

    def meet(self, seconds: float, ended: Callable[[], bool]) -> tuple[int, list[socket.socket]]:
        """The runner's process number as this process sees it, and the two sockets. Nobody can call
        afterwards. Raises TimeoutError, and EOFError where `ended` says that nobody comes."""
        self._listening.settimeout(0.2)
        until = time.monotonic() + seconds
        met: list[socket.socket] = []
        try:
            while len(met) < 2:
                try:
                    met.append(self._listening.accept()[0])
                except TimeoutError:
                    if ended():
                        raise EOFError from None
                    if time.monotonic() > until:
                        raise
        except (TimeoutError, EOFError):
            for sock in met:
                sock.close()
            raise
        finally:
            self._listening.close()
            self.path.unlink(missing_ok=True)
        for sock in met:
            sock.settimeout(None)
        peer = met[0].getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return _PEER.unpack(peer)[0], met


class Contained:
    """A runner in a container. Its number is known once it has been met."""

    def __init__(
        self,
        which: Engine,
        program: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        scratch: Path,
        log: int,
    ) -> None:
        """`program` gets the path of the socket, twice, and the arguments. What it prints goes to
        the descriptor `log`."""
        self.pid = -1
        self._door = Door(scratch)
        channel = str(self._door.path)
        argv = [sys.executable, "-I", str(program), channel, channel, *arguments]
        # The engine needs this process's own environment; the container gets only what is named.
        self._process = subprocess.Popen(
            run_command(which, argv, environment, scratch),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def meet(self, seconds: float) -> list[socket.socket]:
        """The sockets for the conversation and for the leave to make calls. Raises TimeoutError,
        and EOFError where the container has ended."""
        self.pid, sockets = self._door.meet(seconds, lambda: self._process.poll() is not None)
        return sockets

    def wait(self, seconds: float) -> int | None:
        """As `Launched.wait`."""
        try:
            return self._process.wait(max(seconds, ENDED_SECONDS))
        except subprocess.TimeoutExpired:
            return None
