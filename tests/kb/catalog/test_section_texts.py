"""Sections read whole, and the documents of a chip, always within the scope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kb.catalog.knowledge import section_texts
from kb.catalog.knowledge.section_texts import WholeSection
from kb.scope import ANY, ScopeFilter

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
FOREIGN = "# Comet manual\n\nComet has pages.\n"
H100 = ScopeFilter(("h100", "hopper", "nvidia", ANY))


def sections(store: Store, scope: ScopeFilter = H100, *documents: str) -> list[WholeSection]:
    with store.catalog.read() as connection:
        return section_texts.sections_of_documents(connection, documents, scope)


def upload(store: Store, name: str, text: str, hardware: str, *languages: str) -> str:
    submitted = store.ingest(name, text, hardware=(hardware,), languages=languages)
    return str(submitted.document_id)


def test_a_section_has_all_its_passages_in_order(store: Store) -> None:
    document = upload(store, "orbit.md", MANUAL, "h100")
    every = sections(store, H100, document)
    assert [s.path[-1] for s in every] == ["Orbit manual", "Memory", "Banks", "Queues", "Language"]
    memory = every[1]
    assert len(memory.passages) > 2
    text = " ".join(p.text for p in memory.passages)
    assert [f"Sentence {n} " in text for n in range(90)] == [True] * 90
    assert text.index("Sentence 3 ") < text.index("Sentence 80 ")
    with store.catalog.read() as connection:
        children = section_texts.below(connection, [memory.id])
        again = section_texts.whole_sections(connection, [memory.id], H100)
    assert children == {memory.id: [every[2].id, every[3].id]} and again == {memory.id: memory}
    assert every[2].parent_id == memory.id


def test_nothing_of_another_chip_is_read(store: Store) -> None:
    ours = upload(store, "orbit.md", MANUAL, "h100", "orbit")
    theirs = upload(store, "comet.md", FOREIGN, "mi300x")
    assert sections(store, H100, theirs) == []
    ids = [s.id for s in sections(store, ScopeFilter(None), theirs)]
    assert ids
    with store.catalog.read() as connection:
        assert section_texts.whole_sections(connection, ids, H100) == {}
        [about] = section_texts.documents_about(connection, ("h100",), H100)
        assert about.id == ours and about.title == "Orbit manual"
        texts = section_texts.texts_about(connection, ("h100",), H100)
        assert 0 < about.characters <= len(texts[ours])
        assert list(texts) == [ours] and "32 banks" in texts[ours]
        own_code = section_texts.code_in(connection, ("h100",), "orbit", H100)
        assert own_code and "ldt t0" in own_code[0]
        assert section_texts.code_in(connection, ("h100",), "comet", H100) == []
        assert section_texts.code_in(connection, ("mi300x",), "orbit", H100) == []
        assert section_texts.documents_for_language(connection, "orbit") == {ours}
        assert section_texts.documents_for_language(connection, "comet") == frozenset()


def test_only_the_current_version_is_read(store: Store) -> None:
    document = upload(store, "orbit.md", MANUAL, "h100")
    earlier = [s.id for s in sections(store, H100, document)]
    upload(store, "orbit.md", MANUAL.replace("32 banks", "64 banks"), "h100")
    now = sections(store, H100, document)
    assert "64 banks" in now[2].passages[0].text and not {s.id for s in now} & set(earlier)
    with store.catalog.read() as connection:
        assert section_texts.whole_sections(connection, earlier, H100) == {}


def test_documents_stand_in_the_given_order(store: Store) -> None:
    first = upload(store, "b.md", "# Second manual\n\nIt comes later.\n", "h100")
    second = upload(store, "a.md", "# First manual\n\nIt comes first.\n", "h100")
    assert [s.document_id for s in sections(store, H100, first, second)] == [first, second]
    with store.catalog.read() as connection:
        about = section_texts.documents_about(connection, ("h100",), H100)
    assert [d.source_key for d in about] == ["h100/a.md", "h100/b.md"]
