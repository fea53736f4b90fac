"""One service per data directory: a lock file that also tells other processes where it listens.

The lock is the operating system's (flock), so it goes with the process however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType

from kb.errors import Conflict
from kb.private import private_folder

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
