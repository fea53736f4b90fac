"""The service and the commands over a catalog on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.api.cli_process import CommandResult, data, files, kernlore, serving  # noqa: F401  (fixtures)
from tests.api.conftest import assert_error, finished, upload
from tests.postgresql import EVERYWHERE, Server
from tests.shared import copy_knowledge, place_models

pytestmark = pytest.mark.slow(seconds=25)
MANUAL = b"# Quince\n\n## Loads\n\nThe quince unit loads 16 bytes; it is memory bound.\n"
QUESTIONS = (
    ("retrieve", "--signal", "memory_bound", "--hardware", "h100"),
    ("retrieve", "--query", "how do barriers hang a kernel", "--hardware", "h100"),
    ("retrieve", "--query", "register spills and occupancy"),
)


@pytest.fixture(scope="module")
def database(postgres: Server) -> Iterator[str]:
    name = f"t{uuid4().hex}"
    yield postgres.create(name)
    postgres.drop(name)


@pytest.fixture(scope="module")
def served(
    database: str, tmp_path_factory: pytest.TempPathFactory, model_cache: Path
) -> Iterator[Any]:
    """A client of a service with a small knowledge base, in a separate process."""
    base = tmp_path_factory.mktemp("served")
    place_models(base / "data", model_cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNLORE_CATALOG", database)
        with (
            serving(
                base / "data", copy_knowledge(base / "knowledge", ("hardware/h100/tuning.md",))
            ) as url,
            httpx.Client(base_url=url, timeout=60) as client,
        ):
            yield client


def ask(client: Any, **request: Any) -> Any:
    answer = client.post("/retrieve", json={"hardware": "h100", "k": 20, **request})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_document_is_read_found_and_deleted(served: Any) -> None:
    sent = upload(served, "quince.md", MANUAL, hardware="h100").json()
    assert finished(served, sent["job_id"])["state"] == "ready"
    found = ask(served, query="quince loads")["excerpts"][0]
    assert found["document"]["id"] == sent["document_id"]
    assert ask(served, signal="memory_bound")["context"]
    assert served.delete(f"/documents/{sent['document_id']}").status_code in (200, 204)
    assert "quince" not in str(ask(served, query="quince loads")["excerpts"]).lower()


def test_requests_are_refused_while_server_is_down(served: Any, postgres: Server) -> None:
    before = ask(served, signal="memory_bound")["context"]
    postgres.stop()
    try:
        for path in ("/retrieve?signal=memory_bound&hardware=h100", "/documents", "/jobs"):
            body = assert_error(served.get(path), 503, "unavailable")
            assert "server" in body["message"] and "PostgreSQL" in body["hint"]
    finally:
        postgres.start()
    assert ask(served, signal="memory_bound")["context"] == before
    sent = upload(served, "late.md", MANUAL, hardware="h100").json()
    assert finished(served, sent["job_id"])["state"] == "ready"


# -- commands


def on(url: str, *arguments: str | Path, data: Path) -> CommandResult:  # noqa: F811
    return kernlore(*arguments, data=data, environment={"KERNLORE_CATALOG": url})


def without_id(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "retrieval_id"}


@pytest.mark.in_data_dir
@pytest.mark.skipif(EVERYWHERE, reason="it moves the file of an embedded catalog")
def test_moved_store_gives_equal_answers(
    data: Path,  # noqa: F811
    postgres: Server,
    tmp_path: Path,
    model_cache: Path,
) -> None:
    name = f"t{uuid4().hex}"
    url = postgres.create(name).replace("kernlore@", "kernlore:se%40cret@")
    copied = kernlore("catalog", "copy", data, url, "--json")
    assert copied.code == 0, copied.err
    assert copied.json["tables"]["documents"] == 4 and copied.json["rows"] > 100
    assert "kernlore:***@" in copied.json["to"] and "cret" not in copied.out + copied.err
    place_models(tmp_path / "other", model_cache)
    (tmp_path / "other" / "blobs").symlink_to(data / "blobs")
    for question in QUESTIONS:
        before = kernlore(*question, "--json", data=data)
        after = on(url, *question, "--json", data=tmp_path / "other")
        assert after.code == 0, after.err
        assert without_id(after.json) == without_id(before.json)
        assert after.json["excerpts"]
    again = kernlore("catalog", "copy", data, url)
    assert again.code == 2 and "is not empty" in again.err and "cret" not in again.err
    back = kernlore("catalog", "copy", url, tmp_path / "back")
    assert back.code == 0 and "copied" in back.out
    assert (tmp_path / "back" / "catalog.sqlite").stat().st_mode & 0o77 == 0
    assert on(url, "doctor", data=tmp_path / "other").out.count("catalog") >= 1
    postgres.drop(name)


def test_password_is_not_shown(tmp_path: Path) -> None:
    url = "postgresql+psycopg://me:se@cr/et@db.example/kernlore?password=other-secret"
    shown = on(url, "config", "show", "catalog", "--json", data=tmp_path)
    value = "postgresql+psycopg://me:***@db.example/kernlore?password=***"
    assert shown.json["catalog"] == shown.json["catalog"] | {"value": value}
    assert shown.json["catalog"]["source"] == "environment KERNLORE_CATALOG"


def test_unreachable_server_does_not_create_another_catalog(tmp_path: Path) -> None:
    url = f"postgresql+psycopg://me:secret@/kernlore?host={tmp_path}"
    ran = on(url, "documents", "list", "--json", data=tmp_path / "data")
    assert ran.code == 1 and ran.json["code"] == "unavailable"
    assert "cannot be reached" in ran.json["message"] and "KERNLORE_CATALOG" in ran.json["hint"]
    assert "secret" not in ran.out + ran.err
    assert not (tmp_path / "data" / "catalog.sqlite").exists()


@pytest.mark.parametrize("command", [("backup", "-o", "b.tar"), ("restore", "b.tar")])
def test_backup_of_a_postgres_catalog_is_refused_with_pg_dump(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    url = "postgresql+psycopg://me:secret@db.example/kernlore"
    ran = on(url, *command, "--json", data=tmp_path / "data")
    assert ran.code == 2 and ran.json["code"] == "invalid_request"
    assert "pg_dump" in ran.json["hint"] and "secret" not in ran.out + ran.err


def test_invalid_copy_has_reason(tmp_path: Path) -> None:
    missing = kernlore("catalog", "copy", tmp_path / "none", tmp_path / "new", "--json")
    assert missing.code == 2 and missing.json["code"] == "not_found"
    same = kernlore("catalog", "copy", tmp_path, tmp_path, "--json")
    assert same.code == 2 and same.json["code"] == "invalid_request"
    assert not list(tmp_path.glob("*/catalog.sqlite"))
