"""The order in which texts are embedded: uploads first, equal shares, small documents soon, no
starvation.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ingestion.worker import OLDEST, PendingDocument, allot, equal_parts

BATCH = 64


def upload(name: str, texts: int, first: int, share: str = "upload") -> PendingDocument:
    return PendingDocument(name, share, False, texts, first)


def test_uploads_take_whole_batch_from_built_in_documents() -> None:
    builtin = PendingDocument("builtin", "builtin", True, 500, 0)
    assert allot([builtin, upload("mine", 3, 900)], BATCH) == {"mine": 3}
    assert allot([builtin], BATCH) == {"builtin": BATCH}


def test_shares_are_equal_and_return_unused_parts() -> None:
    waiting = [upload("junk", 15_000, 0, "a"), upload("b", 15_000, 1, "b"), upload("c", 4, 2, "c")]
    assert allot(waiting, BATCH) == {"junk": 30, "b": 30, "c": 4}
    assert equal_parts({"a": 9, "b": 9}, 1) == {"a": 1, "b": 0}


def test_small_document_is_not_delayed_by_large_one_of_its_upload() -> None:
    waiting = [upload("junk", 15_000, 0), upload("small", 20, 15_000), upload("mid", 40, 15_020)]
    assert allot(waiting, BATCH) == {"junk": BATCH // OLDEST, "small": 20, "mid": 28}


def test_large_document_finishes_despite_steady_small_ones() -> None:
    left, arrived = 600, 600
    for _ in range(600 // (BATCH // OLDEST) + 1):
        arrived += BATCH
        small = [upload(f"small{arrived + n}", 1, arrived + n) for n in range(BATCH)]
        waiting = [upload("large", left, 0), *small] if left else small
        left -= allot(waiting, BATCH).get("large", 0)
    assert left == 0


documents = st.lists(
    st.builds(
        PendingDocument,
        document_id=st.uuids().map(str),
        share=st.sampled_from("abc"),
        behind=st.booleans(),
        texts=st.integers(1, 200),
        first=st.integers(0, 10_000),
    ),
    min_size=1,
    max_size=30,
    unique_by=lambda document: document.document_id,
)


@given(documents, st.integers(1, 300))
def test_batch_is_full_and_shared_equally(waiting: list[PendingDocument], batch: int) -> None:
    allotted = allot(waiting, batch)
    by_id = {document.document_id: document for document in waiting}
    assert all(0 < texts <= by_id[name].texts for name, texts in allotted.items())
    ahead = [d for d in waiting if not d.behind] or waiting
    assert sum(allotted.values()) == min(batch, sum(d.texts for d in ahead))
    shares = {d.share for d in ahead}
    for share in shares:
        wanted = sum(d.texts for d in ahead if d.share == share)
        got = sum(n for name, n in allotted.items() if by_id[name].share == share)
        assert got >= min(wanted, batch // len(shares))
