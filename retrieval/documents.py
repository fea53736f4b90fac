"""Documents as a reader sees them: listed, shown with versions and passages, corrected, removed.

Every function takes the knowledge base and plain values, and returns what JSON can carry, so that
HTTP routes and commands answer alike. `access_scope` is what the caller may see.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kb.catalog.knowledge import corrections, moves
from kb.catalog.knowledge import passages as passage_rows
from kb.catalog.knowledge.documents import Document, Version, erase_deleted
from kb.catalog.knowledge.passages import Passage, Patch
from kb.catalog.knowledge.samples import RecipeStatus, decide_recipe, list_recipes
from kb.catalog.knowledge.versions import check_document, succession_of
from kb.embedding import embedding_text
from kb.errors import InvalidRequest, NotFound, StoreAway, nearest
from kb.plain import plain
from kb.scope import ALL_ACCESS, ANY, CATEGORIES, AccessScope
from retrieval.diagnose.signals import load_signals
from retrieval.knowledge_base import KnowledgeBase

Json = dict[str, Any]


@dataclass(frozen=True)
class OriginalFile:
    """A file as it was uploaded. `format` is the detected one, like `pdf` or `markdown`."""

    name: str
    format: str
    sha256: str
    data: bytes


def list_documents(
    base: KnowledgeBase,
    *,
    hardware: str | None = None,
    category: str | None = None,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[Json]:
    """Documents by category, then title.

    `hardware` is an id, name or alias: only documents about exactly that hardware. Raises
    UnknownHardware, and InvalidRequest for an unknown category.
    """
    _check_category(category)
    documents = base.documents.find(
        hardware=base.registry.resolve(hardware) if hardware else None,
        category=category,
        access_scope=access_scope,
    )
    return [_document(document) for document in documents]


def page_of_documents(
    base: KnowledgeBase,
    *,
    limit: int,
    offset: int = 0,
    hardware: str | None = None,
    category: str | None = None,
    words: str = "",
    access_scope: AccessScope = ALL_ACCESS,
) -> tuple[list[Json], int]:
    """At most `limit` of what `list_documents` has, after the first `offset`, and how many that
    are; with `words`, only documents that have each of them in title or source key.
    """
    _check_category(category)
    about = base.registry.resolve(hardware) if hardware else None
    rows = base.documents.find(
        hardware=about,
        category=category,
        words=words,
        limit=limit,
        offset=offset,
        access_scope=access_scope,
    )
    total = base.documents.count(
        hardware=about, category=category, words=words, access_scope=access_scope
    )
    return [_document(row) for row in rows], total


def _check_category(category: str | None) -> None:
    if category is not None and category not in CATEGORIES:
        near = nearest(category, CATEGORIES)
        raise InvalidRequest(
            f"unknown category {category!r}",
            hint=f"Use one of {', '.join(CATEGORIES)}"
            + (f"; did you mean {near[0]}?" if near else "."),
        )


def show_document(
    base: KnowledgeBase, document_id: str, *, access_scope: AccessScope = ALL_ACCESS
) -> Json:
    """One document with its versions, newest first, and the report of reading the current one."""
    document = base.documents.get(document_id, access_scope=access_scope)
    versions = base.documents.versions(document_id, access_scope=access_scope)
    report = plain(document.version.report) if document.version else {}
    with base.catalog.read() as connection:
        unfit = corrections.unfit(connection, document_id, access_scope)
    return {
        **_document(document),
        "report": report,
        "corrections_unfit": [plain(entry) for entry in unfit],
        "versions": [_version(version) for version in versions],
    }


def drop_correction(
    base: KnowledgeBase,
    document_id: str,
    correction_id: str,
    *,
    access_scope: AccessScope = ALL_ACCESS,
) -> None:
    """Forget a correction that the current version has no place for. Raises NotFound."""
    base.documents.get(document_id, access_scope=access_scope)
    with base.catalog.write() as connection:
        check_document(connection, document_id, access_scope)
        seen = {entry.id for entry in corrections.unfit(connection, document_id, access_scope)}
        if correction_id not in seen or not corrections.drop(
            connection, document_id, correction_id
        ):
            raise NotFound(
                f"no correction {correction_id!r} that no longer fits",
                hint=f"GET /documents/{document_id} lists them.",
            )


def delete_document(
    base: KnowledgeBase, document_id: str, *, access_scope: AccessScope = ALL_ACCESS
) -> Json:
    """Remove a document with its passages, facts and stored files, also from the files that the
    catalog is made of. Accepted facts go too; `facts_stated_elsewhere` counts those whose value
    holds still, by another source.
    """
    document = base.documents.get(document_id, access_scope=access_scope)
    facts = base.documents.delete(document_id, access_scope=access_scope)
    answer: Json = {
        "id": document_id,
        "deleted": True,
        "facts_removed": facts.removed,
        "accepted_facts_removed": facts.accepted,
        "facts_stated_elsewhere": facts.stated_elsewhere,
    }
    try:
        erased = erase_deleted(base.catalog, base.blobs)
    except StoreAway as error:
        answer["note"] = (
            f"No answer has it any more. Its stored file is removed later: {error.message}."
        )
        return answer
    if document.origin == "builtin":
        answer["note"] = "It is built in: the next start loads it again while its file exists."
    elif not erased:
        answer["note"] = (
            "No answer has it any more. Another process reads the catalog as it was, so its text is"
            " overwritten in the files by the next deletion or the next start of the service."
        )
    return answer


def original_file(
    base: KnowledgeBase,
    document_id: str,
    *,
    version: int | None = None,
    access_scope: AccessScope = ALL_ACCESS,
) -> OriginalFile:
    """The uploaded file of a version; without a number, of the current one. Raises NotFound."""
    document = base.documents.get(document_id, access_scope=access_scope)
    stored = _numbered_version(base, document, version, access_scope)
    name = stored.file_name.rsplit("/", 1)[-1]
    return OriginalFile(name, stored.format, stored.sha256, base.blobs.get(stored.blob_key))


def list_sections(
    base: KnowledgeBase,
    document_id: str,
    *,
    version: int | None = None,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[Json]:
    """The headings of a document in reading order, each with the number of its passages."""
    sections = base.documents.sections(document_id, version=version, access_scope=access_scope)
    return [plain(section) for section in sections]


def list_moves(
    base: KnowledgeBase, document_id: str, *, access_scope: AccessScope = ALL_ACCESS
) -> list[Json]:
    """The remedies that a document states."""
    base.documents.get(document_id, access_scope=access_scope)
    with base.catalog.read() as connection:
        return [plain(move) for move in moves.of_document(connection, document_id, access_scope)]


def list_passages(
    base: KnowledgeBase,
    document_id: str,
    *,
    section: str | None = None,
    version: int | None = None,
    offset: int = 0,
    limit: int = 100,
    access_scope: AccessScope = ALL_ACCESS,
) -> Json:
    """Passages in reading order. `total` counts all of them, or those of the section if given.

    Raises NotFound for an unknown document, version or section.
    """
    sections = base.documents.sections(document_id, version=version, access_scope=access_scope)
    counts = {row.id: row.passages for row in sections}
    if section is not None and section not in counts:
        raise NotFound(
            f"no section {section[:80]!r} in this document",
            hint=f"GET /documents/{document_id}/sections lists them.",
        )
    with base.catalog.read() as connection:
        version_id = base.documents.version_id(connection, document_id, version, access_scope)
        passages = passage_rows.of_version(
            connection,
            version_id,
            offset=offset,
            limit=limit,
            section_id=section,
            access_scope=access_scope,
        )
    return {
        "passages": [_passage(passage) for passage in passages],
        "total": sum(counts.values()) if section is None else counts[section],
        "offset": offset,
        "limit": limit,
    }


def show_passage(
    base: KnowledgeBase, passage_id: str, *, access_scope: AccessScope = ALL_ACCESS
) -> Json:
    """One passage. `superseded` where a newer version of its document is current; then
    `current_passage` is what took its place there, None where that is not known. Raises NotFound.
    """
    with base.catalog.read() as connection:
        passage = passage_rows.get(connection, passage_id, access_scope)
        place = succession_of(connection, passage_id, access_scope)
    return {
        **_passage(passage),
        "superseded": place.superseded,
        "current_passage": place.successor,
    }


def correct_passage(
    base: KnowledgeBase,
    passage_id: str,
    *,
    text: str | None = None,
    tags: Sequence[tuple[str, str]] | None = None,
    hardware: Sequence[str] | None = None,
    actor: str,
    access_scope: AccessScope = ALL_ACCESS,
) -> Json:
    """Correct a passage; it holds at once, and in every later revision that has the same text.

    `tags` (pairs of kind and value) and `hardware` replace all present ones; None leaves them.
    A corrected text has no vector until the next step of an ingestion worker. Raises NotFound,
    UnknownHardware, UnknownSignal, and InvalidRequest for a text over the embedder's window.
    """
    if text is not None:
        with base.catalog.read() as connection:
            _check_length(base, passage_rows.get(connection, passage_id, access_scope), text)
    for kind, value in tags or ():
        if kind == "signal":
            load_signals().get(value)
    scopes = None
    if hardware is not None:
        scopes = tuple(sorted({base.registry.resolve(name) for name in hardware if name != ANY}))
    patch = Patch(text=text, tags=None if tags is None else tuple(tags), hardware=scopes)
    corrected = passage_rows.correct(
        base.catalog, passage_id, patch, actor, access_scope=access_scope
    )
    return _passage(corrected)


def list_proposed_recipes(
    base: KnowledgeBase, hardware: str = "", *, access_scope: AccessScope = ALL_ACCESS
) -> list[Json]:
    """Recipes proposed from the code samples of manuals; of one chip and those above it, or all."""
    lineage = None
    if hardware:
        lineage = base.registry.lineage(base.registry.resolve(hardware))
    with base.catalog.read() as connection:
        recipes = list_recipes(connection, lineage, access_scope=access_scope)
    return [plain(recipe) for recipe in recipes]


def decide_proposed_recipe(
    base: KnowledgeBase,
    recipe_id: str,
    status: RecipeStatus,
    access_scope: AccessScope = ALL_ACCESS,
) -> None:
    """Accept or reject a proposed recipe. Raises NotFound."""
    with base.catalog.write() as connection:
        decide_recipe(connection, recipe_id, status, access_scope)


def _numbered_version(
    base: KnowledgeBase, document: Document, number: int | None, access_scope: AccessScope
) -> Version:
    if number is None and document.version is not None:
        return document.version
    for version in base.documents.versions(document.id, access_scope=access_scope):
        if version.number == number:
            return version
    raise NotFound(
        f"document {document.id} has no version {number}",
        hint=f"GET /documents/{document.id} lists its versions.",
    )


def _check_length(base: KnowledgeBase, passage: Passage, text: str) -> None:
    """A passage over the embedder's window could not be embedded any more."""
    embedder = base.embedder
    tokens = embedder.count_tokens(embedding_text(passage.path, passage.lead, text))
    if tokens > embedder.window:
        raise InvalidRequest(
            f"the text has {tokens} tokens with its heading; a passage holds {embedder.window}",
            hint="Shorten it, or correct the neighbouring passages too.",
            details={"tokens": tokens, "limit": embedder.window},
        )


def _document(document: Document) -> Json:
    fields: Json = plain(document)
    return fields | {"version": _version(document.version) if document.version else None}


def _version(version: Version) -> Json:
    fields: Json = plain(version)
    return {key: value for key, value in fields.items() if key not in ("blob_key", "report")}


def _passage(passage: Passage) -> Json:
    page = {"index": passage.page_index, "label": passage.page_label}
    return {
        "id": passage.id,
        "document": {
            "id": passage.document_id,
            "title": passage.document_title,
            "version": passage.version,
        },
        "category": passage.category,
        "section": {"id": passage.section_id, "path": list(passage.path)},
        "ordinal": passage.ordinal,
        "kind": passage.kind,
        "lead": passage.lead,
        "text": passage.text,
        "language": passage.language,
        "page": page if passage.page_index is not None else None,
        "boxes": plain(passage.boxes),
        "hardware": [name for name in passage.hardware if name != ANY],
        "tags": [{"kind": kind, "value": value} for kind, value in passage.tags],
        "corrected": passage.corrected,
    }
