"""Documents: uploads, passages, corrections, and the jobs that read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_fields
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

from annotated_types import Ge, Le

from api.operations import Download, Files, Incoming, operation
from api.operations.hardware import publish_drafts
from ingestion import progress
from ingestion.includes import JoinedUpload
from ingestion.uploads import (
    FileUpload,
    Submitted,
    archived_files,
    is_archive,
    join_upload,
    restore_version,
    safe_name,
)
from kb.catalog.knowledge import drafts
from kb.errors import ErrorBody, InvalidRequest, KernloreError, UnsupportedFormat, error_json
from kb.ids import new_id
from kb.plain import Doc
from kb.scope import Category
from retrieval import documents
from retrieval.documents import VersionNumber

if TYPE_CHECKING:
    from api.services import Services

declared = partial(operation, tag="documents")
# Limit of the unpacked files of an upload, in files of the largest size.
TOTAL_FILES = 16

# Media types that a browser shows; other formats are downloaded.
_SHOWN = {
    "pdf": "application/pdf",
    "markdown": "text/plain; charset=utf-8",
    "rst": "text/plain; charset=utf-8",
    "asciidoc": "text/plain; charset=utf-8",
    "latex": "text/plain; charset=utf-8",
    "roff": "text/plain; charset=utf-8",
    "text": "text/plain; charset=utf-8",
}

list_documents = declared("GET /documents", "List documents")(documents.list_documents)


@dataclass(frozen=True)
class RefusedFile:
    """A file of an upload that was not accepted."""

    name: str
    error: ErrorBody


@dataclass(frozen=True)
class UploadedFiles:
    """The answer to an upload of several files, in their order."""

    documents: Annotated[
        list[Submitted | RefusedFile],
        Doc("For each file its document and job, or why it was refused."),
    ]


@declared(
    "POST /documents",
    "Upload one file or several",
    role="writer",
    upload=True,
    status=202,
    responses={202: "One file: its document and job. Several files: a list of the same."},
)
def upload(
    services: Services,
    file: Files,
    hardware: Annotated[
        tuple[str, ...],
        Doc("Ids, names or aliases of the hardware that the files are about. Default: any."),
    ] = (),
    category: Category | None = None,
    languages: tuple[str, ...] = (),
    title: Annotated[
        str | None, Doc("Title, for a single file. Default: the document's own.")
    ] = None,
    source_key: Annotated[
        str | None, Doc("A name that stays the same over the revisions of the document.")
    ] = None,
    replace: Annotated[
        bool,
        Doc(
            "Replace the current version also if its text is unrelated. Default: such a job fails"
            " with unrelated_version, and nothing is replaced."
        ),
    ] = False,
    group: Annotated[
        str | None,
        Doc(
            "A name for files that belong together, over several requests too. `GET"
            " /jobs?group=` lists its jobs. Default for several files: a new one."
        ),
    ] = None,
) -> Submitted | UploadedFiles:
    """Accept files and queue them to be read; `GET /jobs?group=GROUP` shows their progress.

    `outcome` is created, new_version, unchanged, duplicate_of, or included: the text is in the
    document of another file of the upload, by `include::` or `\\input`. File names may contain
    folders, which tell files of one name apart. A ZIP archive is unpacked; its files have their
    paths in it.
    """
    about = FileUpload(
        name="",
        data=b"",
        category=category,
        hardware=hardware,
        languages=languages,
        title=title,
        source_key=source_key,
        access_scope=services.access,
        replace=replace,
    )
    several = len(file) > 1 or is_archive(file[0].file, file[0].name)
    about = with_fields(about, group=group or (new_id("upl") if several else None))
    answers: list[Submitted | RefusedFile] = []
    refused: list[KernloreError] = []
    names: set[str] = set()
    whole = {each.name: each.file for each in file if several and not each.oversized}
    joined = join_upload(whole, services.settings.max_file_bytes)
    parts: list[Incoming] = []
    for incoming in _unpacked(services, file, about):
        if isinstance(incoming, Incoming) and incoming.name in joined.part_of:
            parts.append(incoming)
            continue
        try:
            if isinstance(incoming, RefusedArchive):
                raise incoming.error
            _check_new(incoming, names)
            submitted = _submit(services, _with_included(incoming, joined), about)
            answers.append(submitted)
            services.metrics.upload(submitted.outcome)
        except KernloreError as error:
            refused.append(error)
            answers.append(RefusedFile(incoming.name[:200], ErrorBody(**error_json(error))))
            services.metrics.upload("refused")
    answers += _parts_of(parts, joined, answers)
    if len(refused) == len(answers):
        if len(answers) > 1:
            refused[0].details["documents"] = answers
        raise refused[0]
    return (
        answers[0] if isinstance(answers[0], Submitted) and not several else UploadedFiles(answers)
    )


@dataclass(frozen=True)
class RefusedArchive:
    """An archive that cannot be unpacked further."""

    name: str
    error: KernloreError


def _unpacked(
    services: Services, files: Files, about: FileUpload
) -> Iterator[Incoming | RefusedArchive]:
    """The files, with those of archives in place of the archives."""
    settings = services.settings
    most = settings.max_file_bytes
    limits = (settings.max_files_per_upload, most, TOTAL_FILES * most)
    for incoming in files:
        if incoming.oversized or not is_archive(incoming.file, incoming.name):
            yield incoming
            continue
        try:
            if about.title or about.source_key:
                raise InvalidRequest(
                    "one title or source_key for the files of an archive",
                    hint="Send them one by one to give a title or a source_key.",
                )
            empty = True
            for name, data in archived_files(incoming.file, incoming.name, limits):
                empty = False
                yield Incoming(name, BytesIO(data), oversized=len(data) > most)
            if empty:
                raise UnsupportedFormat(
                    f"{incoming.name[:200]} has no files", hint="Send an archive of documents."
                )
        except KernloreError as error:
            yield RefusedArchive(incoming.name, error)


def _with_included(incoming: Incoming, joined: JoinedUpload) -> Incoming:
    """The file with the text of those that it includes. Raises PayloadTooLarge."""
    if incoming.name in joined.errors:
        raise joined.errors[incoming.name]
    text = joined.texts.get(incoming.name)
    return incoming if text is None else Incoming(incoming.name, BytesIO(text))


def _parts_of(
    parts: Sequence[Incoming], joined: JoinedUpload, answers: Sequence[Submitted | RefusedFile]
) -> Iterator[Submitted | RefusedFile]:
    """The answers for included files: the documents that have their text."""
    wholes = {answer.name: answer for answer in answers}
    for part in parts:
        name = joined.part_of[part.name]
        whole = wholes.get(name[:200]) or wholes[safe_name(name)]
        if isinstance(whole, Submitted):
            yield Submitted(whole.document_id, None, "included", part.name[:200], whole.group)
        else:
            yield RefusedFile(part.name[:200], whole.error)


def _check_new(incoming: Incoming, names: set[str]) -> None:
    """Refuse two files of one name: they are not versions of each other."""
    if incoming.name in names:
        raise InvalidRequest(
            f"two files of this upload are called {incoming.name[:200]}",
            hint="Send the folder above both, so that each has its path; or send them one at a"
            " time, each with its own source_key.",
        )
    names.add(incoming.name)


def _submit(services: Services, incoming: Incoming, about: FileUpload) -> Submitted:
    if incoming.oversized:
        raise services.uploads.too_large(incoming.name)
    upload = with_fields(about, name=incoming.name, data=incoming.file.read())
    return services.uploads.submit(upload)


show_document = declared("GET /documents/{document_id}", "Show one document with its versions")(
    documents.show_document
)


@declared(
    "DELETE /documents/{document_id}", "Remove a document and everything read from it", role="admin"
)
def delete_document(services: Services, document_id: str) -> documents.DeletedDocument:
    """After the response, no answer contains any part of the document. Drafts that quote it are
    removed too, and the accepted ones of their chips are read again without them."""
    with services.catalog.read() as connection:
        quoting = drafts.quoting(connection, document_id)
    deleted = documents.delete_document(services, document_id)
    for chip in {draft.hardware_id for draft in quoting if draft.status == "accepted"}:
        publish_drafts(services, chip, anew=True)
    return deleted


@declared(
    "POST /documents/{document_id}/restore",
    "Make an earlier version of a document the current one again",
    role="writer",
    status=202,
    body=("RestoreBody", "The version to restore."),
)
def restore_document(
    services: Services,
    document_id: str,
    version: Annotated[int, Doc("Number of the version."), Ge(1), Le(10**9)],
) -> Submitted:
    """Its file is read again as the newest version; no version is lost."""
    return restore_version(
        services.uploads, services.documents, services.blobs, document_id, version, services.access
    )


drop_correction = declared(
    "DELETE /documents/{document_id}/corrections/{correction_id}",
    "Drop a correction that no longer fits",
    role="writer",
)(documents.drop_correction)
list_sections = declared(
    "GET /documents/{document_id}/sections", "List the headings of a document"
)(documents.list_sections)
list_moves = declared(
    "GET /documents/{document_id}/moves", "List the remedies that a document states"
)(documents.list_moves)


@declared(
    "GET /documents/{document_id}/file",
    "Download the file as it was uploaded",
    produces=("application/octet-stream", *sorted(set(_SHOWN.values()))),
)
def download_document(
    services: Services, document_id: str, version: VersionNumber = None
) -> Download:
    """PDF and plain text open in a browser; formats that can contain scripts are downloaded."""
    file = documents.original_file(services, document_id, version)
    kind = _SHOWN.get(file.format)
    headers = {
        "Content-Disposition": f"{'inline' if kind else 'attachment'};"
        f" filename*=UTF-8''{quote(file.name, safe='')}",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
        "Cross-Origin-Resource-Policy": "same-origin",
        "ETag": f'"{file.sha256}"',
    }
    if file.format != "pdf":  # browsers' PDF viewers do not start in a sandbox
        headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return Download(file.data, kind or "application/octet-stream", headers)


list_passages = declared("GET /documents/{document_id}/passages", "List passages in reading order")(
    documents.list_passages
)
show_passage = declared("GET /passages/{passage_id}", "Show one passage")(documents.show_passage)
correct_passage = declared(
    "PATCH /passages/{passage_id}",
    "Correct the text, tags or hardware of a passage",
    role="writer",
    body=(
        "PassagePatch",
        "A correction of a passage. It also holds in later revisions of the document.",
    ),
)(documents.correct_passage)

list_jobs = declared("GET /jobs", "List jobs, newest first, with counts")(progress.list_jobs)
show_job = declared("GET /jobs/{job_id}", "Show how far a job is")(progress.show_job)
retry_job = declared(
    "POST /jobs/{job_id}/retry", "Queue a failed job again", role="writer", status=202
)(progress.retry_job)
decide_version = declared(
    "POST /jobs/{job_id}/decision",
    "Decide about a version whose text is unrelated to the current one",
    role="writer",
    status=202,
    body=("VersionDecision", "What becomes of the file whose text is unrelated."),
)(progress.decide_version)
