"""Background work of a process: renewal of leases, worker threads and child processes.

Knows nothing about the work itself; its queue and owners are in `kb.catalog.work`.
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

RENEWALS = 4  # per duration of a lease, so that a failed one loses nothing
ROOT = Path(__file__).resolve().parent.parent  # the working directory of `python -m api...`
POLL_SECONDS = 0.05

log = structlog.get_logger(__name__)


@contextmanager
def keep_lease(renew: Callable[[], bool], seconds: float, name: str) -> Iterator[threading.Event]:
    """Renew a lease of `seconds` in a thread named `name` while the block runs.

    Where `renew` returns False, another worker has taken the lease, as after the machine slept
    longer than it lasts: the yielded event is set and renewal ends.
    """
    done, lost = threading.Event(), threading.Event()

    def beat() -> None:
        while not lost.is_set() and not done.wait(seconds / RENEWALS):
            try:
                if not renew():
                    lost.set()
            except OperationalError:  # locked: the next renewal is in time too
                log.warning("lease not renewed", lease=name, exc_info=True)
            except KernloreError as error:  # a newer version migrated the catalog
                log.warning("lease not renewed", lease=name, reason=error.message)

    thread = threading.Thread(target=beat, name=name, daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
        thread.join()


class WorkerThread:
    """A thread that looks for work when woken; the first `wake` starts it.

    `work` does one piece of work and returns whether there may be more. Its errors are logged and
    do not end the thread. With `idle_seconds` the thread also looks at that interval, because the
    death of another process's worker does not wake it.
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
        """Whether `stop` was called. A piece of work may still be running."""
        return self._stopped.is_set()

    def wake(self) -> None:
        """Make the thread look for work now; start it if it is not alive."""
        self._woken.set()
        with self._starting:
            alive = self._thread is not None and self._thread.is_alive()
            if not alive and not self.stopped:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def stop(self, seconds: float) -> None:
        """Stop starting work, and wait at most `seconds` for the running piece."""
        self._stopped.set()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self.stopped:
            self._woken.clear()
            if not self._try_work():
                self._woken.wait(self._idle_seconds)

    def _try_work(self) -> bool:
        try:
            return self._work()
        except Exception:  # the thread must survive any error of one piece of work
            if not self.stopped:  # after that, the catalog may be closed
                log.exception("worker failed", worker=self._name)
            return False


class ChildProcess:
    """A child process in its own session, so that ending it also ends the processes it started."""

    def __init__(
        self, command: Sequence[str], settings: Settings, output: Path | None = None
    ) -> None:
        """Start `command` with these settings in its environment.

        Its output and errors go to the file `output`, or without one to `answer`.
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
        """Whether the process runs."""
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.poll()

    def answer(self, seconds: float) -> tuple[str, str]:
        """Wait for the end and return standard output and error. Raises TimeoutError if it takes
        longer than `seconds`; the process continues then."""
        try:
            out, err = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"no answer within {seconds:.0f} s") from error
        return out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for the end."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def end(self, grace_seconds: float = 0.0) -> None:
        """Kill the process group, after SIGTERM and `grace_seconds` if given.

        Processes that left the group may survive; those of candidates end with their parent.
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
    """The environment that gives a child process these settings."""
    values: Mapping[str, Any] = settings.model_dump(exclude_none=True)
    own = {f"KERNLORE_{name.upper()}": str(value) for name, value in values.items()}
    own["KERNLORE_DATA_DIR"] = str(settings.data_dir.absolute())
    return {**os.environ, **own}
