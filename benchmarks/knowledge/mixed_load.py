"""Clients retrieve, upload, replace and delete at once, and commands run at the same time.

Reports failed requests, answers with replaced or deleted text, and the memory of the service. Each
manual has a unique marker and its edition; a deletion counts from its answer, a new edition from
its finished job.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.report import ended, table, write_result
from benchmarks.service import Service, memory_of, service_at, wait_until_ready

TITLE = "Retrieving, uploading, replacing and deleting at once"
ROOT = Path(__file__).resolve().parents[2]
CHIPS = ("h100", "mi300x", "a100", "trainium2")
SIGNALS = (
    "memory_bound",
    "register_spill",
    "bank_conflict",
    "launch_overhead",
    "occupancy_limited",
)
SUBJECTS = ("queue", "barrier", "scratchpad", "scheduler", "copy engine", "cache")
COMMANDS = (
    ("documents", "list"),
    ("jobs", "list"),
    ("skills", "list"),
    ("retrieve", "--signal", "memory_bound", "--hardware", "h100"),
    ("knowledge", "tree"),
)
EDITION = re.compile(r"marker(\d+)x edition(\d+)x")
FEWEST = 4  # manuals that are always left
WAIT_SECONDS = 300.0  # for jobs at the end


@dataclass(frozen=True)
class Plan:
    """How many of each kind work at once, for how long, and how many manuals there are first."""

    retrieving: int
    uploading: int
    deleting: int
    commands: int
    seconds: float
    manuals: int
    seed: int


@dataclass
class Manual:
    """`edition` is the newest that was sent, `confirmed` the newest whose job has ended."""

    number: int
    document_id: str
    edition: int = 1
    confirmed: int = 0


@dataclass(frozen=True)
class Outcome:
    """`answered` requests by kind, and those `refused` with 503 and a time to come back. `failed`
    are errors of any kind, `stale` and `deleted` answers with what had been replaced or removed,
    `lost` manuals that are not what they should be at the end. Memory in MiB, times in ms.
    """

    answered: Mapping[str, int]
    refused: int
    failed: Sequence[str]
    stale: Sequence[str]
    deleted: Sequence[str]
    lost: Sequence[str]
    milliseconds: Mapping[str, float]
    memory_before: float
    memory_after: float
    memory_peak: float
    commands: Mapping[str, int]
    seconds: float

    @property
    def good(self) -> bool:
        return not (self.failed or self.stale or self.deleted or self.lost)


@dataclass
class Shared:
    """What all clients know of each other. The lock protects everything in it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    manuals: dict[int, Manual] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # deleted, as the service has answered
    busy: set[int] = field(default_factory=set)  # a client is changing or removing it
    next_number: int = 0
    answered: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)

    def take(self, chance: random.Random, fewest: int = 0) -> Manual | None:
        """A manual for exclusive use, to be returned with `release`."""
        with self.lock:
            idle = [m for n, m in self.manuals.items() if n not in self.busy]
            if len(self.manuals) <= fewest or not idle:
                return None
            manual = chance.choice(idle)
            self.busy.add(manual.number)
            return manual

    def release(self, manual: Manual) -> None:
        with self.lock:
            self.busy.discard(manual.number)

    def add(self, kind: str) -> None:
        with self.lock:
            self.answered[kind] += 1


def text_of(number: int, edition: int, chance: random.Random) -> bytes:
    """A manual whose every section names its marker and edition."""
    lines = [f"# Manual {number}"]
    for section in range(chance.randint(3, 8)):
        subject = chance.choice(SUBJECTS)
        lines += [
            f"## The {subject} {number}.{section}",
            f"In marker{number}x edition{edition}x the {subject} holds {chance.randint(2, 999)}"
            f" rows, and a kernel that is memory bound waits {chance.randint(2, 999)} clocks.",
        ]
    return "\n\n".join(lines).encode()


