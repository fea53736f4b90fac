"""Versions of documents: whether an upload is a new one, its content, and making it current.

`source_key` names the logical document; the SHA-256 of its bytes, the pipeline fingerprint and the
scope name the version. `activate` does everything in the caller's transaction: sections, passages,
tags and scope of the new version replace those of the old one, or nothing changes. Old versions
stay readable by number. Knows nothing about parsing or embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.engine import insert_texts, select_in
from kb.catalog.knowledge import corrections
from kb.catalog.meta import bump_documents
from kb.embedding import embedding_text
from kb.ids import DocumentId, PassageId, SectionId, VersionId, derived_id, new_id, sha256
from kb.scope import ALL_ACCESS, ANY, AccessScope

UploadOutcome = Literal["created", "new_version", "unchanged", "duplicate_of", "included"]
_Rows = dict[sa.Table, list[dict[str, Any]]]  # to insert, by one statement for each table
log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class DocumentSource:
    """An uploaded file."""

    source_key: str
    title: str
    category: str
    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    file_name: str
    format: str
    sha256: str
    size_bytes: int
    blob_key: str
    pipeline: str
    origin: str = "upload"
    access_scope: AccessScope = ALL_ACCESS


@dataclass(frozen=True)
class Registered:
    """The result of an upload. `version_id` is None if no version has to be ingested."""

    document_id: DocumentId
    outcome: UploadOutcome
    version_id: VersionId | None


# -- uploads


def with_own_key(connection: Connection, source: DocumentSource) -> DocumentSource:
    """The source with a key that no document of another caller has. Else a restricted caller could
    replace a document that it may not see. It is the same whether such a document exists or not, so
    that the caller does not learn that either."""
    access = source.access_scope
    if not access.restricted:
        return source
    known = connection.scalar(
        sa.select(t.documents.c.id).where(
            t.documents.c.source_key == source.source_key,
            t.documents.c.access_scope == access.owner,
        )
    )
    if known is not None:
        about = {value for kind, value in scopes_of(connection, known) if kind == "hardware"}
        if about and about <= access.own:
            return source
    prefix = f"{'+'.join(sorted(access.own))}/"
    key = source.source_key
    return replace(source, source_key=key if key.startswith(prefix) else f"{prefix}{key}")


def register(connection: Connection, sources: Sequence[DocumentSource]) -> list[Registered]:
    """Classify uploads with different keys; create the rows of new ones in state `staged`."""
    known = _known(connection, sources)
    alike = _with_same_bytes(connection, sources)
    rows: _Rows = {table: [] for table in (t.documents, t.document_scopes, t.document_versions)}
    registered = []
    for source in sources:
        outcome: UploadOutcome = "new_version"
        document_id = known.get((source.source_key, source.access_scope.owner))
        if document_id is not None:
            number = _next_number(connection, document_id, source)
            if number is None:
                registered.append(Registered(document_id, "unchanged", None))
                continue
        else:
            duplicate = _duplicate(source, alike.get(source.sha256, ()))
            if duplicate is not None:
                registered.append(Registered(duplicate, "duplicate_of", None))
                continue
            outcome, number = "created", 1
            document_id = DocumentId(
                derived_id("doc", source.access_scope.owner, source.source_key)
            )
            rows[t.documents].append(_document_row(document_id, source))
            rows[t.document_scopes] += _scope_rows(document_id, declared(source))
        version = _version_row(document_id, source, number)
        rows[t.document_versions].append(version)
        registered.append(Registered(document_id, outcome, version["id"]))
        alike.setdefault(source.sha256, []).append(
            _SameBytes(document_id, source.origin, _compared(source))
        )
    _insert(connection, rows)
    return registered


def _known(
    connection: Connection, sources: Sequence[DocumentSource]
) -> dict[tuple[str, str], DocumentId]:
    """The documents by source key and owner."""
    d = t.documents.c
    rows = select_in(
        connection,
        sa.select(d.source_key, d.access_scope, d.id),
        d.source_key,
        {source.source_key for source in sources},
    )
    return {(key, owner): DocumentId(id_) for key, owner, id_ in rows}


def _next_number(connection: Connection, document_id: str, source: DocumentSource) -> int | None:
    """The number of a new version of a document; None if the source is its newest one."""
    versions = connection.execute(
        sa.select(t.document_versions)
        .where(t.document_versions.c.document_id == document_id)
        .order_by(t.document_versions.c.number.desc())
    ).all()
    newest = next((row for row in versions if row.state in ("staged", "current")), None)
    if (
        newest is not None
        and newest.sha256 == source.sha256
        and newest.pipeline == source.pipeline
        and _about(newest.declared) == _about(declared(source))
    ):
        return None
    return 1 + versions[0].number if versions else 1


def _staged_or_current() -> sa.ColumnElement[bool]:
    return t.document_versions.c.state.in_(("staged", "current"))


def _about(declaration: Mapping[str, Any]) -> list[Any]:
    return [declaration[key] for key in ("category", "hardware", "languages")]


class _SameBytes(NamedTuple):
    """A live document with the bytes of an upload; `compared` as by `_compared`."""

    id: DocumentId
    origin: str
    compared: tuple[object, ...]


def _compared(source: DocumentSource) -> tuple[object, ...]:
    scopes = set(_declared_scopes(declared(source)))
    return source.category, source.access_scope.owner, scopes


def _duplicate(source: DocumentSource, alike: Sequence[_SameBytes]) -> DocumentId | None:
    """The oldest document that an upload repeats: of the same category, owner and scopes. A
    built-in document never repeats an upload, which its sender may delete."""
    wanted, builtin = _compared(source), source.origin == "builtin"
    found = (own for own in alike if own.origin == "builtin" or not builtin)
    return next((own.id for own in found if own.compared == wanted), None)


def _with_same_bytes(
    connection: Connection, sources: Sequence[DocumentSource]
) -> dict[str, list[_SameBytes]]:
    """Live documents by the SHA-256 of their bytes, oldest first."""
    d, sha = t.documents.c, t.document_versions.c.sha256
    query = (
        sa.select(sha, d.id, d.origin, d.category, d.access_scope)
        .join(t.documents, d.id == t.document_versions.c.document_id)
        .where(_staged_or_current())
        .order_by(d.created_at, d.id)
    )
    found: dict[str, list[_SameBytes]] = {}
    for key, id_, origin, *about in select_in(connection, query, sha, {s.sha256 for s in sources}):
        compared = (*about, scopes_of(connection, id_))
        found.setdefault(key, []).append(_SameBytes(DocumentId(id_), origin, compared))
    return found


def declared(source: DocumentSource) -> dict[str, Any]:
    """The sender's declaration about the document."""
    return {
        "title": source.title,
        "category": source.category,
        "hardware": list(source.hardware),
        "languages": list(source.languages),
    }


