"""Reading passages: what a search hit turns into, a document's passages in order, and corrections
by a person.

`load` is the check every hit passes before it leaves: it joins the catalog, so a passage that was
deleted, superseded or scoped to another chip since it was indexed is simply not there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.dialect import driver_sql
from kb.catalog.engine import Catalog
from kb.catalog.kept import kept, look_up
from kb.catalog.knowledge import corrections
from kb.catalog.knowledge.versions import check_document, hardware_of_passages, reindex_section
from kb.catalog.meta import bump_revision
from kb.catalog.rows import portions
from kb.embedding import embedding_text
from kb.errors import InvalidRequest, NotFound
from kb.ids import sha256
from kb.scope import ALL_ACCESS, ANY, AccessScope, ScopeFilter


class Passage(NamedTuple):
    """A passage with all a citation needs. `prose` is the share of function words in per mille. A
    tuple, because a request makes hundreds: that takes a fifth of the time of a frozen dataclass.
    """

    seq: int
    id: str
    document_id: str
    document_title: str
    version: int
    category: str
    section_id: str
    section_seq: int
    path: tuple[str, ...]
    ordinal: int
    kind: str
    lead: str
    text: str
    language: str | None
    page_index: int | None
    page_label: str | None
    boxes: tuple[Mapping[str, Any], ...]
    prose: int
    hardware: tuple[str, ...]
    tags: tuple[tuple[str, str], ...] = ()
    corrected: bool = False

    @property
    def shown(self) -> str:
        """The text under its table header, if it has one."""
        return f"{self.lead}\n{self.text}" if self.lead else self.text


_SELECT = (
    sa.select(
        t.passages,
        t.documents.c.title,
        t.documents.c.category,
        t.document_versions.c.number,
        t.sections.c.path,
        t.sections.c.seq.label("section_seq"),
    )
    .join(t.documents, t.documents.c.id == t.passages.c.document_id)
    .join(t.document_versions, t.document_versions.c.id == t.passages.c.version_id)
    .join(t.sections, t.sections.c.id == t.passages.c.section_id)
)


class About(NamedTuple):
    """What a scope is checked against: the owner, the category, and what a passage and its document
    are about.
    """

    owner: str
    category: str
    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    document_hardware: tuple[str, ...]

    def is_within(self, scope: ScopeFilter) -> bool:
        """Whether the scope admits it."""
        access = scope.access_scope
        if self.owner != access.owner or self.category not in scope.categories:
            return False
        if access.restricted and not access.sees(self.document_hardware):
            return False
        if not scope.admits_languages(self.languages):
            return False
        return scope.hardware is None or any(place in scope.hardware for place in self.hardware)


class Live(NamedTuple):
    """A live passage with what its scope is checked against."""

    passage: Passage
    about: About


def load(connection: Connection, seqs: Iterable[int], scope: ScopeFilter) -> dict[int, Passage]:
    """The passages among `seqs` that are live and within the scope, by number."""
    access = scope.access_scope
    restricted = access.restricted
    within: dict[About, bool] = {}  # a request reads hundreds of passages about a few places
    passages: dict[int, Passage] = {}
    for seq, (passage, about) in live_rows(connection, seqs).items():
        admitted = within.get(about)
        if admitted is None:
            admitted = within[about] = about.is_within(scope)
        if admitted:
            passages[seq] = _as_seen(passage, access) if restricted else passage
    return passages


def live_rows(connection: Connection, seqs: Iterable[int]) -> dict[int, Live]:
    """The passages among `seqs` that are live, of any scope, by number."""
    rows = look_up(
        connection, "passages", sorted(set(seqs)), partial(_read, connection), skills=False
    )
    return {seq: row for seq, row in rows.items() if row is not None}


def kept_rows(connection: Connection, seqs: Sequence[int]) -> dict[int, Live | None]:
    """The rows that `live_rows` has read before, of any scope; None for what is not live."""
    return kept(connection, "passages", seqs, skills=False)


def live(connection: Connection, seqs: Iterable[int]) -> dict[int, Passage]:
    """As `live_rows`, the passages alone: for what is not shown."""
    return {seq: row.passage for seq, row in live_rows(connection, seqs).items()}


def _as_seen(passage: Passage, access: AccessScope) -> Passage:
    """Without the names of other chips that it is about."""
    if not access.restricted:
        return passage
    return passage._replace(hardware=access.visible_hardware(passage.hardware))


def _read(connection: Connection, seqs: Sequence[int]) -> dict[int, Live | None]:
    """What stands under these numbers; None where that is not live."""
    live: dict[int, Live | None] = dict.fromkeys(seqs)
    for part in portions(seqs):
        rows = connection.exec_driver_sql(
            f"{driver_sql(connection, _READ)} AND p.seq IN ({','.join(map(str, part))})"
        ).all()
        about_of = scopes_of_documents(connection)
        for access, document_id, corrected, path, boxes, hardware, *values in rows:
            fields = dict(zip(_PLAIN, values, strict=True))
            fields |= {name: sys.intern(fields[name]) for name in _SHARED}
            passage = Passage(
                **fields,
                document_id=sys.intern(document_id),
                path=path_of(path),
                boxes=tuple(json.loads(boxes)) if boxes != "[]" else (),
                hardware=names_of(hardware or ""),
                corrected=bool(corrected),
            )
            about = about_of(access, passage.category, passage.hardware, document_id)
            live[passage.seq] = Live(passage, about)
    return live


@lru_cache(maxsize=20_000)
def names_of(joined: str) -> tuple[str, ...]:
    """Hardware ids from a list with commas. Passages of a document share one tuple."""
    return tuple(sorted(joined.split(","))) if joined else ()


@lru_cache(maxsize=20_000)
def _about(
    owner: str,
    category: str,
    hardware: tuple[str, ...],
    languages: tuple[str, ...],
    document_hardware: tuple[str, ...],
) -> About:
    """The same object for all passages that are about the same."""
    return About(owner, category, hardware, languages, document_hardware)


# Fields of a passage that are columns as they are.
_PLAIN = {
    "seq": "p.seq",
    "id": "p.id",
    "document_title": "d.title",
    "version": "v.number",
    "category": "d.category",
    "section_id": "p.section_id",
    "section_seq": "s.seq",
    "ordinal": "p.ordinal",
    "kind": "p.kind",
    "lead": "p.lead",
    "text": "p.text",
    "language": "p.language",
    "page_index": "p.page_index",
    "page_label": "p.page_label",
    "prose": "p.prose",
}
# What many passages have in common: one object for all of them is half the memory of a passage.
_SHARED = ("document_title", "category", "section_id", "kind", "lead")
# As text, because a request reads hundreds of them.
_READ = (
    "SELECT p.access_scope, p.document_id, p.corrected, s.path, p.boxes,"
    " (SELECT joined(h.hardware_id) FROM passage_hardware h WHERE h.passage_id = p.id),"
    f" {', '.join(_PLAIN.values())}"
    " FROM passages p JOIN documents d ON d.id = p.document_id"
    " JOIN document_versions v ON v.id = p.version_id JOIN sections s ON s.id = p.section_id"
    " WHERE p.active"
)


@lru_cache(maxsize=20_000)
def path_of(text: str) -> tuple[str, ...]:
    """The headings of a section, which all its passages share."""
    return tuple(json.loads(text))


def sections_of(connection: Connection, section_seqs: Iterable[int]) -> dict[int, list[int]]:
    """Passage numbers of sections (by section number), in order."""
    members = look_up(
        connection,
        "members",
        sorted(set(section_seqs)),
        partial(_read_members, connection),
        skills=False,
    )
    return {section: seqs for section, seqs in members.items() if seqs}


def _read_members(connection: Connection, section_seqs: Sequence[int]) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {seq: [] for seq in section_seqs}
    for part in portions(section_seqs):
        rows = connection.exec_driver_sql(
            "SELECT s.seq, p.seq FROM sections s JOIN passages p ON p.section_id = s.id"
            f" WHERE s.seq IN ({','.join(map(str, part))}) AND p.active ORDER BY p.seq"
        )
        for section_seq, seq in rows.all():
            members[section_seq].append(seq)
    return members


def of_sections(
    connection: Connection, section_ids: Iterable[str]
) -> list[tuple[int, str, str, str]]:
    """(number, section, category, text) of the live passages of sections, by number."""
    rows: list[tuple[int, str, str, str]] = []
    for part in portions(sorted(set(section_ids))):
        matching = connection.execute(
            sa.select(
                t.passages.c.seq,
                t.passages.c.section_id,
                t.documents.c.category,
                t.passages.c.text,
            )
            .join(t.documents, t.documents.c.id == t.passages.c.document_id)
            .where(t.passages.c.section_id.in_(part), t.passages.c.active.is_(True))
            .order_by(t.passages.c.seq)
        )
        rows += [(row.seq, row.section_id, row.category, row.text) for row in matching]
    return rows


def sequences(connection: Connection, passage_ids: Iterable[str]) -> dict[str, int]:
    """Passage numbers by id; unknown and inactive ids are left out."""
    numbers = look_up(
        connection,
        "numbers",
        sorted(set(passage_ids)),
        partial(_read_numbers, connection),
        skills=False,
    )
    return {passage_id: seq for passage_id, seq in numbers.items() if seq is not None}


def _read_numbers(connection: Connection, passage_ids: Sequence[str]) -> dict[str, int | None]:
    numbers: dict[str, int | None] = dict.fromkeys(passage_ids)
    for part in portions(passage_ids):
        rows = connection.execute(
            sa.select(t.passages.c.id, t.passages.c.seq).where(
                t.passages.c.id.in_(part), t.passages.c.active.is_(True)
            )
        )
        numbers |= {passage_id: seq for passage_id, seq in rows}
    return numbers


def of_version(
    connection: Connection,
    version_id: str,
    *,
    offset: int = 0,
    limit: int = 100,
    section_id: str | None = None,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[Passage]:
    """Passages of one version in reading order, current or not, with their tags."""
    query = _SELECT.where(t.passages.c.version_id == version_id, visible.passages(access_scope))
    if section_id is not None:
        query = query.where(t.passages.c.section_id == section_id)
    rows = list(
        connection.execute(query.order_by(t.passages.c.ordinal).offset(offset).limit(limit))
    )
    return [_as_seen(passage, access_scope) for passage in _with_tags(connection, rows)]


def get(connection: Connection, passage_id: str, access_scope: AccessScope) -> Passage:
    """The passage with this id, with its tags. Raises NotFound."""
    row = connection.execute(
        _SELECT.where(t.passages.c.id == passage_id, visible.passages(access_scope))
    ).one_or_none()
    if row is None:
        raise NotFound(
            f"no passage {passage_id!r}", hint="GET /documents/{id}/passages lists them."
        )
    return _as_seen(_with_tags(connection, [row])[0], access_scope)


def _with_tags(connection: Connection, rows: Sequence[sa.Row[Any]]) -> list[Passage]:
    ids = [row.id for row in rows]
    tags: dict[str, list[tuple[str, str]]] = {}
    for part in portions(ids):
        for tag in connection.execute(
            sa.select(t.passage_tags)
            .where(t.passage_tags.c.passage_id.in_(part))
            .order_by(t.passage_tags.c.kind, t.passage_tags.c.value)
        ):
            tags.setdefault(tag.passage_id, []).append((tag.kind, tag.value))
    hardware = hardware_of_passages(connection, ids)
    return [_passage(row, hardware.get(row.id, ()), tuple(tags.get(row.id, ()))) for row in rows]


def scopes_of_documents(
    connection: Connection,
) -> Callable[[str, str, tuple[str, ...], str], About]:
    """What a passage with an owner, a category and hardware, and its document, are about."""
    languages, chips = _scopes(connection, "language"), _scopes(connection, "hardware")

    def about_of(owner: str, category: str, hardware: tuple[str, ...], document: str) -> About:
        spoken, place = languages.get(document, ()), chips.get(document, ())
        return _about(owner, category, hardware, spoken, place)

    return about_of


def _scopes(connection: Connection, kind: str) -> Mapping[str, tuple[str, ...]]:
    """The languages, or hardware, that documents are about, of those about any in particular."""

    def read(keys: Sequence[str]) -> dict[str, dict[str, tuple[str, ...]]]:
        scopes = t.document_scopes
        values: dict[str, tuple[str, ...]] = {}
        for row in connection.execute(
            sa.select(scopes.c.document_id, scopes.c.value)
            .where(scopes.c.kind == kind)
            .order_by(scopes.c.document_id, scopes.c.value)
        ):
            values[row.document_id] = (*values.get(row.document_id, ()), row.value)
        return dict.fromkeys(keys, values)

    # Of all documents at once: a request reads passages of dozens, a few at a time.
    return look_up(connection, "document scopes", [kind], read, skills=False)[kind]


def categories_of_documents(connection: Connection) -> Mapping[str, str]:
    """The category of every document, by id."""

    def read(keys: Sequence[str]) -> dict[str, dict[str, str]]:
        rows = connection.exec_driver_sql("SELECT id, category FROM documents").all()
        categories = {document: category for document, category in rows}
        return dict.fromkeys(keys, categories)

    return look_up(connection, "document categories", [""], read, skills=False)[""]


def _passage(
    row: sa.Row[Any], hardware: tuple[str, ...], tags: tuple[tuple[str, str], ...] = ()
) -> Passage:
    return Passage(
        seq=row.seq,
        id=row.id,
        document_id=row.document_id,
        document_title=row.title,
        version=row.number,
        category=row.category,
        section_id=row.section_id,
        section_seq=row.section_seq,
        path=tuple(row.path),
        ordinal=row.ordinal,
        kind=row.kind,
        lead=row.lead,
        text=row.text,
        language=row.language,
        page_index=row.page_index,
        page_label=row.page_label,
        boxes=tuple(row.boxes),
        prose=row.prose,
        hardware=hardware,
        tags=tags,
        corrected=row.corrected,
    )


@dataclass(frozen=True)
class Patch:
    """A person's correction of one passage; None leaves a field as it is. Empty hardware means
    `any`.
    """

    text: str | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    hardware: tuple[str, ...] | None = None


def correct(
    catalog: Catalog,
    passage_id: str,
    patch: Patch,
    actor: str,
    *,
    access_scope: AccessScope = ALL_ACCESS,
) -> Passage:
    """Apply a correction now and to every later revision of the document that has the same text."""
    if patch == Patch():
        raise InvalidRequest("nothing to correct", hint="Give text, tags or hardware.")
    if patch.text is not None and not patch.text.strip():
        raise InvalidRequest("a passage cannot be emptied", hint="Delete or re-scope it instead.")
    with catalog.write() as connection:
        passage = get(connection, passage_id, access_scope)
        about = [
            *hardware_of_passages(connection, [passage_id])[passage_id],
            *(patch.hardware or ()),
        ]
        access_scope.check_change(about, f"the passage {passage_id}")
        check_document(connection, passage.document_id, access_scope)
        row = connection.execute(
            sa.select(t.passages.c.text_sha256, t.passages.c.active).where(
                t.passages.c.id == passage_id
            )
        ).one()
        changes: dict[str, Any] = {"corrected": True}
        if patch.text is not None:
            changes["text"] = patch.text
            changes["embed_sha256"] = sha256(embedding_text(passage.path, passage.lead, patch.text))
        connection.execute(
            t.passages.update().where(t.passages.c.id == passage_id).values(**changes)
        )
        _replace_links(connection, passage_id, patch)
        for field, value in vars(patch).items():
            if value is not None:
                corrections.record(
                    connection, passage.document_id, "passage", row.text_sha256, field, value, actor
                )
        if row.active:
            fields = [name for name, value in vars(patch).items() if value is not None]
            corrections.made_again(connection, passage.document_id, fields, passage.path)
            reindex_section(connection, passage.section_id)
        bump_revision(connection)
        return get(connection, passage_id, access_scope)


def _replace_links(connection: Connection, passage_id: str, patch: Patch) -> None:
    if patch.tags is not None:
        connection.execute(t.passage_tags.delete().where(t.passage_tags.c.passage_id == passage_id))
        rows = [
            {"passage_id": passage_id, "kind": kind, "value": value, "origin": "person"}
            for kind, value in dict.fromkeys(patch.tags)
        ]
        if rows:
            connection.execute(t.passage_tags.insert(), rows)
    if patch.hardware is not None:
        connection.execute(
            t.passage_hardware.delete().where(t.passage_hardware.c.passage_id == passage_id)
        )
        connection.execute(
            t.passage_hardware.insert(),
            [{"passage_id": passage_id, "hardware_id": h} for h in patch.hardware or (ANY,)],
        )
