"""The data directory: private files, the reserve for a full disk, the lock of the service and the
marks of live workers. Knows nothing about the contents of the files.
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

from kb.errors import Conflict

RESERVE = "reserve"  # file in a data directory
NEEDED_BYTES = 16 << 20  # free, to read a document
_RESERVE_BYTES = 4 << 20
_OTHERS = 0o077  # rights of other users
_SERVICE_FILE = "service.json"
_LOCK_ATTEMPTS = 10  # `running_service` holds the lock for an instant
_LOCK_PAUSE = 0.02  # seconds
_MARKS = "locks"  # folder in a data directory
_MARK_SUFFIX = ".worker"


def private_folder(folder: Path) -> Path:
    """Create a folder and its missing parents for this user alone. Existing ones keep their
    rights."""
    if not folder.is_dir():
        private_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def sync(path: Path) -> None:
    """Write a file to the disk; of a folder, the names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_file(path: Path) -> None:
    """Create an empty file for this user alone, unless it exists. An existing file is not opened:
    closing it would release the locks that SQLite holds on it in this process."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


@contextmanager
def private_files() -> Iterator[None]:
    """Within the block, files created by this process, in all threads, and by its children are for
    this user alone."""
    before = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def access_of_others(folder: Path) -> str | None:
    """A warning where other users can access a folder, with the command that denies it; or None."""
    if not folder.is_dir() or not (rights := folder.stat().st_mode) & _OTHERS:
        return None
    return (
        f"other users of this machine can read {folder.absolute()} (its mode is"
        f" {rights & 0o777:o}); `chmod 700 {folder.absolute()}` denies it"
    )


def fill_reserve(data_dir: Path) -> None:
    """Create the reserve: a file that is deleted when the disk is full, so that states of jobs can
    still be written. Does nothing if it exists or the disk is nearly full."""
    path = data_dir / RESERVE
    if path.exists() or not has_room_to_read(data_dir):
        return
    # Not `posix_fallocate`, which does not allocate on some file systems.
    private_file(path)
    with path.open("r+b") as file:
        file.write(os.urandom(_RESERVE_BYTES))


def free_reserve(data_dir: Path) -> None:
    (data_dir / RESERVE).unlink(missing_ok=True)


def has_room_to_read(data_dir: Path) -> bool:
    """Whether the disk has the space that reading a document needs."""
    return shutil.disk_usage(data_dir).free >= NEEDED_BYTES


class ServiceLock:
    """The lock of the one service of a data directory. Its file contains the URL and pid."""

    def __init__(self, data_dir: Path, url: str) -> None:
        self._path = data_dir / _SERVICE_FILE
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

    def __exit__(self, *_: object) -> None:
        os.ftruncate(self._fd, 0)
        self.close()

    def close(self) -> None:
        """Close the file. In a forked process, the lock stays with the other one."""
        os.close(self._fd)


def take_lock(fd: int) -> bool:
    """Lock an open file exclusively. Returns whether that succeeded."""
    for _ in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            time.sleep(_LOCK_PAUSE)
        else:
            return True
    return False


def running_service(data_dir: Path) -> str | None:
    """The URL of the service that runs on a data directory, or None."""
    path = data_dir / _SERVICE_FILE
    if not is_locked(path):
        return None
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["url"])
    except (ValueError, KeyError, OSError):
        return None


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file, which need not exist."""
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


@contextmanager
def marked_alive(data_dir: Path, name: str) -> Iterator[None]:
    """Hold the lock of a worker's mark until the block or the process ends, which shows `is_alive`
    that the worker is alive."""
    path = _mark(data_dir, name)
    private_folder(path.parent)
    created = path.with_name(f"{path.name}.new")
    descriptor = os.open(created, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        created.rename(path)  # only after it is locked
        yield
    finally:
        with suppress(FileNotFoundError):
            path.unlink()
        os.close(descriptor)


def is_alive(data_dir: Path, name: str) -> bool | None:
    """Whether a worker is alive; None without a mark: before its start, or after a normal end."""
    path = _mark(data_dir, name)
    if not path.exists():
        return None
    return is_locked(path)


def remove_dead_marks(data_dir: Path) -> None:
    """Remove the marks of dead workers. Their work must have been requeued."""
    for path in (data_dir / _MARKS).glob(f"*{_MARK_SUFFIX}"):
        if not is_locked(path):
            path.unlink(missing_ok=True)


def _mark(data_dir: Path, name: str) -> Path:
    return data_dir / _MARKS / f"{name}{_MARK_SUFFIX}"