def _document_row(document_id: str, source: DocumentSource) -> dict[str, Any]:
    now = clock.now()
    return {
        "id": document_id,
        "source_key": source.source_key,
        "title": source.title,
        "category": source.category,
        "origin": source.origin,
        "created_at": now,
        "updated_at": now,
        "access_scope": source.access_scope.owner,
    }


def _version_row(document_id: str, source: DocumentSource, number: int) -> dict[str, Any]:
    return {
        "id": VersionId(new_id("ver")),
        "document_id": document_id,
        "number": number,
        "sha256": source.sha256,
        "pipeline": source.pipeline,
        "state": "staged",
        "file_name": source.file_name,
        "format": source.format,
        "size_bytes": source.size_bytes,
        "blob_key": source.blob_key,
        "declared": declared(source),
        "report": {},
        "created_at": clock.now(),
    }


def newest_builtin(connection: Connection) -> Sequence[Any]:
    """The newest version that is staged or current of each built-in document: document_id,
    source_key, sha256, pipeline, declared."""
    v = t.document_versions.c
    rows = connection.execute(
        sa.select(v.document_id, t.documents.c.source_key, v.sha256, v.pipeline, v.declared)
        .join(t.documents, t.documents.c.id == v.document_id)
        .where(t.documents.c.origin == "builtin", _staged_or_current())
        .order_by(v.number)
    )
    return list({row.document_id: row for row in rows}.values())


# -- scopes


def scopes_of(connection: Connection, document_id: str) -> set[tuple[str, str]]:
    """The document's scopes as (kind, value); the kinds are hardware and language."""
    rows = connection.execute(
        sa.select(t.document_scopes.c.kind, t.document_scopes.c.value).where(
            t.document_scopes.c.document_id == document_id
        )
    )
    return {(kind, value) for kind, value in rows}


def document_hardware(connection: Connection, document_id: str) -> list[str]:
    """The chips that a document is about; `any` if it names no particular chip."""
    about = sorted(scopes_of(connection, document_id))
    return [value for kind, value in about if kind == "hardware"] or [ANY]


