"""The service and the commands with files in a bucket and vectors on a Chroma server."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kb.blobs import Blobs
from tests.api.cli_process import kernlore, serving
from tests.api.conftest import assert_error, finished, upload
from tests.chroma_server import ChromaServer
from tests.seaweed import SECRET, S3Server
from tests.shared import copy_knowledge, place_models
from tests.waiting import until

pytestmark = pytest.mark.slow(seconds=25)
MANUAL = b"# Quince\n\n## Loads\n\nThe quince unit loads 16 bytes; it is memory bound.\n"
# `kernlore` that checks its stores every second instead of every half minute.
WATCHFUL = (
    sys.executable,
    "-c",
    "from api import services; services.AWAY_SECONDS = services.LOOK_SECONDS = 1.0;"
    " from api.cli.main import run; run()",
)
WAIT_SECONDS = 180  # servers and service start on a busy machine


@pytest.fixture(scope="module")
def environment(chroma_server: ChromaServer, s3_server: S3Server) -> dict[str, str]:
    return {
        **s3_server.environment(),
        "KERNLORE_CHROMA_URL": chroma_server.database(),
        "KERNLORE_BLOB_URL": s3_server.folder_of_bucket(),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def served(environment: dict[str, str], folder: Path, model_cache: Path) -> Iterator[Any]:
    """A client of a service with a small knowledge base, in a separate process."""
    place_models(folder / "data", model_cache)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        knowledge = copy_knowledge(folder / "knowledge", ("hardware/h100/tuning.md",))
        with (
            serving(folder / "data", knowledge, ready=False, command=WATCHFUL) as url,
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            readiness(client, lambda state: state["ready"])
            yield client


def readiness(client: Any, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The readiness once the condition holds."""
    state: dict[str, Any] = until(
        lambda: client.get("/readyz").json(), wanted, seconds=WAIT_SECONDS
    )
    return state


def ask(client: Any, **request: Any) -> Any:
    answer = client.post("/retrieve", json={"hardware": "h100", "k": 20, **request})
    assert answer.status_code == 200, answer.text
    return answer.json()


def send(client: Any, name: str, data: bytes = MANUAL) -> Any:
    return upload(client, name, data, hardware="h100")


