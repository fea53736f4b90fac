"""The knowledge as a tree to browse: category, hardware, topic, document, section, texts.

A path names a node: `hardware/h100/memory-bandwidth/doc_.../sec_...`; constraints and guidance have
no hardware level. Counts are of distinct live documents and passages. Counts of documents below a
topic and of sections below a document add up; a passage with two scopes or topics is counted under
both, so there the union of the children equals the node. Read-only; does not rank.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import sqlalchemy as sa
from annotated_types import MaxLen
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.hardware import HardwareRegistry
from kb.errors import NotFound, UnknownHardware, nearest
from kb.ids import sha256
from kb.plain import Doc
from kb.scope import ANY, CATEGORIES, AccessScope
from retrieval.knowledge_base import KnowledgeBase

UNTAGGED = "untagged"
_NEAREST = 5


@dataclass(frozen=True)
class Child:
    """A child of a node. `path` is its full path."""

    path: str
    kind: str
    title: str
    documents: int
    passages: int


@dataclass(frozen=True)
class PassageText:
    """One passage of a section, as displayed."""

    id: str
    text: str
    page_label: str | None


@dataclass(frozen=True)
class KnowledgeNode:
    """`kind` is root, category, hardware, topic, document or section. `path` is complete even if
    the request gave only part of a topic's name. Only a section has `texts`."""

    path: str
    kind: str
    title: str
    documents: int
    passages: int
    children: tuple[Child, ...] = ()
    texts: tuple[PassageText, ...] = ()
    hint: str = ""


@dataclass(frozen=True)
class _Place:
    """The filters that a path has selected so far."""

    access_scope: AccessScope
    path: tuple[str, ...] = ()
    kind: str = "root"
    title: str = "Knowledge"
    category: str | None = None
    hardware: str | None = None
    topics: tuple[str, ...] | None = None
    document: str | None = None
    section: str | None = None
    hint: str = ""


@dataclass
class _ChildCount:
    title: str
    documents: set[str] = field(default_factory=set)
    passages: set[int] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)


def knowledge_node(
    base: KnowledgeBase,
    path: Annotated[str, Doc("Like hardware/h100/memory. Empty: the root."), MaxLen(2000)] = "",
) -> KnowledgeNode:
    """The levels are category, hardware, topic, document and section, each with counts."""

    def read() -> KnowledgeNode:
        with base.catalog.read() as connection:
            return _at(connection, base.registry, path, base.access)

    # The counts read one row for every passage, so they are cached.
    return base.snapshots.current().keep("knowledge tree", (path, base.access), read)


def _at(
    connection: Connection, registry: HardwareRegistry, path: str, access_scope: AccessScope
) -> KnowledgeNode:
    place = _Place(access_scope)
    for segment in (part for part in path.split("/") if part.strip()):
        place = _step(connection, registry, place, segment.strip())
    return _node(connection, registry, place)


def topic_slug(topic: str) -> str:
    """A topic as a path segment: "memory bandwidth" is memory-bandwidth."""
    slug = re.sub(r"[\W_]+", "-", topic.casefold()).strip("-")
    if not slug:
        return f"topic-{sha256(topic)[:8]}"
    return slug if slug != UNTAGGED else f"{UNTAGGED}-topic"


# -- walking down


def _step(
    connection: Connection, registry: HardwareRegistry, place: _Place, segment: str
) -> _Place:
    below = _below(place)
    if below is None:
        raise NotFound(
            f"{'/'.join(place.path)} has nothing below it", hint="A section is the last level."
        )
    groups = _groups(connection, place, below)
    key, hint = segment, ""
    if below == "hardware" and key not in groups:
        key, hint = _hardware(registry, place, segment), ""
    elif below == "topic" and key not in groups:
        key, hint = _nearest_topic(segment, groups)
    # Categories and registered chips are nodes even without documents.
    if key not in groups and below != "hardware" and (below != "category" or key not in CATEGORIES):
        raise _missing(place, below, segment, groups)
    group = groups.get(key)
    known: dict[str, Any] = {name: getattr(place, name) for name in _Place.__dataclass_fields__}
    known |= {
        "path": (*place.path, key),
        "kind": below,
        "title": group.title if group else key,
        "hint": hint,
    }
    known["topics" if below == "topic" else below] = (
        tuple(sorted(group.topics)) if below == "topic" and group else key
    )
    return _Place(**known)


