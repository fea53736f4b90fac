"""A service is killed with SIGKILL at random moments while it reads uploads, and restarted.

Counts lost documents, repeated work and leftovers, compares contents with those of an undisturbed
service, and asks for the rarest word of each document. Now and then a parser or, with --workers, a
worker is killed instead. Rows are read from the service's catalog, vectors are counted by a trigger
there, and orphans are reparented to this process. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from api.cli.target import CommandTarget
from api.workers import NAME
from benchmarks.processes import descendants, orphans_gone, take_orphans
from benchmarks.report import ended, say, table, write_result
from benchmarks.service import free_port
from ingestion.uploads import FileUpload
from kb.catalog import open_catalog
from kb.errors import Unavailable
from kb.settings import Settings

TITLE = "A service that is killed again and again while it reads"
ROOT = Path(__file__).resolve().parents[2]
CHIPS = ("h100", "mi300x", "a100")
START_SECONDS = 90.0
READ_SECONDS = 240.0
COUNTED = """
CREATE TABLE counted (sha TEXT);
CREATE TRIGGER counting BEFORE INSERT ON embeddings
BEGIN INSERT INTO counted VALUES (NEW.text_sha256); END;
"""
CONTENTS = {
    "documents": "SELECT source_key FROM documents",
    "passages": "SELECT d.source_key, p.ordinal, p.text, p.active FROM passages p"
    " JOIN documents d ON d.id = p.document_id",
    "sections": "SELECT d.source_key, s.ordinal, s.heading FROM sections s"
    " JOIN document_versions v ON v.id = s.version_id JOIN documents d ON d.id = v.document_id",
    "scopes": "SELECT p.text, h.hardware_id FROM passage_hardware h"
    " JOIN passages p ON p.id = h.passage_id",
    "tags": "SELECT p.text, g.kind, g.value FROM passage_tags g"
    " JOIN passages p ON p.id = g.passage_id",
    "vectors": "SELECT text_sha256 FROM embeddings",
}
WAITING = "SELECT count(*) FROM work WHERE state IN ('queued', 'running')"
READ = "SELECT count(*) FROM document_versions WHERE state = 'current'"
ENDED = "SELECT count(*) FROM work WHERE state IN ('ready', 'partial', 'failed')"
# Rows that only a document has that is stored in part.
HALF = (
    "SELECT count(*) FROM document_versions v WHERE v.state IN ('staged', 'failed')"
    " AND EXISTS (SELECT 1 FROM sections s WHERE s.version_id = v.id)",
    "SELECT count(*) FROM passages p JOIN document_versions v ON v.id = p.version_id"
    " WHERE p.active AND v.state != 'current'",
    "SELECT count(*) FROM documents d JOIN document_versions v ON v.id = d.current_version_id"
    " WHERE v.state != 'current' OR NOT EXISTS"
    " (SELECT 1 FROM passages p WHERE p.version_id = v.id AND p.active)",
)
# Jobs whose state is not that of their document.
UNTRUE = (
    "SELECT count(*) FROM work j JOIN document_versions v"
    " ON v.id = json_extract(j.payload, '$.version_id')"
    " WHERE (j.state = 'failed' AND v.state IN ('current', 'superseded'))"
    " OR (j.state IN ('ready', 'partial') AND v.state NOT IN ('current', 'superseded'))"
)


@dataclass(frozen=True)
class Plan:
    """documents: uploaded before each kill, which waits until a random number of them is read or,
    every fourth time, embedded, and then at most `latest` seconds more. parser_every: of so many
    kills the last one hits a parser. workers: processes that answer, and of three kills the second
    hits one that is not the service. models: DATA_DIR/models with the exported query model."""

    kills: int
    documents: int
    latest: float
    parser_every: int
    workers: int
    models: Path | None
    seed: int


@dataclass(frozen=True)
class Kill:
    """after: seconds since the uploads began. accepted: documents by then. running: processes of
    the service; left: those that outlived it by far; gone: seconds until the last had ended.
    half: rows of documents stored in part. waiting: jobs that had not ended."""

    target: str
    after: float
    accepted: int
    waiting: int
    running: int
    left: int
    gone: float
    half: int


@dataclass(frozen=True)
class Outcome:
    """lost: accepted documents that are missing. unfound: those that are not first for their
    rarest word within READ_SECONDS of the restart, with their vectors or without. retried: jobs
    that failed and were sent again, by their error. untrue: jobs whose state is not that of their
    document, before those were retried. running: jobs still running after SIGTERM. twice: texts
    that were embedded more than once. different: contents that differ from an undisturbed service.
    scratch: temporary files that are left."""

    kills: tuple[Kill, ...]
    documents: int
    passages: int
    lost: int
    unfound: tuple[str, ...]
    retried: Mapping[str, int]
    untrue: int
    running: int
    twice: int
    different: tuple[str, ...]
    scratch: tuple[str, ...]
    seconds: float

    @property
    def good(self) -> bool:
        clean = all(not kill.left and not kill.half for kill in self.kills)
        return (
            clean
            and not (self.lost or self.unfound or self.untrue or self.running)
            and not (self.twice or self.different)
        )


def manual(number: int, chance: random.Random) -> tuple[str, bytes]:
    """The name and the mostly unique text of a manual."""
    fruit = ("quince", "plum", "medlar", "damson", "loquat", "sloe")
    parts = ("unit", "queue", "scratchpad", "pipe", "barrier", "cache")
    lines = [f"# Manual {number}", f"The {rarest(number)} register is of this manual alone."]
    for section in range(chance.randint(6, 16)):
        kind = f"{chance.choice(fruit)} {chance.choice(parts)}"
        lines.append(f"## Part {number}.{section}: the {kind}")
        for _ in range(3):
            lanes, clocks = chance.randint(2, 512), chance.randint(1, 900)
            lines.append(
                f"The {kind} {number}.{section} has {lanes} lanes and a latency of {clocks} clocks;"
                f" it stalls when {chance.randint(2, 64)} requests meet in one bank."
            )
    return f"manual{number}.md", "\n\n".join(lines).encode()


def rarest(number: int) -> str:
    """A word that one manual alone has."""
    return "".join(chr(ord("b") + int(digit)) * 2 for digit in f"{number:04}") + "oquat"


class Service:
    """One service on its own folder, which can be restarted."""

    def __init__(self, folder: Path, models: Path | None, workers: int) -> None:
        self.workers = workers
        self.folder, self.data, self.scratch = folder, folder / "data", folder / "tmp"
        self.scratch.mkdir(parents=True)
        open_catalog(self.data).close()
        if models is not None:
            (self.data / "models").symlink_to(models)
        with self.catalog() as connection:
            connection.executescript(COUNTED)
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_port()  # a restart needs it again
        self.url = f"http://127.0.0.1:{self.port}"

    def catalog(self) -> sqlite3.Connection:
        return sqlite3.connect(self.data / "catalog.sqlite", timeout=15)

    def number(self, query: str) -> int:
        with self.catalog() as connection:
            return int(connection.execute(query).fetchone()[0])

    def start(self) -> None:
        """Returns once it answers."""
        knowledge = self.folder / "knowledge"
        if not knowledge.exists():
            _small_knowledge(knowledge)
        arguments = ["serve", "--port", str(self.port), "--data-dir", str(self.data)]
        arguments += ["--workers", str(self.workers)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "api.cli.main", *arguments],
                cwd=ROOT,
                env={
                    **os.environ,
                    "KERNLORE_KNOWLEDGE_DIR": str(knowledge),
                    "TMPDIR": str(self.scratch),
                },
                stdout=log,
                stderr=log,
            )
        self._wait("/healthz", lambda body: True, START_SECONDS)

    def wait_for(self, query: str, more: int, uploading: Uploading) -> None:
        """Until so many more rows are in this state than now, or all has been read and embedded."""
        wanted = self.number(query) + more
        deadline = time.monotonic() + START_SECONDS
        while self.number(query) < wanted and time.monotonic() < deadline:
            if not (uploading.is_alive() or self.number(WAITING)):
                return
            time.sleep(0.02)

    def ready(self) -> None:
        """Returns once everything is read and embedded."""
        self._wait("/readyz", lambda body: bool(body["ready"]), READ_SECONDS)

    def _wait(self, path: str, done: Callable[[Any], bool], seconds: float) -> None:
        assert self.process is not None
        body: Any = None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(httpx.TransportError):
                body = httpx.get(f"{self.url}{path}", timeout=10).json()
                if done(body):
                    return
            time.sleep(0.05)
        lines = (self.folder / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        messages = [line for line in lines if '"level": "info"' not in line][-40:]
        raise Unavailable(f"{path} of the service is still {body}", hint="\n".join(messages))

    def upload(self, name: str, text: bytes, chip: str) -> str:
        """The document's id, when the service has accepted it."""
        sent = httpx.post(
            f"{self.url}/documents",
            files={"file": (name, text)},
            data={"hardware": chip},
            timeout=30,
        )
        sent.raise_for_status()
        return str(sent.json()["document_id"])

    def first_for(self, word: str) -> str:
        """The id of the first document of an answer about a word."""
        asked = {"query": word, "fields": ["excerpts"]}
        sent = httpx.post(f"{self.url}/retrieve", json=asked, timeout=60).raise_for_status()
        return next((str(e["document"]["id"]) for e in sent.json()["excerpts"]), "")

    def kill(self, began: float, uploading: Uploading, target: str) -> Kill:
        """SIGKILL to the service alone, or to a process of it: what it started has to notice, and
        the service starts another."""
        assert self.process is not None
        below = descendants(self.process.pid)
        left, gone = 0, 0.0
        if target != "service":
            _kill_child(self.process.pid, target)
        else:
            self.process.kill()
            self.process.wait()
            left, gone = orphans_gone()
            self.process = None
        after = time.monotonic() - began
        waiting = self.number(WAITING)
        return Kill(
            target,
            round(after, 2),
            len(uploading.accepted),
            waiting,
            1 + len(below),
            left,
            round(gone, 2),
            sum(self.number(query) for query in HALF),
        )

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(60)


