"""Whether a worker is alive: while it works it holds a lock on a file of its own (flock), which the
operating system drops when its process ends, however that ends. No clock is asked.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kb.private import private_folder
from kb.service_lock import is_locked

_FOLDER = "locks"  # of the data directory
_SUFFIX = ".worker"


@contextmanager
def living(data_dir: Path, name: str) -> Iterator[None]:
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


def lives(data_dir: Path, name: str) -> bool | None:
    """Whether the worker is alive; None where it never said so, or ended in order."""
    path = _path(data_dir, name)
    if not path.exists():
        return None
    return is_locked(path)


def forget_dead(data_dir: Path) -> None:
    """Remove the files of dead workers, whose work must be somebody else's by now."""
    for path in (data_dir / _FOLDER).glob(f"*{_SUFFIX}"):
        if not is_locked(path):
            path.unlink(missing_ok=True)


def _path(data_dir: Path, name: str) -> Path:
    return data_dir / _FOLDER / f"{name}{_SUFFIX}"
