"""The front matter of a document: languages, tags for all of it, the versions of tools for which
it holds, and moves, which are checked.

Knows nothing about the catalog or about which signals exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kb.catalog.knowledge.moves import DocumentMove
from kb.catalog.knowledge.validities import StatedValidity
from kb.catalog.knowledge.versions import VersionContent
from kb.errors import InvalidKnowledge
from kb.predicates import compile_predicate
from kb.problem_terms import DIRECTIONS, ROLES
from kb.validity import Checked, Validity, load_tools, seen_with, validity_of


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


# A source that is a compiler's output rather than a text about it.
_COMPILED = re.compile(r"\b(?:compil(?:ed|ing)|assembled|SASS|disassembl\w+)\b", re.IGNORECASE)


def stated_validities(
    front_matter: Mapping[str, Any], headings: Sequence[str]
) -> list[StatedValidity]:
    """What a document with these headings states under `validity`, for itself or for a section.
    Raises InvalidKnowledge for an entry that cannot be used."""
    listed = _listed(front_matter, "validity")
    return [_validity(entry, number, headings) for number, entry in enumerate(listed)]


def _listed(front_matter: Mapping[str, Any], key: str) -> list[Any]:
    listed = front_matter.get(key) or []
    if not isinstance(listed, list):
        raise InvalidKnowledge(
            f"front matter `{key}` is not a list", hint="See hw_manuals/FORMAT.md."
        )
    return listed


def validities_of(front_matter: Mapping[str, Any], content: VersionContent) -> list[StatedValidity]:
    """The versions of tools for which a document holds: those that it states, then those in the
    titles of its sources, with the day on which these were read, for each section that is about the
    tool; and, without a tool, the last day on which a source was read. Raises InvalidKnowledge as
    `stated_validities`."""
    headings = [section.path[-1] if section.path else "" for section in content.sections]
    stated = stated_validities(front_matter, headings)
    own = {entry.validity.tool for entry in stated if entry.section is None}
    texts = _texts(content)
    for validity in dict.fromkeys(_of_sources(front_matter)):
        signs = load_tools().by_id[validity.tool].signs
        if validity.tool not in own:
            about = [n for n, text in enumerate(texts) if signs.search(text)]
            stated += [StatedValidity(validity, section) for section in about]
    days = [str(source["read"]) for source in _sources(front_matter)]
    return [*stated, StatedValidity(Validity(date=max(days)))] if days else stated


def _texts(content: VersionContent) -> list[str]:
    """The text of each section, with its heading."""
    texts = [[section.path[-1] if section.path else ""] for section in content.sections]
    for passage in content.passages:
        texts[passage.section].append(passage.shown)
    return ["\n".join(parts) for parts in texts]


def _of_sources(front_matter: Mapping[str, Any]) -> Iterator[Validity]:
    for source in _sources(front_matter):
        title, where = str(source["title"]), str(source.get("locator", ""))
        compiled = _COMPILED.search(f"{title} {where}") is not None
        checked: Checked = "compiled" if compiled else "read"
        yield from seen_with(title, checked=checked, date=str(source["read"]))


def _sources(front_matter: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The sources with a title and the day on which they were read."""
    listed = front_matter.get("sources")
    rows = listed if isinstance(listed, list) else ()
    return [r for r in rows if isinstance(r, Mapping) and r.get("title") and r.get("read")]


def _validity(entry: Any, number: int, headings: Sequence[str]) -> StatedValidity:
    where = f"validity[{number}]"
    if not isinstance(entry, Mapping):
        raise InvalidKnowledge(f"{where} is not a mapping", hint="See hw_manuals/FORMAT.md.")
    heading = entry.get("section")
    if heading is not None and heading not in headings:
        raise InvalidKnowledge(
            f"{where}: no section {heading!r}", hint="Name a heading of the document."
        )
    row = {key: value for key, value in entry.items() if key != "section"}
    try:
        return StatedValidity(
            validity_of(row), None if heading is None else headings.index(heading)
        )
    except ValueError as error:
        hint = "See hw_manuals/FORMAT.md."
        raise InvalidKnowledge(f"{where}: {error}", hint=hint) from error


def moves_of(front_matter: Mapping[str, Any]) -> list[DocumentMove]:
    """The moves of a document. Raises InvalidKnowledge for one that cannot be used."""
    return [_move(entry, number) for number, entry in enumerate(_listed(front_matter, "moves"))]


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
