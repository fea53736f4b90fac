"""A Ray cluster on this machine: a head without processors of its own, and nodes with one each.

Each is a `ray start --block` with all that it starts, so it can be killed as a machine that loses
its power.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import kill_tree
from kb.errors import Unavailable
from tests.api.cli_process import free_port

LABEL = "cpu_model=x86-64"
OBJECT_STORE_BYTES = 80_000_000  # the least that Ray takes is 78.6 MB
START_SECONDS = 180.0
STARTED = "Ray runtime started"  # what `ray start` prints then


class _Started:
    """One `ray start --block` with these arguments; its output lies in `log`."""

    def __init__(self, arguments: Sequence[str], log: Path, folder: Path) -> None:
        self._log = log
        common = [f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats", "--block"]
        environment = {**os.environ, "RAY_TMPDIR": str(folder), "RAY_AUTH_MODE": "disabled"}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).parent / "ray"), "start", *arguments, *common],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
            )

    def await_started(self) -> None:
        """Returns once it has joined. Raises Unavailable."""
        deadline = time.monotonic() + START_SECONDS
        while STARTED not in self._log.read_text(encoding="utf-8", errors="replace"):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(
                    "a node of Ray did not start",
                    hint=self._log.read_text(encoding="utf-8", errors="replace")[-600:],
                )
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL for all of it."""
        if self._process.poll() is None:
            kill_tree(self._process.pid)
            self._process.wait()


class RayCluster:
    """The head and the nodes, running from `start` to `stop`. `address` is that of the head, which
    it keeps; `stop` ends everything."""

    def __init__(self, nodes: int) -> None:
        self._port = free_port()
        # Sockets of a node lie below it; their paths may not be long.
        self._folder = Path(tempfile.mkdtemp(prefix="kr", dir="/tmp"))
        self._count = nodes
        self._head: _Started | None = None
        self._nodes: dict[int, _Started] = {}

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return f"127.0.0.1:{self._port}"

    @property
    def numbers(self) -> range:
        """The nodes by number."""
        return range(1, self._count + 1)

    def start(self) -> None:
        """Start the head and every node that does not run. Nodes of an earlier head are ended
        first: they belong to no cluster any more."""
        if self._head is None:
            for number in list(self._nodes):
                self.kill_node(number)
            arguments = ["--head", "--node-ip-address=127.0.0.1", f"--port={self._port}"]
            arguments += ["--num-cpus=0", "--include-dashboard=false"]
            self._head = _Started(arguments, self._folder / "head.txt", self._folder)
            self._head.await_started()
        arguments = [f"--address={self.address}", "--node-ip-address=127.0.0.1", "--num-cpus=1"]
        arguments += [f"--labels={LABEL}", "--dashboard-agent-listen-port=0"]
        for number in self.numbers:
            if number not in self._nodes:
                log = self._folder / f"node-{number}.txt"
                self._nodes[number] = _Started(arguments, log, self._folder)
                self._nodes[number].await_started()  # it has 30 s, too few for all at once

    def kill_node(self, number: int) -> None:
        """One node loses its power."""
        self._nodes.pop(number).kill()

    def kill_head(self) -> None:
        """The head loses its power."""
        if self._head is not None:
            self._head.kill()
            self._head = None

    def stop(self) -> None:
        """End all of it, and remove what it has written."""
        for number in list(self._nodes):
            self.kill_node(number)
        self.kill_head()
        shutil.rmtree(self._folder, ignore_errors=True)
