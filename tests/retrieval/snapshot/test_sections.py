"""Whole sections, and the documents of a chip, within the scope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kb.catalog.knowledge.section_texts import WholeSection
from kb.scope import ALL_ACCESS, ANY, AccessScope, ScopeFilter

if TYPE_CHECKING:
    from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=6)

LONG = " ".join(f"Sentence {n} says how tile {n} is laid out in the scratchpad." for n in range(90))
MANUAL = f"""\
# Orbit manual

Orbit is a chip.

## Memory

{LONG}

### Banks

There are 32 banks.

### Queues

A queue has 8 places.

## Language

```orbit
ldt t0, [x0]
```
"""
COMET = "# Comet manual\n\nComet has pages.\n"
H100 = ScopeFilter(("h100", "hopper", "nvidia", ANY))


def sections(store: Store, scope: ScopeFilter, *documents: str) -> list[WholeSection]:
    return store.snapshots.current().sections_of_documents(documents, scope)


def upload(store: Store, name: str, text: str, hardware: str, *languages: str) -> str:
    submitted = store.ingest(name, text, hardware=(hardware,), languages=languages)
    return str(submitted.document_id)


@pytest.fixture(scope="module")
def orbit(module_store: Store) -> str:
    return upload(module_store, "orbit.md", MANUAL, "h100", "orbit")


@pytest.fixture(scope="module")
def comet(module_store: Store) -> str:
    return upload(module_store, "comet.md", COMET, "mi300x")


def test_section_has_all_passages_in_order(module_store: Store, orbit: str) -> None:
    every = sections(module_store, H100, orbit)
    assert [s.path[-1] for s in every] == ["Orbit manual", "Memory", "Banks", "Queues", "Language"]
    memory = every[1]
    assert len(memory.passages) > 2
    text = " ".join(p.text for p in memory.passages)
    assert [f"Sentence {n} " in text for n in range(90)] == [True] * 90
    assert text.index("Sentence 3 ") < text.index("Sentence 80 ")
    snapshot = module_store.snapshots.current()
    assert snapshot.below([memory.id]) == {memory.id: [every[2].id, every[3].id]}
    assert snapshot.sections([memory.id], H100) == {memory.id: memory}
    assert snapshot.parents([memory.id, every[2].id, "sec_none"]) == {
        memory.id: every[0].id,
        every[2].id: memory.id,
    }
    assert snapshot.passages_of_sections([memory.id]) == list(memory.passages)


def test_sections_of_another_chip_are_not_read(module_store: Store, orbit: str, comet: str) -> None:
    assert sections(module_store, H100, comet) == []
    ids = [s.id for s in sections(module_store, ScopeFilter(None), comet)]
    snapshot = module_store.snapshots.current()
    assert ids and snapshot.sections(ids, H100) == {}
    [about] = snapshot.documents_about(("h100",), H100)
    assert about.id == orbit and about.title == "Orbit manual"
    texts = snapshot.texts_about(("h100",), H100)
    assert 0 < about.characters <= len(texts[orbit])
    assert list(texts) == [orbit] and "32 banks" in texts[orbit]
    [code] = snapshot.code_in(("h100",), "orbit", H100)
    assert "ldt t0" in code
    assert snapshot.code_in(("h100",), "comet", H100) == []
    assert snapshot.code_in(("mi300x",), "orbit", H100) == []
    assert snapshot.documents_for_language("orbit") == {orbit}
    assert snapshot.documents_for_language("comet") == frozenset()
    assert snapshot.languages_of("h100", ALL_ACCESS) == ("orbit",)


def test_restricted_caller_reads_no_sections_of_another_chip(
    module_store: Store, orbit: str, comet: str
) -> None:
    """Ids and scopes chosen by the caller give no access."""
    access = AccessScope(hardware=frozenset({"mi300x", "amd", ANY}))
    whole = ScopeFilter(None, access_scope=access)
    snapshot = module_store.snapshots.current()
    hidden = sections(module_store, H100, orbit)
    ids = [section.id for section in hidden]
    passages = [passage for section in hidden for passage in section.passages]
    assert sections(module_store, whole, orbit) == [] and sections(module_store, whole, comet)
    assert snapshot.sections(ids, whole) == {}
    assert snapshot.load([p.seq for p in passages], whole) == {}
    unknown = [*ids, passages[0].id, orbit]
    assert snapshot.unknown_ids([*unknown, comet], access) == unknown
    assert snapshot.unknown_ids([*unknown, comet], ALL_ACCESS) == []
    assert snapshot.languages_of("h100", access) == ()
    for hardware in (("h100",), ("mi300x",)):
        request = ScopeFilter(hardware, access_scope=access)
        assert not [d for d in snapshot.documents_about(hardware, request) if d.id == orbit]


def test_only_current_version_is_read(module_store: Store) -> None:
    scope = ScopeFilter(("a100", ANY))
    document = upload(module_store, "old.md", COMET, "a100")
    earlier = [s.id for s in sections(module_store, scope, document)]
    upload(module_store, "old.md", COMET.replace("pages", "sheets"), "a100")
    [now] = sections(module_store, scope, document)
    assert "sheets" in now.passages[0].text and now.id not in earlier
    assert module_store.snapshots.current().sections(earlier, scope) == {}


def test_documents_come_in_given_order(module_store: Store) -> None:
    scope = ScopeFilter(("h200", ANY))
    first = upload(module_store, "b.md", "# Second manual\n\nIt comes later.\n", "h200")
    second = upload(module_store, "a.md", "# First manual\n\nIt comes first.\n", "h200")
    ordered = sections(module_store, scope, first, second)
    assert [s.document_id for s in ordered] == [first, second]
    about = module_store.snapshots.current().documents_about(("h200",), scope)
    assert [d.source_key for d in about] == ["h200/a.md", "h200/b.md"]
