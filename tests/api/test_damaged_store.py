"""Damage in a data directory: noticed at the start, mended from the catalog, or refused with the
way out."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from kb.settings import Settings
from tests.api.cli_process import free_port, kernlore
from tests.api.conftest import URL, wait_until_ready
from tests.shared import copy_knowledge

pytestmark = [pytest.mark.in_data_dir, pytest.mark.slow(seconds=10), pytest.mark.embedded]

QUESTION = {"query": "coalesce the accesses of a memory bound kernel", "hardware": "h100"}


@pytest.fixture
def settings(data: Path, tmp_path: Path) -> Settings:
    """A copy of the directory that the command line filled."""
    folder = tmp_path / "data"
    shutil.copytree(data, folder, symlinks=True)
    knowledge = copy_knowledge(tmp_path / "knowledge", ("guidance/memory-bound.md",))
    return Settings(data_dir=folder, knowledge_dir=knowledge)


def served(settings: Settings) -> list[tuple[str, float]]:
    """Texts and scores of the excerpts that a service started now answers with."""
    with TestClient(create_app(settings), URL) as client:
        wait_until_ready(client)
        first = client.post("/retrieve", json=QUESTION).json()
        wait_until_ready(client, index="chroma")
        answer = client.post("/retrieve", json=QUESTION).json()
        assert first["excerpts"] == answer["excerpts"]  # before and after Chroma is open
    return [(e["text"], round(e["score"], 5)) for e in answer["excerpts"]]


def damage(settings: Settings, *statements: str) -> None:
    with sqlite3.connect(settings.data_dir / "catalog.sqlite") as connection:
        for statement in statements:
            connection.execute(statement)


def truncate_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path, offset: int, count: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(os.urandom(count))


def test_lost_indexes_are_made_again_with_the_same_answers(settings: Settings) -> None:
    expected = served(settings)
    assert expected
    chroma = settings.data_dir / "chroma"
    harms: tuple[Callable[[], object], ...] = (
        lambda: shutil.rmtree(chroma),
        lambda: truncate_all(chroma),
    )
    statements = (
        ("DROP TABLE lexical_passages", "DROP TABLE lexical_sections"),
        ("DELETE FROM lexical_sections",),
        ("DELETE FROM lexical_passages_data WHERE id > 10",),
        ("DROP TABLE lexical_passages_content",),
    )
    # Either index alone, or both at one start: the answers show what is not made again.
    for harm, done in zip_longest(harms, statements, fillvalue=None):
        if harm is not None:
            harm()
        if done is not None:
            damage(settings, *done)
        assert served(settings) == expected


def test_a_command_says_how_to_make_the_lexical_index_again(settings: Settings) -> None:
    ask = ("retrieve", "--query", QUESTION["query"], "--hardware", "h100", "--json")
    expected = kernlore(*ask, data=settings.data_dir).json["excerpts"]
    damage(settings, "DROP TABLE lexical_passages")
    refused = kernlore(*ask, data=settings.data_dir)
    assert refused.code == 1 and refused.json["code"] == "store_error"
    assert "kernlore reindex" in refused.json["hint"]
    assert kernlore("reindex", data=settings.data_dir).code == 0
    assert kernlore(*ask, data=settings.data_dir).json["excerpts"] == expected


def test_a_catalog_with_a_damaged_page_is_refused_with_the_way_out(settings: Settings) -> None:
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
