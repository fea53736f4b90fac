"""`kernlore documents`: what was read, passage by passage, and corrections of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from api.cli.backends import actor, open_target
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, confirm, pairs, shortened, show, table
from api.cli.reading import report_lines
from kb.errors import InvalidRequest

app = typer.Typer(help="Documents: list, show, correct, delete.")

DocumentId = Annotated[str, typer.Argument(help="Id of a document; see `kernlore documents list`.")]


@app.command("list")
def list_(
    hardware: Annotated[
        str | None, typer.Option(help="Only documents about this hardware.")
    ] = None,
    category: Annotated[
        str | None,
        typer.Option(help="Only documents of this category: constraint, guidance or hardware."),
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List documents by category and title."""
    with open_target(data_dir, url) as target:
        documents = target.call("list_documents", hardware=hardware, category=category)["documents"]
    show(
        documents,
        as_json,
        lambda rows: table(
            ("document", "category", "hardware", "state", "passages", "title"),
            [_row(row) for row in rows],
        ),
    )


def _row(document: Json) -> tuple[Any, ...]:
    return (
        document["id"],
        document.get("category"),
        document.get("hardware") or (),
        document.get("job_state"),
        document.get("passages"),
        document.get("title"),
    )


@app.command("show")
def show_(
    document_id: DocumentId, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Show one document: versions, findings and headings."""
    with open_target(data_dir, url) as target:
        document = {
            **target.call("show_document", document_id=document_id),
            **target.call("list_sections", document_id=document_id),
        }
    show(document, as_json, _document_text)


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
        for s in document.get("sections") or ()
    ]
    unfit = list(_unfit_lines(document.get("corrections_unfit") or ()))
    read = ["", "what was read", *report_lines(report)] if report else []
    return "\n".join([head, *unfit, *read, "", *headings]).rstrip()


def _unfit_lines(entries: Sequence[Json]) -> Iterator[str]:
    """Corrections of earlier versions, with their text, so that they can be made again."""
    if not entries:
        return
    fit = "correction no longer fits" if len(entries) == 1 else "corrections no longer fit"
    yield ""
    again = "make again what is still right, and drop the rest (`documents drop-correction`)"
    yield f"{len(entries)} {fit} this version; {again}:"
    for entry in entries:
        place = f" under {' > '.join(entry['path'])}" if entry["path"] else ""
        yield f"    {entry['field']}{place}, by {entry['actor']} ({entry['id']}):"
        yield from (f"        {line}" for line in entry["text"].splitlines())


@app.command("delete")
def delete(
    document_id: DocumentId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Delete a document and everything read from it.

    Its facts go too, accepted ones included. An accepted value that another source states too stays
    by that source. A value that a person entered stays, without its source.
    """
    with open_target(data_dir, url) as target:
        title = target.call("show_document", document_id=document_id).get("title")
        if not yes and not as_json:
            confirm(f"Delete {title!r}?", "nothing was deleted")
        deleted = target.call("delete_document", document_id=document_id)
    show(deleted, as_json, lambda answer: "\n".join(_deleted_lines(document_id, answer)))


def _deleted_lines(document_id: str, answer: Json) -> Iterator[str]:
    removed, accepted = answer["facts_removed"], answer["accepted_facts_removed"]
    yield f"deleted {document_id}"
    if removed:
        noun = "fact that was" if removed == 1 else "facts that were"
        yield f"{removed} {noun} read from it went too, {accepted} of them accepted"
    if answer["facts_stated_elsewhere"]:
        count = answer["facts_stated_elsewhere"]
        yield f"{count} of the accepted values hold still: another source states them"
    if answer.get("note"):
        yield str(answer["note"])


@app.command("passages")
def passages(
    document_id: DocumentId,
    offset: Annotated[int, typer.Option(min=0, help="Passages to skip.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Passages to show.")] = 100,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the passages of a document in reading order."""
    with open_target(data_dir, url) as target:
        page = target.call("list_passages", document_id=document_id, offset=offset, limit=limit)
        rows = page["passages"]
    show(rows, as_json, lambda rows: "\n".join(_passage(row) for row in rows))


def _passage(passage: Json) -> str:
    place = " > ".join(passage["section"]["path"])
    page = passage.get("page") or {}
    where = f"{place} p. {page['label']}" if page.get("label") else place
    return f"{passage['id']}  {where}\n    {shortened(passage['text'], 200)}"


@app.command("correct")
def correct(
    passage_id: Annotated[
        str, typer.Argument(help="Id of a passage; see `kernlore documents passages`.")
    ],
    text: Annotated[str | None, typer.Option(help="The corrected text.")] = None,
    text_file: Annotated[Path | None, typer.Option(help="A file with the corrected text.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="A tag as KIND=VALUE; repeat for each. They replace the present tags."),
    ] = None,
    hardware: Annotated[
        list[str] | None,
        typer.Option(help="Hardware that it is about; repeat for each. `any`: about no hardware."),
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Correct a passage. It also holds in later revisions that have the same text."""
    patch: dict[str, Any] = {}
    if text is not None and text_file is not None:
        raise InvalidRequest("two texts for one passage", hint="Give --text or --text-file.")
    if text is not None or text_file is not None:
        patch["text"] = text if text_file is None else text_file.read_text(encoding="utf-8")
    if tag:
        patch["tags"] = [_tag(entry) for entry in tag]
    if hardware:
        patch["hardware"] = [name for name in hardware if name != "any"]
    if not patch:
        raise InvalidRequest("nothing to correct", hint="Give --text, --tag or --hardware.")
    with open_target(data_dir, url) as target:
        corrected = target.call("correct_passage", passage_id=passage_id, **patch, actor=actor())
    show(corrected, as_json, _passage)


@app.command("drop-correction")
def drop_correction(
    document_id: DocumentId,
    correction_id: Annotated[
        str, typer.Argument(help="Id of a correction; see `kernlore documents show`.")
    ],
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Drop a correction that no longer fits.

    It was made on an earlier version of the document, to a passage, a heading or a card.
    """
    with open_target(data_dir, url) as target:
        dropped = target.call(
            "drop_correction", document_id=document_id, correction_id=correction_id
        )
    show(dropped, as_json, lambda answer: f"dropped {answer['id']}")


def _tag(entry: str) -> dict[str, str]:
    kind, equals, value = entry.partition("=")
    if not (kind and equals and value):
        raise InvalidRequest(
            f"--tag {entry!r} is not KIND=VALUE", hint="Like --tag signal=memory_bound."
        )
    return {"kind": kind, "value": value}