def check_document(connection: Connection, document_id: str, access: AccessScope) -> None:
    """Raise Forbidden if the caller may not change the content of a document."""
    about = [value for kind, value in scopes_of(connection, document_id) if kind == "hardware"]
    access.check_change(about, f"the document {document_id}")


def _declared_scopes(declaration: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (kind, value)
        for kind, key in (("hardware", "hardware"), ("language", "languages"))
        for value in sorted(declaration[key])
    ]


def _scope_rows(document_id: str, declaration: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"document_id": document_id, "kind": kind, "value": value}
        for kind, value in _declared_scopes(declaration)
    ]


def document_of(connection: Connection, version_id: str) -> sa.Row[Any]:
    return connection.execute(
        sa.select(t.documents)
        .join(t.document_versions, t.document_versions.c.document_id == t.documents.c.id)
        .where(t.document_versions.c.id == version_id)
    ).one()


class StoredSection(NamedTuple):
    """A section of the catalog. `hardware_scope` narrows the document's hardware, None inherits."""

    id: str
    path: Sequence[str]
    hardware_scope: Sequence[str] | None

    @property
    def heading(self) -> str:
        """The innermost of its headings."""
        return self.path[-1] if self.path else ""


@dataclass(frozen=True)
class StoredVersion:
    """A version with its sections in order. `document` is the row of its document, `hardware` what
    that is about, `any` if it names no chip. It is `active` as the current version of its document,
    and `first` if nothing was stored for the document before."""

    id: str
    document: sa.Row[Any]
    declared: Mapping[str, Any]
    hardware: Sequence[str]
    sections: Sequence[StoredSection]
    active: bool = True
    first: bool = False

    def columns(self, section: StoredSection) -> dict[str, Any]:
        """Common columns of the rows of one of its sections, in a table such as `symbols`."""
        return {
            "document_id": self.document.id,
            "version_id": self.id,
            "section_id": section.id,
            "hardware": section.hardware_scope or self.hardware,
            "active": self.active,
            "access_scope": self.document.access_scope,
        }


def current_version(connection: Connection, version_id: str) -> StoredVersion:
    """The current version of a document, read from the catalog."""
    v, sections = t.document_versions.c, t.sections.c
    document = document_of(connection, version_id)
    rows = connection.execute(
        sa.select(sections.id, sections.path, sections.hardware_scope)
        .where(sections.version_id == version_id)
        .order_by(sections.ordinal)
    )
    return StoredVersion(
        version_id,
        document,
        connection.execute(sa.select(v.declared).where(v.id == version_id)).scalar_one(),
        document_hardware(connection, document.id),
        [StoredSection(*row) for row in rows],
    )


