"""Documents: the list, uploads, a document with its outline and passages, corrections."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from api.http.bodies import UploadForm
from api.http.routes import Parts, read_files
from api.operations import documents, hardware
from api.operations.documents import RefusedFile, UploadedFiles
from api.services import Services
from api.web.pages import (
    PAGE_SIZE,
    Number,
    SentForm,
    carry_out,
    check_box,
    counted,
    form_route,
    is_fragment,
    page,
    page_router,
    paged,
    see_other,
)
from ingestion.page_images import PageImage
from ingestion.uploads import Submitted
from kb.errors import ErrorBody, InvalidRequest, KernloreError, NotFound, error_json
from kb.plain import plain
from kb.scope import CATEGORIES
from retrieval.documents import original_file, page_of_documents
from retrieval.vocabulary import symbols_of_section

PASSAGES = 20
router = page_router("/ui")


@router.get("/documents")
def list_page(
    request: Request,
    services: Parts,
    q: str = "",
    hardware: str = "",
    category: str = "",
    origin: Literal["", "builtin", "upload"] = "",
    sort: Literal["", "newest"] = "",
    number: Number = 1,
) -> HTMLResponse:
    """Documents by category and title; `q` is searched in titles and source keys."""
    _, mine = page_of_documents(services, limit=0, origin="upload")
    rows, total = page_of_documents(
        services,
        limit=PAGE_SIZE,
        offset=(number - 1) * PAGE_SIZE,
        hardware=hardware,
        category=category or None,
        words=q[:400],
        origin=origin or None,
        newest=sort == "newest",
    )
    return page(
        request,
        "documents.html",
        shown=counted(rows, number, total),
        given={"q": q, "hardware": hardware, "category": category, "origin": origin, "sort": sort},
        mine=mine,
        categories=CATEGORIES,
        chips=_chips(services),
    )


def _chips(services: Services) -> Any:
    return hardware.list_hardware(services).hardware


@router.get("/upload")
def upload_form(request: Request, services: Parts, hardware: str = "") -> HTMLResponse:
    """The form for new documents."""
    return _upload_page(request, services, hardware, None)


def _upload_page(request: Request, services: Services, hardware: str, answers: Any) -> HTMLResponse:
    return page(
        request,
        "upload.html",
        hardware=hardware,
        chips=_chips(services),
        categories=CATEGORIES,
        settings=services.settings,
        answers=answers,
    )


@form_route(router, "/upload", documents.upload)
def upload(
    request: Request,
    services: Parts,
    form: Annotated[UploadForm, Depends(read_files(documents.upload))],
) -> Response:
    """Queue the files and show how far their reading is; to a script, as rows of a list."""
    try:
        answer = documents.upload(services, form.files, **form.input)
    except KernloreError as error:
        if not is_fragment(request):
            raise
        names = ", ".join(file.name for file in form.files)[:200]
        answer = UploadedFiles([RefusedFile(names, ErrorBody(**error_json(error)))])
    finally:
        for file in form.files:
            file.close()
    answers = [answer] if isinstance(answer, Submitted) else answer.documents
    if is_fragment(request):
        ids = [a.job_id for a in answers if isinstance(a, Submitted) and a.job_id]
        jobs = {job_id: documents.show_job(services, job_id) for job_id in ids}
        return page(request, "upload_rows.html", answers=plain(answers), jobs=jobs)
    if isinstance(answer, Submitted):
        goal = f"/jobs/{answer.job_id}" if answer.job_id else f"/documents/{answer.document_id}"
        return see_other(request, goal)
    return _upload_page(request, services, "", plain(answers))


@router.get("/documents/{document_id}")
def show(
    document_id: str, request: Request, services: Parts, section: str = "", number: Number = 1
) -> HTMLResponse:
    """The report, the outline, and the passages of the document or of one section."""
    document = documents.show_document(services, document_id)
    values: dict[str, Any] = {"sections": [], "passages": [], "moves": [], "symbols": []}
    shown = paged((), 1)
    if document.version is not None:
        listed = documents.list_passages(
            services,
            document_id,
            section=section or None,
            offset=(number - 1) * PASSAGES,
            limit=PASSAGES,
        )
        pages = max(1, -(-listed.total // PASSAGES))
        shown = shown._replace(number=number, pages=pages, total=listed.total)
        values = {
            "sections": documents.list_sections(services, document_id).sections,
            "passages": listed.passages,
            "moves": documents.list_moves(services, document_id).moves,
            "symbols": symbols_of_section(services, section) if section else [],
        }
    return page(request, "document.html", document=document, section=section, shown=shown, **values)


@form_route(router, "/documents/{document_id}/delete", documents.delete_document)
def delete(document_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Delete the document; the box of the form must be ticked."""
    check_box(form, "nothing was deleted")
    documents.delete_document(services, document_id)
    return see_other(request, "/documents")


