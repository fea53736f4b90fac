"""`kernlore documents`: documents passage by passage, and corrections of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from annotated_types import Ge

from api.cli.command import AsJson, Yes, command, operation_command
from api.cli.commands.jobs import report_lines
from api.cli.output import Json, columns, confirm, pairs, shortened
from api.cli.target import CommandTarget, login
from api.operations import documents
from kb.errors import InvalidRequest
from kb.plain import Doc

app = typer.Typer(help="Documents: list, show, correct, delete.")

DocumentId = Annotated[str, typer.Argument(help="Id of a document; see `kernlore documents list`.")]
CorrectionId = Annotated[
    str, typer.Argument(help="Id of a correction; see `kernlore documents show`.")
]

operation_command(
    app,
    "list",
    documents.list_documents,
    help="List documents by category and title.",
    options=("hardware", "category"),
    pick="documents",
    text=columns("document=id", "category", "hardware", "state=job_state", "passages", "title"),
)


@command(app, "show", text=lambda document: _document_text(document))
def show_document(target: CommandTarget, document_id: DocumentId) -> Json:
    """Show one document: versions, findings and headings."""
    sections = target.call(documents.list_sections, document_id)["sections"]
    return {**target.call(documents.show_document, document_id), "sections": sections}


def _document_text(document: Json) -> str:
    known = ("id", "title", "category", "source_key", "origin", "hardware", "languages")
    version = document.get("version") or {}
    head = pairs(
        {key: document.get(key) for key in known}
        | {
            "version": version.get("number"),
            "file": version.get("file_name"),
            "state": document.get("job_state"),
            "job": document.get("job_id"),
            "passages": document.get("passages"),
        }
    )
    report = {k: v for k, v in document.get("report", {}).items() if k != "corrections_unmatched"}
    headings = [
        f"{'  ' * max(int(s['level']) - 1, 0)}{s['heading']}  ({s['passages']})"
        for s in document["sections"]
    ]
    unfit = list(_unfit_lines(document.get("corrections_unfit") or ()))
    read = ["", "report", *report_lines(report)] if report else []
    return "\n".join([head, *unfit, *read, "", *headings]).rstrip()


def _unfit_lines(corrections: Sequence[Json]) -> Iterator[str]:
    """Corrections of earlier versions, with their text, so that they can be made again."""
    if not corrections:
        return
    count = len(corrections)
    fit = "correction no longer fits" if count == 1 else "corrections no longer fit"
    again = "repeat those that are still right, drop the others (`documents drop-correction`)"
    yield ""
    yield f"{count} {fit} this version; {again}:"
    for entry in corrections:
        place = f" under {' > '.join(entry['path'])}" if entry["path"] else ""
        yield f"    {entry['field']}{place}, by {entry['actor']} ({entry['id']}):"
        yield from (f"        {line}" for line in entry["text"].splitlines())


@command(app, "delete", text=lambda deleted: "\n".join(_deleted_lines(deleted)))
def delete(
    target: CommandTarget, document_id: DocumentId, yes: Yes = False, as_json: AsJson = False
) -> Json:
    """Delete a document and everything read from it.

    Its facts go too, accepted ones included. An accepted value that another source states too stays
    by that source. A value that a person entered stays, without its source.
    """
    title = target.call(documents.show_document, document_id).get("title")
    if not yes and not as_json:
        confirm(f"Delete {title!r}?", "nothing was deleted")
    return target.call(documents.delete_document, document_id)


def _deleted_lines(deleted: Json) -> Iterator[str]:
    removed, accepted = deleted["facts_removed"], deleted["accepted_facts_removed"]
    yield f"deleted {deleted['id']}"
    if removed:
        noun = "fact that was" if removed == 1 else "facts that were"
        yield f"{removed} {noun} read from it went too, {accepted} of them accepted"
    if deleted["facts_stated_elsewhere"]:
        count = deleted["facts_stated_elsewhere"]
        yield f"{count} of the accepted values hold still: another source states them"
    if deleted.get("note"):
        yield str(deleted["note"])


operation_command(
    app,
    "restore",
    documents.restore_document,
    help="Make an earlier version the current one again.\n\n"
    "Its file is read again as the newest version; `kernlore documents show` lists the versions.",
    parameters={
        "document_id": DocumentId,
        "version": Annotated[int, Doc("Number of the version."), Ge(1)],
    },
    text=lambda sent: (
        f"{sent['document_id']}: {sent['outcome']}"
        + (f", read by job {sent['job_id']}" if sent["job_id"] else "")
    ),
)


def _passage_text(passage: Json) -> str:
    place = " > ".join(passage["section"]["path"])
    page = passage.get("page") or {}
    where = f"{place} p. {page['label']}" if page.get("label") else place
    return f"{passage['id']}  {where}\n    {shortened(passage['text'], 200)}"


operation_command(
    app,
    "passages",
    documents.list_passages,
    help="List the passages of a document in reading order.",
    parameters={"document_id": DocumentId},
    options=("offset", "limit"),
    pick="passages",
    text=lambda rows: "\n".join(map(_passage_text, rows)),
)


@command(app, "correct", text=_passage_text)
def correct(
    target: CommandTarget,
    passage_id: Annotated[
        str, typer.Argument(help="Id of a passage; see `kernlore documents passages`.")
    ],
    text: Annotated[str | None, Doc("The corrected text.")] = None,
    text_file: Annotated[Path | None, Doc("A file with the corrected text.")] = None,
    tag: Annotated[
        list[str] | None,
        Doc("A tag as KIND=VALUE; repeat for each. They replace the present tags."),
    ] = None,
    hardware: Annotated[
        list[str] | None,
        Doc("Hardware that it is about; repeat for each. `any`: about no hardware."),
    ] = None,
) -> Json:
    """Correct a passage. It also holds in later revisions that have the same text."""
    if text is not None and text_file is not None:
        raise InvalidRequest("two texts for one passage", hint="Give --text or --text-file.")
    if text_file is not None:
        text = text_file.read_text(encoding="utf-8")
    if text is None and not tag and not hardware:
        raise InvalidRequest("nothing to correct", hint="Give --text, --tag or --hardware.")
    tags: Any = [_tag(entry) for entry in tag] if tag else None
    chips = [name for name in hardware if name != "any"] if hardware else None
    corrected = target.call(
        documents.correct_passage, passage_id, text=text, tags=tags, hardware=chips, actor=login()
    )
    if text is not None:
        target.finish_reading()  # the new text needs its vector
    return corrected


def _tag(entry: str) -> dict[str, str]:
    kind, equals, value = entry.partition("=")
    if not (kind and equals and value):
        raise InvalidRequest(
            f"--tag {entry!r} is not KIND=VALUE", hint="Like --tag signal=memory_bound."
        )
    return {"kind": kind, "value": value}


operation_command(
    app,
    "drop-correction",
    documents.drop_correction,
    help="Drop a correction that no longer fits.\n\n"
    "It was made on an earlier version of the document, to a passage, a heading or a card.",
    parameters={"document_id": DocumentId, "correction_id": CorrectionId},
    text=lambda dropped: f"dropped {dropped['id']}",
)
