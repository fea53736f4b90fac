"""A version becomes current in one transaction, without duplicates and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kb.catalog.knowledge import versions
from kb.catalog.knowledge.versions import PassageDraft, SectionDraft, VersionContent
from kb.ids import VersionId
from kb.scope import ScopeFilter
from kb.tokens import tokenize

if TYPE_CHECKING:
    from tests.fixtures import Store


def content(*texts: str, hardware: tuple[str, ...] | None = None) -> VersionContent:
    return VersionContent(
        sections=[SectionDraft(("Manual", "Numbers"), 2, None, hardware=hardware)],
        passages=[PassageDraft(0, "text", text, "", None, (), 300, ()) for text in texts],
        report={"pages_seen": 1},
    )


def staged(store: Store, body: str) -> tuple[str, VersionId]:
    submitted = store.submit("manual.md", body, source_key="manual", hardware=("h100",))
    job = store.jobs.get(submitted.job_id or "")
    return submitted.document_id, VersionId(str(job.payload["version_id"]))


def activate(store: Store, version_id: str, body: VersionContent) -> None:
    with store.catalog.write() as connection:
        versions.activate(connection, [(version_id, body)])


def found(store: Store, words: str) -> list[str]:
    return [passage.text for passage in store.by_words(words, "h100")]


def test_activation_replaces_text_in_one_transaction(store: Store) -> None:
    document, first = staged(store, "one")
    activate(store, first, content("the plum clock runs at 1410 MHz"))
    _, second = staged(store, "two")
    assert found(store, "plum") and not found(store, "quince")
    activate(store, second, content("the quince clock runs at 1980 MHz"))
    assert found(store, "quince") and not found(store, "plum")
    assert [p.text for p in store.passages_of(document, 1)] == ["the plum clock runs at 1410 MHz"]
    states = {v.number: v.state for v in store.documents.versions(document)}
    assert states == {1: "superseded", 2: "current"}


def test_failed_activation_changes_nothing(store: Store) -> None:
    document, first = staged(store, "one")
    activate(store, first, content("the plum clock"))
    _, second = staged(store, "two")
    broken = VersionContent(content("x").sections, [*content("the quince").passages, None])  # type: ignore[list-item]
    with pytest.raises(AttributeError):
        activate(store, second, broken)
    assert found(store, "plum clock") == ["the plum clock"]
    assert len(store.passages_of(document)) == 1


def test_activating_twice_leaves_no_duplicates(store: Store) -> None:
    document, first = staged(store, "one")
    activate(store, first, content("the plum clock", "the quince clock"))
    before = [p.id for p in store.passages_of(document)]
    activate(store, first, content("the plum clock", "the quince clock"))
    assert [p.id for p in store.passages_of(document)] == before
    assert store.rows("passages") == 2 and store.rows("sections") == 1
    assert found(store, "plum") == ["the plum clock"]


def test_older_version_activated_late_stays_superseded(store: Store) -> None:
    document, first = staged(store, "one")
    _, second = staged(store, "two")
    activate(store, second, content("the quince clock"))
    activate(store, first, content("the plum clock"))
    assert not found(store, "plum") and found(store, "quince")
    assert store.documents.get(document).passages == 1
    assert [p.text for p in store.passages_of(document, 1)] == ["the plum clock"]
    states = {v.number: v.state for v in store.documents.versions(document)}
    assert states == {1: "superseded", 2: "current"}


def test_unreadable_version_leaves_current_one(store: Store) -> None:
    document, first = staged(store, "one")
    activate(store, first, content("the plum clock"))
    _, second = staged(store, "two")
    with store.catalog.write() as connection:
        versions.fail_version(connection, second, {"error": {"code": "parse_failed"}})
        versions.fail_version(
            connection, first, {"error": {"code": "parse_failed"}}
        )  # a retried job
    assert found(store, "plum") == ["the plum clock"]
    states = {v.number: v.state for v in store.documents.versions(document)}
    assert states == {1: "current", 2: "failed"}


def test_narrowed_section_is_not_found_in_document_scope(store: Store) -> None:
    _, first = staged(store, "one")
    activate(store, first, content("the plum clock", hardware=("h200",)))
    assert not found(store, "plum")
    assert [p.hardware for p in store.by_words("plum", "h200")] == [("h200",)]


def test_search_covers_exactly_live_rows(store: Store) -> None:
    def searched() -> tuple[int, int]:
        snapshot, words = store.snapshots.current(), tokenize("plum fig numbers")
        return snapshot.passages, len(snapshot.search("section", words, ScopeFilter(None), 10))

    document, first = staged(store, "one")
    activate(store, first, content("a plum", "a quince", "a pear"))
    _, second = staged(store, "two")
    activate(store, second, content("a fig"))
    assert searched() == (1, 1)
    store.documents.delete(document)
    assert searched() == (0, 0)
    assert store.rows("passages") == store.rows("passage_hardware") == 0
