"""An empty or missing catalog next to other files of a store is an error, not a new store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kb.catalog import open_catalog
from kb.errors import StoreError


def truncate(path: Path) -> None:
    path.write_bytes(b"")


def empty(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")


@pytest.mark.embedded
@pytest.mark.parametrize("lose", [truncate, empty, Path.unlink])
@pytest.mark.parametrize("file", ["blobs/ab/abc", "snapshot/current", "runs/run_1/kernel.cpp"])
def test_lost_catalog_is_reported(tmp_path: Path, lose: Callable[[Path], None], file: str) -> None:
    open_catalog(tmp_path).close()
    left = tmp_path / file
    left.parent.mkdir(parents=True)
    left.write_text("x")
    open_catalog(tmp_path).close()
    for path in tmp_path.glob("catalog.sqlite-*"):
        path.unlink()
    lose(tmp_path / "catalog.sqlite")
    for _ in range(2):  # the error changes no file
        with pytest.raises(StoreError, match="empty or was lost") as refused:
            open_catalog(tmp_path)
        assert str(left) in refused.value.message and "kernlore restore" in refused.value.hint


@pytest.mark.embedded
@pytest.mark.parametrize("name", ["models/model.onnx", "devices/here.json", "locks/service"])
def test_first_start_over_leftover_files_creates_store(tmp_path: Path, name: str) -> None:
    (tmp_path / "blobs" / "ab").mkdir(parents=True)
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text("x")
    (tmp_path / "catalog.sqlite").touch()  # from a start that was killed
    open_catalog(tmp_path).close()
