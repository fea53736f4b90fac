"""Deleted text is in no file of the data directory, including free pages, the log and indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kb.catalog import open_catalog
from kb.catalog.knowledge import embeddings
from kb.catalog.knowledge.documents import erase_deleted
from kb.index.chroma import ChromaIndex
from tests.stored_text import files_with

pytestmark = pytest.mark.slow(seconds=4)

if TYPE_CHECKING:
    from tests.fixtures import Store

WORD = "zyqqavon"
SENTENCE = f"The {WORD} unit of this chip issues two loads per clock"
CODE = f"void {WORD}_copy(float* to, const float* from);"
TABLE = f"| Property | Value |\n| --- | --- |\n| {WORD} bandwidth | 3.35 TB/s |\n"
MANUAL = f"# Manual\n\n## The {WORD} loads\n\n{SENTENCE}.\n\n```cpp\n{CODE}\n```\n\n{TABLE}"
KEPT = "# Other\n\n## Stores\n\nStores of the quince unit take four clocks.\n"


@pytest.mark.embedded
def test_deleted_text_is_in_no_file(store: Store, chroma: ChromaIndex) -> None:
    stored = store.ingest("kept.md", KEPT, hardware=("h100",))
    document = store.ingest("manual.md", MANUAL, hardware=("h100",)).document_id
    store.ingest("manual.md", f"{MANUAL}\nA second {WORD} version.\n", hardware=("h100",))
    chroma.open_or_rebuild()
    assert store.by_words(WORD, "h100")
    holders = files_with(store.data_dir, WORD)
    assert len(holders) >= 4 and any(name.endswith(".segment") for name in holders)
    store.documents.delete(document)
    store.snapshots.publish()
    assert erase_deleted(store.catalog, store.blobs)
    assert files_with(store.data_dir, WORD) == []
    assert store.by_words(WORD, "h100") == []
    assert [p.document_id for p in store.by_words("quince", "h100")] == [stored.document_id]
    with store.catalog.read() as connection:
        assert embeddings.counts(connection, store.embedder.fingerprint) == (1, 1)
    assert store.rows("embeddings") == 1  # a text can be guessed from its vector


def test_next_start_erases_deletions_of_a_killed_process(store: Store) -> None:
    document = store.ingest("manual.md", MANUAL, hardware=("h100",)).document_id
    store.documents.delete(document)  # killed here
    assert files_with(store.data_dir, WORD)
    store.catalog.close()
    again = open_catalog(store.data_dir)
    assert erase_deleted(again, store.blobs) and erase_deleted(again, store.blobs)
    again.close()
    assert files_with(store.data_dir, WORD) == []


@pytest.mark.embedded
def test_reader_of_log_delays_erasure(store: Store) -> None:
    document = store.ingest("manual.md", MANUAL, hardware=("h100",)).document_id
    reader, model = open_catalog(store.data_dir), store.embedder.fingerprint
    with reader.read() as connection:
        assert embeddings.counts(connection, model)[1] > 0
        store.documents.delete(document)
        assert not erase_deleted(store.catalog, store.blobs)
        assert embeddings.counts(connection, model)[1] > 0  # the revision at its start
    reader.close()
    assert erase_deleted(store.catalog, store.blobs)
    assert files_with(store.data_dir, WORD) == []


def test_file_uploaded_again_is_not_erased(store: Store) -> None:
    document = store.ingest("manual.md", MANUAL, hardware=("h100",)).document_id
    store.documents.delete(document)
    again = store.ingest("manual.md", MANUAL, hardware=("h100",))
    assert erase_deleted(store.catalog, store.blobs)
    version = store.documents.get(again.document_id).version
    assert version is not None and store.blobs.get(version.blob_key) == MANUAL.encode()