@form_route(router, "/documents/{document_id}/restore", documents.restore_document)
def restore(document_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Read the file of an earlier version again, as the newest one."""
    number = form.text("version")
    version = int(number) if number.isdecimal() else 0
    operation = documents.restore_document
    sent = carry_out(request, services, operation, document_id=document_id, version=version)
    goal = f"/jobs/{sent.job_id}" if sent.job_id else f"/documents/{document_id}"
    return see_other(request, goal)


@form_route(
    router, "/documents/{document_id}/corrections/{correction_id}/drop", documents.drop_correction
)
def drop_correction(
    document_id: str, correction_id: str, request: Request, services: Parts
) -> Response:
    """Drop a correction that does not fit the current version."""
    documents.drop_correction(services, document_id, correction_id)
    return see_other(request, f"/documents/{document_id}")


@router.get("/passages/{passage_id}")
def passage(passage_id: str, request: Request, services: Parts) -> HTMLResponse:
    """One passage with its source, its place on the page, and the form that corrects it."""
    shown = documents.show_passage(services, passage_id)
    version = documents.show_document(services, shown.document.id).version
    return page(
        request,
        "passage.html",
        passage=shown,
        pdf=shown.page is not None and version is not None and version.format == "pdf",
        symbols=symbols_of_section(services, shown.section.id),
    )


@form_route(router, "/passages/{passage_id}", documents.correct_passage)
def correct(passage_id: str, request: Request, services: Parts, form: SentForm) -> Response:
    """Correct text, tags and hardware; what did not change stays as it was read."""
    before = documents.show_passage(services, passage_id)
    # A browser sends lines with CR LF.
    text = next(iter(form.values("text")), "").replace("\r\n", "\n")
    tags = [_tag(entry) for entry in form.listed("tags")]
    changes: dict[str, Any] = {}
    if text.strip() != before.text.strip():
        changes["text"] = text
    if tags != plain(before.tags):
        changes["tags"] = tags
    if sorted(form.listed("hardware")) != sorted(before.hardware):
        changes["hardware"] = form.listed("hardware")
    if changes:
        carry_out(request, services, documents.correct_passage, passage_id=passage_id, **changes)
    return see_other(request, f"/passages/{passage_id}")


@router.get("/passages/{passage_id}/page")
def passage_page(passage_id: str, request: Request, services: Parts) -> HTMLResponse:
    """The image of a passage's page with the passage marked; for a script, the image only."""
    shown = documents.show_passage(services, passage_id)
    if shown.page is None:
        raise NotFound("this passage is on no page", hint=f"See /ui/passages/{passage_id}.")
    index = shown.page.index
    image = _image(services, shown.document.id, shown.document.version, index)
    boxes = [box for box in shown.boxes if box["page_index"] == index and box["x1"] > box["x0"]]
    template = "sheet.html" if is_fragment(request) else "passage_page.html"
    return page(request, template, passage=shown, image=image, boxes=boxes)


@router.get("/documents/{document_id}/pages/{index}.png")
def page_picture(
    document_id: str,
    index: int,
    services: Parts,
    version: Annotated[int | None, Query(ge=1, le=10**9)] = None,
) -> Response:
    """A page of a PDF document, counted from 0."""
    image = _image(services, document_id, version, index)
    return Response(
        image.png, media_type="image/png", headers={"Cache-Control": "private, no-cache"}
    )


def _image(services: Services, document_id: str, version: int | None, index: int) -> PageImage:
    file = original_file(services, document_id, version)
    if file.format != "pdf":
        raise NotFound(f"{file.name[:200]} has no pages", hint="Only PDF documents are drawn.")
    return services.page_images.page(file.data, file.sha256, index)


def _tag(entry: str) -> dict[str, str]:
    kind, colon, value = entry.partition(":")
    if not colon:
        raise InvalidRequest(
            f"the tag {entry[:80]!r} has no kind",
            hint="Write signal:memory_bound or topic:memory, separated by commas.",
        )
    return {"kind": kind.strip(), "value": value.strip()}