def replace_rows(
    connection: Connection,
    table: sa.Table,
    versions: Iterable[StoredVersion],
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Replace the rows of versions in a table such as `symbols`. Those of other versions of their
    documents leave every answer."""
    for version in versions:
        if version.first:
            continue
        if version.active:
            of_document = table.c.document_id == version.document.id
            connection.execute(table.update().where(of_document).values(active=False))
        connection.execute(table.delete().where(table.c.version_id == version.id))
    if rows:
        connection.execute(table.insert(), rows)


# -- content


@dataclass(frozen=True)
class SectionDraft:
    """`parent` is an index into the version's sections; `hardware` narrows the document's scope,
    None inherits."""

    path: tuple[str, ...]
    level: int
    parent: int | None
    page_index: int | None = None
    page_label: str | None = None
    hardware: tuple[str, ...] | None = None


@dataclass(frozen=True)
class PassageDraft:
    """A passage of a document before it is stored. `section` is an index into the version's
    sections, `lead` the header of a table piece, `prose` the share of function words in per mille.
    """

    section: int
    kind: str
    text: str
    lead: str = ""
    language: str | None = None
    boxes: tuple[Mapping[str, Any], ...] = ()
    prose: int = 0
    tags: tuple[tuple[str, str], ...] = ()  # (kind, value)

    @property
    def shown(self) -> str:
        """The text under its table header, if it has one."""
        return f"{self.lead}\n{self.text}" if self.lead else self.text


@dataclass(frozen=True)
class VersionContent:
    """Everything that a pipeline read from one version, ready to be stored."""

    sections: Sequence[SectionDraft]
    passages: Sequence[PassageDraft]
    report: Mapping[str, Any] = field(default_factory=dict)
    title: str | None = None  # as the document states it, for uploads without a title


def fail_version(connection: Connection, version_id: str, report: Mapping[str, Any]) -> None:
    """Mark a version that could not be read. One that was read before (a retried job) is not
    changed."""
    connection.execute(
        t.document_versions.update()
        .where(
            t.document_versions.c.id == version_id,
            t.document_versions.c.state.in_(("staged", "failed")),
        )
        .values(state="failed", report=dict(report))
    )


def activate(
    connection: Connection, contents: Sequence[tuple[str, VersionContent]]
) -> list[StoredVersion]:
    """Make versions of different documents current with all their content, by id.

    A version older than the current one (its job was retried late) is stored as superseded instead.
    Activating a version again replaces its stored content, so a retried job leaves no duplicates.
    """
    v, d, new = t.document_versions, t.documents, sa.bindparam
    versions = _rows_by_id(connection, v, [version_id for version_id, _ in contents])
    documents = _rows_by_id(connection, d, [row.document_id for row in versions.values()])
    rows: _Rows = {
        table: [] for table in (t.sections, t.passages, t.passage_tags, t.passage_hardware)
    }
    stored, states, current = [], [], []
    for version_id, content in contents:
        version = versions[version_id]
        document = documents[version.document_id]
        first = document.current_version_id is None and version.number == 1
        newest = first or _is_newest(connection, version)
        fixes = corrections.Corrections(()) if first else _replace(connection, version, newest)
        old = () if newest else scopes_of(connection, document.id)
        hardware = [value for kind, value in old if kind == "hardware"]
        own = StoredVersion(
            version_id,
            document,
            version.declared,
            sorted(version.declared["hardware"] if newest else hardware) or [ANY],
            _add_sections(rows, version_id, content.sections, fixes),
            newest,
            first,
        )
        _add_passages(rows, own, content.passages, fixes)
        stored.append(own)
        report = {**content.report, "corrections_unmatched": fixes.unmatched()}
        state = "current" if newest else "superseded"
        states.append({"version": version_id, "new_state": state, "new_report": report})
        if newest:
            title = " ".join((content.title or "").split()) or version.declared["title"]
            about = {"new_title": title, "new_category": version.declared["category"]}
            current.append({"document": document.id, "version": version_id, **about})
    _insert(connection, rows)
    change = v.update().where(v.c.id == new("version"))
    connection.execute(change.values(state=new("new_state"), report=new("new_report")), states)
    if current:
        values = {"current_version_id": new("version"), "updated_at": clock.now()}
        values |= {"title": new("new_title"), "category": new("new_category")}
        connection.execute(d.update().where(d.c.id == new("document")).values(**values), current)
        # Answers name built-in documents that are still to be read; uploads are found at once.
        active = [own.document for own in stored if own.active]
        at_once = any(document.origin != "builtin" for document in active)
        bump_documents(connection, [document.id for document in active], at_once=at_once)
    return stored


def _insert(connection: Connection, rows: _Rows) -> None:
    for table, own in rows.items():
        if own and table in (t.passage_tags, t.passage_hardware):
            insert_texts(connection, table, own)
        elif own:
            connection.execute(table.insert(), own)


def _rows_by_id(
    connection: Connection, table: sa.Table, ids: Iterable[str]
) -> dict[str, sa.Row[Any]]:
    rows = select_in(connection, sa.select(table), table.c.id, ids)
    return {row.id: row for row in rows}


def _replace(connection: Connection, version: sa.Row[Any], newest: bool) -> corrections.Corrections:
    """Make room for the content of a version that is not the first of its document; returns the
    corrections of the document."""
    of = t.document_versions.c
    if newest:
        deactivate(connection, version.document_id)
        connection.execute(
            t.document_versions.update()
            .where(of.document_id == version.document_id, of.state == "current")
            .values(state="superseded")
        )
        scopes = t.document_scopes
        connection.execute(scopes.delete().where(scopes.c.document_id == version.document_id))
        if rows := _scope_rows(version.document_id, version.declared):
            connection.execute(scopes.insert(), rows)
    connection.execute(t.sections.delete().where(t.sections.c.version_id == version.id))
    return corrections.load(connection, version.document_id)


def _is_newest(connection: Connection, version: sa.Row[Any]) -> bool:
    current = connection.scalar(
        sa.select(sa.func.max(t.document_versions.c.number)).where(
            t.document_versions.c.document_id == version.document_id,
            t.document_versions.c.state == "current",
        )
    )
    return current is None or version.number >= current


def deactivate(connection: Connection, document_id: str) -> None:
    """Take the document's passages out of every search; the rows stay."""
    connection.execute(
        t.passages.update().where(t.passages.c.document_id == document_id).values(active=False)
    )


def _add_sections(
    rows: _Rows, version_id: str, drafts: Sequence[SectionDraft], fixes: corrections.Corrections
) -> list[StoredSection]:
    ids = [SectionId(derived_id("sec", version_id, n)) for n in range(len(drafts))]
    sections = []
    for n, draft in enumerate(drafts):
        own = fixes.section_hardware(draft.path) or draft.hardware
        section = StoredSection(ids[n], list(draft.path), list(own) if own is not None else None)
        sections.append(section)
        rows[t.sections].append(
            {
                **section._asdict(),
                "version_id": version_id,
                "parent_id": ids[draft.parent] if draft.parent is not None else None,
                "ordinal": n,
                "level": draft.level,
                "heading": section.heading,
                "page_index": draft.page_index,
                "page_label": draft.page_label,
            }
        )
    return sections


def _add_passages(
    rows: _Rows,
    version: StoredVersion,
    drafts: Sequence[PassageDraft],
    fixes: corrections.Corrections,
) -> None:
    for n, draft in enumerate(drafts):
        values = _draft_values(draft)
        fix = fixes.passage(values["text_sha256"])
        text = fix.text if fix.text is not None else draft.text
        section = version.sections[draft.section]
        hardware = section.hardware_scope or version.hardware
        if fix.hardware is not None:
            hardware = fix.hardware or (ANY,)
        passage_id = PassageId(derived_id("psg", version.id, n))
        rows[t.passages].append(
            {
                "id": passage_id,
                "document_id": version.document.id,
                "version_id": version.id,
                "section_id": section.id,
                "ordinal": n,
                "text": text,
                "embed_sha256": sha256(embedding_text(section.path, draft.lead, text)),
                "corrected": fix != corrections.PassageFix(),
                "active": version.active,
                "access_scope": version.document.access_scope,
                **values,
            }
        )
        origin = "person" if fix.tags is not None else "auto"
        rows[t.passage_tags] += [
            {"passage_id": passage_id, "kind": kind, "value": value, "origin": origin}
            for kind, value in dict.fromkeys(fix.tags if fix.tags is not None else draft.tags)
        ]
        rows[t.passage_hardware] += [{"passage_id": passage_id, "hardware_id": h} for h in hardware]


def _draft_values(draft: PassageDraft) -> dict[str, Any]:
    """The columns with the machine's reading, corrected or not."""
    first = draft.boxes[0] if draft.boxes else {}
    return {
        "kind": draft.kind,
        "lead": draft.lead,
        "language": draft.language,
        "text_sha256": sha256(draft.text),
        "boxes": [dict(box) for box in draft.boxes],
        "page_index": first.get("page_index"),
        "page_label": first.get("page_label"),
        "prose": draft.prose,
    }


@dataclass(frozen=True)
class Succession:
    """Whether a passage is of a version that another one has replaced. `successor` is the passage
    of the current version with the same text, else the only one under the same headings."""

    superseded: bool
    successor: str | None = None


def succession_of(connection: Connection, passage_id: str, access_scope: AccessScope) -> Succession:
    """The passage of the current version that has replaced a stored passage."""
    select = sa.select(t.passages, t.sections.c.path).join(
        t.sections, t.sections.c.id == t.passages.c.section_id
    )
    old = connection.execute(select.where(t.passages.c.id == passage_id)).one()
    if old.active:
        return Succession(False)
    rows = connection.execute(
        select.where(
            t.passages.c.document_id == old.document_id,
            t.passages.c.active.is_(True),
            visible.passages(access_scope),
        ).order_by(t.passages.c.ordinal)
    ).all()
    there = [row for row in rows if row.path == old.path]
    same = [row for row in (*there, *rows) if row.text_sha256 == old.text_sha256]
    nearest = same[:1] or (there if len(there) == 1 else [])
    return Succession(True, nearest[0].id if nearest else None)


def hardware_of_passages(connection: Connection, ids: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The hardware scopes of passages, `any` included."""
    query = sa.select(t.passage_hardware).order_by(t.passage_hardware.c.hardware_id)
    scopes: dict[str, tuple[str, ...]] = {}
    for row in select_in(connection, query, t.passage_hardware.c.passage_id, ids):
        scopes[row.passage_id] = (*scopes.get(row.passage_id, ()), row.hardware_id)
    return scopes
