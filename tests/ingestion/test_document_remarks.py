"""Remarks of a job about other documents: two under one name, one under two."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestion.uploads import restore_version
from kb.hardware.spec import HardwareSpec
from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=5)

ALPHA = """# Anvil tile guide

The anvil has seventeen lanes for each forge unit, and a porter moves rows of 128 bytes.

## Porters

A porter that is asked for more than eight rows stops the sequencer until one is done.
"""
BETA = """# Bellows network notes

Links of this generation carry packets in both directions; retries are counted by the switch.

## Switches

Congestion shows first in the egress queue, which holds sixty entries per neighbour.
"""


def paragraphs(count: int) -> str:
    return "\n".join(
        f"## Part {n}\n\nOf part {n} the manual says that {n + 3} of its {n * 7} rows are kept.\n"
        for n in range(count)
    )


MANUAL = "# Anvil manual, revision 0.9\n\n" + paragraphs(12)
REVISED = MANUAL.replace("revision 0.9", "revision 1.0").replace("says that 6", "tells that 6")


def remarks(store: Store, name: str, text: str, **given: object) -> list[str]:
    submitted = store.ingest(name, text, hardware=("h100",), **given)
    result = store.jobs.get(submitted.job_id or "").result or {}
    output: list[str] = result["remarks"]
    return output


def test_unrelated_file_of_same_name_needs_confirmation(store: Store) -> None:
    assert remarks(store, "guide.md", ALPHA) == []
    refused = store.jobs.get(store.ingest("guide.md", BETA, hardware=("h100",)).job_id or "")
    assert refused.state == "failed" and refused.error is not None
    assert refused.error["code"] == "unrelated_version" and refused.error["hint"]
    assert "'Bellows network notes' would replace 'Anvil tile guide'" in refused.error["message"]
    assert titles(store) == {"Anvil tile guide"}
    [output] = remarks(store, "guide.md", BETA, replace=True)
    assert output.startswith("replaces 'Anvil tile guide', with which it shares no text; ")
    assert "documents restore" in output
    assert titles(store) == {"Bellows network notes"}
    document = store.documents.find(hardware="h100")[0]
    restored = restore_version(store.uploads, store.documents, store.blobs, document.id, 1)
    assert restored.outcome == "new_version" and restored.job_id
    store.worker().drain()
    assert titles(store) == {"Anvil tile guide"}


def titles(store: Store) -> set[str]:
    return {document.title for document in store.documents.find(hardware="h100")}


def test_short_texts_of_one_pattern_are_not_revisions(store: Store) -> None:
    text = "# {0} guide\n\n{0} has {1} lanes for each press unit.\n"
    assert remarks(store, "guide.md", text.format("Flint one", 17)) == []
    [output] = remarks(store, "guide.md", text.format("Slate two", 23), replace=True)
    assert output.startswith("replaces 'Flint one guide', with which it shares ")


@pytest.mark.parametrize(("before", "after"), [(MANUAL, REVISED), (ALPHA, ALPHA + "\nMore.\n")])
def test_revision_has_no_remark(store: Store, before: str, after: str) -> None:
    assert remarks(store, "guide.md", before) == []
    assert remarks(store, "guide.md", after) == []


def test_reworded_revision_with_another_title_has_no_remark(store: Store) -> None:
    assert remarks(store, "guide.md", ALPHA) == []
    text = ALPHA.replace("tile guide", "guide 2").replace("seventeen", "19").replace("eight", "12")
    assert remarks(store, "guide.md", text) == []


def test_near_duplicate_under_another_name_is_reported(store: Store) -> None:
    assert remarks(store, "manual.md", MANUAL) == []
    [output] = remarks(store, "manual-v2.md", REVISED)
    assert "shares 9" in output and "'Anvil manual, revision 0.9'" in output
    assert "--source-key 'h100/manual.md'" in output
    # As a version of the other it replaces that one; the first attempt still exists.
    assert remarks(store, "manual-v3.md", REVISED + "\nMore.\n", source_key="h100/manual.md") != []
    assert remarks(store, "other.md", ALPHA) == []


def test_same_text_about_another_chip_is_not_a_duplicate(store: Store) -> None:
    assert remarks(store, "manual.md", MANUAL) == []
    submitted = store.ingest("manual-v2.md", REVISED, hardware=("mi300x",))
    assert (store.jobs.get(submitted.job_id or "").result or {})["remarks"] == []


def test_equal_names_in_two_folders_are_two_documents(store: Store, tmp_path: Path) -> None:
    """The name includes the path below a folder."""
    assert remarks(store, "a/guide.md", ALPHA) == remarks(store, "b/guide.md", BETA) == []
    assert len(store.documents.find(hardware="h100")) == 2


DATASHEET = """# NVIDIA H100 SXM5 80 GB datasheet

## Specifications of the H100

| Specification | H100 SXM5 |
|---|---|
| Memory bandwidth | 3.35 TB/s |
| Memory size | 80 GB |
"""


def test_manual_of_a_known_chip_under_a_new_id_says_why_it_gives_no_facts(store: Store) -> None:
    store.registry.put(HardwareSpec("acme-x9", "Acme X9", "acme"), "api")
    submitted = store.ingest("datasheet.md", DATASHEET, hardware=("acme-x9",))
    result = store.jobs.get(submitted.job_id or "").result or {}
    [remark] = result["remarks"]
    assert result["facts_proposed"] == 0
    assert "none is proposed for acme-x9" in remark and "h100" in remark and "parent" in remark
