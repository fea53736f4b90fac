"""Documents: the list, uploads, a document with its outline and passages, corrections."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from api.bodies import PassagePatch, validated
from api.http.dependencies import Access, Counters, Parts
from api.http.multipart import UploadForm, read_upload
from api.http.routes.documents import submit_files
from api.web.pages import MAX_PAGE, PageRoute, SentForm, page, paged, see_other
from ingestion import hardware as chips
from kb.errors import InvalidRequest
from kb.scope import CATEGORIES
from retrieval import documents as browse

ACTOR = "web"
PASSAGES = 20
router = APIRouter(prefix="/ui", route_class=PageRoute, include_in_schema=False)
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
    rows = browse.list_documents(
        parts, hardware=hardware or None, category=category or None, access_scope=access
    )
    words = q.lower().split()
    fitting = [
        r for r in rows if all(w in f"{r['title']} {r['source_key']}".lower() for w in words)
    ]
    return page(
        request,
        "documents.html",
        shown=paged(fitting, number),
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
    """Queue the files and show how far their reading is."""
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
    values: dict[str, Any] = {"sections": [], "passages": [], "moves": []}
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


@router.get("/passages/{passage_id}")
def passage(passage_id: str, request: Request, parts: Parts, access: Access) -> HTMLResponse:
    """One passage with its source, and the form that corrects it."""
    return page(
        request,
        "passage.html",
        passage=browse.show_passage(parts, passage_id, access_scope=access),
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
            actor=body.actor,
            access_scope=access,
        )
    return see_other(request, f"/passages/{passage_id}")


def _tag(entry: str) -> dict[str, str]:
    kind, colon, value = entry.partition(":")
    if not colon:
        raise InvalidRequest(
            f"the tag {entry[:80]!r} has no kind",
            hint="Write signal:memory_bound or topic:memory, separated by commas.",
        )
    return {"kind": kind.strip(), "value": value.strip()}
