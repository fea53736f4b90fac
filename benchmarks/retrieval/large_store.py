"""Start, memory, publication and exact search on a large store and on a new one.

    python -m benchmarks.retrieval.large_store --data-dir GROWN --gold GOLD.jsonl

Start: seconds from `kernlore serve` to the first answer without a hint on missing knowledge, on a
new directory and again on the same one. Memory: of the service and of each further process, shared
pages counted in equal parts (PSS), after requests. Publication: seconds until an uploaded document
of 500 passages that has been read is in the snapshot of a copy of the store. With gold rows also
the latency of each kind of request over HTTP, the requests per second of eight clients with one and
with two processes, and the latency beside other retrievers (`benchmarks.retrieval.peers`).
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from api.cli.target import read_settings
from api.services import open_services
from benchmarks.processes import descendants
from benchmarks.report import ended, say, table, write_result
from benchmarks.retrieval.latency import HEADER, measure
from benchmarks.retrieval.peers import CHIPS, KINDS, Requests, compared, gold_rows
from benchmarks.retrieval.scoring import Request
from benchmarks.service import ROOT, free_port
from ingestion.uploads import FileUpload
from kb.errors import Unavailable
from retrieval.client import HttpBackend, KernloreClientError

TITLE = "A large store"
QUESTION = "how many registers has a thread of this chip at most"
MISSING = ("built-in", "Not read yet", "vector")
START_SECONDS = 180.0
PASSAGES = 500
REQUESTS = 200
MIB = 1 << 20


@contextmanager
def serving(data_dir: Path, *options: str) -> Iterator[tuple[HttpBackend, int, float]]:
    """A service on the directory: its client, process and time of start."""
    port = free_port()
    command = [sys.executable, "-m", "api.cli.main", "serve", "--port", str(port)]
    started = time.monotonic()
    process = subprocess.Popen(
        [*command, "--data-dir", str(data_dir), *options],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    http = HttpBackend(f"http://127.0.0.1:{port}", 60.0, None)
    try:
        yield http, process.pid, started
    finally:
        http.close()
        process.terminate()
        process.wait(60)


def complete_after(http: HttpBackend, started: float) -> float:
    """Seconds until an answer names nothing that is missing."""

    def is_complete() -> bool:
        _, answer = http.send("POST", "/retrieve", json={"query": QUESTION, "hardware": "h100"})
        hints = " ".join(answer.get("hints", MISSING))
        return bool(answer.get("excerpts")) and not any(word in hints for word in MISSING)

    return _seconds_until(is_complete, started)


def ready_after(http: HttpBackend, started: float) -> float:
    return _seconds_until(lambda: http.send("GET", "/readyz")[0] == 200, started)


def _seconds_until(holds: Callable[[], bool], started: float) -> float:
    while time.monotonic() < started + START_SECONDS:
        with suppress(KernloreClientError):  # it does not listen yet
            if holds():
                return time.monotonic() - started
        time.sleep(0.02)
    raise Unavailable("the service does not become ready", hint="Read its log.")


def starts() -> list[list[str]]:
    """The rows of a new directory and of the same one again, three times each."""
    rows: dict[str, list[tuple[float, float]]] = {"new directory": [], "prepared directory": []}
    for _ in range(3):
        with tempfile.TemporaryDirectory(prefix="kernlore-start-") as folder:
            for times in rows.values():
                with serving(Path(folder)) as (http, _, started):
                    complete = complete_after(http, started)
                    times.append((complete, ready_after(http, started)))
    for name, times in rows.items():
        say(f"{name}: {times}")
    return [
        [name, *(f"{statistics.median(column):.1f}" for column in zip(*times, strict=True))]
        for name, times in rows.items()
    ]


def memory_of(pid: int) -> float:
    """Memory of a process in MiB, its share of pages that several processes map included."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / MIB
    raise Unavailable(f"process {pid} has no Pss", hint="This needs Linux.")


def memory(data_dir: Path, workers: int) -> list[list[str]]:
    """Memory of each process that answers, after requests by 8 clients."""
    with serving(data_dir, "--workers", str(workers)) as (http, pid, started):
        ready_after(http, started)
        time.sleep(5)
        questions = [
            {"query": f"{QUESTION}, case {n}", "hardware": "h100"} for n in range(REQUESTS)
        ]

        def send(body: dict[str, Any]) -> int:
            return http.send("POST", "/retrieve", json=body)[0]

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(send, questions)) == {200}
        figures = {p: memory_of(p) for p in (pid, *descendants(pid))}
    rows = [[f"{workers} processes", "service", f"{figures.pop(pid):.0f}"]]
    others = sorted(figures.values(), reverse=True)
    return rows + [[f"{workers} processes", "further process", f"{value:.0f}"] for value in others]


