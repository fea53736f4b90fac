"""`kernlore backup` during uploads to a service, and a second service on the result of `kernlore
restore`: equal answers, and waiting jobs continue.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from kb.backup import verify_backup
from tests.api.cli_process import kernlore, serving
from tests.shared import FINISHED_CANDIDATES, copy_knowledge, finished_run, place_models

pytestmark = [pytest.mark.in_data_dir, pytest.mark.slow(seconds=30), pytest.mark.embedded]

DOCUMENTS = ("guidance/memory-bound.md", "hardware/h100/tuning.md")
MANUAL = """# Copies of the H100

## Tiles

A memory bound kernel moves whole tiles with cp.async.bulk, so that no thread waits for an address.

## Registers

Bound the registers with __launch_bounds__, or spills reduce occupancy.
"""
LOG = "ptxas error   : Entry function 'k' uses too much shared data (0x41000 bytes, 0x38c00 max)"
REQUESTS: tuple[Mapping[str, Any], ...] = (
    {"signal": "memory_bound", "hardware": "h100"},
    {"signal": "register_spill", "hardware": "h100", "task": "speed_up"},
    {"signal": "memory_bound"},
    {"signal": "memory_bound", "hardware": "trainium2"},
    {"log": LOG, "hardware": "h100"},
    {"query": "how are whole tiles moved with cp.async.bulk", "hardware": "h100"},
    {"task": "write", "hardware": "h100", "op": "matmul", "language": "cuda"},
)
WORDS = ("quokka", "wombat", "numbat", "bilby", "dunnart", "potoroo", "bettong", "quoll")
UPLOADS = 8  # before the backup; they continue until it is finished
# The requests over HTTP that reading other documents does not affect.
PATHS = (
    "/hardware/h100/facts",
    "/skills",
    "/skills/{skill}/history",
    "/runs/{run}/tree",
    "/runs/{run}/candidates/1",
)
TABLES = ("facts", "moves", "skills", "skill_events", "evidence", "runs", "nodes", "evaluations")


@dataclass(frozen=True)
class RestoredBackup:
    """A backup, the directory restored from it, and the answers of the service. `accepted` are the
    uploads answered before the backup began. `answers` are those of the service when it had read
    them, without the documents that are not in the backup; `passages` are of all documents.
    """

    source: Path
    knowledge: Path
    file: Path
    manifest: Mapping[str, Any]
    restored: Mapping[str, Any]
    run: str
    skill: str
    answers: tuple[Any, ...]
    accepted: tuple[str, ...]
    passages: Mapping[str, int]

    @property
    def data(self) -> Path:
        return Path(self.restored["data_dir"])


def answers_of(url: str, run: str, skill: str) -> tuple[Any, ...]:
    """The answers to all requests, without ids of single answers."""
    with httpx.Client(base_url=url, timeout=60) as http:
        requested = [http.post("/retrieve", json=dict(request)) for request in REQUESTS]
        requested += [http.get(path.format(run=run, skill=skill)) for path in PATHS]
        assert [answer.status_code for answer in requested] == [200] * len(requested)
        bodies = [answer.json() for answer in requested]
    return tuple({k: v for k, v in body.items() if k != "retrieval_id"} for body in bodies)


def uploads(url: str, accepted: list[str], stop: threading.Event) -> None:
    """Send manuals of another chip, faster than they are read, until stopped."""
    with httpx.Client(base_url=url, timeout=60) as http:
        for number in itertools.count():
            if stop.is_set():
                return
            word = WORDS[number % len(WORDS)]
            text = "".join(
                f"\n## {word} {number} {part}\n\nThe {word} unit {number} drains its {part}.\n"
                for part in ("queue", "buffer", "window")
            )
            answer = http.post(
                "/documents",
                files={"file": (f"{word}-{number}.md", f"# {word}\n{text}".encode())},
                data={"hardware": "mi300x"},
            )
            assert answer.status_code == 202, answer.text
            accepted.append(answer.json()["document_id"])


def wait_until_read(http: httpx.Client, document_ids: Sequence[str]) -> dict[str, int]:
    """The number of passages of each document, once its job is ready."""
    passages = {}
    for document_id in document_ids:
        while True:
            document = http.get(f"/documents/{document_id}").json()
            assert document["job_state"] in ("queued", "running", "ready"), document
            if document["job_state"] == "ready":
                break
            time.sleep(0.05)
        passages[document_id] = document["passages"]
    return passages


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> RestoredBackup:
    folder = tmp_path_factory.mktemp("backup")
    data, file = folder / "served" / "data", folder / "backup.tar"
    knowledge = copy_knowledge(folder / "knowledge", DOCUMENTS)
    run = finished_run(tmp_path_factory, data)
    (place_models(data, model_cache) / "transcripts" / run).mkdir(parents=True)
    (data / "transcripts" / run / "1-0.json").write_text("{}")
    (folder / "manual.md").write_text(MANUAL)
    with serving(data, knowledge) as url, httpx.Client(base_url=url, timeout=60) as http:
        ingest = ("ingest", folder / "manual.md", "--hardware", "h100", "--json")
        assert kernlore(*ingest, data=data).json["files"][0]["state"] == "ready"
        skill = kernlore("skills", "list", "--json", data=data).json[0]["name"]
        retire = ("skills", "retire", skill, "--reason", "it is not used here", "--json")
        assert kernlore(*retire, data=data).code == 0
        sent, stop = list[str](), threading.Event()
        thread = threading.Thread(target=uploads, args=(url, sent, stop))
        thread.start()
        try:
            while len(sent) < UPLOADS:
                assert thread.is_alive()
                time.sleep(0.01)
            accepted = tuple(sent)
            made = kernlore("backup", "-o", file, "--json", data=data)
        finally:
            stop.set()
            thread.join()
        assert made.code == 0, made.err
        restored = kernlore("restore", file, "--json", data=folder / "restored" / "data")
        assert restored.code == 0, restored.err
        passages = wait_until_read(http, sent)
        # Word weights depend on all documents, those of other chips too.
        stored = {row[0] for row in rows_of(folder / "restored" / "data", "documents")}
        for document_id in set(sent) - stored:
            assert http.delete(f"/documents/{document_id}").status_code == 200
        answers = answers_of(url, run, skill)
    place_models(folder / "restored" / "data", model_cache)
    return RestoredBackup(
        data, knowledge, file, made.json, restored.json, run, skill, answers, accepted, passages
    )


def rows_of(data: Path, table: str) -> list[Any]:
    with closing(sqlite3.connect(data / "catalog.sqlite")) as connection:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall(), key=repr)


def test_backup_is_made_while_uploads_wait(taken: RestoredBackup) -> None:
    jobs = taken.manifest["jobs"]
    assert jobs.get("queued", 0) + jobs.get("running", 0) > 0, jobs
    assert taken.restored["queued_again"] == jobs.get("running", 0)
    assert taken.manifest["counts"]["documents"] >= len(taken.accepted)
    assert taken.manifest["damaged"] == [] == taken.manifest["left_out"]
    contents = verify_backup(taken.file)
    assert contents.manifest.counts == taken.manifest["counts"]
    assert taken.manifest["file_bytes"] == taken.file.stat().st_size


def test_backup_has_runs_evaluations_skills_and_facts(taken: RestoredBackup) -> None:
    source, data = taken.source, taken.data
    for table in TABLES:
        assert rows_of(data, table) == rows_of(source, table), table
    counts = {table: len(rows_of(data, table)) for table in TABLES}
    assert counts["nodes"] == FINISHED_CANDIDATES + 1
    assert min(counts[table] for table in TABLES if table != "evidence") > 0, counts
    for folder in ("devices", "transcripts"):
        names = [path for path in (source / folder).rglob("*") if path.is_file()]
        assert names
        for path in names:
            assert (data / path.relative_to(source)).read_bytes() == path.read_bytes()


def test_no_document_is_partially_in_backup(taken: RestoredBackup) -> None:
    """Each has either all passages with words and vectors, or a waiting job."""
    with closing(sqlite3.connect(taken.data / "catalog.sqlite")) as connection:
        states = connection.execute("SELECT subject_id, state FROM work").fetchall()
        unread = "SELECT count(*) FROM passages WHERE active AND document_id = ?"
        lacking = f"{unread} AND embed_sha256 NOT IN (SELECT text_sha256 FROM embeddings)"
        known = {row[0] for row in connection.execute("SELECT id FROM documents")}
        assert set(taken.accepted) <= known == {document_id for document_id, _ in states}
        assert {state for _, state in states} == {"queued", "ready"}
        for document_id, state in states:
            if state == "ready" and document_id in taken.passages:
                count = connection.execute(unread, (document_id,)).fetchone()[0]
                assert count == taken.passages[document_id]
                assert connection.execute(lacking, (document_id,)).fetchone()[0] == 0
    checked = kernlore("doctor", "--json", data=taken.data).json
    assert {c["name"]: c["ok"] for c in checked["checks"] if not c["ok"]} == {}


@pytest.fixture(scope="module")
def restored_url(taken: RestoredBackup) -> Iterator[str]:
    with serving(taken.data, taken.knowledge) as url:
        yield url


def test_restored_service_gives_equal_answers(taken: RestoredBackup, restored_url: str) -> None:
    """Byte for byte, after it has read the waiting documents."""
    again = answers_of(restored_url, taken.run, taken.skill)
    requests = (*map(json.dumps, REQUESTS), *PATHS)
    for request, before, now in zip(requests, taken.answers, again, strict=True):
        assert now == before, request
    requested = taken.answers[: len(REQUESTS)]
    assert all(answer["excerpts"] and answer["context"] for answer in requested)
    assert any(answer["moves"] for answer in requested) and any(
        answer["skills"] for answer in requested
    )


def test_waiting_documents_are_read_after_restore(taken: RestoredBackup, restored_url: str) -> None:
    with httpx.Client(base_url=restored_url, timeout=60) as http:
        passages = wait_until_read(http, taken.accepted)
        assert passages == {name: taken.passages[name] for name in taken.accepted}
        last = http.get(f"/documents/{taken.accepted[-1]}").json()
        found = http.post("/retrieve", json={"query": last["title"], "hardware": "mi300x"}).json()
    assert any(e["document"]["id"] in taken.accepted for e in found["excerpts"])


def test_backup_is_verified_without_restoring(taken: RestoredBackup, tmp_path: Path) -> None:
    whole = kernlore("backup", "--verify", taken.file)
    assert (whole.code, whole.err) == (0, "")
    shown = dict(line.split("  ", 1) for line in whole.out.splitlines())
    assert shown["size"].strip() == f"{taken.manifest['file_bytes']:,} bytes"
    assert f"{taken.manifest['counts']['documents']:,} documents" in shown["counts"]
    cut = tmp_path / "cut.tar"
    cut.write_bytes(taken.file.read_bytes()[:-100_000])
    refused = kernlore("backup", "--verify", cut, "--json")
    assert (refused.code, refused.json["code"]) == (1, "store_error")


def test_restore_into_directory_with_store_is_refused(taken: RestoredBackup) -> None:
    before = rows_of(taken.data, "documents")
    ran = kernlore("restore", taken.file, "--json", data=taken.data)
    assert (ran.code, ran.json["code"]) == (2, "conflict")
    assert "--data-dir" in ran.json["hint"]
    assert rows_of(taken.data, "documents") == before


def test_exactly_one_action_is_required(taken: RestoredBackup) -> None:
    for arguments in ((), ("-o", "x.tar", "--verify", taken.file)):
        ran = kernlore("backup", *arguments)
        assert (ran.code, "either" in ran.err) == (2, True)


def test_missing_file_fails_command(taken: RestoredBackup, tmp_path: Path) -> None:
    place = "json_extract(record, '$.proposal.bundle.blob')"
    with closing(sqlite3.connect(taken.data / "catalog.sqlite")) as connection:
        (key,) = connection.execute(f"SELECT {place} FROM nodes WHERE {place} <> ''").fetchone()
    blob = taken.data / "blobs" / key[:2] / key
    stored = blob.read_bytes()
    blob.unlink()
    ran = kernlore("backup", "-o", tmp_path, "--json", data=taken.data)
    blob.write_bytes(stored)
    assert (ran.code, ran.json["damaged"]) == (1, [key])
    assert Path(ran.json["file"]).parent == tmp_path
    assert kernlore("backup", "--verify", ran.json["file"]).code == 1
