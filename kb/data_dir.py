"""Files that no other user of this machine reads: manuals of unreleased chips, and what models were
asked, are among them. Knows nothing of what is in them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from kb.errors import Conflict

_OTHERS = 0o077


def private_folder(folder: Path) -> Path:
    """Create a folder and those above it, where they are missing, for this user alone. One that is
    there keeps its rights: it is the user's.
    """
    if not folder.is_dir():
        private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def private_file(path: Path) -> None:
    """Create an empty file for this user alone, where it is missing. One that is there is not even
    opened: closing it would drop the locks that SQLite holds on it in this process.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


@contextmanager
def private_files() -> Iterator[None]:
    """Within it, whatever this process and its children create is for this user alone. It counts
    for all threads: for a process that writes nothing that is meant for others.
    """
    before = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(folder: Path) -> str | None:
    """What is wrong with the rights of a folder and what to do, where others may look into it."""
    if not folder.is_dir() or not (rights := folder.stat().st_mode) & _OTHERS:
        return None
    return (
        f"other users of this machine may look into {folder.absolute()} (its mode is"
        f" {rights & 0o777:o}); `chmod 700 {folder.absolute()}` closes it"
    )


# -- reserve: Space that is kept for the moment when the disk is full: a file that is given up the

RESERVE = "reserve"  # of the file in a data directory
_BYTES = 4 << 20
NEEDED_BYTES = 16 << 20  # free, to read a document


def fill_reserve(data_dir: Path) -> None:
    """Put the space aside, unless it is or there is none."""
    path = data_dir / RESERVE
    if path.exists() or not has_room_to_read(data_dir):
        return
    # Not `posix_fallocate`, which some file systems grant without setting anything aside.
    private_file(path)
    with path.open("r+b") as file:
        file.write(os.urandom(_BYTES))


def free_reserve(data_dir: Path) -> None:
    """Free the space."""
    (data_dir / RESERVE).unlink(missing_ok=True)


def has_room_to_read(data_dir: Path) -> bool:
    """Whether there is space to read a document."""
    return shutil.disk_usage(data_dir).free >= NEEDED_BYTES


# -- service lock: One service per data directory: a lock file that also tells other processes whe

_NAME = "service.json"
_ATTEMPTS = 10  # `running_service` holds the lock for an instant when it looks
_PAUSE = 0.02


class ServiceLock:
    """Held by the service while it runs; the file holds its URL and pid."""

    def __init__(self, data_dir: Path, url: str) -> None:
        self._path = data_dir / _NAME
        self._url = url
        self._fd = -1

    def __enter__(self) -> ServiceLock:
        private_folder(self._path.parent)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if not take_lock(self._fd):
            os.close(self._fd)
            raise Conflict(
                f"another Kernlore service already runs on {self._path.parent}"
                f" ({running_service(self._path.parent) or 'address unknown'})",
                hint="Use that one, stop it, or give this one another --data-dir.",
            )
        os.ftruncate(self._fd, 0)
        os.write(self._fd, json.dumps({"url": self._url, "pid": os.getpid()}).encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def take_lock(fd: int) -> bool:
    """Lock an open file for this process alone; whether that succeeded."""
    for _ in range(_ATTEMPTS):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_PAUSE)
        else:
            return True
    return False


def running_service(data_dir: Path) -> str | None:
    """The URL of the service that holds the directory now, or None."""
    path = data_dir / _NAME
    if not is_locked(path):
        return None
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["url"])
    except (ValueError, KeyError, OSError):
        return None


def is_locked(path: Path) -> bool:
    """Whether some process holds the lock of this file; it need not exist."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(fd)


# -- liveness: Whether a worker is alive: while it works it holds a lock on a file of its own (flo

_FOLDER = "locks"  # of the data directory
_SUFFIX = ".worker"


@contextmanager
def marked_alive(data_dir: Path, name: str) -> Iterator[None]:
    """Everyone sees that the worker of this name is alive, until the block or its process ends."""
    path = _path(data_dir, name)
    private_folder(path.parent)
    hidden = path.with_name(f"{path.name}.new")
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        hidden.rename(path)  # nobody ever sees it without its lock
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        os.close(descriptor)


def is_alive(data_dir: Path, name: str) -> bool | None:
    """Whether the worker is alive; None where it never said so, or ended in order."""
    path = _path(data_dir, name)
    if not path.exists():
        return None
    return is_locked(path)


def remove_dead_marks(data_dir: Path) -> None:
    """Remove the files of dead workers, whose work must be somebody else's by now."""
    for path in (data_dir / _FOLDER).glob(f"*{_SUFFIX}"):
        if not is_locked(path):
            path.unlink(missing_ok=True)


def _path(data_dir: Path, name: str) -> Path:
    return data_dir / _FOLDER / f"{name}{_SUFFIX}"
