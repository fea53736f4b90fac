"""Content-addressed files: equal bytes once, atomic writes, a clear error for a missing file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kb.blobs import Blobs, open_blobs
from kb.errors import NotFound

pytestmark = pytest.mark.in_data_dir


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_equal_bytes_are_stored_once(tmp_path: Path) -> None:
    blobs = open_blobs(tmp_path, None)
    key = blobs.put(b"manual")
    assert key == blobs.put(b"manual") == hashlib.sha256(b"manual").hexdigest()
    assert blobs.get(key) == b"manual"
    assert [path.name for path in files(tmp_path / "blobs")] == [key]


def test_missing_file_error_has_hint(tmp_path: Path) -> None:
    blobs = open_blobs(tmp_path, None)
    key = blobs.put(b"manual")
    blobs.delete(key)
    blobs.delete(key)
    with pytest.raises(NotFound) as missing:
        blobs.get(key)
    assert "backup" in missing.value.hint


def test_fsspec_file_system() -> None:
    blobs = Blobs("memory://kernlore-test")
    key = blobs.put(b"")
    assert blobs.get(key) == b""


def test_interrupted_write_is_not_a_blob(tmp_path: Path) -> None:
    blobs = open_blobs(tmp_path, None)
    key = hashlib.sha256(b"manual").hexdigest()
    folder = tmp_path / "blobs" / key[:2]
    folder.mkdir(parents=True)
    (folder / f"{key}.part_0").write_bytes(b"man")
    with pytest.raises(NotFound):
        blobs.get(key)
    assert blobs.get(blobs.put(b"manual")) == b"manual"
