"""Documents and their passages: upload, read, correct, remove."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Depends, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from api.bodies import PassagePatch
from api.http.bodies import json_body
from api.http.dependencies import Access, Counters, Parts, api_router
from api.http.errors import ErrorBody
from api.http.multipart import Incoming, UploadForm, read_upload
from api.http.openapi import json_request, upload_request
from api.services import Services
from ingestion.uploads import Submitted, Upload
from kb.errors import InvalidRequest, KernloreError, error_json
from kb.ids import new_id
from kb.plain import plain
from kb.scope import AccessScope, Category
from retrieval import documents as browse

router = api_router("documents")

VersionNumber = Annotated[
    int | None, Query(ge=1, le=10**9, description="Number of a version. Default: the current one.")
]
# Shown by browsers as what they are; everything else is only ever saved.
_SHOWN = {
    "pdf": "application/pdf",
    "markdown": "text/plain; charset=utf-8",
    "rst": "text/plain; charset=utf-8",
    "text": "text/plain; charset=utf-8",
}


class RefusedFile(BaseModel):
    """A file of an upload that was not accepted."""

    name: str
    error: ErrorBody


class UploadedFiles(BaseModel):
    """The answer to an upload of several files, in their order."""

    documents: list[Submitted | RefusedFile] = Field(
        description="For each file its document and job, or why it was refused."
    )


@router.get("/documents", summary="List documents")
def list_documents(
    parts: Parts,
    access: Access,
    hardware: Annotated[
        str, Query(description="Only documents about exactly this hardware (id, name or alias).")
    ] = "",
    category: Annotated[
        Category | None, Query(description="Only documents of this category.")
    ] = None,
) -> dict[str, Any]:
    """All documents by category and title."""
    rows = browse.list_documents(parts, hardware=hardware, category=category, access_scope=access)
    return {"documents": rows, "total": len(rows)}


@router.post(
    "/documents",
    summary="Upload one file or several",
    status_code=202,
    responses={
        202: {
            "model": Submitted | UploadedFiles,
            "description": "One file: its document and job. Several files: a list of the same.",
        }
    },
    openapi_extra=upload_request(),
)
def upload(
    parts: Parts,
    counters: Counters,
    access: Access,
    form: Annotated[UploadForm, Depends(read_upload)],
) -> JSONResponse:
    """Accept files and queue them to be read; `GET /jobs?group=GROUP` says how far they are.

    `outcome` is created, new_version, unchanged or duplicate_of. File names may contain folders.
    """
    answers = submit_files(parts, counters, access, form)
    return JSONResponse(
        answers[0] if len(answers) == 1 else {"documents": answers}, status_code=202
    )


def submit_files(
    parts: Services, counters: Counters, access: AccessScope, form: UploadForm
) -> list[dict[str, Any]]:
    """For each file its document and job, or its name and the error that refused it. Raises the
    first error where every file was refused.
    """
    group = form.text("group") or (new_id("upl") if len(form.files) > 1 else None)
    answers: list[dict[str, Any]] = []
    refused: list[KernloreError] = []
    names: set[str] = set()
    for incoming in form.files:
        try:
            _only_one(incoming, names)
            answers.append(_submit(parts, form, incoming, access, group))
            counters.upload(answers[-1]["outcome"])
        except KernloreError as error:
            refused.append(error)
            answers.append({"name": incoming.name[:200], "error": error_json(error)})
            counters.upload("refused")
    if len(refused) == len(answers):
        if len(answers) > 1:
            refused[0].details["documents"] = answers
        raise refused[0]
    return answers


def _only_one(incoming: Incoming, names: set[str]) -> None:
    """Two files of one upload are no versions of each other. Takes note of the name."""
    if incoming.name in names:
        incoming.close()
        raise InvalidRequest(
            f"two files of this upload are called {incoming.name[:200]}",
            hint="Send them one at a time, each with a source_key of its own.",
        )
    names.add(incoming.name)


def _submit(
    parts: Services, form: UploadForm, incoming: Incoming, access: AccessScope, group: str | None
) -> dict[str, Any]:
    try:
        if incoming.oversized:
            raise parts.uploads.too_large(incoming.name)
        data = incoming.file.read()
    finally:
        incoming.close()
    submitted = parts.uploads.submit(
        Upload(
            name=incoming.name,
            data=data,
            category=form.text("category"),
            hardware=form.listed("hardware"),
            languages=form.listed("languages"),
            title=form.text("title"),
            source_key=form.text("source_key"),
            access_scope=access,
            group=group,
        )
    )
    answer: dict[str, Any] = plain(submitted)
    return answer


@router.get("/documents/{document_id}", summary="Show one document with its versions")
def show(document_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    """`report` says what was read of the current version: pages, tables, warnings."""
    return browse.show_document(parts, document_id, access_scope=access)


@router.delete("/documents/{document_id}", summary="Remove a document and everything read from it")
def delete(document_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    """Once this has answered, no other answer contains anything of the document."""
    return browse.delete_document(parts, document_id, access_scope=access)


@router.delete(
    "/documents/{document_id}/corrections/{correction_id}",
    summary="Drop a correction that no longer fits",
)
def drop_correction(
    document_id: str, correction_id: str, parts: Parts, access: Access
) -> dict[str, Any]:
    """`corrections_unfit` of the document lists them: of passages, of headings and of cards."""
    browse.drop_correction(parts, document_id, correction_id, access_scope=access)
    return {"id": correction_id, "document_id": document_id, "dropped": True}


@router.get("/documents/{document_id}/sections", summary="List the headings of a document")
def sections(
    document_id: str, parts: Parts, access: Access, version: VersionNumber = None
) -> dict[str, Any]:
    """Headings in reading order, each with its level and its number of passages."""
    rows = browse.list_sections(parts, document_id, version=version, access_scope=access)
    return {"sections": rows}


@router.get("/documents/{document_id}/moves", summary="List the remedies that a document states")
def document_moves(document_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    """Moves: when to change what about a kernel, and why."""
    return {"moves": browse.list_moves(parts, document_id, access_scope=access)}


@router.get(
    "/documents/{document_id}/file",
    summary="Download the file as it was uploaded",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}, "application/pdf": {}}}},
)
def original(
    document_id: str, parts: Parts, access: Access, version: VersionNumber = None
) -> Response:
    """PDF and plain text open in a browser; anything that could run there is only saved."""
    file = browse.original_file(parts, document_id, version=version, access_scope=access)
    kind = _SHOWN.get(file.format)
    disposition = "inline" if kind else "attachment"
    headers = {
        "Content-Disposition": f"{disposition}; filename*=UTF-8''{quote(file.name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
        "Cross-Origin-Resource-Policy": "same-origin",
        "ETag": f'"{file.sha256}"',
    }
    if file.format != "pdf":  # browsers' PDF viewers do not start in a sandbox
        headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return Response(file.data, media_type=kind or "application/octet-stream", headers=headers)


@router.get("/documents/{document_id}/passages", summary="List passages in reading order")
def list_passages(
    document_id: str,
    parts: Parts,
    access: Access,
    section: Annotated[str | None, Query(description="Only passages of this section id.")] = None,
    version: VersionNumber = None,
    offset: Annotated[int, Query(ge=0, le=10**9, description="Passages to skip.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000, description="Passages to return.")] = 100,
) -> dict[str, Any]:
    """`total` counts all passages of the document, or of the section if one is given."""
    return browse.list_passages(
        parts,
        document_id,
        section=section,
        version=version,
        offset=offset,
        limit=limit,
        access_scope=access,
    )


@router.get("/passages/{passage_id}", summary="Show one passage")
def show_passage(passage_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    """Its text, page, boxes on the page, hardware and tags. One of an earlier version of its
    document is `superseded`, with the id of its `current_passage` where that is known."""
    return browse.show_passage(parts, passage_id, access_scope=access)


@router.patch(
    "/passages/{passage_id}",
    summary="Correct the text, tags or hardware of a passage",
    openapi_extra=json_request(PassagePatch),
)
def correct(
    passage_id: str,
    parts: Parts,
    access: Access,
    body: Annotated[PassagePatch, Depends(json_body(PassagePatch))],
) -> dict[str, Any]:
    """The correction holds at once, and in every later revision that has the same text."""
    return browse.correct_passage(
        parts,
        passage_id,
        text=body.text,
        tags=body.tag_pairs,
        hardware=body.hardware,
        actor=body.actor,
        access_scope=access,
    )
