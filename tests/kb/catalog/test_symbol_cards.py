"""Symbol cards through versions, corrections and deletion, from uploaded documents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kb.catalog.knowledge import corrections, symbols, versions
from kb.catalog.knowledge.symbols import Symbol
from kb.errors import InvalidRequest, NotFound
from kb.plain import plain
from kb.scope import ALL_ACCESS, AccessScope

if TYPE_CHECKING:
    from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=6)

MANUAL = """\
# Orbit assembler

## Opcodes

| Opcode | Operands | Operation | Restrictions | Cycles |
|---|---|---|---|---|
| ldt | dst, [addr] | load a tile | addr is a multiple of 32 | 20 |
| stt | [addr], src | store a tile | addr is a multiple of 32 | 20 |

## Error messages

- `E1042`: scratchpad overflow. Use smaller tiles.
- `E1043`: bad shape.
"""
REVISED = MANUAL.replace("| stt |", "| put |") + "\nThe tile unit has a queue.\n"
OTHER = """\
# Comet assembler

## Opcodes

| Opcode | Operands | Operation |
|---|---|---|
| ldt | dst, addr | fetch a page |
| jmp | label | go on at a label |
"""


def upload(store: Store, text: str, name: str = "orbit.md", hardware: str = "h100") -> str:
    return str(store.ingest(name, text, hardware=(hardware,)).document_id)


def cards(store: Store, *hardware: str, **given: Any) -> list[Symbol]:
    with store.catalog.read() as connection:
        return symbols.listed(connection, hardware or None, **given)


def card(store: Store, name: str, hardware: str = "h100") -> Symbol:
    [only] = [c for c in cards(store, hardware) if c.name == name]
    return only


def test_uploaded_manual_stores_its_cards_in_order(store: Store) -> None:
    upload(store, MANUAL)
    assert [c.name for c in cards(store, "h100")] == ["ldt", "stt", "E1042", "E1043"]
    load = card(store, "ldt")
    assert load.meaning == "load a tile" and load.limits == ("addr is a multiple of 32",)
    assert load.path[-1] == "Opcodes" and load.document_title == "Orbit assembler"
    assert (load.hardware, load.version, load.corrected) == (("h100",), 1, False)
    assert card(store, "E1042").kind == "error"
    assert plain(load)["operands"] == [list(pair) for pair in load.operands] != []


def test_new_version_replaces_cards(store: Store) -> None:
    document = upload(store, MANUAL)
    assert upload(store, REVISED) == document
    assert [c.name for c in cards(store)] == ["ldt", "put", "E1042", "E1043"]
    assert {c.version for c in cards(store)} == {2}


def test_rereading_version_adds_no_duplicates(store: Store) -> None:
    upload(store, MANUAL)
    before = cards(store)
    with store.catalog.write() as connection:
        own = store.documents.version_id(connection, before[0].document_id, None, ALL_ACCESS)
        version = versions.current_version(connection, own)
        symbols.replace_version_symbols(connection, [(version, [])])
    assert cards(store) == []


def test_cards_belong_to_one_chip(store: Store) -> None:
    upload(store, MANUAL)
    upload(store, OTHER, "comet.md", "mi300x")
    assert {c.name for c in cards(store, "mi300x", "amd", "any")} == {"ldt", "jmp"}
    assert card(store, "ldt").meaning != card(store, "ldt", "mi300x").meaning
    assert "jmp" not in {c.name for c in cards(store, "h100", "hopper", "nvidia", "any")}
    with store.catalog.read() as connection:
        named = symbols.listed(connection, names={"ldt", "jmp"})
        nobody = symbols.listed(connection, access_scope=AccessScope("team-b"))
    assert sorted(c.name for c in named) == ["jmp", "ldt", "ldt"] and nobody == []


def test_correction_survives_next_version(store: Store) -> None:
    upload(store, MANUAL)
    load = card(store, "ldt")
    fixed = symbols.correct(store.catalog, load.id, {"meaning": "load 32 bytes"}, "ana")
    assert fixed == replace(load, meaning="load 32 bytes", corrected=True)
    symbols.correct(store.catalog, load.id, {"limits": ["not in a loop"]}, "ana")
    upload(store, REVISED)
    after = card(store, "ldt")
    assert (after.version, after.meaning, after.corrected) == (2, "load 32 bytes", True)
    assert after.limits == ("not in a loop",) and after.signature == load.signature
    assert not card(store, "put").corrected


def test_correction_of_a_removed_name_is_listed_and_dropped(store: Store) -> None:
    document = upload(store, MANUAL)
    symbols.correct(store.catalog, card(store, "stt").id, {"limits": ["not twice"]}, "ana")
    upload(store, MANUAL + "\nMore.\n")
    with store.catalog.read() as connection:
        assert corrections.unfit(connection, document) == []
    upload(store, REVISED)
    with store.catalog.write() as connection:
        [lost] = corrections.unfit(connection, document)
        assert (lost.target, lost.field, lost.path) == ("symbol", "card", ("stt",))
        assert lost.text == "limits: not twice" and lost.actor == "ana"
        assert "card 'limits: not twice' (under stt)" in corrections.remarks([lost])[0]
        assert corrections.drop(connection, document, lost.id)
        assert corrections.unfit(connection, document) == []


def test_correction_made_from_earlier_version_applies(store: Store) -> None:
    """A user may list the cards before the next version is activated."""
    upload(store, MANUAL)
    listed_before = card(store, "ldt")
    upload(store, REVISED)
    symbols.correct(store.catalog, listed_before.id, {"meaning": "load 32 bytes"}, "ana")
    assert card(store, "ldt").meaning == "load 32 bytes"
    assert card(store, "ldt").corrected and card(store, "ldt").version == 2


@pytest.mark.parametrize(
    "fix", [{}, {"name": "x"}, {"limits": "one text"}, {"meaning": 3}, {"limits": [1]}]
)
def test_invalid_correction_is_refused(store: Store, fix: dict[str, object]) -> None:
    upload(store, MANUAL)
    load = card(store, "ldt")
    with pytest.raises(InvalidRequest):
        symbols.correct(store.catalog, load.id, fix, "ana")
    assert card(store, "ldt") == load


def test_card_of_another_scope_cannot_be_corrected(store: Store) -> None:
    upload(store, MANUAL)
    for identity, scope in (
        (card(store, "ldt").id, AccessScope("team-b")),
        ("sym_nonesuch", ALL_ACCESS),
    ):
        with pytest.raises(NotFound):
            symbols.correct(store.catalog, identity, {"meaning": "mine"}, "eve", access_scope=scope)


def test_deleted_document_removes_its_cards(store: Store) -> None:
    document = upload(store, MANUAL)
    upload(store, OTHER, "comet.md", "mi300x")
    store.documents.delete(document)
    assert {c.name for c in cards(store)} == {"ldt", "jmp"}
    assert store.rows("symbols") == 2
