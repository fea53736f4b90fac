"""The commands over a catalog on a real PostgreSQL server; `test_replicas.py` has the service."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.api.cli_process import CommandResult, data, files, kernlore  # noqa: F401  (fixtures)
from tests.postgresql import EVERYWHERE, Server
from tests.shared import place_models

pytestmark = pytest.mark.slow(seconds=10)
QUESTIONS = (
    ("retrieve", "--signal", "memory_bound", "--hardware", "h100"),
    ("retrieve", "--query", "how do barriers hang a kernel", "--hardware", "h100"),
    ("retrieve", "--query", "register spills and occupancy"),
)


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
