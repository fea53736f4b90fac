"""Vectors by text: each text once per model, whoever says it; what lacks one is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa

from kb.catalog.knowledge import candidates, embeddings
from kb.scope import ALL_ACCESS, AccessScope
from tests.catalogs import all_missing

if TYPE_CHECKING:
    from tests.fixtures import Store

MANUAL = "# Manual\n\n## One\n\nThe first sentence.\n\n## Two\n\nThe second sentence.\n"


def test_a_revision_embeds_only_what_changed(store: Store) -> None:
    store.ingest("one.md", MANUAL)
    assert store.rows("embeddings") == 2
    store.ingest("one.md", MANUAL.replace("second", "third"))
    assert store.rows("embeddings") == 3
    store.ingest("copy.md", MANUAL, hardware=("h100",))
    assert store.rows("embeddings") == 3


def test_what_lacks_a_vector_is_listed_once_and_counted(store: Store) -> None:
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
        assert embeddings.text_scopes(connection, shas) == {"h100", "h200"}
    worker.drain()  # another worker leaves to it what it has read
    with store.catalog.read() as connection:
        assert embeddings.counts(connection, model) == (4, 4)
        assert embeddings.counts(connection, "another model") == (0, 4)
        assert all_missing(connection, model) == []


def test_counts_are_those_of_now_and_are_counted_once(store: Store) -> None:
    model, statements = store.embedder.fingerprint, list[str]()

    def counts(of: str = model) -> tuple[int, int]:
        with store.catalog.read() as connection:
            assert candidates.counts(connection, of) == embeddings.counts(connection, of)
            statements.clear()
            return candidates.counts(connection, of)

    def note(*seen: object) -> None:
        statements.append(str(seen[2]))

    sa.event.listen(store.catalog._engine, "before_cursor_execute", note)
    assert counts() == (0, 0)
    store.submit("one.md", MANUAL)
    worker = store.worker()
    worker._read_queued()
    assert counts() == (0, 2)
    worker.drain()
    assert counts() == (2, 2) and not any("count(" in text for text in statements)
    assert counts("another model") == (0, 2) and counts() == (2, 2)
    document = store.ingest("two.md", MANUAL, hardware=("h100",))
    assert counts() == (4, 4)  # the texts had their vectors
    store.documents.delete(document.document_id)
    assert counts() == (2, 2)


def test_that_nothing_is_pending_is_looked_up_once_for_a_state(store: Store) -> None:
    model, statements = store.embedder.fingerprint, list[str]()

    def pending(of: str = model) -> int:
        with store.catalog.read() as connection:
            statements.clear()
            documents = candidates.pending(connection, of)
            assert documents == embeddings.pending(connection, of)
            return len(documents)

    def note(*seen: object) -> None:
        statements.append(str(seen[2]))

    sa.event.listen(store.catalog._engine, "before_cursor_execute", note)
    store.submit("one.md", MANUAL)
    worker = store.worker()
    worker._read_queued()
    assert pending() == 1 and sum("LEFT OUTER" in text for text in statements) == 2
    worker.drain()
    assert pending() == 0 and pending() == 0
    assert sum("LEFT OUTER" in text for text in statements) == 1  # the one that it is compared with
    assert pending("another model") == 1 and pending() == 0
    store.submit("two.md", MANUAL.replace("second", "third"))
    store.worker()._read_queued()
    assert pending() == 1


def test_vectors_come_back_as_they_were_and_the_first_stays(store: Store) -> None:
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
