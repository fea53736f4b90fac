"""Several services over one PostgreSQL catalog under a steady load, spread over them in turn.

Requests are sent at a fixed rate, whether or not earlier ones were answered, so a service that
falls behind is seen to. Meanwhile documents come and go: one replica takes the file, the next is
asked whether it was read, and from then on every one must have it in its answers; once one has
acknowledged that it is deleted, none may.

    createdb replicas    # empty
    python -m benchmarks.retrieval.replicas --catalog postgresql+psycopg://USER@HOST/replicas
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.knowledge.service import ROOT, _free_port
from benchmarks.report import say, table, write_result
from benchmarks.retrieval.requests import compose
from benchmarks.retrieval.scoring import Request, read_jsonl

QUESTIONS = Path(__file__).with_name("builtin_questions.jsonl")
ASKED = ("query", "signal", "hardware")
START_SECONDS = 600.0
REQUEST_SECONDS = 60.0
DISTINCT = 2_000  # requests; then they come again
READ_SECONDS = 120.0  # for a document of a few lines, while the load goes on


@dataclass
class Tally:
    """What came of the load."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    late: int = 0  # requests that were sent more than 50 ms after their time
    documents: int = 0
    checked: int = 0
    missing: int = 0
    gone: int = 0  # answers with a document that was deleted


def main() -> None:
    arguments = _arguments()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kernlore-replicas-")))
        urls = [
            stack.enter_context(_replica(arguments, folder, number))
            for number in range(arguments.replicas)
        ]
        for url in urls:
            _await_ready(url)
        tally = asyncio.run(_load(urls, arguments))
    write_result(
        arguments.out,
        f"{arguments.rate} requests a second over {arguments.replicas} replicas",
        _shown(tally, arguments),
    )
    if tally.missing or tally.gone:
        sys.exit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--catalog", required=True, help="URL of an empty database.")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--rate", type=int, default=200, help="Requests a second, of all.")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--knowledge", type=Path, help="Folder in place of all that is built in.")
    parser.add_argument("--models", type=Path, help="Folder with the exported embedding model.")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


# -- the services


@contextmanager
def _replica(arguments: argparse.Namespace, folder: Path, number: int) -> Iterator[str]:
    data, port = folder / f"replica-{number}", _free_port()
    data.mkdir()
    if arguments.models is not None:
        (data / "models").symlink_to(arguments.models.absolute())
    environment = {
        "KERNLORE_CATALOG": arguments.catalog,
        "KERNLORE_BLOB_URL": f"file://{folder / 'blobs'}",
        "KERNLORE_LOG_LEVEL": "warning",
    }
    if arguments.knowledge is not None:
        environment["KERNLORE_KNOWLEDGE_DIR"] = str(arguments.knowledge.absolute())
    command = [sys.executable, "-m", "api.cli.main", "serve", "--port", str(port)]
    with (folder / f"log-{number}").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--data-dir", str(data)],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _await_ready(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/readyz", timeout=10).json()["ready"]:
                say(f"{url} is ready")
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    raise SystemExit(f"{url} did not become ready within {START_SECONDS:.0f} s")


# -- the load


async def _load(urls: Sequence[str], arguments: argparse.Namespace) -> Tally:
    tally = Tally()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(timeout=REQUEST_SECONDS, limits=limits) as client:
        bodies = await _bodies(client, urls[0])
        for url in urls:  # each makes its indexes once
            await client.post(f"{url}/retrieve", json=bodies[0])
        turns = zip(cycle(urls), cycle(bodies), strict=False)
        done = asyncio.Event()
        checks = asyncio.create_task(_come_and_go(client, urls, tally, done))
        sent: list[asyncio.Task[None]] = []
        began = time.monotonic()
        for number, (url, body) in enumerate(
            islice(turns, int(arguments.rate * arguments.seconds))
        ):
            due = began + number / arguments.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            tally.late += time.monotonic() - due > 0.05
            sent.append(asyncio.create_task(_ask(client, url, body, due, tally)))
        await asyncio.gather(*sent)
        done.set()
        await checks
    return tally


