"""Documents: the list, uploads, a document with its outline and passages, corrections."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from api.bodies import PassagePatch, validated
from api.http.bodies import signed
from api.http.dependencies import Access, Counters, Parts
from api.http.multipart import UploadForm, read_upload
from api.http.observability import Metrics
from api.http.routes.documents import submit_files
from api.services import Services
from api.web.pages import (
    MAX_PAGE,
    PAGE_SIZE,
    SentForm,
    counted,
    is_fragment,
    page,
    page_router,
    paged,
    see_other,
)
from ingestion import hardware as chips
from ingestion.page_images import PageImage
from ingestion.progress import show_job
from kb.errors import InvalidRequest, KernloreError, NotFound, error_json
from kb.scope import CATEGORIES, AccessScope
from retrieval import documents as browse
from retrieval.vocabulary import symbols_of_section

ACTOR = "web"
PASSAGES = 20
router = page_router("/ui")
Number = Annotated[int, Query(ge=1, le=MAX_PAGE)]


@router.get("/documents")
def list_page(
    request: Request,
    parts: Parts,
    access: Access,
    q: str = "",
    hardware: str = "",
    category: str = "",
    number: Number = 1,
) -> HTMLResponse:
    """Documents by category and title; `q` is searched in titles and source keys."""
    rows, total = browse.page_of_documents(
        parts,
        limit=PAGE_SIZE,
        offset=(number - 1) * PAGE_SIZE,
        hardware=hardware or None,
        category=category or None,
        words=q[:400],
        access_scope=access,
    )
    return page(
        request,
        "documents.html",
        shown=counted(rows, number, total),
        q=q,
        hardware=hardware,
        category=category,
        categories=CATEGORIES,
        chips=chips.list_hardware(parts.registry),
    )


@router.get("/upload")
def upload_form(request: Request, parts: Parts, hardware: str = "") -> HTMLResponse:
    """The form for new documents."""
    return page(
        request,
        "upload.html",
        hardware=hardware,
        chips=chips.list_hardware(parts.registry),
        categories=CATEGORIES,
        settings=parts.settings,
        answers=None,
    )


@router.post("/upload")
def upload(
    request: Request,
    parts: Parts,
    counters: Counters,
    access: Access,
    form: Annotated[UploadForm, Depends(read_upload)],
) -> Response:
    """Queue the files and show how far their reading is; to a script, as rows of a list."""
    if is_fragment(request):
        return _rows(request, parts, counters, access, form)
    answers = submit_files(parts, counters, access, form)
    if len(answers) == 1:
        (only,) = answers
        job = only["job_id"]
        return see_other(request, f"/jobs/{job}" if job else f"/documents/{only['document_id']}")
    return page(
        request,
        "upload.html",
        hardware="",
        chips=chips.list_hardware(parts.registry),
        categories=CATEGORIES,
        settings=parts.settings,
        answers=answers,
    )


def _rows(
    request: Request, parts: Services, counters: Metrics, access: AccessScope, form: UploadForm
) -> HTMLResponse:
    """A refused file is a row too: the others of the same list go on."""
    try:
        answers = submit_files(parts, counters, access, form)
    except KernloreError as error:
        names = ", ".join(file.name for file in form.files)[:200]
        answers = [{"name": names, "error": error_json(error)}]
    ids = [answer["job_id"] for answer in answers if answer.get("job_id")]
    jobs = {job_id: show_job(parts, job_id, access_scope=access) for job_id in ids}
    return page(request, "upload_rows.html", answers=answers, jobs=jobs)


@router.get("/documents/{document_id}")
def show(
    document_id: str,
    request: Request,
    parts: Parts,
    access: Access,
    section: str = "",
    number: Number = 1,
) -> HTMLResponse:
    """The report, the outline, and the passages of the document or of one section."""
    document = browse.show_document(parts, document_id, access_scope=access)
    values: dict[str, Any] = {"sections": [], "passages": [], "moves": [], "symbols": []}
    shown = paged((), 1)
    if document["version"] is not None:
        listed = browse.list_passages(
            parts,
            document_id,
            section=section or None,
            offset=(number - 1) * PASSAGES,
            limit=PASSAGES,
            access_scope=access,
        )
        pages = max(1, -(-listed["total"] // PASSAGES))
        shown = shown._replace(number=number, pages=pages, total=listed["total"])
        values = {
            "sections": browse.list_sections(parts, document_id, access_scope=access),
            "passages": listed["passages"],
            "moves": browse.list_moves(parts, document_id, access_scope=access),
            "symbols": symbols_of_section(parts, section, access) if section else [],
        }
    return page(request, "document.html", document=document, section=section, shown=shown, **values)


@router.post("/documents/{document_id}/delete")
def delete(
    document_id: str, request: Request, parts: Parts, access: Access, form: SentForm
) -> Response:
    """Remove the document; the box of the form must be marked."""
    if form.text("sure") != "yes":
        raise InvalidRequest(
            "nothing was deleted", hint="Mark the box beside the button, then press it again."
        )
    browse.delete_document(parts, document_id, access_scope=access)
    return see_other(request, "/documents")


@router.post("/documents/{document_id}/corrections/{correction_id}/drop")
def drop_correction(
    document_id: str, correction_id: str, request: Request, parts: Parts, access: Access
) -> Response:
    """Forget a correction that the current version has no place for."""
    browse.drop_correction(parts, document_id, correction_id, access_scope=access)
    return see_other(request, f"/documents/{document_id}")


@router.get("/passages/{passage_id}")
def passage(passage_id: str, request: Request, parts: Parts, access: Access) -> HTMLResponse:
    """One passage with its source, its place on the page, and the form that corrects it."""
    shown = browse.show_passage(parts, passage_id, access_scope=access)
    document = browse.show_document(parts, shown["document"]["id"], access_scope=access)
    version = document["version"]
    return page(
        request,
        "passage.html",
        passage=shown,
        pdf=shown["page"] is not None and version is not None and version["format"] == "pdf",
        symbols=symbols_of_section(parts, shown["section"]["id"], access),
    )


@router.post("/passages/{passage_id}")
def correct(
    passage_id: str, request: Request, parts: Parts, access: Access, form: SentForm
) -> Response:
    """Correct text, tags and hardware; what did not change stays as it was read."""
    before = browse.show_passage(parts, passage_id, access_scope=access)
    # A browser sends lines with CR LF.
    text = next(iter(form.values("text")), "").replace("\r\n", "\n")
    tags = [_tag(entry) for entry in form.listed("tags")]
    changes: dict[str, Any] = {"actor": ACTOR}
    if text.strip() != before["text"].strip():
        changes["text"] = text
    if tags != before["tags"]:
        changes["tags"] = tags
    if sorted(form.listed("hardware")) != sorted(before["hardware"]):
        changes["hardware"] = form.listed("hardware")
    body = validated(PassagePatch, changes)
    if len(changes) > 1:
        browse.correct_passage(
            parts,
            passage_id,
            text=body.text,
            tags=body.tag_pairs,
            hardware=body.hardware,
            actor=signed(request, body.actor),
            access_scope=access,
        )
    return see_other(request, f"/passages/{passage_id}")


@router.get("/passages/{passage_id}/page")
def passage_page(passage_id: str, request: Request, parts: Parts, access: Access) -> HTMLResponse:
    """The picture of its page with its place marked; to a script, the picture alone."""
    shown = browse.show_passage(parts, passage_id, access_scope=access)
    if shown["page"] is None:
        raise NotFound("this passage is on no page", hint=f"See /ui/passages/{passage_id}.")
    index = int(shown["page"]["index"])
    image = _image(parts, shown["document"]["id"], shown["document"]["version"], index, access)
    boxes = [box for box in shown["boxes"] if box["page_index"] == index and box["x1"] > box["x0"]]
    template = "sheet.html" if is_fragment(request) else "passage_page.html"
    return page(request, template, passage=shown, image=image, boxes=boxes)


@router.get("/documents/{document_id}/pages/{index}.png")
def page_picture(
    document_id: str,
    index: int,
    parts: Parts,
    access: Access,
    version: Annotated[int | None, Query(ge=1, le=10**9)] = None,
) -> Response:
    """A page of a PDF document, counted from 0."""
    image = _image(parts, document_id, version, index, access)
    return Response(
        image.png, media_type="image/png", headers={"Cache-Control": "private, no-cache"}
    )


def _image(
    parts: Services, document_id: str, version: int | None, index: int, access: AccessScope
) -> PageImage:
    file = browse.original_file(parts, document_id, version=version, access_scope=access)
    if file.format != "pdf":
        raise NotFound(f"{file.name[:200]} has no pages", hint="Only PDF documents are drawn.")
    return parts.page_images.page(file.data, file.sha256, index)


def _tag(entry: str) -> dict[str, str]:
    kind, colon, value = entry.partition(":")
    if not colon:
        raise InvalidRequest(
            f"the tag {entry[:80]!r} has no kind",
            hint="Write signal:memory_bound or topic:memory, separated by commas.",
        )
    return {"kind": kind.strip(), "value": value.strip()}
