"""Vectors are stored by text: once per text and model; missing ones are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kb.catalog.knowledge import embeddings
from kb.scope import ALL_ACCESS, AccessScope
from tests.catalogs import all_missing

if TYPE_CHECKING:
    from tests.fixtures import Store

MANUAL = "# Manual\n\n## One\n\nThe first sentence.\n\n## Two\n\nThe second sentence.\n"


def test_revision_embeds_only_what_changed(store: Store) -> None:
    store.ingest("one.md", MANUAL)
    assert store.rows("embeddings") == 2
    store.ingest("one.md", MANUAL.replace("second", "third"))
    assert store.rows("embeddings") == 3
    store.ingest("copy.md", MANUAL, hardware=("h100",))
    assert store.rows("embeddings") == 3


def test_missing_vectors_are_listed_once_and_counted(store: Store) -> None:
    for name, hardware in (("a.md", ("h100",)), ("b.md", ("h200",))):
        store.submit(name, MANUAL, hardware=hardware)
    worker = store.worker()
    worker._read_queued()
    model = store.embedder.fingerprint
    with store.catalog.read() as connection:
        missing = all_missing(connection, model)
        assert len(missing) == 2  # four passages, two texts
        assert missing[0].text == "Manual > One. The first sentence."
        assert embeddings.counts(connection, model) == (0, 4)
        pending = embeddings.pending(connection, model).values()
        assert [(left.texts, left.passages) for left in pending] == [(2, 2), (2, 2)]
        shas = [item.sha256 for item in missing]
        documents = embeddings.documents_of(connection, shas)
        assert documents == {document.id for document in store.documents.find()}
        assert embeddings.document_scopes(connection, sorted(documents)) == {"h100", "h200"}
    worker.drain()  # another worker skips what this one has read
    assert store.snapshots.current().embedded == 4
    with store.catalog.read() as connection:
        assert embeddings.counts(connection, model) == (4, 4)
        assert embeddings.counts(connection, "another model") == (0, 4)
        assert all_missing(connection, model) == []


def test_stored_vectors_are_unchanged_and_never_overwritten(store: Store) -> None:
    store.ingest("one.md", MANUAL, hardware=("h100",))
    model = store.embedder.fingerprint
    with store.catalog.read() as connection:
        scope = embeddings.of_scope(connection, model, "h100", ALL_ACCESS)
        stored = embeddings.of_active(connection, model)
        nothing = embeddings.of_scope(connection, model, "h200", ALL_ACCESS)
        shas = [
            row[0]
            for row in connection.exec_driver_sql("SELECT embed_sha256 FROM passages ORDER BY seq")
        ]
    assert nothing.ids == () and nothing.matrix.size == 0
    assert scope.matrix.shape == (2, store.embedder.dimension)
    assert all(np.array_equal(stored[s], v) for s, v in zip(shas, scope.matrix, strict=True))
    with store.catalog.write() as connection:
        embeddings.put(connection, model, {shas[0]: np.zeros(384, np.float32)})
        again = embeddings.of_scope(connection, model, "h100", ALL_ACCESS)
    assert np.array_equal(again.matrix, scope.matrix)


def test_only_live_passages_have_scopes(store: Store) -> None:
    submitted = store.ingest("one.md", MANUAL, hardware=("h100",))
    with store.catalog.read() as connection:
        assert embeddings.hardware_scopes(connection) == ["h100"]
        assert embeddings.hardware_scopes(connection, AccessScope("team")) == []
        assert embeddings.document_scopes(connection, [submitted.document_id]) == {"h100"}
    store.documents.delete(submitted.document_id)
    with store.catalog.read() as connection:
        assert embeddings.hardware_scopes(connection) == []
