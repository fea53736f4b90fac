"""Chroma and exact search give equal hits: after filling, revising, deleting and correcting."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kb.catalog.knowledge import passages, versions
from kb.catalog.knowledge.passages import Patch
from kb.catalog.knowledge.versions import PassageDraft, SectionDraft, VersionContent
from kb.index.chroma import ChromaIndex
from kb.scope import ALL_ACCESS
from retrieval.near import SPARE, NearIndex
from tests.catalogs import all_missing, put_vectors

pytestmark = pytest.mark.slow(seconds=4)

if TYPE_CHECKING:
    from tests.fixtures import Store

COUNT = 240
SCOPES = ("h100", "hopper", "any")


def vector_of(text: str, dimension: int) -> NDArray[np.float32]:
    """A fixed direction per text: the comparison needs many vectors, not meaning."""
    vector = np.random.default_rng(list(text.encode())).normal(size=dimension).astype(np.float32)
    return vector / np.float32(np.linalg.norm(vector))


def embed(store: Store) -> None:
    model = store.embedder.fingerprint
    with store.catalog.write() as connection:
        missing = all_missing(connection, model)
        vectors = {m.sha256: vector_of(m.text, store.embedder.dimension) for m in missing}
        put_vectors(connection, model, vectors)


def fill(store: Store, name: str, hardware: tuple[str, ...], texts: list[str]) -> str:
    submitted = store.submit(name, "\n".join(texts), hardware=hardware)
    version = str(store.job(submitted).payload["version_id"])
    drafts = [PassageDraft(0, "text", text, "", None, (), 300, ()) for text in texts]
    with store.catalog.write() as connection:
        content = VersionContent([SectionDraft((name,), 1, None)], drafts)
        versions.activate(connection, [(version, content)])
    embed(store)
    return submitted.document_id


@pytest.fixture
def near(chroma: ChromaIndex) -> NearIndex:
    """An index that queries Chroma for every request, as that of a large store does."""
    index = NearIndex(chroma, exact_up_to=0)
    index.catch_up()
    return index


@pytest.fixture
def parity(store: Store, near: NearIndex) -> Callable[[], None]:
    def check() -> None:
        snapshot = store.snapshots.current()
        for scopes in (SCOPES, ("h200", "hopper", "any"), None):
            for n in range(8):
                query = vector_of(f"query {n}", store.embedder.dimension)
                exact = snapshot.near(scopes, query, 20)
                found = near.nearest(snapshot, scopes, query, 20, ALL_ACCESS)
                assert list(found) == list(exact) and exact
                assert np.allclose(list(found.values()), list(exact.values()), atol=1e-4)

    return check


def test_chroma_equals_exact_search_through_every_change(
    store: Store, chroma: ChromaIndex, near: NearIndex, parity: Callable[[], None]
) -> None:
    texts = [f"passage {n} of the manual" for n in range(COUNT)]
    chip = fill(store, "h100.md", ("h100",), texts[:120])
    family = fill(store, "hopper.md", ("hopper",), texts[100:200])  # 20 texts are in both
    fill(store, "general.md", (), texts[200:])
    assert chroma.sync().added == COUNT + 20
    parity()

    revised = [f"{text}, revised" if n % 3 == 0 else text for n, text in enumerate(texts[:120])]
    fill(store, "h100.md", ("h100",), revised)
    near.sync({"h100"})
    parity()

    store.documents.delete(family)
    parity()  # before the index is updated

    chosen = random.Random(7).sample(store.passages_of(chip), 10)
    for passage in chosen[:5]:
        patch = Patch(text=f"{passage.text}, corrected")
        passages.correct(store.catalog, passage.id, patch, "ana")
    for passage in chosen[5:]:
        passages.correct(store.catalog, passage.id, Patch(hardware=("h200",)), "ana")
    embed(store)
    near.sync()
    parity()
    assert near.away is None  # all hits came from Chroma
    assert chroma.sync().added == chroma.sync().removed == 0


def test_deleted_entries_do_not_displace_hits(store: Store, near: NearIndex) -> None:
    doomed = fill(store, "doomed.md", ("h100",), [f"doomed {n}" for n in range(SPARE)])
    fill(store, "kept.md", ("h100",), [f"kept {n}" for n in range(5)])
    near.sync()
    store.documents.delete(doomed)
    query = vector_of("anything", store.embedder.dimension)
    assert len(near.nearest(store.snapshots.current(), ("h100",), query, 5, ALL_ACCESS)) == 5


def test_text_of_two_chips_is_found_in_each_scope_and_once_in_both(
    store: Store, near: NearIndex
) -> None:
    fill(store, "both.md", ("h100", "mi300x"), ["one text for two chips"])
    near.sync()
    query, snapshot = vector_of("anything", store.embedder.dimension), store.snapshots.current()
    [number] = snapshot.near(None, query, 5)
    for scopes in (("h100",), ("mi300x",), ("h100", "mi300x"), None):
        assert list(near.nearest(snapshot, scopes, query, 5, ALL_ACCESS)) == [number]
    assert near.away is None


class Counting(ChromaIndex):
    """Counts queries."""

    queries = 0

    def query(self, *args: Any) -> dict[str, float]:
        self.queries += 1
        return super().query(*args)


def test_only_large_scopes_query_chroma(store: Store) -> None:
    fill(store, "h100.md", ("h100",), ["one", "two", "three"])
    fill(store, "h200.md", ("h200",), ["four", "five"])
    chroma = Counting(store.catalog, store.embedder.fingerprint, store.data_dir / "chroma")
    near, query = NearIndex(chroma, exact_up_to=2), vector_of("x", store.embedder.dimension)

    def nearest(*hardware: str) -> int:
        snapshot = store.snapshots.current()
        exact = snapshot.near(hardware, query, 5)
        assert list(near.nearest(snapshot, hardware, query, 5, ALL_ACCESS)) == list(exact)
        return len(exact)

    assert nearest("h100") == 3 and chroma.queries == 0  # Chroma is not open yet
    assert near.away is not None and "being opened" in near.away.message
    near.catch_up()
    assert nearest("h200") == 2 and chroma.queries == 0
    assert nearest("h100") == 3 and chroma.queries == 1
    assert nearest("h100", "h200") == 5 and chroma.queries == 2
    chroma.close()


def test_entries_of_another_model_are_dropped(store: Store, chroma: ChromaIndex) -> None:
    fill(store, "one.md", ("h100",), ["a text"])
    chroma.sync()
    other = ChromaIndex(store.catalog, "another-model", store.data_dir / "chroma")
    report = other.sync()
    assert report.added == 0
    assert other.query(("h100",), vector_of("x", 384), 5, ALL_ACCESS) == {}
