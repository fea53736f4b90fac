"""Damage in a data directory: detected at the start, repaired from the catalog, or refused with a
remedy.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from kb.settings import Settings
from retrieval.snapshot.store import FOLDER
from tests.api.cli_process import free_port, kernlore
from tests.api.conftest import URL, wait_until_ready
from tests.shared import copy_knowledge

pytestmark = [pytest.mark.in_data_dir, pytest.mark.slow(seconds=10), pytest.mark.embedded]

QUESTION = {"query": "coalesce the accesses of a memory bound kernel", "hardware": "h100"}


@pytest.fixture
def settings(data: Path, tmp_path: Path) -> Settings:
    """A copy of the directory filled by the command line."""
    folder = tmp_path / "data"
    shutil.copytree(data, folder, symlinks=True)
    knowledge = copy_knowledge(tmp_path / "knowledge", ("guidance/memory-bound.md",))
    return Settings(data_dir=folder, knowledge_dir=knowledge)


def served(settings: Settings) -> list[tuple[str, float]]:
    """Texts and scores of the excerpts from a newly started service."""
    with TestClient(create_app(settings), URL) as client:
        wait_until_ready(client)
        answer = client.post("/retrieve", json=QUESTION | {"k": 20}).json()
    return [(e["text"], round(e["score"], 5)) for e in answer["excerpts"]]


def truncate_all(folder: Path) -> None:
    """Truncate every file to half, as a new file, because this process may still map the old
    one.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data[: len(data) // 2])


def overwrite(path: Path, offset: int, count: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(os.urandom(count))


def test_lost_or_damaged_snapshot_is_rebuilt_with_equal_answers(settings: Settings) -> None:
    ask = ("retrieve", "--query", QUESTION["query"], "-k", "20", "--hardware", "h100", "--json")
    expected = served(settings)
    assert expected
    reported = kernlore(*ask, data=settings.data_dir).json["excerpts"]
    folder = settings.data_dir / FOLDER
    shutil.rmtree(folder)
    assert served(settings) == expected
    assert list(folder.glob("*.segment"))
    truncate_all(folder)
    assert served(settings) == expected
    truncate_all(folder)
    assert kernlore(*ask, data=settings.data_dir).json["excerpts"] == reported
    truncate_all(folder)
    assert kernlore("reindex", data=settings.data_dir).code == 0
    assert kernlore(*ask, data=settings.data_dir).json["excerpts"] == reported


def test_catalog_with_damaged_page_is_refused_with_remedy(settings: Settings) -> None:
    catalog = settings.data_dir / "catalog.sqlite"
    with sqlite3.connect(catalog) as connection:
        page = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'passages'"
        ).fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    overwrite(catalog, (page - 1) * size, size)
    refused = kernlore("serve", "--port", str(free_port()), data=settings.data_dir)
    assert refused.code == 1 and "Kernlore serves" not in refused.out
    assert "is damaged" in refused.err and "from a backup" in refused.err
    shown = kernlore("documents", "list", "--json", data=settings.data_dir)
    assert shown.code == 1 and shown.json["code"] == "store_error"
    assert shown.json["hint"] in refused.err