def test_document_is_read_found_and_deleted(
    served: Any,
    environment: dict[str, str],
    folder: Path,
    chroma_server: ChromaServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = send(served, "quince.md").json()
    assert finished(served, sent["job_id"])["state"] == "ready"
    assert ask(served, query="quince loads")["excerpts"][0]["document"]["id"] == sent["document_id"]
    assert served.get(f"/documents/{sent['document_id']}/file").content == MANUAL
    for name in ("blobs", "chroma"):
        assert not (folder / "data" / name).exists()
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    blobs = Blobs(environment["KERNLORE_BLOB_URL"])
    before = blobs.sizes()
    assert chroma_server.collections(environment["KERNLORE_CHROMA_URL"])
    assert served.delete(f"/documents/{sent['document_id']}").status_code in (200, 204)
    assert len(blobs.sizes()) == len(before) - 1
    assert "quince" not in str(ask(served, query="quince loads")["excerpts"]).lower()


def test_answers_continue_without_file_server_and_uploads_are_refused(
    served: Any, s3_server: S3Server
) -> None:
    before = ask(served, signal="memory_bound")["context"]
    s3_server.stop()
    try:
        body = assert_error(send(served, "refused.md"), 503, "store_away")
        assert "s3://" in body["message"] and "AWS_ENDPOINT_URL" in body["hint"]
        assert ask(served, signal="memory_bound")["context"] == before
        state = readiness(served, lambda state: bool(state["note"]))
        assert not state["ready"] and "s3://" in state["note"] and "later" in state["note"]
        assert served.get("/readyz").status_code == 200 and SECRET not in str(state)
    finally:
        s3_server.start()
    assert readiness(served, lambda state: state["ready"])["note"] == ""
    sent = send(served, "late.md", MANUAL.replace(b"quince", b"loquat")).json()
    assert finished(served, sent["job_id"])["state"] == "ready"


def test_answers_continue_without_vector_server_until_it_catches_up(
    served: Any, chroma_server: ChromaServer
) -> None:
    before = ask(served, query="how do barriers wait")["excerpts"]
    chroma_server.stop()
    try:
        state = readiness(served, lambda state: state["index"] != "chroma")
        assert state["index"].startswith("away: the Chroma server http://127.0.0.1:")
        assert not state["ready"] and served.get("/readyz").status_code == 200
        assert ask(served, query="how do barriers wait")["excerpts"] == before
        sent = send(served, "medlar.md", MANUAL.replace(b"quince", b"medlar")).json()
        assert finished(served, sent["job_id"])["state"] == "ready"
        found = ask(served, query="medlar loads")["excerpts"][0]
        assert found["document"]["id"] == sent["document_id"]
    finally:
        chroma_server.start()
    assert readiness(served, lambda state: state["ready"])["index"] == "chroma"


def test_service_starts_without_stores_and_connects_later(
    environment: dict[str, str],
    folder: Path,
    tmp_path: Path,
    model_cache: Path,
    chroma_server: ChromaServer,
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place_models(tmp_path / "data", model_cache)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KERNLORE_BLOB_URL", s3_server.folder_of_bucket())
    monkeypatch.setenv("KERNLORE_CHROMA_URL", chroma_server.database())
    knowledge = copy_knowledge(tmp_path / "knowledge", ("hardware/h100/tuning.md",))
    chroma_server.stop()
    s3_server.stop()
    try:
        with (
            serving(tmp_path / "data", knowledge, ready=False, command=WATCHFUL) as url,
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            state = readiness(client, lambda state: "s3://" in state["note"])
            assert client.get("/readyz").status_code == 503 and state["passages"] == 0
            s3_server.start()
            readiness(client, lambda state: state["passages"] > 0 and state["index"] != "starting")
            chroma_server.start()
            assert readiness(client, lambda state: state["ready"])["note"] == ""
    finally:
        for server in (s3_server, chroma_server):
            server.stop()
            server.start()


# -- commands


def test_doctor_reports_stores_and_their_reachability(
    environment: dict[str, str], tmp_path: Path, model_cache: Path, chroma_server: ChromaServer
) -> None:
    data = place_models(tmp_path / "data", model_cache)
    ran = kernlore("doctor", "--json", data=data, environment=environment)
    stores = next(check for check in ran.json["checks"] if check["name"] == "stores")
    assert stores["ok"], stores
    assert chroma_server.url in stores["detail"]
    assert environment["KERNLORE_BLOB_URL"] in stores["detail"]
    nowhere = {**environment, "KERNLORE_CHROMA_URL": "http://me:secret@127.0.0.1:9"}
    ran = kernlore("doctor", "--json", data=data, environment=nowhere)
    stores = next(check for check in ran.json["checks"] if check["name"] == "stores")
    assert not stores["ok"] and "does not answer" in stores["detail"]
    assert "KERNLORE_CHROMA_URL" in stores["hint"] and "secret" not in ran.out + ran.err


def test_passwords_are_not_shown(tmp_path: Path) -> None:
    given = {"KERNLORE_CHROMA_URL": "https://me:secret@db.example/?tenant=t"}
    shown = kernlore("config", "show", "--json", data=tmp_path, environment=given)
    assert shown.json["chroma_url"]["value"] == "https://me:***@db.example/?tenant=t"
    assert "secret" not in shown.out + shown.err


def test_command_without_service_uses_same_stores(
    environment: dict[str, str], tmp_path: Path, model_cache: Path
) -> None:
    data = place_models(tmp_path / "data", model_cache)
    (tmp_path / "quince.md").write_bytes(MANUAL)
    output = ("--hardware", "h100", "--json")
    ran = kernlore("ingest", tmp_path / "quince.md", *output, data=data, environment=environment)
    assert ran.code == 0, ran.err
    away = {**environment, "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}
    ask_for = ("retrieve", "--query", "quince loads", "-k", "3")
    ran = kernlore(*ask_for, *output, data=data, environment=away)
    assert ran.code == 0 and "quince" in str(ran.json["excerpts"])
    (tmp_path / "other.md").write_bytes(MANUAL.replace(b"quince", b"medlar"))
    ran = kernlore("ingest", tmp_path / "other.md", *output, data=data, environment=away)
    assert ran.code == 1 and ran.json["code"] == "store_away"
    assert "s3://" in ran.json["message"] and SECRET not in ran.out + ran.err
