"""Two services over one catalog: each answers with what the other has acknowledged, each finishes
the jobs of a killed one, and an older release runs next to a newer one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from kb.catalog import meta, open_catalog
from kb.catalog.keys import Keys
from kb.catalog.schema import OLDEST_CODE
from tests.api.conftest import assert_error
from tests.api.replicas import Replica, RoundRobin, replicas_of
from tests.api.test_evaluations import TIMED, body, candidate
from tests.api.test_runs import alive
from tests.postgresql import Server
from tests.shared import copy_knowledge
from tests.waiting import until

pytestmark = pytest.mark.slow(seconds=55)

BUILT_IN = ("hardware/h100/tuning.md", "guidance/memory-bound.md")
LEASE = 4  # seconds
ROUNDS = 6
PARTS = 60  # of reading a document when its reader is killed: a second
GOAL = {"candidates": 1, "language": "cpp", "knowledge": False}
SIGNED = {"actor": "ann", "reason": "a person has seen it"}


@pytest.fixture(scope="module")
def database(postgres: Server) -> Iterator[str]:
    name = f"t{uuid4().hex}"
    # Without tables: the two services create them when they start together.
    yield postgres.create(name, "template0")
    postgres.drop(name)


@pytest.fixture(scope="module")
def pair(
    database: str, tmp_path_factory: pytest.TempPathFactory, model_cache: Path
) -> Iterator[tuple[Replica, Replica]]:
    folder = tmp_path_factory.mktemp("replicas")
    knowledge = copy_knowledge(folder / "knowledge", BUILT_IN)
    with replicas_of(
        folder, database, knowledge, model_cache, 2, lease_seconds=str(LEASE)
    ) as running:
        yield running[0], running[1]


def upload(replica: Replica, name: str, text: str) -> dict[str, Any]:
    files = [("file", (name, text.encode()))]
    answer = replica.client.post("/documents", files=files, data={"hardware": "h100"})
    assert answer.status_code == 202, answer.text
    sent: dict[str, Any] = answer.json()
    return sent


def job_of(replica: Replica, job_id: str) -> dict[str, Any]:
    answer = replica.client.get(f"/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = answer.json()
    return job


def ended(replica: Replica, job_id: str) -> dict[str, Any] | None:
    job = job_of(replica, job_id)
    return job if job["state"] in ("ready", "partial", "failed") else None


def titles(replica: Replica, query: str) -> list[str]:
    request = {"query": query, "hardware": "h100", "k": 50}
    answer = replica.client.post("/retrieve", json=request)
    assert answer.status_code == 200, answer.text
    return [excerpt["document"]["id"] for excerpt in answer.json()["excerpts"]]


def test_replicas_started_on_empty_database_load_knowledge_once(
    pair: tuple[Replica, Replica],
) -> None:
    for replica in pair:
        documents = replica.client.get("/documents").json()["documents"]
        assert len(documents) == len(BUILT_IN)
        assert {document["version"]["number"] for document in documents} == {1}


def test_requests_are_refused_while_server_is_down(
    pair: tuple[Replica, Replica], postgres: Server
) -> None:
    asked = "/retrieve?signal=memory_bound&hardware=h100"
    before = [replica.client.get(asked).json()["context"] for replica in pair]
    postgres.stop()
    try:
        for replica in pair:
            for path in (asked, "/documents", "/jobs"):
                body = assert_error(replica.client.get(path), 503, "unavailable")
                assert "server" in body["message"] and "PostgreSQL" in body["hint"]
    finally:
        postgres.start()
    assert [replica.client.get(asked).json()["context"] for replica in pair] == before
    for number, replica in enumerate(pair):
        text = f"# Quince {number}\n\nThe quince unit {number} loads 16 bytes.\n"
        sent = upload(replica, f"late{number}.md", text)
        assert until(partial(ended, replica, sent["job_id"]))["state"] == "ready"


def test_replica_reads_acknowledged_upload(pair: tuple[Replica, Replica]) -> None:
    """And no deleted document, from the answer to the deletion on."""
    for number in range(ROUNDS):
        at, other = (pair, pair[::-1])[number % 2]
        word = f"quokka{number}"
        text = f"# Part {word}\n\nThe {word} unit moves 16 bytes and is memory bound.\n"
        sent = upload(at, f"{word}.md", text)
        assert until(partial(ended, other, sent["job_id"]))["state"] == "ready"
        document = sent["document_id"]
        for replica in (other, at):
            assert document in titles(replica, f"{word} unit"), word
        original = other.client.get(f"/documents/{document}/file")
        assert original.status_code == 200 and original.text == text
        assert at.client.delete(f"/documents/{document}").status_code in (200, 204)
        for replica in (other, at):
            assert document not in titles(replica, f"{word} unit"), word
        assert_error(other.client.get(f"/documents/{document}"), 404, "not_found")


def test_replica_finds_corrected_text(pair: tuple[Replica, Replica]) -> None:
    at, other = pair
    sent = upload(at, "okapi.md", "# Okapi\n\nThe okapi counter stalls.\n")
    until(lambda: ended(at, sent["job_id"]))
    titles(other, "okapi counter")  # it has made its index
    passages = other.client.get(f"/documents/{sent['document_id']}/passages").json()["passages"]
    right = passages[0]["text"] + " The numbat counter says so."
    patched = at.client.patch(f"/passages/{passages[0]['id']}", json={"text": right})
    assert patched.status_code == 200, patched.text
    assert titles(other, "numbat counter")[0] == sent["document_id"]


def test_replica_knows_outcomes_and_excerpts_of_a_run(pair: tuple[Replica, Replica]) -> None:
    balanced = RoundRobin(pair)
    log = "ptxas error : Entry function 'k' uses too much shared data (0x41000 bytes)"
    for number in range(ROUNDS):
        answer = balanced.post("/retrieve", json={"signal": "memory_bound", "hardware": "h100"})
        identity = answer.json()["retrieval_id"]
        reported = balanced.post(f"/retrievals/{identity}/outcome", json={"correct": True})
        assert reported.status_code in (200, 201), reported.text
        balanced.get("/signals")  # otherwise each replica would get the same requests
        request = {"log": log, "hardware": "h100", "run_id": f"run_of_{number}"}
        first = balanced.post("/retrieve", json=request).json()
        again = balanced.post("/retrieve", json=request).json()
        assert first["excerpts"] and first["context"] != again["context"]


def test_replica_reads_skill_decisions(pair: tuple[Replica, Replica]) -> None:
    at, other = pair
    request = {"signal": "memory_bound", "hardware": "h100", "op": "softmax"}

    def shown(replica: Replica) -> list[str]:
        answer = replica.client.post("/retrieve", json=request).json()
        return [skill["name"] for skill in answer["skills"]]

    name = shown(at)[0]
    assert shown(other)[0] == name
    path = f"/skills/{name}"
    for state in ("quarantined", "restored"):
        answer = at.client.patch(path, json={"state": state, **SIGNED})
        assert answer.status_code == 200, answer.text
        assert state == "restored" or name not in shown(other)
        assert shown(other) == shown(at)
        assert other.client.get(path).json() == at.client.get(path).json()


def test_replica_reads_evaluation_result(pair: tuple[Replica, Replica]) -> None:
    at, other = pair
    answer = at.client.post("/evaluations", json=body())
    assert answer.status_code == 202, answer.text
    path = f"/evaluations/{answer.json()['id']}"
    assert other.client.get(path).json()["state"] in ("queued", "running", "ready")
    result = until(lambda: _ended_evaluation(other, path))
    assert result["state"] == "ready", result
    assert at.client.get(path).json()["result"] == result["result"]


def _ended_evaluation(replica: Replica, path: str) -> dict[str, Any] | None:
    answer = replica.client.get(path)
    assert answer.status_code == 200, answer.text
    evaluation: dict[str, Any] = answer.json()
    return evaluation if evaluation["state"] in ("ready", "failed") else None


def started(replica: Replica) -> str:
    given = {"problem": TIMED, "goal": GOAL, "proposers": ["external"]}
    answer = replica.client.post("/runs", json=given)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def context_of(replica: Replica, run_id: str) -> dict[str, Any] | None:
    answer = replica.client.get(f"/runs/{run_id}/context")
    assert answer.status_code == 200, answer.text
    assert answer.json()["state"] != "failed", replica.client.get(f"/runs/{run_id}").json()
    context: dict[str, Any] | None = answer.json()["context"]
    return context


def test_replica_watches_feeds_and_cancels_run(pair: tuple[Replica, Replica]) -> None:
    at, other = pair
    run_id = started(at)
    assert other.client.get(f"/runs/{run_id}").json()["state"] == "starting"
    context = until(lambda: context_of(other, run_id))
    assert context["step"] == 1
    proposed = {"step": 1, "candidate": candidate(), "plan": "twice"}
    answer = other.client.post(f"/runs/{run_id}/candidates", json=proposed)
    assert answer.status_code == 202, answer.text

    def finished() -> dict[str, Any] | None:
        run: dict[str, Any] = other.client.get(f"/runs/{run_id}").json()
        assert "note" not in run, run  # a process works on it, on any machine
        return run if run["state"] not in ("starting", "running") else None

    assert until(finished)["state"] == "finished"
    for replica in pair:
        nodes = replica.client.get(f"/runs/{run_id}/tree").json()["nodes"]
        assert [node["validity"] for node in nodes] == ["correct", "correct"]

    early = started(at)
    assert other.client.post(f"/runs/{early}/cancel").json()["state"] == "cancelled"
    assert at.client.get(f"/runs/{early}").json()["state"] == "cancelled"
    until(lambda: not alive(early))

    run_id = started(at)
    until(lambda: context_of(other, run_id))
    cancelled = other.client.post(f"/runs/{run_id}/cancel").json()
    assert cancelled["state"] == "cancelled", cancelled
    until(lambda: not alive(run_id), seconds=10.0)


def test_replica_finishes_jobs_of_a_killed_one(pair: tuple[Replica, Replica]) -> None:
    killed, left = pair
    left.signal(signal.SIGSTOP)  # so that the other has all of it
    try:
        text = "# Bilby\n\n" + "\n\n".join(f"## B{n}\n\nBilby {n} waits." for n in range(PARTS))
        jobs = [upload(killed, f"bilby{n}.md", f"{text}\n\nNumber {n}.\n") for n in range(3)]
        evaluation = killed.client.post("/evaluations", json=body(cases=["small"])).json()["id"]
        until(lambda: any(job_of(killed, j["job_id"])["state"] == "running" for j in jobs))
    finally:
        killed.kill()
        left.signal(signal.SIGCONT)
    for job in jobs:
        assert until(partial(ended, left, job["job_id"]))["state"] == "ready"
    path = f"/evaluations/{evaluation}"
    assert until(lambda: _ended_evaluation(left, path))["state"] == "ready"
    found = titles(left, "bilby waits")
    assert {job["document_id"] for job in jobs} & set(found)


def test_older_release_runs_next_to_newer_one_while_compatible(
    pair: tuple[Replica, Replica], database: str, tmp_path: Path
) -> None:
    """The test makes the changes of a newer Kernlore to the catalog. The replica killed in the
    previous test starts again as the older release.
    """
    newer = open_catalog(tmp_path / "newer", database)
    before = newer.schema_state().revision

    def migrated(revision: str, oldest_code: str) -> None:
        with newer.migrating() as connection:
            connection.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{revision}'")
            meta.put(connection, OLDEST_CODE, oldest_code)

    migrated("9998", "0014")  # an additive migration
    killed, left = pair
    killed.start()
    assert killed.await_ready()["catalog"] == "newer"
    assert titles(killed, "bilby waits") == titles(left, "bilby waits")
    for replica in pair:
        answer = replica.client.get("/readyz")
        assert answer.status_code == 200 and answer.json()["catalog"] == "newer"
        assert "newer Kernlore" in answer.json()["note"]
    sent = upload(killed, "potoroo.md", "# Potoroo\n\nA potoroo waits.\n")
    assert until(lambda: ended(left, sent["job_id"]))["state"] == "ready"

    migrated("9999", "9999")  # a breaking migration
    for replica in pair:
        answer = replica.client.get("/readyz")
        assert answer.status_code == 503 and answer.json()["catalog"] == "too_new"
        files = [("file", ("late.md", b"# Late\n\nLate.\n"))]
        refused = replica.client.post("/documents", files=files, data={"hardware": "h100"})
        assert "newer" in assert_error(refused, 503, "unavailable")["message"]
        assert titles(replica, "potoroo waits")  # existing data can be read
    assert before is not None
    migrated(before, "0013")
    for replica in pair:
        assert replica.client.get("/readyz").status_code == 200
    newer.close()


def test_revoked_key_is_refused_by_both_replicas(
    pair: tuple[Replica, Replica], database: str, tmp_path: Path
) -> None:
    """The last test: afterwards the store needs a key."""
    catalog = open_catalog(tmp_path / "keys", database)
    keys = Keys(catalog)
    balanced = RoundRobin(pair)
    for _ in range(ROUNDS):
        made = keys.create("reader")
        sent = {"Authorization": f"Bearer {made.secret}"}
        for _ in pair:
            assert balanced.get("/documents", headers=sent).status_code == 200
        keys.revoke(made.key.id)
        for _ in pair:
            assert_error(balanced.get("/documents", headers=sent), 401, "unauthorized")
            assert_error(balanced.get("/documents"), 401, "unauthorized")
    catalog.close()
