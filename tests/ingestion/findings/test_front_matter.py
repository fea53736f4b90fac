"""Moves in front matter: checked when read, stored and deleted with the document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from ingestion.findings.front_matter import moves_of
from kb.catalog.knowledge import moves as stored
from kb.errors import InvalidKnowledge, InvalidPredicate
from kb.scope import AccessScope, ScopeFilter

if TYPE_CHECKING:
    from tests.fixtures import Store

GOOD = {
    "id": "shrink-the-tile",
    "when": "signals.register_spill and tile_m > 64",
    "change": {"role": "tile_m", "direction": "decrease", "factor": 2},
    "limit": "max_registers_per_thread",
    "section": "Smaller tiles spill less",
    "why": "A smaller tile needs fewer registers.",
}
MANUAL = """---
title: Spills
moves:
  - id: shrink-the-tile
    when: "signals.register_spill"
    change: {role: tile_m, direction: decrease}
    section: "Smaller tiles spill less"
    why: "A smaller tile needs fewer registers."
---
# Spills

## Smaller tiles spill less

A tile of half the size needs half the accumulators.
"""


def test_move_has_signals_of_its_predicate() -> None:
    [move] = moves_of({"moves": [GOOD]})
    assert (move.name, move.signals, move.limit) == (
        "shrink-the-tile",
        ("register_spill",),
        "max_registers_per_thread",
    )
    assert moves_of({}) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"why": ""}, "lacks why"),
        ({"change": {"role": "magic", "direction": "add"}}, "no known role"),
        ({"change": {"role": "tile_m", "direction": "sideways"}}, "no known direction"),
        ({"change": "more"}, "no known role"),
    ],
)
def test_invalid_move_is_named_with_its_error(changed: Mapping[str, Any], expected: str) -> None:
    with pytest.raises(InvalidKnowledge, match=expected) as refused:
        moves_of({"moves": [GOOD, {**GOOD, **changed}]})
    assert "moves[1]" in refused.value.message and refused.value.hint


def test_moves_must_be_a_list_of_mappings_with_predicates() -> None:
    for listed in ({"a": 1}, ["x"]):
        with pytest.raises(InvalidKnowledge):
            moves_of({"moves": listed})
    with pytest.raises(InvalidPredicate):
        moves_of({"moves": [{**GOOD, "when": "__import__('os')"}]})


def test_moves_are_deleted_with_their_document(store: Store) -> None:
    document = store.ingest("spills.md", MANUAL, hardware=("h100",), origin="builtin")
    with store.catalog.read() as connection:
        [move] = stored.of_document(connection, document.document_id)
    knowledge = store.snapshots.current().knowledge
    admitted = knowledge.fitting_moves(["register_spill"], store.scope("h100"))
    assert [m.id for m in admitted] == [move.id]
    for signals, scope in (
        (["memory_bound"], store.scope("h100")),
        (["register_spill"], store.scope("mi300x")),
        (["register_spill"], ScopeFilter(("any",))),
        (["register_spill"], ScopeFilter(None, access_scope=AccessScope("team"))),
    ):
        assert knowledge.fitting_moves(signals, scope) == []
    assert (move.status, move.section) == ("accepted", "Smaller tiles spill less")
    store.ingest("spills.md", MANUAL + "\nMore.\n", hardware=("h100",), origin="builtin")
    with store.catalog.read() as connection:
        assert [m.id for m in stored.of_document(connection, document.document_id)] == [move.id]
    store.documents.delete(document.document_id)
    assert store.rows("moves") == 0 and not store.snapshots.current().knowledge.moves


def test_moves_of_uploads_are_proposed_not_applied(store: Store) -> None:
    document = store.ingest("spills.md", MANUAL, hardware=("h100",))
    with store.catalog.read() as connection:
        [move] = stored.of_document(connection, document.document_id)
    assert move.status == "proposed"
    knowledge = store.snapshots.current().knowledge
    assert knowledge.fitting_moves(["register_spill"], store.scope("h100")) == []
