"""Whether an upload is a new document, a new version, unchanged, or a copy of another document.

`source_key` names the logical document; the SHA-256 of its bytes, the pipeline fingerprint and the
scope name the version. Knows nothing about what is inside a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog.tables import knowledge as t
from kb.ids import DocumentId, VersionId, derived_id, new_id
from kb.scope import ALL_ACCESS, AccessScope

Outcome = Literal["created", "new_version", "unchanged", "duplicate_of"]


@dataclass(frozen=True)
class Source:
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
    """The result of an upload. `version_id` is None when there is nothing to ingest."""

    document_id: DocumentId
    outcome: Outcome
    version_id: VersionId | None


def own_source(connection: Connection, source: Source) -> Source:
    """The source with a key that no document of others has: a caller who is restricted would else
    replace a document that it does not see, or learn that there is one.
    """
    access = source.access_scope
    if not access.restricted:
        return source
    known = connection.execute(
        sa.select(t.documents.c.id).where(
            t.documents.c.source_key == source.source_key,
            t.documents.c.access_scope == access.owner,
        )
    ).scalar()
    if known is None:
        return source
    about = {value for kind, value in scopes_of(connection, known) if kind == "hardware"}
    if about and about <= access.own:
        return source
    return replace(source, source_key=f"{'+'.join(sorted(access.own))}/{source.source_key}")


def register(connection: Connection, source: Source) -> Registered:
    """Decide what an upload is; create its rows in state `staged` when it is new."""
    document = connection.execute(
        sa.select(t.documents).where(
            t.documents.c.source_key == source.source_key,
            t.documents.c.access_scope == source.access_scope.owner,
        )
    ).one_or_none()
    if document is None:
        twin = _twin(connection, source)
        if twin is not None:
            return Registered(DocumentId(twin), "duplicate_of", None)
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
        set_scopes(connection, document_id, declared(source))
        return Registered(document_id, "created", _stage(connection, document_id, source))
    return _register_again(connection, document, source)


def _register_again(connection: Connection, document: sa.Row[Any], source: Source) -> Registered:
    document_id = DocumentId(document.id)
    newest = connection.execute(
        sa.select(t.document_versions)
        .where(
            t.document_versions.c.document_id == document_id,
            t.document_versions.c.state.in_(("staged", "current")),
        )
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


def newest_builtin(connection: Connection) -> Sequence[Any]:
    """The newest version that is staged or current of each built-in document: document_id,
    source_key, sha256, pipeline, declared.
    """
    versions = t.document_versions
    rows = connection.execute(
        sa.select(
            versions.c.document_id,
            t.documents.c.source_key,
            versions.c.sha256,
            versions.c.pipeline,
            versions.c.declared,
        )
        .join(t.documents, t.documents.c.id == versions.c.document_id)
        .where(t.documents.c.origin == "builtin", versions.c.state.in_(("staged", "current")))
        .order_by(versions.c.number)
    )
    return list({row.document_id: row for row in rows}.values())


def _twin(connection: Connection, source: Source) -> str | None:
    """Another live document of the same scope and category with the same bytes. An upload is no
    twin of a built-in document: whoever sent it may delete it.
    """
    rows = connection.execute(
        sa.select(t.documents.c.id)
        .join(t.document_versions, t.document_versions.c.document_id == t.documents.c.id)
        .where(
            t.document_versions.c.sha256 == source.sha256,
            t.document_versions.c.state.in_(("staged", "current")),
            t.documents.c.category == source.category,
            t.documents.c.access_scope == source.access_scope.owner,
            t.documents.c.origin == "builtin" if source.origin == "builtin" else sa.true(),
        )
        .order_by(t.documents.c.created_at, t.documents.c.id)
    ).scalars()
    for document_id in rows:
        if scopes_of(connection, document_id) == _scope_rows(source):
            return str(document_id)
    return None


def declared(source: Source) -> dict[str, Any]:
    """What the sender declared about the document."""
    return {
        "title": source.title,
        "category": source.category,
        "hardware": list(source.hardware),
        "languages": list(source.languages),
    }


def _about(declaration: Mapping[str, Any]) -> list[Any]:
    return [declaration[key] for key in ("category", "hardware", "languages")]


def _scope_rows(source: Source) -> set[tuple[str, str]]:
    return {("hardware", h) for h in source.hardware} | {("language", x) for x in source.languages}


def scopes_of(connection: Connection, document_id: str) -> set[tuple[str, str]]:
    """The document's scopes as (kind, value); the kinds are hardware and language."""
    rows = connection.execute(
        sa.select(t.document_scopes.c.kind, t.document_scopes.c.value).where(
            t.document_scopes.c.document_id == document_id
        )
    )
    return {(kind, value) for kind, value in rows}


def check_document(connection: Connection, document_id: str, access: AccessScope) -> None:
    """Raise Forbidden where the caller may not change what was read of a document."""
    about = [value for kind, value in scopes_of(connection, document_id) if kind == "hardware"]
    access.check_change(about, f"the document {document_id}")


def set_scopes(connection: Connection, document_id: str, declaration: Mapping[str, Any]) -> None:
    """Replace the document's scopes by the declared ones."""
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


def _stage(connection: Connection, document_id: str, source: Source) -> VersionId:
    versions = t.document_versions
    number = 1 + (
        connection.execute(
            sa.select(sa.func.max(versions.c.number)).where(versions.c.document_id == document_id)
        ).scalar()
        or 0
    )
    version_id = VersionId(new_id("ver"))
    connection.execute(
        versions.insert().values(
            id=version_id,
            document_id=document_id,
            number=number,
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