async def _bodies(client: httpx.AsyncClient, url: str) -> list[dict[str, Any]]:
    signals = [row["id"] for row in (await client.get(f"{url}/signals")).json()["signals"]]
    known = {row["id"] for row in (await client.get(f"{url}/hardware")).json()["hardware"]}
    rows: dict[str, Request] = {
        str(row["id"]): {name: row[name] for name in ASKED if row.get(name) is not None}
        for row in read_jsonl(QUESTIONS)
        if row.get("hardware") in {None, *known}
    }
    return compose(rows, signals, [], DISTINCT)


async def _ask(
    client: httpx.AsyncClient, url: str, body: dict[str, Any], due: float, tally: Tally
) -> None:
    """One request; its time counts from the moment that it was due."""
    try:
        answer = await client.post(f"{url}/retrieve", json=body)
    except httpx.TransportError as error:
        tally.statuses[type(error).__name__] += 1
        return
    tally.statuses[str(answer.status_code)] += 1
    if answer.status_code == 200:
        tally.seconds.append(time.monotonic() - due)


async def _come_and_go(
    client: httpx.AsyncClient, urls: Sequence[str], tally: Tally, done: asyncio.Event
) -> None:
    rng = random.Random(0)
    while not done.is_set():
        taking, asked, deleting = (rng.choice(urls) for _ in range(3))
        word = f"numbat{tally.documents}"
        text = f"# Unit {word}\n\nThe {word} unit moves 16 bytes and is memory bound.\n"
        files = [("file", (f"{word}.md", text.encode()))]
        answer = await client.post(f"{taking}/documents", files=files, data={"hardware": "h100"})
        if answer.status_code != 202:
            tally.statuses[f"upload {answer.status_code}"] += 1
            await asyncio.sleep(1)
            continue
        sent = answer.json()
        if not await _is_read(client, asked, sent["job_id"]):
            tally.statuses["document not read in time"] += 1
            continue
        tally.documents += 1
        tally.missing += await _without(client, urls, word, sent["document_id"], tally)
        answer = await client.delete(f"{deleting}/documents/{sent['document_id']}")
        if answer.status_code in (200, 204):
            without = await _without(client, urls, word, sent["document_id"], tally)
            tally.gone += len(urls) - without


async def _is_read(client: httpx.AsyncClient, url: str, job_id: str) -> bool:
    deadline = time.monotonic() + READ_SECONDS
    while time.monotonic() < deadline:
        answer = await client.get(f"{url}/jobs/{job_id}")
        if answer.status_code == 200 and answer.json()["state"] == "ready":
            return True
        await asyncio.sleep(0.2)
    return False


async def _without(
    client: httpx.AsyncClient, urls: Sequence[str], word: str, document: str, tally: Tally
) -> int:
    """How many replicas answer a question about the document without it. One that refuses is asked
    again.
    """
    count = 0
    for url in urls:
        asked = {"query": f"{word} unit", "hardware": "h100"}
        answer = await client.post(f"{url}/retrieve", json=asked)
        while answer.status_code == 503:
            await asyncio.sleep(0.5)
            answer = await client.post(f"{url}/retrieve", json=asked)
        tally.checked += 1
        documents = {excerpt["document"]["id"] for excerpt in answer.json()["excerpts"]}
        count += document not in documents
    return count


# -- what is shown


def _shown(tally: Tally, arguments: argparse.Namespace) -> list[str]:
    answered = len(tally.seconds)
    p50, p95, p99 = np.percentile(tally.seconds or [float("nan")], [50, 95, 99]) * 1000
    rows = [
        ("requests sent", int(arguments.rate * arguments.seconds)),
        ("answered", answered),
        ("answered a second, of the time of sending", f"{answered / arguments.seconds:.0f}"),
        ("others", ", ".join(f"{n} {s}" for s, n in tally.statuses.items() if s != "200") or "0"),
        (
            "a retrieval from the moment it was due, ms",
            f"p50 {p50:.0f}, p95 {p95:.0f}, p99 {p99:.0f}",
        ),
        ("requests that the sender itself sent late", tally.late),
        ("documents that came and went meanwhile", tally.documents),
        ("answers that were checked for them", tally.checked),
        ("answers without a document that was ready", tally.missing),
        ("answers with a document that was deleted", tally.gone),
    ]
    return [
        "The sender, the services and PostgreSQL share one machine. Each request goes to the next"
        " replica, at its time whether or not earlier ones were answered.",
        table(("", "result"), rows),
    ]


if __name__ == "__main__":
    main()
