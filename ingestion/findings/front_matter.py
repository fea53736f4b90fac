"""The front matter of a document: its languages, tags for all of it, and moves, which are checked.

Knows nothing about the catalog or about which signals exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kb.catalog.knowledge.moves import DocumentMove
from kb.errors import InvalidKnowledge
from kb.moves_vocabulary import DIRECTIONS, ROLES
from kb.predicates import compile_predicate


def stated_languages(front_matter: Mapping[str, Any]) -> tuple[str, ...]:
    """The languages that a document says it is about."""
    stated = front_matter.get("languages")
    return tuple(map(str, stated)) if isinstance(stated, list) else ()


def stated_tags(front_matter: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The signals and topics of the whole document as (kind, value)."""
    tags = []
    for kind, key in (("signal", "signals"), ("topic", "topics")):
        values = front_matter.get(key)
        if isinstance(values, list):
            tags += [(kind, value) for value in values if isinstance(value, str)]
    return tags


def moves_of(front_matter: Mapping[str, Any]) -> list[DocumentMove]:
    """The moves of a document. Raises InvalidKnowledge for one that cannot be used."""
    listed = front_matter.get("moves") or []
    if not isinstance(listed, list):
        raise InvalidKnowledge(
            "front matter `moves` is not a list", hint="See hw_manuals/FORMAT.md."
        )
    return [_move(entry, number) for number, entry in enumerate(listed)]


def _move(entry: Any, number: int) -> DocumentMove:
    where = f"moves[{number}]"
    if not isinstance(entry, Mapping):
        raise InvalidKnowledge(f"{where} is not a mapping", hint="See hw_manuals/FORMAT.md.")
    missing = [key for key in ("id", "when", "change", "why") if not entry.get(key)]
    if missing:
        raise InvalidKnowledge(f"{where} lacks {', '.join(missing)}", hint="Add the missing keys.")
    change = entry["change"]
    if not isinstance(change, Mapping) or change.get("role") not in ROLES:
        raise InvalidKnowledge(
            f"{where} has no known role", hint=f"Use one of {', '.join(sorted(ROLES))}."
        )
    if change.get("direction") not in DIRECTIONS:
        raise InvalidKnowledge(
            f"{where} has no known direction", hint=f"Use one of {', '.join(sorted(DIRECTIONS))}."
        )
    predicate = compile_predicate(str(entry["when"]))
    return DocumentMove(
        name=str(entry["id"]),
        when=str(entry["when"]),
        signals=tuple(sorted(predicate.names().signals)),
        change=dict(change),
        limit=str(entry["limit"]) if entry.get("limit") else None,
        section=str(entry.get("section") or ""),
        why=str(entry["why"]),
    )
