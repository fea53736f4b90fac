"""Chroma and exact search give the same hits: after filling, revising, deleting and correcting."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from kb.catalog.knowledge import embeddings, passages, versions
from kb.catalog.knowledge.passages import Patch
from kb.catalog.knowledge.versions import PassageDraft, SectionDraft, VersionContent
from kb.index.chroma import ChromaIndex
from tests.catalogs import all_missing

pytestmark = pytest.mark.slow(seconds=4)

if TYPE_CHECKING:
    from tests.fixtures import Store

COUNT = 240
SCOPES = ("h100", "hopper", "any")


def vector_of(text: str, dimension: int) -> NDArray[np.float32]:
    """A fixed direction per text: parity needs many vectors, not meaning."""
    vector = np.random.default_rng(list(text.encode())).normal(size=dimension).astype(np.float32)
    return vector / np.float32(np.linalg.norm(vector))


def embed(store: Store) -> None:
    model = store.embedder.fingerprint
    with store.catalog.write() as connection:
        missing = all_missing(connection, model)
        vectors = {m.sha256: vector_of(m.text, store.embedder.dimension) for m in missing}
        embeddings.put(connection, model, vectors)


def fill(store: Store, name: str, hardware: tuple[str, ...], texts: list[str]) -> str:
    submitted = store.submit(name, "\n".join(texts), hardware=hardware)
    version = str(store.job(submitted).payload["version_id"])
    drafts = [PassageDraft(0, "text", text, "", None, (), 300, ()) for text in texts]
    with store.catalog.write() as connection:
        content = VersionContent([SectionDraft((name,), 1, None)], drafts)
        versions.activate(connection, version, content)
    embed(store)
    return submitted.document_id


@pytest.fixture
def chroma(store: Store) -> Iterator[ChromaIndex]:
    index = ChromaIndex(store.catalog, store.embedder.fingerprint, store.data_dir / "chroma")
    yield index
    index.close()


@pytest.fixture
def parity(store: Store, chroma: ChromaIndex) -> Callable[[], None]:
    def check() -> None:
        for scopes in (SCOPES, ("h200", "hopper", "any"), None):
            for n in range(8):
                query = vector_of(f"query {n}", store.embedder.dimension)
                exact = store.exact.query(scopes, query, 20)
                found = chroma.query(scopes, query, 20)
                assert list(found) == list(exact)
                assert np.allclose(list(found.values()), list(exact.values()), atol=1e-4)

    return check


def test_chroma_equals_exact_search_through_every_change(
    store: Store, chroma: ChromaIndex, parity: Callable[[], None]
) -> None:
    texts = [f"passage {n} of the manual" for n in range(COUNT)]
    chip = fill(store, "h100.md", ("h100",), texts[:120])
    family = fill(store, "hopper.md", ("hopper",), texts[100:200])  # 20 texts are in both
    fill(store, "general.md", (), texts[200:])
    assert chroma.sync().added == COUNT + 20
    parity()

    revised = [f"{text}, revised" if n % 3 == 0 else text for n, text in enumerate(texts[:120])]
    fill(store, "h100.md", ("h100",), revised)
    chroma.sync({"h100"})
    parity()

    store.documents.delete(family)
    parity()  # nobody told the index

    chosen = random.Random(7).sample(store.passages_of(chip), 10)
    for passage in chosen[:5]:
        patch = Patch(text=f"{passage.text}, corrected")
        passages.correct(store.catalog, passage.id, patch, "ana")
    for passage in chosen[5:]:
        passages.correct(store.catalog, passage.id, Patch(hardware=("h200",)), "ana")
    embed(store)
    chroma.sync()
    parity()
    assert chroma.sync().added == chroma.sync().removed == 0


def test_deleted_entries_do_not_crowd_out_live_ones(store: Store, chroma: ChromaIndex) -> None:
    doomed = fill(store, "doomed.md", ("h100",), [f"doomed {n}" for n in range(60)])
    fill(store, "kept.md", ("h100",), [f"kept {n}" for n in range(5)])
    chroma.sync()
    store.documents.delete(doomed)
    query = vector_of("anything", store.embedder.dimension)
    assert len(chroma.query(("h100",), query, 5)) == 5


def test_a_shared_text_is_found_in_each_of_its_scopes(store: Store, chroma: ChromaIndex) -> None:
    fill(store, "both.md", ("h100", "mi300x"), ["one text for two chips"])
    chroma.sync()
    query = vector_of("anything", store.embedder.dimension)
    by_chip = [list(chroma.query((chip,), query, 5)) for chip in ("h100", "mi300x")]
    assert by_chip[0] == by_chip[1] != []
    assert list(chroma.query(None, query, 5)) == by_chip[0]


def test_entries_of_another_model_are_dropped(store: Store, chroma: ChromaIndex) -> None:
    fill(store, "one.md", ("h100",), ["a text"])
    chroma.sync()
    other = ChromaIndex(store.catalog, "another-model", store.data_dir / "chroma")
    report = other.sync()
    assert report.added == 0
    assert other.query(None, vector_of("x", 384), 5) == {}
