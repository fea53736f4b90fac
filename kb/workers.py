"""Background work of a process: renewing leases, worker threads and child processes.

Knows nothing about the work itself; which work there is, and who owns it, is in `kb.catalog.work`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import structlog
from sqlalchemy.exc import OperationalError

from kb import telemetry
from kb.errors import KernloreError
from kb.settings import Settings

RENEWALS = 4  # of a lease within its time, so that one that fails loses nothing
ROOT = Path(__file__).resolve().parent.parent  # the working directory of `python -m api...`
POLL_SECONDS = 0.05

log = structlog.get_logger(__name__)


@contextmanager
def keep_lease(renew: Callable[[], bool], seconds: float, name: str) -> Iterator[threading.Event]:
    """Renew a lease of `seconds` from a thread of its own, however long the block takes.

    `renew` answers False where the lease is somebody else's by now, as after the machine slept
    longer than it lasts. The event that the block gets is set then, and renewing ends. `name` is
    that of the thread, and stands in the log.
    """
    done, lost = threading.Event(), threading.Event()

    def beat() -> None:
        while not lost.is_set() and not done.wait(seconds / RENEWALS):
            try:
                if not renew():
                    lost.set()
            except OperationalError:  # locked: the lease lasts for more than one renewal
                log.warning("lease not renewed", lease=name, exc_info=True)
            except KernloreError as error:  # a newer Kernlore has the catalog: it takes the work
                log.warning("lease not renewed", lease=name, reason=error.message)

    thread = threading.Thread(target=beat, name=name, daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
        thread.join()


class WorkerThread:
    """A thread that works when it is woken; it starts with the first `wake`.

    `work` does one piece of work and answers whether there may be more at once. What it raises is
    logged and ends that piece, not the thread. With `idle_seconds` the thread also looks by itself
    once in that time: a worker of another process that was killed wakes nobody.
    """

    def __init__(
        self, name: str, work: Callable[[], bool], idle_seconds: float | None = None
    ) -> None:
        self._name = name
        self._work = work
        self._idle_seconds = idle_seconds
        self._starting = threading.Lock()  # protects _thread
        self._woken = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called. The work at hand may not have ended yet."""
        return self._stopped.is_set()

    def wake(self) -> None:
        """Look for work now; starts the thread where there is none that lives."""
        self._woken.set()
        with self._starting:
            alive = self._thread is not None and self._thread.is_alive()
            if not alive and not self.stopped:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def stop(self, seconds: float) -> None:
        """Begin nothing new, and wait at most so long for the end of the work at hand."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self.stopped:
            self._woken.clear()
            if not self._worked():
                self._woken.wait(self._idle_seconds)

    def _worked(self) -> bool:
        try:
            return self._work()
        except Exception:  # the job boundary: the thread serves whoever comes next
            if not self.stopped:  # else the catalog is being closed
                log.exception("worker failed", worker=self._name)
            return False


class ChildProcess:
    """A process in a session of its own, so that ending it ends everything that it started."""

    def __init__(
        self, command: Sequence[str], settings: Settings, output: Path | None = None
    ) -> None:
        """Start `command` with these settings in its environment.

        Both its streams go to the file `output`; without one, `answer` reads them.
        """
        self._log: IO[bytes] | None = output.open("wb") if output is not None else None
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**environment(settings), **telemetry.for_child()},
            stdin=subprocess.DEVNULL,
            stdout=self._log or subprocess.PIPE,
            stderr=self._log or subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def answer(self, seconds: float) -> tuple[str, str]:
        """What it wrote to standard output and error. Raises TimeoutError where it did not end in
        time; it still runs then.
        """
        try:
            out, err = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"no answer within {seconds:.0f} s") from error
        return out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    def wait(self, seconds: float) -> None:
        """Wait at most so long for its end."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def end(self, grace_seconds: float = 0.0) -> None:
        """End it and its process group. Nothing of them is alive when this returns, except what
        left the group; a candidate's own processes end when they lose their parent.

        `grace_seconds` is how long it may take to leave by itself after SIGTERM.
        """
        if self.alive:
            with suppress(ProcessLookupError):
                if grace_seconds:
                    os.killpg(self._process.pid, signal.SIGTERM)
                    self._await_end(grace_seconds)
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._log is not None:
            self._log.close()

    def _await_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.alive and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def environment(settings: Settings) -> dict[str, str]:
    """The environment of a process that is to have these settings, wherever they came from."""
    values: Mapping[str, Any] = settings.model_dump(exclude_none=True)
    own = {f"KERNLORE_{name.upper()}": str(value) for name, value in values.items()}
    own["KERNLORE_DATA_DIR"] = str(settings.data_dir.absolute())
    return {**os.environ, **own}
