"""Real services over one PostgreSQL database and one folder of blobs, each with its data directory,
and a client that alternates between them like a load balancer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

from benchmarks.processes import kill_tree
from tests.api.cli_process import COMMAND, ROOT, free_port
from tests.known_device import store_ceilings
from tests.shared import place_models

START_SECONDS = 120.0


class Replica:
    """One service in a separate process."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], model_cache: Path | None = None
    ) -> None:
        """`model_cache` has the exported query model; without it the service exports one."""
        self.folder = folder
        self.data = folder / "data"
        if model_cache is not None:
            store_ceilings(place_models(self.data, model_cache))
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port()
        self.client: Any = httpx.Client()  # its answers are validated like those of a TestClient

    @property
    def url(self) -> str:
        """The URL of the service, also after a restart."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it; `await_ready` waits for it."""
        self.client = httpx.Client(base_url=self.url, timeout=60)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "serve", "--port", str(self._port), "--data-dir", str(self.data)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def await_ready(self, seconds: float = START_SECONDS) -> dict[str, Any]:
        """The answer of /readyz once no start-up work is left."""
        return self._await(lambda status, state: bool(state.get("ready")), seconds)

    def await_answers(self) -> dict[str, Any]:
        """The answer of /readyz once queries are answered; start-up work may continue."""
        return self._await(lambda status, state: status == 200, START_SECONDS)

    def _await(self, done: Callable[[int, dict[str, Any]], bool], seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self._process is not None and self._process.poll() is None, self.log()
            try:
                answer = self.client.get("/readyz")
                state: dict[str, Any] = answer.json()
            except httpx.TransportError:
                pass
            else:
                if done(answer.status_code, state):
                    return state
            time.sleep(0.2)
        raise AssertionError(f"not ready:\n{self.log()}")

    def log(self) -> str:
        """The end of its output."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def signal(self, number: int) -> None:
        """Send a signal to the service and all its descendants."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """Kill the service with all its descendants, runs too, as in a power failure."""
        assert self._process is not None
        kill_tree(self._process.pid)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """Stop it in any state."""
        self.client.close()
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()


class RoundRobin:
    """Sends each request to the next replica."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._next = cycle(replicas)

    def request(self, method: str, path: str, **options: Any) -> Any:
        """The answer of the next replica."""
        return next(self._next).client.request(method, path, **options)

    def get(self, path: str, **options: Any) -> Any:
        """A GET request."""
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> Any:
        """A POST request."""
        return self.request("POST", path, **options)


@contextmanager
def replicas_of(
    folder: Path, catalog: str, knowledge: Path, model_cache: Path, count: int, **settings: str
) -> Iterator[list[Replica]]:
    """This many services, started together and ready. `settings` are those of the product."""
    blobs = folder / "blobs"
    blobs.mkdir()
    environment = {
        "KERNLORE_CATALOG": catalog,
        "KERNLORE_BLOB_URL": f"file://{blobs}",
        "KERNLORE_KNOWLEDGE_DIR": str(knowledge),
        **{f"KERNLORE_{name.upper()}": value for name, value in settings.items()},
    }
    replicas = []
    for number in range(count):
        own = folder / f"replica-{number}"
        own.mkdir()
        replicas.append(Replica(own, environment, model_cache))
    try:
        for replica in replicas:
            replica.start()
        for replica in replicas:
            replica.await_ready()
        yield replicas
    finally:
        for replica in replicas:
            replica.stop()
