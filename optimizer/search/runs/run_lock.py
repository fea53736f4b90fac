"""One process per run: a lock file that also tells other processes who works on it, and since when.

The lock is the operating system's (flock), so it goes with the process however it ends.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from kb.errors import Conflict
from kb.private import private_folder
from kb.service_lock import is_locked, take_lock

FOLDER = "locks"  # of the data directory


@dataclass(frozen=True)
class Owner:
    """The process that works on a run. `since` is when it began (Unix time); `seconds` is how long
    the run had gone on before."""

    pid: int
    since: float
    seconds: float

    @property
    def run_seconds(self) -> float:
        """Seconds that the run has gone on by now, without pauses."""
        return self.seconds + max(0.0, time.time() - self.since)


class RunLock:
    """Held by the process that works on a run. Entering raises Conflict where another does."""

    def __init__(self, data_dir: Path, run_id: str, seconds: float) -> None:
        self._path = _path(data_dir, run_id)
        self.run_id, self._seconds = run_id, seconds
        self._fd = -1

    def __enter__(self) -> RunLock:
        private_folder(self._path.parent)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if not take_lock(self._fd):
            os.close(self._fd)
            owner = _read(self._path)
            process = f"process {owner.pid}" if owner is not None else "another process"
            raise Conflict(
                f"run {self.run_id} is being continued by {process}",
                hint=f"Wait for it, or end it with `kernlore runs cancel {self.run_id}`.",
            )
        os.ftruncate(self._fd, 0)
        owner = Owner(os.getpid(), time.time(), self._seconds)
        os.write(self._fd, json.dumps(asdict(owner)).encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.ftruncate(self._fd, 0)
        os.close(self._fd)


def owner_of(data_dir: Path, run_id: str) -> Owner | None:
    """The process that works on a run now; None where none does."""
    path = _path(data_dir, run_id)
    return _read(path) if is_locked(path) else None


def _path(data_dir: Path, run_id: str) -> Path:
    return data_dir / FOLDER / f"{run_id}.json"


def _read(path: Path) -> Owner | None:
    try:
        return Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # it is being written, or was given back meanwhile
        return None