class Client:
    """One client with its own connection; works until `stop` is set."""

    def __init__(self, url: str, shared: Shared, seed: int) -> None:
        self.http = httpx.Client(base_url=url, timeout=120.0)
        self.shared = shared
        self.chance = random.Random(seed)

    def send(self, kind: str, method: str, path: str, **carried: Any) -> Any | None:
        """The decoded answer. None where it failed, which is noted, or was refused for now."""
        try:
            response = self.http.request(method, path, **carried)
        except httpx.HTTPError as error:
            with self.shared.lock:
                self.shared.failed.append(f"{kind}: {type(error).__name__}: {error}")
            return None
        if response.status_code == 503 and "retry-after" in response.headers:
            self.shared.add("refused")
            time.sleep(float(response.headers["retry-after"]))
            return None
        if response.status_code >= 300:
            with self.shared.lock:
                self.shared.failed.append(f"{kind}: {response.status_code} {response.text[:200]}")
            return None
        self.shared.add(kind)
        return response.json()

    # -- clients

    def retrieve(self) -> None:
        with self.shared.lock:
            gone = frozenset(self.shared.gone)
            least = {n: m.confirmed for n, m in self.shared.manuals.items()}
        body = self._request(sorted({*gone, *least}))
        started = time.perf_counter()
        answer = self.send("retrieve", "POST", "/retrieve", json=body)
        if answer is None:
            return
        took = (time.perf_counter() - started) * 1000
        texts = [*(excerpt["text"] for excerpt in answer["excerpts"]), answer["context"]]
        held = {(int(n), int(e)) for text in texts for n, e in EDITION.findall(text)}
        with self.shared.lock:
            self.shared.milliseconds.append(took)
            self.shared.deleted += [f"manual {n}" for n, _ in held if n in gone]
            self.shared.stale += [
                f"manual {n}, edition {edition} when {least[n]} was current"
                for n, edition in held
                if n not in gone and edition < least.get(n, 0)
            ]

    def _request(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Half of them ask for a manual, there or not; the others are what optimizers send."""
        chip = self.chance.choice(CHIPS)
        if numbers and self.chance.random() < 0.5:
            number = self.chance.choice(numbers)
            subject = self.chance.choice(SUBJECTS)
            return {"query": f"rows of the {subject} marker{number}x", "hardware": "h100"}
        if self.chance.random() < 0.5:
            return {"signal": self.chance.choice(SIGNALS), "hardware": chip}
        words = " ".join(self.chance.sample(SUBJECTS, 2))
        return {"query": f"how does the {words} stall {self.chance.random():.4f}", "hardware": chip}

    def upload(self) -> None:
        """A new manual, or a new edition of one, and its job to the end."""
        manual = self.shared.take(self.chance) if self.chance.random() < 0.5 else None
        if manual is None:
            with self.shared.lock:
                number = self.shared.next_number
                self.shared.next_number += 1
                self.shared.busy.add(number)
            manual = Manual(number, "")
        edition = manual.edition + 1 if manual.document_id else 1
        try:
            self._store(manual, edition)
        finally:
            self.shared.release(manual)

    def _store(self, manual: Manual, edition: int) -> None:
        name = f"manual{manual.number}.md"
        answer = self.send(
            "upload",
            "POST",
            "/documents",
            files=[("file", (name, text_of(manual.number, edition, self.chance)))],
            data={"hardware": "h100", "category": "hardware"},
        )
        if answer is None:
            return
        row = answer["documents"][0] if "documents" in answer else answer
        manual.document_id, manual.edition = row["document_id"], edition
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            job = self.send("job", "GET", f"/jobs/{row['job_id']}")
            if job is not None and job["state"] in ("ready", "partial", "failed"):
                break
            time.sleep(0.2)
        with self.shared.lock:
            if job is None or job["state"] != "ready":
                self.shared.failed.append(f"job of manual {manual.number}: {job}")
                return
            manual.confirmed = edition
            self.shared.manuals[manual.number] = manual

    def delete(self) -> None:
        manual = self.shared.take(self.chance, FEWEST)
        if manual is None:
            time.sleep(0.2)
            return
        answer = self.send("delete", "DELETE", f"/documents/{manual.document_id}")
        with self.shared.lock:
            if answer is not None:
                del self.shared.manuals[manual.number]
                self.shared.gone.add(manual.number)
        self.shared.release(manual)
        time.sleep(self.chance.random())


def command(shared: Shared, data_dir: Path, chance: random.Random) -> None:
    """One command of the command line on the same data directory."""
    words = chance.choice(COMMANDS)
    arguments = [sys.executable, "-m", "api.cli.main", *words, "--data-dir", str(data_dir)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=300)
    with shared.lock:
        shared.commands[words[0]] += 1
        if done.returncode:
            shared.failed.append(f"{' '.join(words)}: {done.stderr[-300:]}")


def run(plan: Plan, data_dir: Path) -> Outcome:
    shared = Shared()
    with service_at(None, data_dir) as service:
        wait_until_ready(service)
        first = Client(service.http.url, shared, plan.seed)
        while len(shared.manuals) < plan.manuals and not shared.failed:
            first.upload()
        before = _memory(service)
        seconds = _work(plan, service, shared, data_dir)
        lost = _lost(first, shared)
        after = _memory(service)
    times = shared.milliseconds or [0.0]
    refused = shared.answered.pop("refused", 0)
    return Outcome(
        dict(shared.answered),
        refused,
        shared.failed,
        shared.stale,
        shared.deleted,
        lost,
        {f"p{share}": float(np.percentile(times, share)) for share in (50, 99)},
        before[0],
        after[0],
        after[1],
        dict(shared.commands),
        seconds,
    )


def _work(plan: Plan, service: Service, shared: Shared, data_dir: Path) -> float:
    stop = threading.Event()

    def repeat(action: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                action()
        except Exception as error:  # a thread's boundary: what it hides would look like success
            with shared.lock:
                shared.failed.append(f"{type(error).__name__}: {error}")

    actions: list[Callable[[], None]] = []
    with ExitStack() as stack:
        for n in range(plan.retrieving + plan.uploading + plan.deleting):
            client = Client(service.http.url, shared, plan.seed + 1 + n)
            stack.callback(client.http.close)
            if n < plan.retrieving:
                actions.append(client.retrieve)
            elif n < plan.retrieving + plan.uploading:
                actions.append(client.upload)
            else:
                actions.append(client.delete)
        chance = random.Random(plan.seed)
        actions += [lambda: command(shared, data_dir, chance)] * plan.commands
        threads = [threading.Thread(target=repeat, args=(action,)) for action in actions]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        stop.wait(plan.seconds)
        stop.set()
        for thread in threads:
            thread.join()
        return time.monotonic() - started


def _memory(service: Service) -> tuple[float, float]:
    held = memory_of(service.pid) if service.pid is not None else None
    return (held.now, held.peak) if held is not None else (0.0, 0.0)


def _lost(client: Client, shared: Shared) -> list[str]:
    """Manuals whose newest edition is not found by its marker, or that should not be there."""
    lost = []
    listed = client.send("list", "GET", "/documents") or {"documents": []}
    present = {row["id"] for row in listed["documents"]}
    for number, manual in sorted(shared.manuals.items()):
        asked = f"marker{number}x edition{manual.edition}x"
        body = {"query": asked, "hardware": "h100", "fields": ["excerpts"]}
        answer = client.send("retrieve", "POST", "/retrieve", json=body) or {"excerpts": []}
        wanted = f"marker{number}x edition{manual.edition}x"
        if manual.document_id not in present:
            lost.append(f"manual {number} is not listed")
        elif not any(wanted in excerpt["text"] for excerpt in answer["excerpts"]):
            lost.append(f"manual {number}, edition {manual.edition} is not found")
    return lost


def report(outcome: Outcome, plan: Plan) -> list[str]:
    answered = ", ".join(f"{n} {kind}" for kind, n in sorted(outcome.answered.items()))
    commands = ", ".join(f"{n} {name}" for name, n in sorted(outcome.commands.items())) or "none"
    rows = [
        ("answered", answered),
        ("refused with 503 and a time to come back", outcome.refused),
        ("failed", len(outcome.failed)),
        ("answers with a replaced edition", len(outcome.stale)),
        ("answers with a deleted manual", len(outcome.deleted)),
        ("manuals lost at the end", len(outcome.lost)),
        ("commands meanwhile", commands),
        (
            "a retrieval, ms",
            f"p50 {outcome.milliseconds['p50']:.0f}, p99 {outcome.milliseconds['p99']:.0f}",
        ),
        (
            "memory of the service, MiB",
            f"{outcome.memory_before:.0f} before, {outcome.memory_after:.0f} after,"
            f" {outcome.memory_peak:.0f} at the most",
        ),
    ]
    problems = [*outcome.failed, *outcome.stale, *outcome.deleted, *outcome.lost]
    about = (
        f"{plan.retrieving} clients retrieve, {plan.uploading} upload and replace,"
        f" {plan.deleting} deletes, {plan.commands} run commands, for {outcome.seconds:.0f} s over"
        f" HTTP, with the built-in knowledge and {plan.manuals} manuals to begin with."
    )
    return [about, table(("", "result"), rows), *problems[:5]]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.knowledge.mixed_load", description=__doc__
    )
    parser.add_argument("--retrieving", type=int, default=8)
    parser.add_argument("--uploading", type=int, default=2)
    parser.add_argument("--deleting", type=int, default=1)
    parser.add_argument("--commands", type=int, default=1, help="Command lines to run meanwhile.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--manuals", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data-dir", type=Path, help="Default: a new one.")
    parser.add_argument("--json", action="store_true", help="The result as the last line.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    given = parser.parse_args(arguments)
    names = ("retrieving", "uploading", "deleting", "commands", "seconds", "manuals", "seed")
    plan = Plan(**{name: getattr(given, name) for name in names})
    with tempfile.TemporaryDirectory(prefix="kernlore-mixed-load-") as folder:
        outcome = run(plan, given.data_dir or Path(folder) / "data")
    if given.json:
        print(json.dumps({**asdict(outcome), "good": outcome.good}))
    else:
        write_result(given.results, TITLE, report(outcome, plan))
    if not outcome.good:
        sys.exit(1)


if __name__ == "__main__":
    ended(main)
