"""Passages: what a document became, and its correction by a person."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from api.http.bodies import json_body
from api.http.dependencies import Access, Parts
from api.http.models import PassagePatch
from api.http.openapi import json_request
from api.http.routes.documents import VersionNumber
from api.services import Services
from kb.catalog.knowledge import passages as store
from kb.catalog.knowledge.passages import Passage, Patch
from kb.embedding import embedding_text
from kb.errors import InvalidRequest, NotFound
from kb.plain import plain
from kb.scope import ANY
from retrieval.diagnose.signals import load_signals

router = APIRouter(tags=["documents"])


@router.get("/documents/{document_id}/passages", summary="Its passages in reading order")
def list_passages(
    document_id: str,
    parts: Parts,
    access: Access,
    section: Annotated[str | None, Query(description="Only those of this section id.")] = None,
    version: VersionNumber = None,
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    """`total` counts all of them, of the section if one is given."""
    sections = parts.documents.sections(document_id, version=version, access_scope=access)
    counts = {row.id: row.passages for row in sections}
    if section is not None and section not in counts:
        raise NotFound(
            f"no section {section[:80]!r} in this document",
            hint=f"GET /documents/{document_id}/sections lists them.",
        )
    with parts.catalog.read() as connection:
        version_id = parts.documents.version_id(connection, document_id, version, access)
        found = store.of_version(
            connection, version_id, offset=offset, limit=limit, section_id=section
        )
    total = sum(counts.values()) if section is None else counts[section]
    return {
        "passages": [_shown(passage) for passage in found],
        "total": total,
        "offset": offset,
        "limit": limit,
    }


@router.get("/passages/{passage_id}", summary="One passage")
def show(passage_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    with parts.catalog.read() as connection:
        return _shown(store.get(connection, passage_id, access))


@router.patch(
    "/passages/{passage_id}",
    summary="Correct a passage: text, tags or scope",
    openapi_extra=json_request(PassagePatch),
)
def correct(
    passage_id: str,
    parts: Parts,
    access: Access,
    body: Annotated[PassagePatch, Depends(json_body(PassagePatch))],
) -> dict[str, Any]:
    """Holds at once, and in every later revision that has the same text."""
    if body.text is not None:
        with parts.catalog.read() as connection:
            _check_length(parts, store.get(connection, passage_id, access), body.text)
    patch = Patch(text=body.text, tags=_tags(body), hardware=_hardware(body, parts))
    corrected = store.correct(parts.catalog, passage_id, patch, body.actor, access_scope=access)
    return _shown(corrected)


def _check_length(parts: Services, passage: Passage, text: str) -> None:
    """A passage over the embedder's window could not be embedded any more."""
    embedder = parts.embedder
    tokens = embedder.count_tokens(embedding_text(passage.path, passage.lead, text))
    if tokens > embedder.window:
        raise InvalidRequest(
            f"the text has {tokens} tokens with its heading; a passage holds {embedder.window}",
            hint="Shorten it, or correct the neighbouring passages too.",
            details={"tokens": tokens, "limit": embedder.window},
        )


def _tags(body: PassagePatch) -> tuple[tuple[str, str], ...] | None:
    if body.tags is None:
        return None
    for tag in body.tags:
        if tag.kind == "signal":
            load_signals().get(tag.value)
    return tuple((tag.kind, tag.value) for tag in body.tags)


def _hardware(body: PassagePatch, parts: Services) -> tuple[str, ...] | None:
    if body.hardware is None:
        return None
    return tuple(sorted({parts.registry.resolve(h) for h in body.hardware if h != ANY}))


def _shown(passage: Passage) -> dict[str, Any]:
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
        "hardware": [h for h in passage.hardware if h != ANY],
        "tags": [{"kind": kind, "value": value} for kind, value in passage.tags],
        "corrected": passage.corrected,
    }