MODULES = {"a parser": b"ingestion.parse_process", "a worker": NAME.encode()}


def _kill_child(service: int, target: str) -> None:
    """As soon as there is one: a parser starts with the first document."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for pid in descendants(service):
            if _runs(pid, MODULES[target]):
                os.kill(pid, signal.SIGKILL)
                return
        time.sleep(0.01)
    raise Unavailable(f"the service did not start {target}", hint="Read its log.")


def _runs(pid: int, module: bytes) -> bool:
    try:
        folder = Path(f"/proc/{pid}")
        return module in (folder / "cmdline").read_bytes() + (folder / "comm").read_bytes()
    except OSError:
        return False


def _small_knowledge(folder: Path) -> None:
    """All chips and one document, so that only uploads are read."""
    source = ROOT / "hw_manuals"
    for path in (*source.glob("hardware/*/hardware.toml"), source / "guidance/memory-bound.md"):
        target = folder / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())


class Uploading(threading.Thread):
    """Sends documents until the service is gone; `accepted` grows."""

    def __init__(self, service: Service, manuals: Sequence[tuple[str, bytes]]) -> None:
        super().__init__(daemon=True)
        self.service, self.manuals = service, manuals
        self.accepted: dict[str, str] = {}

    def run(self) -> None:
        for name, text in self.manuals:
            try:
                self.accepted[name] = self.service.upload(name, text, chip_of(text))
            except httpx.TransportError:
                return


def killed_service(folder: Path, plan: Plan) -> Outcome:
    """Upload some documents and kill, again and again, then let it end."""
    take_orphans()
    service = Service(folder / "disturbed", plan.models, plan.workers)
    try:
        return _killed(service, folder, plan)
    finally:
        if service.process is not None:
            service.process.kill()
            service.process.wait()


def _killed(service: Service, folder: Path, plan: Plan) -> Outcome:
    began = time.monotonic()
    chance = random.Random(plan.seed)
    manuals = [manual(n, chance) for n in range(plan.kills * plan.documents)]
    accepted: dict[str, str] = {}
    kills: list[Kill] = []
    for number in range(plan.kills):
        if service.process is None:
            service.start()
        sent = manuals[: (number + 1) * plan.documents]
        uploading = Uploading(service, [m for m in sent if m[0] not in accepted])
        started = time.monotonic()
        uploading.start()
        progress = READ if number % 4 else ENDED
        service.wait_for(progress, chance.randint(0, plan.documents), uploading)
        time.sleep(chance.uniform(0.0, plan.latest))
        target = "service"
        if number % plan.parser_every == plan.parser_every - 1:
            target = "a parser"
        elif plan.workers > 1 and number % 3 == 1:
            target = "a worker"
        kills.append(service.kill(started, uploading, target))
        uploading.join()
        accepted |= uploading.accepted
        say(f"kill {number + 1} of {plan.kills}: {kills[-1]}")
    if service.process is None:
        service.start()
    unfound = _unfound(service, accepted)
    service.stop()
    running = service.number("SELECT count(*) FROM work WHERE state = 'running'")
    service.start()
    service.ready()
    untrue = service.number(UNTRUE)
    retried = _retry(service)
    known = {d["id"] for d in httpx.get(f"{service.url}/documents", timeout=60).json()["documents"]}
    lost = len(set(accepted.values()) - known)
    Uploading(service, [m for m in manuals if m[0] not in accepted]).run()
    service.ready()
    untrue += service.number(UNTRUE)
    unfound += _unfound(service, accepted)
    service.stop()
    undisturbed = _undisturbed(folder / "undisturbed", manuals, plan.models)
    twice = "SELECT count(*) FROM (SELECT sha FROM counted GROUP BY sha HAVING count(*) > 1)"
    return Outcome(
        tuple(kills),
        len(manuals),
        len(undisturbed.contents["passages"]),
        lost,
        tuple(unfound),
        retried,
        untrue,
        running,
        service.number(twice),
        tuple(undisturbed.differences(contents_of(service.data))),
        tuple(sorted(path.name for path in service.scratch.glob("kernlore*"))),
        round(time.monotonic() - began, 1),
    )


def _unfound(service: Service, accepted: Mapping[str, str]) -> list[str]:
    """Documents that are not first for the word that they alone have."""
    waiting, deadline = dict(accepted), time.monotonic() + READ_SECONDS
    while waiting and time.monotonic() < deadline:
        for name, document in list(waiting.items()):
            number = int(name.removeprefix("manual").removesuffix(".md"))
            if service.first_for(rarest(number)) == document:
                del waiting[name]
        time.sleep(0.2)
    return sorted(waiting)


@dataclass(frozen=True)
class Undisturbed:
    """Contents of an undisturbed data directory."""

    contents: dict[str, list[str]]

    def differences(self, contents: dict[str, list[str]]) -> list[str]:
        return [name for name in self.contents if self.contents[name] != contents[name]]


def _undisturbed(
    folder: Path, manuals: Sequence[tuple[str, bytes]], models: Path | None
) -> Undisturbed:
    """The same manuals, read in this process."""
    _small_knowledge(folder / "knowledge")
    data = folder / "data"
    open_catalog(data).close()
    if models is not None:
        (data / "models").symlink_to(models)
    local = CommandTarget(Settings(data_dir=data, knowledge_dir=folder / "knowledge"))
    try:
        services = local.services
        services.load_builtin()
        for name, text in manuals:
            services.uploads.submit(FileUpload(name, text, hardware=(chip_of(text),)))
        with services.local_reader() as reader:
            services.worker(reader).drain()
    finally:
        local.close()
    return Undisturbed(contents_of(data))


def chip_of(text: bytes) -> str:
    """The chip that a manual is about."""
    return CHIPS[len(text) % len(CHIPS)]


def contents_of(data: Path) -> dict[str, list[str]]:
    """The contents of a catalog without ids and times."""
    with sqlite3.connect(data / "catalog.sqlite", timeout=15) as connection:
        return {
            name: sorted(map(repr, connection.execute(query))) for name, query in CONTENTS.items()
        }


def _retry(service: Service) -> dict[str, int]:
    """Send failed jobs again, as their hint says; how many there were, by code."""
    with service.catalog() as connection:
        failed = list(
            connection.execute(
                "SELECT id, json_extract(error, '$.code') FROM work WHERE state = 'failed'"
            )
        )
    for job_id, _ in failed:
        httpx.post(f"{service.url}/jobs/{job_id}/retry", timeout=30).raise_for_status()
    if failed:
        service.ready()
    return dict(Counter(code for _, code in failed))


def _parts(outcome: Outcome) -> list[str]:
    kills = [
        [
            number,
            kill.target,
            f"{kill.after:.1f} s",
            kill.accepted,
            kill.waiting,
            kill.half,
            kill.running,
            kill.left,
            f"{kill.gone:.2f} s",
        ]
        for number, kill in enumerate(outcome.kills, 1)
    ]
    header = (
        "kill",
        "what",
        "after uploads began",
        "accepted by then",
        "jobs not ended",
        "half documents",
        "processes it had",
        "left",
        "gone within",
    )
    retried = ", ".join(f"{count} {code}" for code, count in outcome.retried.items()) or "none"
    facts = [
        ("documents, passages", f"{outcome.documents}, {outcome.passages}"),
        ("accepted documents that were lost", outcome.lost),
        ("not first for their rarest word after the restart", len(outcome.unfound)),
        ("jobs whose state is not that of their document", outcome.untrue),
        ("jobs that failed and were retried", retried),
        ("jobs still running after a SIGTERM at the end", outcome.running),
        ("texts embedded twice", outcome.twice),
        ("contents", "as undisturbed" if not outcome.different else "; ".join(outcome.different)),
        ("temporary files left", len(outcome.scratch)),
        ("seconds in all", f"{outcome.seconds:.0f}"),
    ]
    about = (
        "`python -m benchmarks.knowledge.killed_service`. Each time manuals are uploaded, the"
        " service gets SIGKILL at a random moment (accepting, starting a parser, reading, storing,"
        " embedding, filling the index), and is started again; every fourth time a parser of it,"
        " and with --workers now and then a worker,"
        " gets the signal, and the service continues. Refused uploads are sent again, and jobs"
        " that failed are retried at the end, as a person would."
    )
    return [about, table(header, kills), table(("", "result"), facts)]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--documents", type=int, default=6)
    parser.add_argument("--latest", type=float, default=2.0)
    parser.add_argument("--parser-every", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures, write nothing")
    parser.add_argument("--output", type=Path, help="Markdown file for the result")
    options = vars(parser.parse_args(arguments))
    as_json, output = options.pop("json"), options.pop("output")
    with tempfile.TemporaryDirectory(prefix="killed-service-") as folder:
        result = killed_service(Path(folder), Plan(**options))
    if as_json:
        print(json.dumps({**asdict(result), "good": result.good}))
    else:
        write_result(output, TITLE, _parts(result))


if __name__ == "__main__":
    ended(main)
