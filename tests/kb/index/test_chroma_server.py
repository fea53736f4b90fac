"""The vector index on a real Chroma server: shared, unreachable, slow, emptied, and restored."""

from __future__ import annotations

import base64
import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kb.catalog.moving import copy_catalog
from kb.errors import InvalidRequest, StoreAway
from kb.index import chroma as chroma_client
from kb.index.chroma import ChromaIndex, ServedChroma, parse_address
from retrieval.near import NearIndex
from retrieval.request import RetrieveRequest
from tests.chroma_server import ChromaServer
from tests.faulty_proxy import FaultyProxy
from tests.kb.index.test_chroma_index import MANUAL, QUERY, no_encoding, texts  # noqa: F401

if TYPE_CHECKING:
    from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=15)


@pytest.fixture
def proxy(chroma_server: ChromaServer) -> Iterator[FaultyProxy]:
    faulty = FaultyProxy(chroma_server.port)
    yield faulty
    faulty.close()


@pytest.fixture
def url(chroma_server: ChromaServer, proxy: FaultyProxy) -> str:
    """The URL of a separate database, through the proxy."""
    return chroma_server.database(proxy.url)


@pytest.fixture
def filled(store: Store) -> Store:
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    return store


def opened(store: Store, url: str) -> ChromaIndex:
    return ChromaIndex(store.catalog, store.embedder.fingerprint, store.data_dir / "chroma", url)


def near_of(store: Store, url: str, exact_up_to: int = 0) -> NearIndex:
    """An index that queries Chroma for every request, as a large store does."""
    return NearIndex(opened(store, url), exact_up_to)


def test_chroma_results_equal_exact_search(filled: Store, url: str) -> None:
    index = opened(filled, url)
    report = index.open_or_rebuild()
    assert (report.collections, report.added) == (1, 5)
    assert texts(filled, index) == texts(filled)
    assert not (filled.data_dir / "chroma").exists()
    again = opened(filled, url).open_or_rebuild()
    assert (again.added, again.removed) == (0, 0)


def test_deleted_passages_leave_server(filled: Store, url: str) -> None:
    index = opened(filled, url)
    index.open_or_rebuild()
    more = filled.ingest("more.md", MANUAL.replace("chip", "card"), hardware=("h100",))
    assert index.sync(["h100"]).added == 5
    filled.documents.delete(more.document_id)
    assert index.sync(["h100"]).removed == 5


def test_services_of_one_catalog_share_its_collections(
    filled: Store, url: str, chroma_server: ChromaServer
) -> None:
    first, second = opened(filled, url), opened(filled, url)
    assert first.open_or_rebuild().added == 5 and second.open_or_rebuild().added == 0
    filled.ingest("more.md", MANUAL.replace("chip", "card"), hardware=("h100",))
    first.sync(["h100"])
    assert texts(filled, second) == texts(filled)
    assert len(chroma_server.collections(url)) == 1
    first.rebuild()  # the collections of the second are gone
    near = NearIndex(second, 0)
    near.catch_up()
    assert near.away is None and texts(filled, second) == texts(filled)


def test_other_catalogs_on_server_are_untouched(
    filled: Store,
    make_store: Callable[[Path], Store],
    tmp_path: Path,
    url: str,
    chroma_server: ChromaServer,
) -> None:
    other = make_store(tmp_path / "other")
    other.ingest("manual.md", MANUAL.replace("chip", "card"), hardware=("h100",))
    mine, theirs = opened(filled, url), opened(other, url)
    mine.open_or_rebuild()
    theirs.open_or_rebuild()
    assert mine.rebuild().added == 5 and mine.open_or_rebuild().removed == 0
    assert texts(other, theirs) == texts(other)
    assert len(chroma_server.collections(url)) == 2


def test_copied_catalog_has_another_store_id(
    filled: Store, tmp_path: Path, make_store: Callable[[Path], Store]
) -> None:
    from kb.catalog import open_catalog

    before = filled.catalog.store_id()
    copied = open_catalog(tmp_path / "copied")
    copy_catalog(filled.catalog, copied)
    assert copied.store_id() != before == filled.catalog.store_id()
    copied.close()


def test_unreachable_server_loses_no_vectors(
    filled: Store,
    url: str,
    chroma_server: ChromaServer,
    no_encoding: list[object],  # noqa: F811
) -> None:
    near = near_of(filled, url)
    near.catch_up()
    before = texts(filled, near)
    chroma_server.stop()
    try:
        assert texts(filled, near) == before
        assert near.away is not None
        assert f"{url.partition('/?')[0]} does not answer" in near.away.message
        near.sync(["h100"])  # no effect until it has caught up
        with pytest.raises(StoreAway):
            near.catch_up()
        encoded = len(no_encoding)
        filled.ingest("more.md", MANUAL.replace("chip", "card"), hardware=("h100",))
        ingested = len(no_encoding)
    finally:
        chroma_server.start()
    report = near.catch_up()
    assert report.added == 5 and near.away is None
    assert texts(filled, near) == texts(filled) != before
    assert ingested > encoded and len(no_encoding) == ingested


