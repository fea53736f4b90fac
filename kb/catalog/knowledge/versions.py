"""Versions of documents: whether an upload is a new one, its content, and making it current.

`source_key` names the logical document; the SHA-256 of its bytes, the pipeline fingerprint and the
scope name the version. `activate` does everything in the caller's transaction: sections, passages,
tags and scope of the new version replace those of the old one, or nothing changes. Old versions
stay readable by number. Knows nothing about parsing or embedding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sqlalchemy as sa
import structlog
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.engine import select_in
from kb.catalog.knowledge import corrections
from kb.catalog.meta import bump_documents
from kb.embedding import embedding_text
from kb.ids import DocumentId, PassageId, SectionId, VersionId, derived_id, new_id, sha256
from kb.scope import ALL_ACCESS, ANY, AccessScope

UploadOutcome = Literal["created", "new_version", "unchanged", "duplicate_of", "included"]
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


def register(connection: Connection, source: DocumentSource) -> Registered:
    """Classify an upload; create its rows in state `staged` if it is new."""
    document = connection.execute(
        sa.select(t.documents).where(
            t.documents.c.source_key == source.source_key,
            t.documents.c.access_scope == source.access_scope.owner,
        )
    ).one_or_none()
    if document is not None:
        return _register_again(connection, DocumentId(document.id), source)
    duplicate = _duplicate_of(connection, source)
    if duplicate is not None:
        return Registered(DocumentId(duplicate), "duplicate_of", None)
    document_id = DocumentId(derived_id("doc", source.access_scope.owner, source.source_key))
    connection.execute(
        t.documents.insert().values(
            id=document_id,
            source_key=source.source_key,
            title=source.title,
            category=source.category,
            origin=source.origin,
            created_at=clock.now(),
            updated_at=clock.now(),
            access_scope=source.access_scope.owner,
        )
    )
    _set_scopes(connection, document_id, declared(source))
    return Registered(document_id, "created", _stage(connection, document_id, source))


def _register_again(
    connection: Connection, document_id: DocumentId, source: DocumentSource
) -> Registered:
    newest = connection.execute(
        sa.select(t.document_versions)
        .where(t.document_versions.c.document_id == document_id, _staged_or_current())
        .order_by(t.document_versions.c.number.desc())
        .limit(1)
    ).one_or_none()
    if (
        newest is not None
        and newest.sha256 == source.sha256
        and newest.pipeline == source.pipeline
        and _about(newest.declared) == _about(declared(source))
    ):
        return Registered(document_id, "unchanged", None)
    return Registered(document_id, "new_version", _stage(connection, document_id, source))


def _staged_or_current() -> sa.ColumnElement[bool]:
    return t.document_versions.c.state.in_(("staged", "current"))


def _about(declaration: Mapping[str, Any]) -> list[Any]:
    return [declaration[key] for key in ("category", "hardware", "languages")]


def _duplicate_of(connection: Connection, source: DocumentSource) -> str | None:
    """Another live document of the same scope and category with the same bytes. An upload is never
    a duplicate of a built-in document: its sender may delete it."""
    rows = connection.scalars(
        sa.select(t.documents.c.id)
        .join(t.document_versions, t.document_versions.c.document_id == t.documents.c.id)
        .where(
            t.document_versions.c.sha256 == source.sha256,
            _staged_or_current(),
            t.documents.c.category == source.category,
            t.documents.c.access_scope == source.access_scope.owner,
            t.documents.c.origin == "builtin" if source.origin == "builtin" else sa.true(),
        )
        .order_by(t.documents.c.created_at, t.documents.c.id)
    )
    scopes = {("hardware", h) for h in source.hardware}
    scopes |= {("language", language) for language in source.languages}
    return next((str(id_) for id_ in rows if scopes_of(connection, id_) == scopes), None)


def declared(source: DocumentSource) -> dict[str, Any]:
    """The sender's declaration about the document."""
    return {
        "title": source.title,
        "category": source.category,
        "hardware": list(source.hardware),
        "languages": list(source.languages),
    }


def _stage(connection: Connection, document_id: str, source: DocumentSource) -> VersionId:
    versions = t.document_versions
    last = sa.select(sa.func.max(versions.c.number)).where(versions.c.document_id == document_id)
    version_id = VersionId(new_id("ver"))
    connection.execute(
        versions.insert().values(
            id=version_id,
            document_id=document_id,
            number=1 + (connection.scalar(last) or 0),
            sha256=source.sha256,
            pipeline=source.pipeline,
            state="staged",
            file_name=source.file_name,
            format=source.format,
            size_bytes=source.size_bytes,
            blob_key=source.blob_key,
            declared=declared(source),
            report={},
            created_at=clock.now(),
        )
    )
    return version_id


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