def publication(data_dir: Path) -> list[list[str]]:
    """Seconds to publish a document of PASSAGES passages, and its deletion."""
    text = "# New chip\n\n" + "\n\n".join(
        f"## Unit {n}\n\nThe unit {n} of this chip moves {n * 3} words in {n + 7} clocks."
        for n in range(PASSAGES)
    )
    with tempfile.TemporaryDirectory(prefix="kernlore-publication-") as folder:
        running = shutil.ignore_patterns("service.*")
        shutil.copytree(data_dir, folder, dirs_exist_ok=True, symlinks=True, ignore=running)
        services = open_services(read_settings(Path(folder)))
        try:
            before = services.snapshots.publish().passages
            upload = FileUpload("new.md", text.encode(), hardware=("h100",))
            submitted = services.uploads.submit(upload)
            with services.local_reader() as reader:
                services.worker(reader).read_all(threading.Event())
            started = time.perf_counter()
            after = services.snapshots.publish().passages
            published = time.perf_counter() - started
            services.documents.delete(submitted.document_id)
            started = time.perf_counter()
            services.snapshots.publish()
            deleted = time.perf_counter() - started
        finally:
            services.close()
    return [
        [f"{after - before} passages into {before:,}", f"{published:.2f}"],
        ["its deletion", f"{deleted:.2f}"],
    ]


def exact_search(data_dir: Path) -> list[list[str]]:
    """Milliseconds of the exact search of vectors, by the size of the scope."""
    services = open_services(read_settings(data_dir))
    try:
        snapshot = services.snapshots.current()
        vector = services.embedder.encode_query(QUESTION)
        rows = []
        scopes = [None, services.registry.scopes("h100"), services.registry.scopes("apple-m4")]
        for scope in scopes:
            times = []
            for _ in range(21):
                started = time.perf_counter()
                snapshot.near(scope, vector, 200)
                times.append((time.perf_counter() - started) * 1000)
            count = len(snapshot.near(scope, vector, 10**9))
            size = count * (vector.size + 8) / MIB  # 8-bit codes, a step and an error each
            rows.append([f"{count:,}", f"{np.median(times):.1f}", f"{size:.0f}"])
    finally:
        services.close()
    return rows


def served(given: argparse.Namespace) -> list[list[str]]:
    """Rows of one client for each kind and of eight clients for all kinds; no two requests are
    equal."""
    rows = []
    for processes in (1, 2):
        with serving(given.data_dir, "--workers", str(processes)) as (http, _, started):
            ready_after(http, started)
            time.sleep(5)

            def send(body: Request, http: HttpBackend = http) -> None:
                status, answer = http.send("POST", "/retrieve", json=dict(body))
                if status != 200:
                    raise Unavailable(f"{status}: {answer}", hint="Read the service's log.")

            known = http.send("GET", "/hardware")[1]["hardware"]
            chips = sorted(row["id"] for row in known if row["kind"] == "accelerator")
            requests = Requests(gold_rows(given), random.Random(0).sample(chips, CHIPS), processes)
            bodies = {kind: requests.of(kind, 2 * given.requests) for kind in KINDS}
            mixed = [body for kind in KINDS for body in bodies[kind][given.requests :]]
            random.Random(1).shuffle(mixed)
            warm_up = len(mixed) // 6
            measure("warm-up", send, mixed[:warm_up], 1)
            one = [measure(kind, send, bodies[kind][: given.requests], 1) for kind in KINDS]
            for timing in (*one, measure("all, 8 clients", send, mixed[warm_up:], 8)):
                rows.append([str(processes), *timing.row()])
                say("  ".join(rows[-1]))
    return rows


def run(given: argparse.Namespace) -> None:
    parts = [
        table(["start", "first complete answer, s", "ready, s"], starts()),
        table(["", "process", "MiB"], [*memory(given.data_dir, 1), *memory(given.data_dir, 3)]),
        table(["publication", "seconds"], publication(given.data_dir)),
        table(
            ["passages of the scope", "exact search, ms", "MiB read"], exact_search(given.data_dir)
        ),
    ]
    if given.gold is not None:
        parts += [table(["processes", *HEADER], served(given)), *compared(given)]
    write_result(given.results, TITLE, parts)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval.large_store")
    parser.add_argument("--data-dir", type=Path, required=True, help="A large store.")
    parser.add_argument("--gold", type=Path, help="Gold rows, JSON lines.")
    parser.add_argument("--scorer", type=Path, help="Default: score.py beside the gold rows.")
    parser.add_argument("--requests", type=int, default=100, help="Of each kind; default 100.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