def _below(place: _Place) -> str | None:
    """The kind of a node's children."""
    if place.kind == "category":
        return "hardware" if place.category == "hardware" else "topic"
    order: dict[str, str] = {
        "root": "category",
        "hardware": "topic",
        "topic": "document",
        "document": "section",
    }
    return order.get(place.kind)


def _hardware(registry: HardwareRegistry, place: _Place, segment: str) -> str:
    if segment == ANY:
        return ANY
    try:
        return registry.resolve(segment)
    except UnknownHardware as error:
        error.hint = f"{error.hint} Documents are under {'/'.join(place.path)}."
        raise


def _nearest_topic(segment: str, groups: Mapping[str, _ChildCount]) -> tuple[str, str]:
    """The topic that an incomplete name matches: by its beginning, else by one of its words."""
    prefix = topic_slug(segment)
    if prefix in groups:
        return prefix, ""
    starts = [slug for slug in groups if slug.startswith(prefix)]
    words = [slug for slug in groups if any(w.startswith(prefix) for w in slug.split("-"))]
    parts = [slug for slug in groups if set(prefix.split("-")) <= set(slug.split("-"))]
    matches = starts or words or parts
    if not matches:
        return segment, ""
    ranked = sorted(matches, key=lambda slug: (-len(groups[slug].passages), slug))
    others = sorted((set(starts + words + parts)) - {ranked[0]})
    also = f"; also: {', '.join(others)}" if others else ""
    return ranked[0], f"{segment} is not a topic; this is the nearest{also}."


def _missing(
    place: _Place, below: str, segment: str, groups: Mapping[str, _ChildCount]
) -> NotFound:
    here = "/".join(place.path)
    by_title = {group.title: key for key, group in groups.items()}
    near = nearest(segment, groups, _NEAREST)
    near += [by_title[title] for title in nearest(segment, by_title, _NEAREST)]
    near = list(dict.fromkeys(near or sorted(groups)))[:_NEAREST]
    paths = ["/".join((*place.path, key)) for key in near]
    hint = f"Nearest: {', '.join(paths)}." if paths else f"{here or 'The store'} is empty."
    return NotFound(
        f"no {below} {segment!r} in {here or 'the knowledge tree'}",
        hint=f"{hint} Ask for the path {here!r} to see all of it.",
        details={"path": f"{here}/{segment}".strip("/"), "nearest": paths},
    )


# -- one node


def _node(connection: Connection, registry: HardwareRegistry, place: _Place) -> KnowledgeNode:
    below = _below(place)
    groups = _groups(connection, place, below) if below else {}
    children = tuple(
        Child(
            "/".join((*place.path, key)),
            below or "",
            group.title,
            len(group.documents),
            len(group.passages),
        )
        for key, group in groups.items()
    )
    total = connection.execute(
        _live(
            place,
            sa.func.count(t.passages.c.document_id.distinct()).label("documents"),
            sa.func.count(t.passages.c.seq.distinct()).label("passages"),
        )
    ).one()
    return KnowledgeNode(
        path="/".join(place.path),
        kind=place.kind,
        title=place.title,
        documents=total.documents,
        passages=total.passages,
        children=children,
        texts=_texts(connection, place),
        hint=place.hint or _empty_hint(registry, place, total.passages),
    )


def _empty_hint(registry: HardwareRegistry, place: _Place, passages: int) -> str:
    if passages or place.kind != "hardware" or place.hardware in (None, ANY):
        return ""
    above = [f"hardware/{name}" for name in registry.lineage(str(place.hardware))[1:]]
    also = f" Inherited knowledge is under {', '.join(above)}." if above else ""
    return f"No document is about {place.hardware} itself yet; upload its manual.{also}"


