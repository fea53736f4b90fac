"""Exact search over the catalog's vectors: always current, never out of scope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kb.catalog.knowledge import embeddings
from kb.scope import ALL_ACCESS

if TYPE_CHECKING:
    from tests.fixtures import Store

MANUAL = """# Manual

## Clocks

The boost clock is 1980 MHz.

## Banks

Shared memory has 32 banks of four bytes.

## Barriers

Every thread of the block must reach the barrier.
"""


def test_the_nearest_come_first_with_their_cosines(store: Store) -> None:
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    query = store.embedder.encode_query("how many banks does shared memory have")
    hits = store.exact.query(("h100",), query, 2)
    assert len(hits) == 2
    with store.catalog.read() as connection:
        model = store.embedder.fingerprint
        scope = embeddings.of_scope(connection, model, "h100", ALL_ACCESS)
    vectors = dict(zip(scope.seqs, scope.matrix, strict=True))
    scores = list(hits.values())
    assert scores == sorted(scores, reverse=True)
    assert np.allclose(scores, [vectors[seq] @ query for seq in hits], atol=1e-5)
    assert "32 banks" in store.by_meaning("how many banks does shared memory have", "h100")[0].text


def test_it_sees_every_change_at_once(store: Store) -> None:
    query = "boost clock"
    assert store.by_meaning(query, "h100") == []
    document = store.ingest("manual.md", MANUAL, hardware=("h100",))
    assert store.by_meaning(query, "h100")[0].text == "The boost clock is 1980 MHz."
    store.ingest("manual.md", MANUAL.replace("1980", "1830"), hardware=("h100",))
    assert store.by_meaning(query, "h100")[0].text == "The boost clock is 1830 MHz."
    store.documents.delete(document.document_id)
    assert store.by_meaning(query, "h100") == []


def test_a_scope_admits_its_lineage_and_no_sibling(store: Store) -> None:
    store.ingest("manual.md", MANUAL, hardware=("hopper",))
    assert store.by_meaning("boost clock", "h100")
    assert store.by_meaning("boost clock", "h200")
    assert store.by_meaning("boost clock", "a100") == []
    assert store.by_meaning("boost clock")  # no hardware: every chip


def test_a_passage_of_two_scopes_comes_once(store: Store) -> None:
    store.ingest("manual.md", MANUAL, hardware=("h100", "mi300x"))
    hits = store.by_meaning("boost clock")
    assert len(hits) == len({hit.id for hit in hits}) == 3
