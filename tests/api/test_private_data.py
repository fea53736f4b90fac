"""A data directory holds manuals of unreleased chips: other users of the machine cannot read it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kb.data_dir import ServiceLock, access_of_others, private_files, private_folder
from kb.settings import Settings
from optimizer.search.runs.run_store import RunLock
from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, ModelTranscript
from retrieval.knowledge_base import KnowledgeBase
from tests.api.cli_process import kernlore
from tests.shared import place_models

pytestmark = [pytest.mark.in_data_dir, pytest.mark.slow(seconds=5), pytest.mark.embedded]


def rights(path: Path) -> int:
    return path.stat().st_mode & 0o777


def readable(folder: Path) -> list[Path]:
    """Paths that others can read below a folder that they may enter; links are not followed."""
    entries = [entry for entry in folder.iterdir() if not entry.is_symlink()]
    open_entries = [entry for entry in entries if rights(entry) & 0o077]
    below = [path for entry in open_entries if entry.is_dir() for path in readable(entry)]
    return [*open_entries, *below]


@pytest.fixture(autouse=True)
def usual_rights() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_new_data_directory_is_private(tmp_path: Path) -> None:
    data = tmp_path / "above" / "data"
    ran = kernlore("skills", "list", "--json", data=data)
    assert ran.code == 0 and "Warning" not in ran.err
    assert [rights(path) for path in (data.parent, data, data / "catalog.sqlite")] == [
        0o700,
        0o700,
        0o600,
    ]


def test_new_files_in_open_directory_are_private(tmp_path: Path, model_cache: Path) -> None:
    data = place_models(tmp_path / "data", model_cache)
    data.chmod(0o755)
    (tmp_path / "note.md").write_text("# Wombat\n\nThe wombat stall has no remedy.\n")
    ran = kernlore("ingest", tmp_path / "note.md", "--json", data=data)
    warnings = [line for line in ran.err.splitlines() if line.startswith("Warning")]
    assert ran.code == 0 and len(warnings) == 1
    assert str(data) in warnings[0] and "chmod 700" in warnings[0]
    assert kernlore("reindex", data=data).code == 0
    assert "chmod 700" in json.dumps(kernlore("doctor", "--json", data=data).json)
    assert {"blobs", "catalog.sqlite", "chroma"} <= {path.name for path in data.iterdir()}
    assert rights(data) == 0o755 and readable(data) == []
    data.chmod(0o700)
    (tmp_path / "note.md").write_text("# Wombat\n\nThe wombat stall has a remedy.\n")
    again = kernlore("ingest", tmp_path / "note.md", data=data)
    assert "1 new_version" in again.out and "Warning" not in again.err


def test_files_written_by_service_are_private(service_url: str, service_folder: Path) -> None:
    """The directory existed before, open to others."""
    data = service_folder / "data"
    assert rights(data) & 0o077 and readable(data) == []
    written = [path for path in data.rglob("*") if path.is_file() and "models" not in path.parts]
    names = {path.name for path in written}
    assert {"service.json", "catalog.sqlite", "catalog.sqlite-wal"} < names
    assert [path for path in written if rights(path) & 0o077] == []
    log = (service_folder / "service.log").read_text(encoding="utf-8")
    assert log.count("other users of this machine can read") == 1


def test_files_of_runs_and_models_are_private(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    FolderTranscripts(tmp_path / "transcripts").write(
        ModelTranscript("run_1", 1, 1, model="m", prompt="1")
    )
    base = KnowledgeBase(Settings(data_dir=tmp_path))
    with RunLock(base, "run_1", 0.0), ServiceLock(tmp_path, "http://127.0.0.1:1"):
        assert readable(tmp_path) == []
    assert len(list(tmp_path.rglob("*.json"))) == 3


def test_private_files_context_restores_umask(tmp_path: Path) -> None:
    with private_files():
        (tmp_path / "within").touch()
    (tmp_path / "after").touch()
    assert (rights(tmp_path / "within"), rights(tmp_path / "after")) == (0o600, 0o644)


def test_existing_folder_keeps_its_permissions(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    assert rights(private_folder(tmp_path / "a" / "b")) == 0o700
    assert rights(private_folder(tmp_path)) == 0o750
    assert access_of_others(tmp_path) is not None and access_of_others(tmp_path / "a") is None
