"""Documents and their jobs: upload, watch, read, remove."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse

from api.http.dependencies import Access, Counters, Parts
from api.http.multipart import Incoming, UploadForm, read_upload
from api.http.openapi import upload_request
from api.services import Services
from ingestion.uploads import Upload
from kb.catalog.knowledge import moves
from kb.catalog.knowledge.documents import Document, Version
from kb.errors import KernloreError, NotFound, error_json
from kb.plain import plain
from kb.scope import Category

router = APIRouter(tags=["documents"])

VersionNumber = Annotated[
    int | None, Query(ge=1, le=10**9, description="Default: the current version.")
]
# Shown by browsers as what they are; everything else is only ever saved.
_SHOWN = {
    "pdf": "application/pdf",
    "markdown": "text/plain; charset=utf-8",
    "rst": "text/plain; charset=utf-8",
    "text": "text/plain; charset=utf-8",
}


@router.get("/documents", summary="Every document")
def list_documents(
    parts: Parts,
    access: Access,
    hardware: Annotated[str, Query(description="Only what is scoped to this id.")] = "",
    category: Annotated[Category | None, Query()] = None,
) -> dict[str, Any]:
    found = parts.documents.find(
        hardware=parts.registry.resolve(hardware) if hardware else None,
        category=category,
        access_scope=access,
    )
    return {"documents": [_summary(document) for document in found], "total": len(found)}


@router.post(
    "/documents",
    summary="Upload one file or many",
    status_code=202,
    openapi_extra=upload_request(),
)
def upload(
    parts: Parts,
    counters: Counters,
    access: Access,
    form: Annotated[UploadForm, Depends(read_upload)],
) -> JSONResponse:
    """One file: its document and job. Many: the same for each, or why it was refused. Names may
    hold folders. `outcome` is created, new_version, unchanged or duplicate_of.
    """
    answers: list[dict[str, Any]] = []
    refused: list[KernloreError] = []
    for incoming in form.files:
        try:
            answers.append(_submit(parts, form, incoming, access))
            counters.upload(answers[-1]["outcome"])
        except KernloreError as error:
            refused.append(error)
            answers.append({"name": incoming.name[:200], "error": error_json(error)})
            counters.upload("refused")
    if len(refused) == len(answers):
        if len(answers) > 1:
            refused[0].details["documents"] = answers
        raise refused[0]
    return JSONResponse(
        answers[0] if len(answers) == 1 else {"documents": answers}, status_code=202
    )


def _submit(parts: Services, form: UploadForm, incoming: Incoming, access: str) -> dict[str, Any]:
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
        )
    )
    answer: dict[str, Any] = plain(submitted)
    return answer


@router.get("/documents/{document_id}", summary="One document with its versions")
def show(document_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    document = parts.documents.get(document_id, access_scope=access)
    versions = parts.documents.versions(document_id, access_scope=access)
    current = {"report": plain(document.version.report) if document.version else {}}
    return _summary(document) | current | {"versions": [_version(v) for v in versions]}


@router.delete("/documents/{document_id}", summary="Remove a document and all made of it")
def delete(document_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    """From the answer on, nothing of it is returned any more."""
    document = parts.documents.get(document_id, access_scope=access)
    for key in parts.documents.delete(document_id, access_scope=access):
        parts.blobs.delete(key)
    answer: dict[str, Any] = {"id": document_id, "deleted": True}
    if document.origin == "builtin":
        answer["note"] = "It is built in: the next start loads it again while its file exists."
    return answer


@router.get("/documents/{document_id}/sections", summary="Its heading tree")
def sections(
    document_id: str, parts: Parts, access: Access, version: VersionNumber = None
) -> dict[str, Any]:
    found = parts.documents.sections(document_id, version=version, access_scope=access)
    return {"sections": plain(found)}


@router.get("/documents/{document_id}/moves", summary="The remedies that it states")
def document_moves(document_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    parts.documents.get(document_id, access_scope=access)
    with parts.catalog.read() as connection:
        return {"moves": plain(moves.of_document(connection, document_id, access))}


@router.get("/documents/{document_id}/file", summary="The file as uploaded")
def original(
    document_id: str, parts: Parts, access: Access, version: VersionNumber = None
) -> Response:
    """PDF and plain text open in a browser; anything that could run there is only saved."""
    document = parts.documents.get(document_id, access_scope=access)
    found = _numbered(parts, document, version, access)
    kind = _SHOWN.get(found.format)
    name = found.file_name.rsplit("/", 1)[-1]
    shown = "inline" if kind else "attachment"
    headers = {
        "Content-Disposition": f"{shown}; filename*=UTF-8''{quote(name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
        "Cross-Origin-Resource-Policy": "same-origin",
        "ETag": f'"{found.sha256}"',
    }
    if found.format != "pdf":  # browsers' PDF viewers do not start in a sandbox
        headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    data = parts.blobs.get(found.blob_key)
    return Response(data, media_type=kind or "application/octet-stream", headers=headers)


def _numbered(parts: Services, document: Document, number: int | None, access: str) -> Version:
    if number is None and document.version is not None:
        return document.version
    for version in parts.documents.versions(document.id, access_scope=access):
        if version.number == number:
            return version
    raise NotFound(
        f"document {document.id} has no version {number}",
        hint=f"GET /documents/{document.id} lists its versions.",
    )


def _summary(document: Document) -> dict[str, Any]:
    shown: dict[str, Any] = plain(document)
    return shown | {"version": _version(document.version) if document.version else None}


def _version(version: Version) -> dict[str, Any]:
    shown: dict[str, Any] = plain(version)
    return {key: value for key, value in shown.items() if key not in ("blob_key", "report")}


@router.get("/jobs/{job_id}", summary="How far a job is")
def job(job_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    """`state` is queued, running, ready, partial or failed; then `error` says why."""
    found: dict[str, Any] = plain(parts.jobs.get(job_id, access_scope=access))
    document_id = found.pop("subject_id")
    hidden = ("payload", "lease_owner")
    return {k: v for k, v in found.items() if k not in hidden} | {"document_id": document_id}


@router.post("/jobs/{job_id}/retry", summary="Queue a failed job again", status_code=202)
def retry(job_id: str, parts: Parts, access: Access) -> dict[str, Any]:
    parts.jobs.get(job_id, access_scope=access)
    parts.jobs.retry(job_id)
    return job(job_id, parts, access)
