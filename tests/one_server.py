"""A server shared by the tests of a process: started on first use, removed at the end."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import pytest


class Unstartable(Exception):
    """The reason why there is no server."""


class Removable(Protocol):
    def remove(self) -> None:
        """Stop it and remove all its data."""


S = TypeVar("S", bound=Removable)


class OneServer(Generic[S]):
    """`start` raises Unstartable; it is tried once."""

    def __init__(self, start: Callable[[], S]) -> None:
        self._start = start
        self._server: S | None = None
        self._reason: Unstartable | None = None

    def get(self) -> S:
        """The server of this process. Raises Unstartable."""
        if self._reason is not None:
            raise self._reason
        if self._server is None:
            try:
                self._server = self._start()
            except Unstartable as reason:
                self._reason = reason
                raise
        return self._server

    def get_or_skip(self) -> S:
        """The server; the test is skipped if it cannot be started."""
        try:
            return self.get()
        except Unstartable as reason:
            pytest.skip(str(reason))

    def stop(self) -> None:
        """At the end of the process."""
        if self._server is not None:
            self._server.remove()


class LoopbackServer:
    """A server process on 127.0.0.1, with its data in a new folder that survives a kill. `name`: of
    the program in errors; `user`: who runs it, None for this one.
    """

    name = ""
    start_seconds = 60.0
    user: str | None = None
    port: int

    def __init__(self, prefix: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str | Path]:
        """The command line of the server."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it answers requests."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers. Raises Unstartable."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                user=self.user,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # the tests handle interrupts
            )
        deadline = time.monotonic() + self.start_seconds
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                last = (self.folder / "log").read_text(errors="replace").splitlines()[-1:]
                self.stop()
                raise Unstartable(f"{self.name} does not start: {last}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill it, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=self.start_seconds)
            self._process = None

    def remove(self) -> None:
        """Stop it and remove all its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
