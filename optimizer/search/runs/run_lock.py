"""The lock of a run: one process works on it, on any machine, with a lease in the catalog.

Processes of one data directory also take a lock file. The operating system releases it (flock) when
the process ends, so that they need not wait for the lease of a dead process.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import structlog

from kb import clock
from kb.catalog.runs import CANCELLED, STARTING, RunProcess, RunProcesses
from kb.data_dir import is_locked, private_folder, take_lock
from kb.errors import Conflict
from kb.ids import new_id
from kb.workers import keep_lease
from retrieval.knowledge_base import KnowledgeBase

FOLDER = "locks"  # of the data directory
STARTING_SECONDS = 120.0  # for the imports of a run and for finding the device
LOST = 75  # exit code of a process that lost its run to another one: EX_TEMPFAIL

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Owner:
    """The process that works on a run, since `since` (Unix time); the run had taken `seconds`
    before. `here`: it belongs to this data directory."""

    pid: int
    since: float
    seconds: float
    place: str
    here: bool

    @property
    def run_seconds(self) -> float:
        """Seconds that the run has taken, without pauses."""
        return self.seconds + max(0.0, time.time() - self.since)

    @property
    def name(self) -> str:
        """Name of the process in messages."""
        return f"process {self.pid}" if self.here else f"process {self.pid} of {self.place}"


class RunLock:
    """Lock of the process that works on a run. Entering raises Conflict if another process does.

    A thread renews the lease. A process that has lost it, for example because its machine slept,
    exits at once: another process may continue the run from the last stored node.
    """

    def __init__(self, base: KnowledgeBase, run_id: str, seconds: float) -> None:
        self._data_dir = base.settings.data_dir
        self._path = _path(self._data_dir, run_id)
        self._rows = RunProcesses(base.catalog)
        self._lease = base.settings.lease_seconds
        self.run_id, self._seconds = run_id, seconds
        self._owner = new_id(f"run{os.getpid()}")
        self._fd = -1
        self._renewing = ExitStack()

    def __enter__(self) -> RunLock:
        private_folder(self._path.parent)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if not take_lock(self._fd):
            os.close(self._fd)
            raise self._conflict(self._rows.process_of(self.run_id))
        until = clock.after(self._lease)
        place = place_of(self._data_dir)
        mine = RunProcess(
            self.run_id, self._owner, place, os.getpid(), time.time(), self._seconds, until
        )
        holder = self._rows.take_run(mine)
        # A process of this directory without the lock is dead, even if its lease lasts.
        if holder is not None and holder.place == place and holder.owner != CANCELLED:
            self._rows.remove(self.run_id, holder.owner)
            holder = self._rows.take_run(mine)
        if holder is not None:
            os.close(self._fd)
            raise self._conflict(holder)
        self._renewing.enter_context(keep_lease(self._renewed, self._lease, self.run_id))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._renewing.close()
        self._rows.remove(self.run_id, self._owner)
        os.close(self._fd)

    def _renewed(self) -> bool:
        if self._rows.renew(self._owner, self._lease, self.run_id):
            return True
        log.error("this run is another process's now", run=self.run_id)
        # Nothing may be written any more, not even the end of the run.
        os._exit(LOST)

    def _conflict(self, holder: RunProcess | None) -> Conflict:
        if holder is not None and holder.owner == CANCELLED:
            return Conflict(f"run {self.run_id} was cancelled", hint="Start another one.")
        known = holder is not None and holder.owner != STARTING
        process = _owner(holder, self._data_dir).name if known and holder else "another process"
        return Conflict(
            f"run {self.run_id} is being continued by {process}",
            hint=f"Wait for it, or end it with `kernlore runs cancel {self.run_id}`.",
        )


def owner_of(base: KnowledgeBase, run_id: str) -> Owner | None:
    """The process, on any machine, that works on a run now, if any."""
    row, data_dir = RunProcesses(base.catalog).process_of(run_id), base.settings.data_dir
    if row is None or row.owner in (STARTING, CANCELLED):
        return None
    owner = _owner(row, data_dir)
    alive = is_locked(_path(data_dir, run_id)) if owner.here else row.alive
    return owner if alive else None


def start_of(base: KnowledgeBase, run_id: str) -> Literal["starting", "cancelled", "failed"] | None:
    """State of a run that no process has taken yet: `failed` if its process must have ended before
    that. None for an unknown run."""
    row = RunProcesses(base.catalog).process_of(run_id)
    if row is None:
        return None
    if row.owner == CANCELLED:
        return "cancelled"
    return "starting" if row.alive else "failed"


def cancel_start(base: KnowledgeBase, run_id: str) -> bool:
    """Cancel a run that no process has taken yet; returns False if one has."""
    return RunProcesses(base.catalog).cancel_start(run_id)


def announce(base: KnowledgeBase, run_id: str, about: Mapping[str, Any]) -> None:
    """Record for all replicas that a process for the run is being started. `about` has its problem,
    hardware and goal.
    """
    place, until = place_of(base.settings.data_dir), clock.after(STARTING_SECONDS)
    RunProcesses(base.catalog).take_run(
        RunProcess(run_id, STARTING, place, os.getpid(), time.time(), 0.0, until), about
    )


def place_of(data_dir: Path) -> str:
    """Name of this machine and data directory."""
    return f"{socket.gethostname()}:{data_dir.absolute()}"


def _owner(row: RunProcess, data_dir: Path) -> Owner:
    return Owner(row.pid, row.began, row.seconds, row.place, row.place == place_of(data_dir))


def _path(data_dir: Path, run_id: str) -> Path:
    return data_dir / FOLDER / f"{run_id}.json"