def test_answers_are_equal_while_chroma_is_unreachable(
    filled: Store, url: str, chroma_server: ChromaServer
) -> None:
    near = near_of(filled, url)
    near.catch_up()
    retriever = filled.retriever(near)
    request = RetrieveRequest(query=QUERY, hardware="h100")
    before = retriever.retrieve(request)
    assert near.away is None
    chroma_server.stop()
    try:
        during = retriever.retrieve(request)
    finally:
        chroma_server.start()
    assert near.away is not None
    assert during.context == before.context and during.hints == before.hints


def test_emptied_server_is_refilled(filled: Store, url: str, chroma_server: ChromaServer) -> None:
    near = near_of(filled, url)
    near.catch_up()
    assert chroma_server.entries(url) == 5
    chroma_server.empty(url)
    assert texts(filled, near) and near.away is not None
    assert near.catch_up().added == 5
    assert texts(filled, near) == texts(filled)


@pytest.mark.parametrize("mode", ["refuse", "silent", "cut"])
def test_unresponsive_server_costs_one_timeout(
    filled: Store, url: str, proxy: FaultyProxy, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chroma_client, "READ_SECONDS", 0.5)
    monkeypatch.setattr(chroma_client, "WRITE_SECONDS", 0.5)
    monkeypatch.setattr("tests.faulty_proxy.CUT_BYTES", 10)
    near = near_of(filled, url)
    near.catch_up()
    proxy.set(mode)  # type: ignore[arg-type]
    assert texts(filled, near) == texts(filled)  # from the catalog's vectors
    assert near.away is not None
    requested = proxy.connections
    assert texts(filled, near) == texts(filled)
    assert proxy.connections == requested  # not queried again until it has caught up
    with pytest.raises(StoreAway):
        near.catch_up()
    proxy.set("pass")
    near.catch_up()
    near.check()
    assert near.away is None and texts(filled, near) == texts(filled)


def test_slow_server_answers_within_timeout(filled: Store, url: str, proxy: FaultyProxy) -> None:
    near = near_of(filled, url)
    near.catch_up()
    proxy.delay_seconds = 0.4
    assert texts(filled, near) == texts(filled) and near.away is None


def test_reads_and_writes_have_separate_timeouts(url: str) -> None:
    server = ServedChroma(url)
    limits = [server.client(writing)._server._session.timeout.read for writing in (False, True)]
    assert limits == [chroma_client.READ_SECONDS, chroma_client.WRITE_SECONDS]
    server.disconnect()


def test_closed_index_has_no_open_connection(filled: Store, url: str, proxy: FaultyProxy) -> None:
    index = opened(filled, url)
    index.open_or_rebuild()
    assert texts(filled, index)  # the connections of reads and writes
    index.close()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        del index
        gc.collect()
    port = proxy.url.rpartition(":")[2]
    assert not [str(warning.message) for warning in seen if port in str(warning.message)]


def test_missing_database_is_named(filled: Store, chroma_server: ChromaServer) -> None:
    with pytest.raises(StoreAway, match=r"Database \[nowhere\] not found"):
        opened(filled, f"{chroma_server.url}/?database=nowhere").open_or_rebuild()


def test_more_than_one_page_of_entries(
    filled: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kb.index.chroma.PAGE", 2)
    monkeypatch.setattr("kb.index.chroma.COLLECTIONS", 1)
    monkeypatch.setattr("kb.index.chroma.SERVER_BATCH", 2)
    filled.ingest("more.md", MANUAL.replace("chip", "card"), hardware=("h200",))
    assert opened(filled, url).open_or_rebuild().added == 10
    again = opened(filled, url).open_or_rebuild()
    assert (again.added, again.removed) == (0, 0)
    assert opened(filled, url).rebuild().added == 10


ADDRESSES = {
    "http://db.example": ("db.example", 8000, False),
    "db.example:9000": ("db.example", 9000, False),
    "https://db.example/": ("db.example", 443, True),
    "http://[::1]:8001": ("[::1]", 8001, False),
}


@pytest.mark.parametrize("given", ADDRESSES)
def test_addresses(given: str) -> None:
    address = parse_address(given)
    assert (address.host, address.port, address.ssl) == ADDRESSES[given]


def test_credentials_are_sent_only_in_header() -> None:
    address = parse_address("https://me:se%40cret@db.example/?tenant=t&database=d")
    assert (address.tenant, address.database) == ("t", "d")
    pair = base64.b64encode(b"me:se@cret").decode()
    assert address.headers == {"Authorization": f"Basic {pair}"}
    assert "cret" not in repr(address) + address.name and pair not in repr(address)


BAD = ("ftp://me:secret@h", "http://me:secret@h:port", "http://me:secret@h/path", "http://h?x=1")


@pytest.mark.parametrize("bad", BAD)
def test_invalid_server_url_is_refused(bad: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_address(bad)
    assert "KERNLORE_CHROMA_URL" in refused.value.hint
    assert "secret" not in refused.value.message + refused.value.hint
