"""A service to measure, at a URL or started on a free port, and a corpus loaded into it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from api.cli.target import read_settings
from api.services import Services, open_services
from benchmarks.report import say
from benchmarks.retrieval.corpus import Corpus, CorpusFile
from kb.data_dir import running_service
from kb.errors import Unavailable
from retrieval.client import HttpBackend, KernloreClientError, Part

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120
REQUEST_SECONDS = 300.0  # an upload of many files on a busy machine


@dataclass(frozen=True)
class Service:
    """`pid` is None if the service may run on another machine."""

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
    port = free_port()
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Memory:
    """Of a process and its children, in MiB."""

    now: float
    peak: float


def memory_of(pid: int) -> Memory | None:
    """Memory of a process of this machine, or None if the system does not say."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = {name: value for name, _, value in (line.partition(":") for line in lines)}
    if "VmRSS" not in sizes:  # it is just ending
        return None
    now, peak = (int(sizes[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return Memory(now, peak)


# -- a corpus into a service: register, upload, wait, report

BATCH_FILES = 48
BATCH_BYTES = 24 * 1024 * 1024
POLL_SECONDS = 0.5
STALLED_SECONDS = 900.0  # without any progress: one large PDF on a busy machine takes minutes


@dataclass(frozen=True)
class Problem:
    """A document that is not wholly there, and why."""

    name: str
    state: str
    reason: str


@dataclass(frozen=True)
class Loaded:
    """What became of the corpus. `seconds` from the first upload to the last vector."""

    outcomes: Mapping[str, int]
    states: Mapping[str, int]
    problems: Sequence[Problem]
    passages: int
    index: str
    seconds: float

    def lines(self) -> list[str]:
        outcomes = ", ".join(f"{n} {name}" for name, n in sorted(self.outcomes.items()))
        states = ", ".join(f"{n} {name}" for name, n in sorted(self.states.items()))
        text = [
            f"uploads: {outcomes}",
            f"jobs: {states}",
            f"{self.passages:,} passages in the store, index: {self.index}, {self.seconds:.0f} s",
        ]
        return text + [f"{p.state}: {p.name}: {p.reason}" for p in self.problems]


def load(service: Service, corpus: Corpus) -> Loaded:
    started = time.monotonic()
    register(service, corpus.hardware)
    documents: dict[str, str] = {}  # document id -> the file's name
    outcomes: Counter[str] = Counter()
    problems: list[Problem] = []
    sent = 0
    for batch in _batches(corpus.files):
        for file, answer in zip(batch, _upload(service, batch), strict=True):
            if "error" in answer:
                outcomes["refused"] += 1
                problems.append(Problem(_label(file), "refused", answer["error"]["message"]))
                continue
            outcomes[answer["outcome"]] += 1
            documents.setdefault(answer["document_id"], _label(file))
        sent += len(batch)
        say(f"uploaded {sent} of {len(corpus.files)}")
    readiness = wait_until_ready(service)
    states, failed = _states(service, corpus.hardware, documents)
    return Loaded(
        outcomes,
        states,
        [*problems, *failed],
        readiness["passages"],
        readiness["index"],
        time.monotonic() - started,
    )


def register(service: Service, hardware: Sequence[str]) -> None:
    """Ids that the service knows already keep their description."""
    known = {row["id"] for row in service.call("GET", "/hardware")["hardware"]}
    for hardware_id in hardware:
        if hardware_id not in known:
            service.call("POST", "/hardware", json={"id": hardware_id})


def _label(file: CorpusFile) -> str:
    return f"{'+'.join(file.hardware)}/{file.name}"


def _batches(files: Sequence[CorpusFile]) -> Iterator[list[CorpusFile]]:
    """Files of one scope, a request's worth at a time."""
    batch: list[CorpusFile] = []
    size = 0
    for file in sorted(files, key=lambda f: (f.hardware, f.name)):
        length = file.path.stat().st_size
        full = len(batch) >= BATCH_FILES or size + length > BATCH_BYTES
        if batch and (full or batch[0].hardware != file.hardware):
            yield batch
            batch, size = [], 0
        batch.append(file)
        size += length
    if batch:
        yield batch


def _upload(service: Service, batch: Sequence[CorpusFile]) -> list[Mapping[str, Any]]:
    """One answer per file, in order."""
    about = [Part("category", "hardware"), *(Part("hardware", h) for h in batch[0].hardware)]
    with ExitStack() as stack:
        files = [
            Part("file", stack.enter_context(file.path.open("rb")), file.name) for file in batch
        ]
        try:
            body = service.call("POST", "/documents", files=[*about, *files])
        except Unavailable as error:
            # All of them refused: the list is in the details, a single one is the error itself.
            refused = {"error": {"message": error.message}}
            return list(error.details.get("documents", [refused] * len(batch)))
    return list(body["documents"]) if "documents" in body else [body]


def wait_until_ready(service: Service) -> Mapping[str, Any]:
    """Poll until every passage has its vector and nothing is queued."""
    changed, last = time.monotonic(), None
    while True:
        state = service.call("GET", "/readyz")
        jobs = state["jobs"]
        waiting = jobs.get("queued", 0) + jobs.get("running", 0)
        whole = state["knowledge_loaded"] and state["embedded"] == state["passages"]
        if state["ready"] or (whole and not waiting and state["index"].startswith("failed")):
            return dict(state)
        if state != last:
            say(f"{state['embedded']} of {state['passages']} embedded, {waiting} jobs open")
            changed, last = time.monotonic(), state
        elif time.monotonic() - changed > STALLED_SECONDS:
            raise Unavailable(
                f"nothing has happened for {STALLED_SECONDS:.0f} s: {state}",
                hint="Read the service's log; then run again, finished work is not repeated.",
            )
        time.sleep(POLL_SECONDS)


def _states(
    service: Service, hardware: Sequence[str], documents: Mapping[str, str]
) -> tuple[Counter[str], list[Problem]]:
    """The state of each uploaded document's last job, with the reason unless it is `ready`."""
    states: Counter[str] = Counter()
    problems = []
    seen = set()
    for hardware_id in hardware:
        rows = service.call("GET", "/documents", params={"hardware": hardware_id})["documents"]
        for row in rows:
            if row["id"] not in documents or row["id"] in seen:
                continue
            seen.add(row["id"])
            state = row["job_state"] or "unknown"
            states[state] += 1
            if state != "ready":
                reason = _reason(service, row["job_id"])
                problems.append(Problem(documents[row["id"]], state, reason))
    return states, problems


def _reason(service: Service, job_id: str | None) -> str:
    if job_id is None:
        return "it has no job"
    job = service.call("GET", f"/jobs/{quote(job_id, safe='')}")
    if job.get("error"):
        return str(job["error"]["message"])
    result = job.get("result") or {}
    pages = [f"page {f['page_index'] + 1}: {f['reason']}" for f in result.get("pages_failed", [])]
    return "; ".join([*pages, *result.get("warnings", [])][:3]) or "no reason given"


# -- the built-in knowledge in a store of this process

# The chips that the built-in questions are about.
CHIPS = ("x86-64", "neoverse-v2", "a100", "h100", "h200", "b200", "mi300x", "trainium2", "mtia-v2i")


@contextmanager
def builtin_services(data_dir: Path | None) -> Iterator[Services]:
    """Services over a store with the built-in knowledge, loaded when it is not there yet."""
    with tempfile.TemporaryDirectory(prefix="kernlore-builtin-") as folder:
        services = open_services(read_settings(data_dir or Path(folder)))
        try:
            services.load_builtin()
            with services.local_reader() as reader:
                services.worker(reader).drain()
            yield services
        finally:
            services.close()
