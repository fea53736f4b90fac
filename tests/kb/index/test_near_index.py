"""A service's nearest passages: exact over what is in memory, else Chroma's, always the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kb.index.near import NearIndex

from kb.catalog import Catalog
from kb.catalog.schema import state_of
from kb.catalog.tables import candidates
from kb.errors import StoreAway
from kb.index import near
from kb.index.chroma import ChromaIndex
from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=6)

TOPICS = ("Swizzled layouts", "Register spills", "Async copies", "Warp shuffles", "Tensor cores")


class Counting(ChromaIndex):
    asked = 0

    def query(self, *args: Any, **kwargs: Any) -> dict[int, float]:
        self.asked += 1
        return super().query(*args, **kwargs)


@pytest.fixture(scope="module")
def store(
    tmp_path_factory: pytest.TempPathFactory, embedder: Any, parsers: Any, tagger: Any
) -> Store:
    made = Store(tmp_path_factory.mktemp("near"), embedder, parsers, tagger)
    for hardware in ((), ("h100",), ("h100", "mi300x"), ("mi300x",)):
        name = "-".join(hardware) or "general"
        text = "\n\n".join(f"## {t}\n\n{t} of {name} need care: {t.lower()}." for t in TOPICS)
        category = "hardware" if hardware else "guidance"
        made.submit(f"{name}.md", f"# {name}\n\n{text}", hardware=hardware, category=category)
    made.worker().drain()
    return made


@pytest.fixture
def chroma(store: Store, tmp_path: Path) -> Counting:
    index = Counting(store.catalog, store.embedder.fingerprint, tmp_path / "chroma", None)
    index.open_or_rebuild()
    return index


def keep(store: Store) -> None:
    with store.catalog.read() as connection:
        candidates.keep_in_memory(connection, store.embedder.fingerprint)
        near.keep_in_memory(connection, store.embedder.fingerprint)


SCOPES = (None, ("h100",), ("h100", "any"), ("mi300x", "h100", "any"), ("nobody",))


@pytest.mark.parametrize("scopes", SCOPES)
@pytest.mark.parametrize("limit", [1, 4, 100])
def test_it_gives_what_exact_search_gives(
    store: Store, chroma: Counting, scopes: tuple[str, ...] | None, limit: int
) -> None:
    keep(store)
    index = NearIndex(store.catalog, store.embedder.fingerprint, chroma)
    vector = store.embedder.encode_query("shuffles of a warp")
    ours = index.query(scopes, vector, limit)
    exact = store.exact.query(scopes, vector, limit)
    assert list(ours) == list(exact) and chroma.asked == 0
    assert np.allclose([*ours.values()], [*exact.values()], atol=1e-5)


@pytest.mark.parametrize("scopes", SCOPES)
@pytest.mark.parametrize("limit", [1, 4, 100])
def test_many_scopes_by_one_product_give_the_same(
    store: Store,
    chroma: Counting,
    monkeypatch: pytest.MonkeyPatch,
    scopes: tuple[str, ...] | None,
    limit: int,
) -> None:
    monkeypatch.setattr(near, "MOST_KEYS", 0)
    keep(store)
    index = NearIndex(store.catalog, store.embedder.fingerprint, chroma)
    vector = store.embedder.encode_query("shuffles of a warp")
    exact = store.exact.query(scopes, vector, limit)
    for _ in range(2):  # what is kept of the scopes gives the same
        ours = index.query(scopes, vector, limit)
        assert list(ours) == list(exact) and chroma.asked == 0
        assert np.allclose([*ours.values()], [*exact.values()], atol=1e-5)


def test_each_graph_that_chroma_would_be_asked_for_counts(store: Store, chroma: Counting) -> None:
    keep(store)
    vector = store.embedder.encode_query("register spills")
    state, model = state_of(store.catalog), store.embedder.fingerprint
    # Of three scopes with 5, 10 and 10 passages, five of them twice.
    every = NearIndex(store.catalog, model, chroma, state, exact_up_to=9)
    assert len(every.query(None, vector, 100)) == 20 and chroma.asked == 0
    every.query(("h100",), vector, 100)
    assert chroma.asked == 1
    every.query(("h100", "any"), vector, 100)
    assert chroma.asked == 1


def test_chroma_answers_for_many_and_while_nothing_is_in_memory(
    store: Store, chroma: Counting
) -> None:
    keep(store)
    vector = store.embedder.encode_query("register spills")
    state = state_of(store.catalog)
    small = NearIndex(store.catalog, store.embedder.fingerprint, chroma, state, exact_up_to=3)
    assert list(small.query(("h100",), vector, 5)) == list(store.exact.query(("h100",), vector, 5))
    assert chroma.asked == 1
    other = NearIndex(store.catalog, "another model", chroma, state)
    other.query(("h100",), vector, 5)
    assert chroma.asked == 2


def test_until_chroma_is_open_memory_answers_and_then_the_catalog_of_a_small_store(
    store: Store, chroma: Counting
) -> None:
    model, vector = store.embedder.fingerprint, store.embedder.encode_query("register spills")
    opening = NearIndex(store.catalog, model, None, exact_up_to=3)
    exact = store.exact.query(None, vector, 100)
    keep(store)
    assert near.is_in_memory(store.catalog, model)
    assert list(opening.query(None, vector, 100)) == list(exact)
    assert opening.sync({"h100"}) is None and not opening.follow()
    store.ingest("later.md", "# Later\n\nA quokka stall is new.", hardware=("h100",))
    assert not near.is_in_memory(store.catalog, model)
    with pytest.raises(StoreAway, match="being opened"):  # too many to be read for a request
        opening.query(("h100",), vector, 5)
    small = NearIndex(store.catalog, model, None)
    after = store.exact.query(("h100",), vector, 5)
    assert list(small.query(("h100",), vector, 5)) == list(after)
    keep(store)
    assert list(opening.query(("h100",), vector, 5)) == list(after)
    assert chroma.asked == 0


def test_what_was_written_since_is_asked_of_chroma_until_it_is_looked_up(
    store: Store, chroma: Counting
) -> None:
    keep(store)
    index = NearIndex(store.catalog, store.embedder.fingerprint, chroma)
    store.ingest("new.md", "# New\n\nA wombat stall is new.", hardware=("h100",))
    index.sync()
    vector = store.embedder.encode_query("wombat stall")
    first = next(iter(index.query(("h100",), vector, 5)))
    # On a server another replica may have written too, of which this Chroma knows nothing.
    asked = 0 if store.catalog.on_server else 1
    assert chroma.asked == asked
    keep(store)
    assert next(iter(index.query(("h100",), vector, 5))) == first and chroma.asked == asked


def test_what_another_replica_stores_is_not_missed_while_chroma_lacks_it(
    store: Store, chroma: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Catalog, "on_server", True)  # else nobody but this process writes
    keep(store)
    model = store.embedder.fingerprint
    index = NearIndex(store.catalog, model, chroma, state_of(store.catalog), exact_up_to=3)
    vector = store.embedder.encode_query("numbat stall")
    index.query(("h100",), vector, 5)
    assert chroma.asked == 1 and not index.follow()
    store.ingest("newer.md", "# Newer\n\nA numbat stall is new.", hardware=("h100",))
    first = next(iter(store.exact.query(("h100",), vector, 5)))
    with pytest.raises(StoreAway, match="catching up"):  # too many to be read for a request
        index.query(("h100",), vector, 5)
    assert chroma.asked == 1
    small = NearIndex(store.catalog, model, chroma)
    assert next(iter(small.query(("h100",), vector, 5))) == first
    assert index.follow()
    assert next(iter(index.query(("h100",), vector, 5))) == first and chroma.asked == 2


def test_chroma_is_needed_for_large_scopes_and_while_nothing_is_in_memory(
    store: Store, chroma: Counting
) -> None:
    keep(store)
    model = store.embedder.fingerprint
    assert not NearIndex(store.catalog, model, chroma).asks_chroma()
    assert NearIndex(store.catalog, model, chroma, exact_up_to=3).asks_chroma()
    assert NearIndex(store.catalog, "another model", chroma).asks_chroma()
    # What was released is opened again by whoever asks.
    vector = store.embedder.encode_query("register spills")
    before = chroma.query(("h100",), vector, 5)
    chroma.close()
    assert list(chroma.query(("h100",), vector, 5)) == list(before)
