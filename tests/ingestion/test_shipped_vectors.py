"""Vectors that ship with the knowledge: used where they fit, made anew where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ingestion.builtin.precomputed import (
    VECTORS_FILE,
    embed_folder,
    put_shipped,
    read_vectors,
    write_vectors,
)
from kb.catalog.knowledge import embeddings
from kb.embedding import LocalEmbedder
from tests.api.cli_process import kernlore
from tests.shared import BUILTIN, once, read_builtin_knowledge

pytestmark = pytest.mark.slow(seconds=15)

if TYPE_CHECKING:
    from tests.fixtures import Store

MODEL = "model-384-abc"
MANUAL = "# Manual\n\n## Clocks\n\nThe clock runs at 1.4 GHz.\n\n## Banks\n\nThere are 32 banks.\n"


def unit_rows(count: int) -> dict[str, np.ndarray]:
    rows = np.random.default_rng(1).normal(size=(count, 384)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return {f"{n:064x}": row for n, row in enumerate(rows)}


def test_what_is_written_is_read_back_as_unit_vectors(tmp_path: Path) -> None:
    rows = unit_rows(20)
    write_vectors(tmp_path / VECTORS_FILE, MODEL, rows)
    back = read_vectors(tmp_path / VECTORS_FILE, MODEL)
    assert set(back) == set(rows)
    for name, row in rows.items():
        assert abs(float(back[name] @ row) - 1) < 1e-4
        assert abs(float(np.linalg.norm(back[name])) - 1) < 1e-6


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 cut"])
def test_a_file_that_cannot_be_read_gives_nothing(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / VECTORS_FILE).write_bytes(content)
    assert read_vectors(tmp_path / VECTORS_FILE, MODEL) == {}


def test_vectors_of_another_model_are_not_used(store: Store, tmp_path: Path) -> None:
    write_vectors(tmp_path / VECTORS_FILE, MODEL, unit_rows(3))
    assert read_vectors(tmp_path / VECTORS_FILE, "model-384-abd") == {}
    assert put_shipped(store.catalog, tmp_path, store.embedder.fingerprint) == 0


def test_a_new_directory_embeds_nothing_that_ships(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    model = store.embedder.fingerprint
    embed_folder(store.catalog, tmp_path, model)
    with store.catalog.write() as connection:
        connection.exec_driver_sql("DELETE FROM embeddings")
    assert put_shipped(store.catalog, tmp_path, model) == 2
    assert put_shipped(store.catalog, tmp_path, model) == 0  # once is enough
    with store.catalog.read() as connection:
        assert embeddings.counts(connection, model) == (2, 2)
    monkeypatch.setattr(LocalEmbedder, "encode", None)  # nobody may call it
    store.ingest("again.md", MANUAL + "\n", hardware=("h200",))


@pytest.mark.slow(seconds=15)
def test_every_passage_that_ships_has_its_vector(tmp_path_factory: pytest.TempPathFactory) -> None:
    """After a change of hw_manuals or of how documents are cut: `kernlore knowledge vectors`."""
    read = once(tmp_path_factory, "read-builtin", read_builtin_knowledge)
    from kb.catalog import open_catalog

    catalog = open_catalog(read)
    with catalog.read() as connection:
        model = str(np.load(BUILTIN / VECTORS_FILE)["model"])
        embedded, passages = embeddings.counts(connection, model)
    catalog.close()
    assert passages > 3_000 and embedded == passages


def test_the_command_writes_them_for_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "knowledge"
    (folder / "guidance").mkdir(parents=True)
    (folder / "guidance" / "a.md").write_text(
        '---\ntitle: "A"\nsources:\n  - title: "T"\n    url: "https://example.org"\n---\n' + MANUAL
    )
    done = kernlore("knowledge", "vectors", folder, "--json")
    assert done.code == 0, done.err
    assert done.json["passages"] == 2 and Path(done.json["path"]) == folder / VECTORS_FILE
    assert (
        len(read_vectors(folder / VECTORS_FILE, str(np.load(folder / VECTORS_FILE)["model"]))) == 2
    )
