"""Facts from documents after a deletion or a new version of the document."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kb.catalog.facts import Fact
from kb.catalog.knowledge.documents import erase_deleted, remove_orphan_facts
from kb.catalog.tables import facts
from kb.errors import Conflict, InvalidKnowledge, InvalidRequest
from kb.hardware.schema import parse_hardware
from tests.stored_text import files_with

pytestmark = pytest.mark.slow(seconds=4)

if TYPE_CHECKING:
    from tests.fixtures import Store

SENTENCE = "The Orbis-3 has 96 GB of memory."
SHEET = f"""# Orbis-3 qyzzavon data sheet

{SENTENCE}

| Property | Orbis-3 |
|---|---|
| L2 cache size | 48 MiB |
| Memory bandwidth | 820 GB/s |
| TDP | 333 W |
"""
OTHER = """# Orbis-3 overview

| Property | Orbis-3 |
|---|---|
| L2 cache size | 48 MiB |
"""


@pytest.fixture
def orbis(store: Store) -> Store:
    store.registry.put(parse_hardware({"id": "orbis-3", "name": "Orbis-3", "vendor": "o"}, "t"), "")
    return store


def ingest(store: Store, name: str, text: str) -> str:
    return store.ingest(name, text, hardware=("orbis-3",)).document_id


def proposed(store: Store) -> dict[str, Fact]:
    return {fact.key: fact for fact in store.registry.facts("orbis-3", status="proposed")}


def accept_all(store: Store) -> None:
    ids = [fact.id for fact in store.registry.facts("orbis-3", status="proposed")]
    store.registry.set_status(ids, "accepted", "ana")


def test_deleted_document_removes_its_accepted_facts(orbis: Store) -> None:
    document = ingest(orbis, "sheet.md", SHEET)
    accept_all(orbis)
    bandwidth = orbis.registry.effective_facts("orbis-3")["memory_bandwidth"]
    orbis.registry.patch_fact(bandwidth.id, number=8.1e11, actor="ana")
    assert files_with(orbis.data_dir, "yzzavon")
    gone = orbis.documents.delete(document)
    assert (gone.removed, gone.accepted, gone.stated_elsewhere) == (3, 3, 0)
    [stored] = orbis.registry.facts("orbis-3")  # entered by a person, without a source
    assert (stored.value, stored.actor, stored.cell, stored.document_id) == (
        8.1e11,
        "ana",
        None,
        None,
    )
    assert stored.title == "corrected by a person; the document was deleted" and not stored.locator
    assert list(orbis.registry.effective_facts("orbis-3")) == ["memory_bandwidth"]
    assert erase_deleted(orbis.catalog, orbis.blobs)
    assert files_with(orbis.data_dir, "yzzavon") == []


def test_fact_stated_by_two_documents_survives_deletion_of_one(orbis: Store) -> None:
    document = ingest(orbis, "sheet.md", SHEET)
    accept_all(orbis)
    other = ingest(orbis, "overview.md", OTHER)
    gone = orbis.documents.delete(document)
    assert (gone.removed, gone.accepted, gone.stated_elsewhere) == (4, 4, 1)
    [l2] = orbis.registry.effective_facts("orbis-3").values()
    assert (l2.key, l2.value, l2.document_id, l2.actor) == ("l2_size", 48 * 2**20, other, "ana")


def test_value_rejected_for_another_document_stays_rejected(orbis: Store) -> None:
    document = ingest(orbis, "sheet.md", SHEET)
    accept_all(orbis)
    ingest(orbis, "overview.md", OTHER)
    orbis.registry.set_status([proposed(orbis)["l2_size"].id], "rejected", "ana")
    assert orbis.documents.delete(document).stated_elsewhere == 0
    assert orbis.registry.effective_facts("orbis-3") == {}


def test_facts_of_documents_deleted_by_older_releases_are_erased_at_start(orbis: Store) -> None:
    ingest(orbis, "sheet.md", SHEET)
    accept_all(orbis)
    with orbis.catalog.write() as connection:
        connection.execute(facts.update().values(document_id="doc_gone"))
    assert remove_orphan_facts(orbis.catalog) == 1
    assert orbis.registry.facts("orbis-3") == []
    assert remove_orphan_facts(orbis.catalog) == 0
    assert erase_deleted(orbis.catalog, orbis.blobs)


def test_new_version_that_repeats_value_keeps_decision(orbis: Store) -> None:
    ingest(orbis, "sheet.md", SHEET)
    accept_all(orbis)
    ingest(orbis, "sheet.md", SHEET.replace("| TDP |", "| Cores | many |\n| TDP |"))
    assert proposed(orbis) == {} and orbis.registry.outdated("orbis-3") == []
    assert len(orbis.registry.effective_facts("orbis-3")) == 4


def test_conflicting_value_of_a_new_version_is_reported(orbis: Store) -> None:
    document = ingest(orbis, "sheet.md", SHEET)
    accept_all(orbis)
    ingest(orbis, "sheet.md", SHEET.replace("820", "860").replace("| TDP | 333 W |\n", ""))
    changed, dropped = orbis.registry.outdated("orbis-3")
    assert (changed.key, changed.accepted.value) == ("memory_bandwidth", 8.2e11)
    assert (changed.version, changed.current_version) == (1, 2)
    assert [now.value for now in changed.now] == [8.6e11] and changed.document_id == document
    assert (dropped.key, dropped.now) == ("power", ())
    effective = orbis.registry.effective_facts("orbis-3")
    assert effective["memory_bandwidth"].value == 8.2e11  # the person's decision stays
    orbis.registry.set_status([changed.now[0].fact_id], "accepted", "ben")
    assert orbis.registry.effective_facts("orbis-3")["memory_bandwidth"].value == 8.6e11
    assert [entry.key for entry in orbis.registry.outdated("orbis-3")] == ["power"]
    [old] = [f for f in orbis.registry.facts("orbis-3", status="rejected")]
    assert (old.value, old.actor) == (8.2e11, "ben")


def test_reworded_value_of_a_new_version_is_not_outdated(orbis: Store) -> None:
    twice = SHEET + "\nThe L2 cache of the Orbis-3 is 48 MiB.\n"
    ingest(orbis, "sheet.md", twice)
    accept_all(orbis)
    ingest(orbis, "sheet.md", twice.replace("is 48 MiB", "is 48 MiB large"))
    assert orbis.registry.outdated("orbis-3") == []
    assert orbis.registry.effective_facts("orbis-3")["l2_size"].value == 48 * 2**20


def test_correction_of_a_value_can_be_withdrawn(orbis: Store) -> None:
    ingest(orbis, "sheet.md", SHEET)
    fact = proposed(orbis)["memory_bandwidth"]
    for number in (900e9, 910e9):  # a second correction keeps the parsed value
        fixed = orbis.registry.patch_fact(fact.id, number=number, actor="ana")
    assert (fixed.number, fixed.origin, fixed.status) == (910e9, "person", "accepted")
    ingest(orbis, "sheet.md", SHEET.replace("333 W", "350 W"))  # stated again in a new version
    back = orbis.registry.patch_fact(fact.id, withdraw=True, actor="ana")
    assert (back.number, back.text, back.origin) == (fact.number, fact.text, fact.origin)
    assert back.status == "proposed" and back.cell == fact.cell
    with pytest.raises(Conflict, match="not a correction"):
        orbis.registry.patch_fact(fact.id, withdraw=True, actor="ana")
    with pytest.raises(InvalidRequest):
        orbis.registry.patch_fact(fact.id, withdraw=True, status="accepted", actor="ana")


def test_corrected_value_is_checked_as_in_hardware_toml(orbis: Store) -> None:
    ingest(orbis, "sheet.md", SHEET)
    before = proposed(orbis)
    size, power = before["l2_size"], before["power"]
    for fact, value in (
        (size, {"text": "banana"}),
        (size, {"number": -1.0, "text": "-1"}),
        (size, {"number": 48.0, "text": "48"}),
        (power, {"text": "3 GB"}),
        (power, {"number": float("inf"), "text": "inf"}),
    ):
        stated = {
            "key": fact.key,
            "value": value.get("number", value.get("text")),
            "unit": fact.unit,
            "kind": "datasheet",
            "title": "t",
            "publisher": "p",
            "locator": "l",
            "date": "2026-01-01",
        }
        chip = {"id": "orbis-4", "name": "Orbis-4", "vendor": "o", "facts": [stated]}
        with pytest.raises(InvalidKnowledge):
            parse_hardware(chip, "t")
        with pytest.raises(InvalidKnowledge, match=fact.key) as refused:
            orbis.registry.patch_fact(fact.id, **value, actor="ana")
        assert fact.unit in refused.value.hint
    assert proposed(orbis) == before
    converted = orbis.registry.patch_fact(size.id, text="3 GB", actor="ana")
    assert (converted.number, converted.unit) == (3 * 2**30, "B")
    fixed = orbis.registry.patch_fact(size.id, number=96.0 * 2**20, text="100663296", actor="ana")
    assert (fixed.number, fixed.status) == (96.0 * 2**20, "accepted")
