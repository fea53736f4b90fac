"""`kernlore ingest`: files and folders in, each accounted for, and what is still missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from api.cli.backends import About, Target, open_target
from api.cli.knowledge.coverage_table import coverage_text
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, note, write_json
from api.cli.store.watch import Entry, counts, describe, read_all
from kb.errors import InvalidRequest, KernloreError, NotFound, UnsupportedFormat


def ingest(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files and folders.")] = None,
    hardware: Annotated[
        list[str] | None, typer.Option(help="Hardware they are about; may be repeated.")
    ] = None,
    category: Annotated[str | None, typer.Option(help="constraint, guidance, hardware.")] = None,
    language: Annotated[
        list[str] | None, typer.Option(help="Language they are about, like triton; repeat.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of a single file.")] = None,
    source_key: Annotated[
        str | None, typer.Option(help="Name of a single file's document across its revisions.")
    ] = None,
    builtin: Annotated[
        bool, typer.Option("--builtin", help="Load the built-in knowledge into the data directory.")
    ] = False,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Read documents into the store; wait until each is searchable or refused with a reason."""
    about = About(
        hardware=tuple(hardware or ()),
        category=category,
        languages=tuple(language or ()),
        title=title,
        source_key=source_key,
    )
    _check(paths or [], builtin)
    with open_target(data_dir, url) as target:
        entries = list(_builtin(target)) if builtin else []
        if paths:
            _known_hardware(target, about.hardware)
            entries += _send(target, paths, about, as_json)
        try:
            read_all(target, entries, quiet=as_json)
        except KeyboardInterrupt:
            note("stopped; nothing handed in is lost, the same command again goes on from here")
            raise
        coverage = {name: target.coverage(name) for name in about.hardware}
    _report(entries, coverage, as_json)
    if any(entry.bad for entry in entries):
        raise typer.Exit(1)


def _check(paths: Sequence[Path], builtin: bool) -> None:
    if not paths and not builtin:
        raise InvalidRequest(
            "nothing to ingest", hint="Give files or folders, or --builtin for the built-in ones."
        )


def _known_hardware(target: Target, names: Sequence[str]) -> None:
    """One error for an unknown chip, not one for each file."""
    for name in names:
        target.hardware_one(name)


def _builtin(target: Target) -> Iterator[Entry]:
    from api.cli.backends.local import LocalTarget

    if not isinstance(target, LocalTarget):
        note(f"{target.name} loads the built-in knowledge by itself when it starts")
        return
    for sent in target.upload_builtin():
        yield _entry(target, sent["name"], sent)


def _send(target: Target, paths: Sequence[Path], about: About, quiet: bool) -> list[Entry]:
    """Hand every file in; a refusal is an entry with its reason, and the next file follows."""
    from ingestion.uploads import files_under

    files = list(files_under(paths))
    if not files:
        raise NotFound("there are no files in these folders", hint="Check the paths.")
    if len(files) > 1 and (about.title or about.source_key):
        raise InvalidRequest(
            f"one title or source key for {len(files)} files",
            hint="Ingest them one by one to name them, or leave both out.",
        )
    entries = []
    for file in files:
        try:
            entry = _entry(target, file.name, target.upload(file.path, file.name, about))
        except KernloreError as error:
            if error.status >= 500:
                raise
            entry = Entry(file.name, "refused", error=error.as_json())
        except OSError as error:
            unread = UnsupportedFormat(
                f"cannot be read: {error.strerror}", hint="Check its permissions."
            )
            entry = Entry(file.name, "refused", error=unread.as_json())
        entries.append(entry)
        if quiet:
            note(describe(entry))
        else:
            print(describe(entry), flush=True)
    return entries


def _entry(target: Target, name: str, sent: Json) -> Entry:
    entry = Entry(name, str(sent["outcome"]), str(sent["document_id"]), sent.get("job_id"))
    if entry.job_id is None:
        _resume(target, entry)
    return entry


def _resume(target: Target, entry: Entry) -> None:
    """A known file whose reading has not ended well is read again, not called unchanged."""
    document = target.document(str(entry.document_id))
    job_id, state = document.get("job_id"), document.get("job_state")
    if job_id is None or state in ("ready", "partial", None):
        return
    entry.job_id = str(job_id)
    if state == "failed":
        target.retry_job(entry.job_id)


def _report(entries: Sequence[Entry], coverage: dict[str, Json], as_json: bool) -> None:
    summary = counts(entries)
    if as_json:
        write_json({"files": entries, "summary": summary, "coverage": coverage})
        return
    said = ", ".join(f"{count} {name}" for name, count in summary.items() if count)
    print(f"\n{len(entries)} files: {said or 'nothing to do'}")
    for entry in entries:
        if entry.bad:
            print(describe(entry))
    for found in coverage.values():
        print(f"\n{coverage_text(found)}")