def _set_scopes(connection: Connection, document_id: str, declaration: Mapping[str, Any]) -> None:
    connection.execute(
        t.document_scopes.delete().where(t.document_scopes.c.document_id == document_id)
    )
    rows = [
        {"document_id": document_id, "kind": kind, "value": value}
        for kind, key in (("hardware", "hardware"), ("language", "languages"))
        for value in sorted(declaration[key])
    ]
    if rows:
        connection.execute(t.document_scopes.insert(), rows)


def document_of(connection: Connection, version_id: str) -> sa.Row[Any]:
    """The row of the document of a version."""
    return connection.execute(
        sa.select(t.documents)
        .join(t.document_versions, t.document_versions.c.document_id == t.documents.c.id)
        .where(t.document_versions.c.id == version_id)
    ).one()


class VersionRows:
    """Common columns of the rows of a version in a table such as `symbols` or `samples`."""

    def __init__(self, connection: Connection, version_id: str, active: bool = True) -> None:
        self._connection = connection
        self.version_id = version_id
        self.document = document_of(connection, version_id)
        self._hardware = document_hardware(connection, self.document.id)
        self._active = active
        self.sections: Sequence[Any] = connection.execute(
            sa.select(t.sections.c.id, t.sections.c.hardware_scope)
            .where(t.sections.c.version_id == version_id)
            .order_by(t.sections.c.ordinal)
        ).all()

    def remove(self, table: sa.Table) -> None:
        """Remove the version's rows; if it is active, deactivate those of other versions."""
        if self._active:
            of_document = table.c.document_id == self.document.id
            self._connection.execute(table.update().where(of_document).values(active=False))
            at_once = self.document.origin != "builtin"
            bump_documents(self._connection, [self.document.id], at_once=at_once)
        self._connection.execute(table.delete().where(table.c.version_id == self.version_id))

    def columns(self, section: sa.Row[Any]) -> dict[str, Any]:
        """The columns of a row that belongs to one of `sections`."""
        return {
            "document_id": self.document.id,
            "version_id": self.version_id,
            "section_id": section.id,
            "hardware": section.hardware_scope or self._hardware,
            "active": self._active,
            "access_scope": self.document.access_scope,
        }


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


def activate(connection: Connection, version_id: str, content: VersionContent) -> int:
    """Make a version current with all its content; returns the number of passages.

    A version older than the current one (its job was retried late) is stored as superseded instead.
    Activating a version again replaces its stored content, so a retried job leaves no duplicates.
    """
    version = connection.execute(
        sa.select(t.document_versions).where(t.document_versions.c.id == version_id)
    ).one()
    document = document_of(connection, version_id)
    first = document.current_version_id is None and version.number == 1
    newest = first or _is_newest(connection, version)
    if newest:
        document = _declare(connection, version)
    if newest and not first:
        deactivate(connection, document.id)
        connection.execute(
            t.document_versions.update()
            .where(
                t.document_versions.c.document_id == document.id,
                t.document_versions.c.state == "current",
            )
            .values(state="superseded")
        )
    if not first:
        connection.execute(t.sections.delete().where(t.sections.c.version_id == version_id))
    fixes = corrections.load(connection, document.id)
    narrowed = [fixes.section_hardware(s.path) or s.hardware for s in content.sections]
    section_rows = _insert_sections(connection, version, content.sections, narrowed)
    hardware = tuple(document_hardware(connection, document.id))
    scopes = [own or hardware for own in narrowed]
    passages = _insert_passages(connection, version, document, content, section_rows, scopes, fixes)
    report = {**content.report, "corrections_unmatched": fixes.unmatched()}
    connection.execute(
        t.document_versions.update()
        .where(t.document_versions.c.id == version_id)
        .values(state="current" if newest else "superseded", report=report)
    )
    if not newest:
        connection.execute(
            t.passages.update().where(t.passages.c.version_id == version_id).values(active=False)
        )
        return passages
    values: dict[str, Any] = {"current_version_id": version_id, "updated_at": clock.now()}
    if content.title:
        values["title"] = " ".join(content.title.split())
    connection.execute(t.documents.update().where(t.documents.c.id == document.id).values(**values))
    # Answers name built-in documents that are still to be read; uploads are found at once.
    bump_documents(connection, [document.id], at_once=document.origin != "builtin")
    return passages


