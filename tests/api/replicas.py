"""Real services over one PostgreSQL database and one folder of blobs, each with a data directory of
its own, and a client that takes turns among them as a load balancer does."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

from tests.api.cli_process import COMMAND, ROOT, free_port
from tests.shared import place_models

START_SECONDS = 120.0


class Replica:
    """One service in a process of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str], model_cache: Path) -> None:
        self.folder = folder
        self.data = place_models(folder / "data", model_cache)
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self.client: Any = httpx.Client()  # its answers are checked as those of a TestClient are

    def start(self) -> None:
        """Start it; `await_ready` waits for it."""
        port = free_port()
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "serve", "--port", str(port), "--data-dir", str(self.data)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def await_ready(self) -> dict[str, Any]:
        """What /readyz says once nothing is left to do."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self._process is not None and self._process.poll() is None, self.log()
            try:
                state: dict[str, Any] = self.client.get("/readyz").json()
            except httpx.TransportError:
                state = {}
            if state.get("ready"):
                return state
            time.sleep(0.2)
        raise AssertionError(f"not ready:\n{self.log()}")

    def log(self) -> str:
        """The end of what it printed."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")[-3000:]

    def signal(self, number: int) -> None:
        """Send a signal to the service and to all that it has started."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """As when its machine loses power."""
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """End it, however it is."""
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
        """The answer of whose turn it is."""
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
    """So many services, started together and ready. `settings` are those of the product."""
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
