"""A service to measure: the one at a URL, or one of our own on a free port, ended with the run."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import say
from kb.data_dir import running_service
from kb.errors import Unavailable
from retrieval.client import HttpBackend, KernloreClientError

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120
REQUEST_SECONDS = 300.0  # an upload of many files on a busy machine


@dataclass(frozen=True)
class Service:
    """`pid` is None for a service that is not known to be on this machine."""

    http: HttpBackend
    pid: int | None = None

    def call(self, method: str, path: str, **carried: Any) -> Any:
        """The JSON answer; an error of the service is raised with its own hint."""
        try:
            status, body = self.http.send(method, path, **carried)
        except KernloreClientError as error:
            raise Unavailable(error.message, hint=error.hint) from error
        if status < 300 or path == "/readyz":
            return body
        known = body if isinstance(body, Mapping) else {}
        raise Unavailable(
            f"{method} {path} answered {status}: {known.get('message', body)}",
            hint=str(known.get("hint", "Read the service's log.")),
            details=dict(known.get("details") or {}),
        )


@contextmanager
def service_at(url: str | None, data_dir: Path | None) -> Iterator[Service]:
    """The service at `url`, else the one that runs on `data_dir`, else one started here."""
    if url is None and data_dir is not None:
        url = running_service(data_dir)
    if url is not None:
        http = HttpBackend(url, REQUEST_SECONDS, None)
        try:
            yield Service(http, _pid_of(data_dir))
        finally:
            http.close()
        return
    with (
        tempfile.TemporaryDirectory(prefix="kernlore-benchmark-") as folder,
        _started(data_dir or Path(folder)) as service,
    ):
        yield service


def _pid_of(data_dir: Path | None) -> int | None:
    if data_dir is None or not running_service(data_dir):
        return None
    return int(json.loads((data_dir / "service.json").read_text(encoding="utf-8"))["pid"])


@contextmanager
def _started(data_dir: Path) -> Iterator[Service]:
    data_dir.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    log = data_dir / "service.log"
    command = [sys.executable, "-m", "api.cli.main", "serve"]
    command += ["--port", str(port), "--data-dir", str(data_dir.absolute())]
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        http = HttpBackend(f"http://127.0.0.1:{port}", REQUEST_SECONDS, None)
        try:
            service = Service(http, process.pid)
            _wait_until_alive(service, process, log)
            say(f"service at {http.url}, data in {data_dir}")
            yield service
        finally:
            http.close()
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_alive(service: Service, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if service.http.send("GET", "/healthz")[0] == 200:
                return
        except KernloreClientError:
            time.sleep(0.2)
    raise Unavailable(
        f"the service did not start: {log.read_text(encoding='utf-8', errors='replace')[-800:]}",
        hint="Start it by hand with `kernlore serve` and give its address with --url.",
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Memory:
    """Of a process and its children, in MiB."""

    now: float
    peak: float


def memory_of(pid: int) -> Memory | None:
    """What a process of this machine holds; None where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    if "VmRSS" not in sizes:  # it is just ending
        return None
    now, peak = (int(sizes[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return Memory(now, peak)