def _texts(connection: Connection, place: _Place) -> tuple[PassageText, ...]:
    if place.section is None:
        return ()
    columns = (t.passages.c[name] for name in ("id", "ordinal", "lead", "text", "page_label"))
    rows = connection.execute(_live(place, *columns).distinct()).all()
    ordered = sorted(rows, key=lambda passage: passage.ordinal)
    return tuple(
        PassageText(p.id, f"{p.lead}\n{p.text}" if p.lead else p.text, p.page_label)
        for p in ordered
    )


# -- counting


def _live(place: _Place, *columns: Any) -> sa.Select[Any]:
    """Live passages below a node."""
    query = (
        sa.select(*columns)
        .select_from(t.passages)
        .join(t.documents, t.documents.c.id == t.passages.c.document_id)
        .where(t.passages.c.active.is_(True), visible.passages(place.access_scope))
    )
    if place.category is not None:
        query = query.where(t.documents.c.category == place.category)
    if place.hardware is not None:
        about = t.passage_hardware
        query = query.where(
            sa.select(about.c.passage_id)
            .where(about.c.passage_id == t.passages.c.id, about.c.hardware_id == place.hardware)
            .exists()
        )
    if place.topics is not None:
        tagged = sa.select(t.passage_tags.c.passage_id).where(
            t.passage_tags.c.passage_id == t.passages.c.id, t.passage_tags.c.kind == "topic"
        )
        named = tagged.where(t.passage_tags.c.value.in_(place.topics))
        query = query.where(named.exists() if place.topics else ~tagged.exists())
    if place.document is not None:
        query = query.where(t.passages.c.document_id == place.document)
    if place.section is not None:
        query = query.where(t.passages.c.section_id == place.section)
    return query


def _groups(connection: Connection, place: _Place, below: str) -> dict[str, _ChildCount]:
    """Counts of the children, by path segment, in display order."""
    groups: dict[str, _ChildCount] = {}
    for row in connection.execute(_grouped(place, below)):
        key = _segment(below, row.key)
        group = groups.setdefault(key, _ChildCount(_title(below, row)))
        group.documents.add(row.document_id)
        group.passages.add(row.seq)
        if below == "topic" and row.key is not None:
            group.topics.add(row.key)
    if below == "section":
        return groups  # in reading order
    if below == "category":
        return {key: groups[key] for key in CATEGORIES if key in groups}
    return dict(sorted(groups.items(), key=lambda item: (item[1].title.casefold(), item[0])))


def _grouped(place: _Place, below: str) -> sa.Select[Any]:
    """One row per passage and group it belongs to."""
    passage: Sequence[Any] = (t.passages.c.seq, t.passages.c.document_id)
    if below == "category":
        return _live(place, *passage, t.documents.c.category.label("key"))
    if below == "document":
        return _live(place, *passage, t.documents.c.id.label("key"), t.documents.c.title)
    if below == "section":
        return (
            _live(place, *passage, t.sections.c.id.label("key"), t.sections.c.path)
            .join(t.sections, t.sections.c.id == t.passages.c.section_id)
            .order_by(t.sections.c.ordinal)
        )
    if below == "hardware":
        about = t.passage_hardware
        seen = place.access_scope.hardware
        named = sa.true() if seen is None else about.c.hardware_id.in_(sorted(seen))
        return (
            _live(place, *passage, about.c.hardware_id.label("key"))
            .where(named)
            .join(about, about.c.passage_id == t.passages.c.id)
        )
    tags = t.passage_tags
    return (
        _live(place, *passage, tags.c.value.label("key"))
        .outerjoin(tags, sa.and_(tags.c.passage_id == t.passages.c.id, tags.c.kind == "topic"))
        .order_by(tags.c.value)
    )  # of two spellings of a topic, the first is the title


def _segment(below: str, key: str | None) -> str:
    if below != "topic":
        return str(key)
    return UNTAGGED if key is None else topic_slug(key)


def _title(below: str, row: sa.Row[Any]) -> str:
    if below == "document":
        return str(row.title)
    if below == "section":
        return " > ".join(row.path) or "(before the first heading)"
    return UNTAGGED if row.key is None else str(row.key)