def _is_newest(connection: Connection, version: sa.Row[Any]) -> bool:
    current = connection.scalar(
        sa.select(sa.func.max(t.document_versions.c.number)).where(
            t.document_versions.c.document_id == version.document_id,
            t.document_versions.c.state == "current",
        )
    )
    return current is None or version.number >= current


def _declare(connection: Connection, version: sa.Row[Any]) -> sa.Row[Any]:
    """Apply the declaration of a new version to its document; returns the document's row."""
    connection.execute(
        t.documents.update()
        .where(t.documents.c.id == version.document_id)
        .values(title=version.declared["title"], category=version.declared["category"])
    )
    _set_scopes(connection, version.document_id, version.declared)
    return document_of(connection, version.id)


def deactivate(connection: Connection, document_id: str) -> None:
    """Take the document's passages out of every search; the rows stay."""
    connection.execute(
        t.passages.update().where(t.passages.c.document_id == document_id).values(active=False)
    )


def _insert_sections(
    connection: Connection,
    version: sa.Row[Any],
    drafts: Sequence[SectionDraft],
    narrowed: Sequence[tuple[str, ...] | None],
) -> list[tuple[int, SectionId]]:
    """The numbers and ids of the new rows."""
    ids = [SectionId(derived_id("sec", version.id, n)) for n in range(len(drafts))]
    rows = [
        {
            "id": ids[n],
            "version_id": version.id,
            "parent_id": ids[draft.parent] if draft.parent is not None else None,
            "ordinal": n,
            "level": draft.level,
            "heading": draft.path[-1] if draft.path else "",
            "path": list(draft.path),
            "page_index": draft.page_index,
            "page_label": draft.page_label,
            "hardware_scope": list(own) if own is not None else None,
        }
        for n, (draft, own) in enumerate(zip(drafts, narrowed, strict=True))
    ]
    if rows:
        connection.execute(t.sections.insert(), rows)
    return list(zip(_numbers(connection, t.sections, version.id), ids, strict=True))


def _numbers(connection: Connection, table: sa.Table, version_id: str) -> Iterable[int]:
    query = sa.select(table.c.seq).where(table.c.version_id == version_id)
    return connection.scalars(query.order_by(table.c.ordinal))


def _insert_passages(
    connection: Connection,
    version: sa.Row[Any],
    document: sa.Row[Any],
    content: VersionContent,
    sections: Sequence[tuple[int, SectionId]],
    scopes: Sequence[tuple[str, ...]],
    fixes: corrections.Corrections,
) -> int:
    rows, tag_rows, hardware_rows = [], [], []
    for n, draft in enumerate(content.passages):
        fix = fixes.passage(sha256(draft.text))
        text = fix.text if fix.text is not None else draft.text
        hardware = scopes[draft.section]
        if fix.hardware is not None:
            hardware = fix.hardware or (ANY,)
        passage_id = PassageId(derived_id("psg", version.id, n))
        path = content.sections[draft.section].path
        rows.append(
            {
                "id": passage_id,
                "document_id": document.id,
                "version_id": version.id,
                "section_id": sections[draft.section][1],
                "ordinal": n,
                "text": text,
                "embed_sha256": sha256(embedding_text(path, draft.lead, text)),
                "corrected": fix != corrections.PassageFix(),
                "active": True,
                "access_scope": document.access_scope,
                **_draft_values(draft),
            }
        )
        origin = "person" if fix.tags is not None else "auto"
        for kind, value in dict.fromkeys(fix.tags if fix.tags is not None else draft.tags):
            tag_rows.append(
                {"passage_id": passage_id, "kind": kind, "value": value, "origin": origin}
            )
        hardware_rows += [{"passage_id": passage_id, "hardware_id": h} for h in hardware]
    for table, values in (
        (t.passages, rows),
        (t.passage_tags, tag_rows),
        (t.passage_hardware, hardware_rows),
    ):
        if values:
            connection.execute(table.insert(), values)
    return len(rows)


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


def is_first(connection: Connection, version_id: str) -> bool:
    """Whether no content was ever stored for the document of this version."""
    number = sa.select(t.document_versions.c.number).where(t.document_versions.c.id == version_id)
    document = document_of(connection, version_id)
    return document.current_version_id is None and connection.scalar(number) == 1


def is_current(connection: Connection, version_id: str) -> bool:
    """Whether the version is its document's current one."""
    current = sa.select(t.documents.c.id).where(t.documents.c.current_version_id == version_id)
    return connection.scalar(current) is not None


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
