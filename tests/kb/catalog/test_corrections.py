"""Corrections apply to the present version of a document and to later ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kb.catalog.knowledge import corrections, passages
from kb.catalog.knowledge.passages import Passage, Patch
from kb.errors import InvalidRequest, NotFound
from kb.scope import ALL_ACCESS, AccessScope

pytestmark = pytest.mark.slow(seconds=5)

if TYPE_CHECKING:
    from tests.fixtures import Store

MANUAL = """# Clock manual

## Clocks

The boost clock is 1980 parsecs.

## Power

The board draws 700 W.
"""
REVISED = MANUAL.replace("700 W", "710 W") + "\n## New\n\nAn added section.\n"


def with_text(store: Store, words: str) -> Passage:
    [found] = [p for p in store.by_words(words, "h100") if words in p.text]
    return found


def correct(store: Store, passage: Passage, patch: Patch) -> Passage:
    return passages.correct(store.catalog, passage.id, patch, "ana")


def ingest(store: Store, text: str) -> str:
    submitted = store.submit("clock.md", text, hardware=("h100",))
    store.worker().drain()
    return submitted.document_id


def test_corrected_text_is_found_by_its_new_words(store: Store) -> None:
    ingest(store, MANUAL)
    fixed = correct(store, with_text(store, "parsecs"), Patch(text="The boost clock is 1980 MHz."))
    assert fixed.corrected
    assert not store.by_words("parsecs", "h100")
    assert with_text(store, "MHz").id == fixed.id
    store.worker().drain()  # embeds the new text
    assert store.by_meaning("boost clock in MHz", "h100")[0].id == fixed.id


def test_corrections_survive_next_revision(store: Store) -> None:
    document = ingest(store, MANUAL)
    clock = with_text(store, "parsecs")
    correct(store, clock, Patch(text="The boost clock is 1980 MHz.", tags=(("topic", "clocks"),)))
    ingest(store, REVISED)
    fixed = next(p for p in store.passages_of(document) if "MHz" in p.text)
    assert fixed.version == 2 and fixed.corrected
    assert fixed.tags == (("topic", "clocks"),)
    assert not store.by_words("parsecs", "h100")


def test_new_scope_survives_next_revision(store: Store) -> None:
    ingest(store, MANUAL)
    correct(store, with_text(store, "parsecs"), Patch(hardware=("h200",)))
    correct(store, with_text(store, "700 W"), Patch(hardware=()))
    for text in (MANUAL, REVISED.replace("710", "700")):
        ingest(store, text)
        assert not store.by_words("parsecs", "h100")
        assert store.by_words("parsecs", "h200")
        assert [p.hardware for p in store.by_words("draws", "mi300x")] == [("any",)]


def test_unmatched_correction_is_reported(store: Store) -> None:
    document = ingest(store, MANUAL)
    correct(store, with_text(store, "700 W"), Patch(text="The board draws 699 W."))
    ingest(store, REVISED)
    version = store.documents.get(document).version
    assert version is not None
    [unmatched] = version.report["corrections_unmatched"]
    assert (unmatched["target"], unmatched["field"]) == ("passage", "text")


def unmatched_corrections(
    store: Store, access: AccessScope = ALL_ACCESS
) -> list[corrections.UnfitCorrection]:
    with store.catalog.read() as connection:
        return corrections.unfit(connection, access=access)


def test_unmatched_correction_is_listed_until_dropped(store: Store) -> None:
    ingest(store, MANUAL)
    old = with_text(store, "700 W")
    correct(store, old, Patch(text="The board draws 699 W.", tags=(("topic", "power"),)))
    correct(store, with_text(store, "parsecs"), Patch(text="The boost clock is 1980 MHz."))
    assert unmatched_corrections(store) == []
    submitted = store.submit("clock.md", REVISED, hardware=("h100",))
    store.worker().drain()
    tags, text = sorted(unmatched_corrections(store), key=lambda entry: entry.field)
    assert (text.text, text.actor, text.passage_id) == ("The board draws 699 W.", "ana", old.id)
    assert text.path == ("Clock manual", "Power") and tags.text == "topic=power"
    [remark] = store.job(submitted).result["remarks"]
    assert remark.startswith("2 corrections no longer fit this version: ")
    assert "text 'The board draws 699 W.' (under Clock manual > Power)" in remark
    assert unmatched_corrections(store, AccessScope("public", frozenset({"mi300x"}))) == []
    correct(store, with_text(store, "710 W"), Patch(text="The board draws 709 W."))
    assert [entry.field for entry in unmatched_corrections(store)] == ["tags"]
    with store.catalog.write() as connection:
        assert not corrections.drop(connection, text.document_id, text.id)
        assert corrections.drop(connection, tags.document_id, tags.id)
    assert unmatched_corrections(store) == []


def test_section_scope_correction_rewrites_index(store: Store) -> None:
    document = ingest(store, MANUAL)
    with store.catalog.write() as connection:
        anchor = json.dumps(["Clock manual", "Power"])
        corrections.record(connection, document, "section", anchor, "hardware", ["h200"], "ana")
    ingest(store, REVISED)
    power = next(s for s in store.documents.sections(document) if s.heading == "Power")
    assert power.hardware == ("h200",)
    assert not store.by_words("draws", "h100")
    passages.correct(
        store.catalog, store.by_words("draws", "h200")[0].id, Patch(text="It draws 9 W."), "ana"
    )
    assert store.by_words("draws", "h200") and not store.by_words("draws", "h100")


def test_later_correction_of_a_field_wins(store: Store) -> None:
    document = ingest(store, MANUAL)
    clock = with_text(store, "parsecs")
    correct(store, clock, Patch(text="first try"))
    correct(store, clock, Patch(text="second try"))
    assert store.rows("corrections") == 1
    ingest(store, REVISED)
    assert "second try" in [p.text for p in store.passages_of(document)]


def test_invalid_corrections_are_refused(store: Store) -> None:
    ingest(store, MANUAL)
    clock = with_text(store, "parsecs")
    for patch in (Patch(), Patch(text="  ")):
        with pytest.raises(InvalidRequest):
            correct(store, clock, patch)
    with pytest.raises(NotFound):
        passages.correct(store.catalog, "psg_unknown", Patch(text="x"), "ana")
    with pytest.raises(NotFound):
        passages.correct(
            store.catalog, clock.id, Patch(text="x"), "ana", access_scope=AccessScope("team")
        )
