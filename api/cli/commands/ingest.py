"""`kernlore ingest`: read files and folders, report on each, and say what is still missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.backends import About, Target, open_target, opened
from api.cli.commands.hardware import coverage_text
from api.cli.options import AsJson, DataDir, Ray, Url
from api.cli.output import Json, note, write_json
from api.cli.reading import Entry, counts_of, describe, read_all
from kb.errors import InvalidRequest, KernloreError, NotFound, UnsupportedFormat
from kb.ids import new_id

if TYPE_CHECKING:
    from ingestion.uploads import LocalFile


def ingest(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files and folders to read.")] = None,
    hardware: Annotated[
        list[str] | None, typer.Option(help="Hardware that they are about; repeat for each.")
    ] = None,
    category: Annotated[
        str | None, typer.Option(help="Category: constraint, guidance or hardware.")
    ] = None,
    language: Annotated[
        list[str] | None,
        typer.Option(help="Language that they are about, like triton; repeat for each."),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of a single document.")] = None,
    source_key: Annotated[
        str | None,
        typer.Option(
            help="A name that stays the same over the revisions of a document. Default: hardware"
            " and file name."
        ),
    ] = None,
    builtin: Annotated[
        bool, typer.Option("--builtin", help="Read the built-in knowledge too.")
    ] = False,
    ray: Ray = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Read files and folders into the knowledge base.

    Waits until each file is searchable, or refused with a reason. Exits 1 if any was refused or
    could not be read. `kernlore jobs list --group GROUP` shows the same from elsewhere; the JSON
    names the group.
    """
    group = new_id("upl")
    about = About(
        hardware=tuple(hardware or ()),
        category=category,
        languages=tuple(language or ()),
        title=title,
        source_key=source_key,
        group=group,
    )
    _check(paths or [], builtin)
    with _target(data_dir, url, ray) as target:
        entries = list(_upload_builtin(target, group)) if builtin else []
        if paths:
            _known_hardware(target, about.hardware)
            entries += _upload(target, paths, about, as_json)
        try:
            read_all(target, entries, group=group, quiet=as_json)
        except KeyboardInterrupt:
            note("stopped; nothing is lost, the same command continues from here")
            raise
        coverage = {name: target.call("coverage", hardware_id=name) for name in about.hardware}
    _report(group, entries, coverage, as_json)
    if any(entry.bad for entry in entries):
        raise typer.Exit(1)


@contextmanager
def _target(data_dir: Path | None, url: str | None, ray: str | None) -> Iterator[Target]:
    """Where files go. With a cluster it is this process, also beside a service, which takes its
    share of what is queued.
    """
    if ray is None:
        with open_target(data_dir, url) as target:
            yield target
        return
    if url is not None:
        raise InvalidRequest(
            "--ray and --url exclude each other",
            hint="Give the data directory: the catalog is filled from here.",
        )
    from api.cli.elsewhere import READING, cluster_at

    with opened(data_dir) as local, cluster_at(ray, READING) as cluster:
        local.read_on(cluster)
        yield local


def _check(paths: Sequence[Path], builtin: bool) -> None:
    if not paths and not builtin:
        raise InvalidRequest(
            "nothing to ingest", hint="Give files or folders, or --builtin for the built-in ones."
        )


def _known_hardware(target: Target, names: Sequence[str]) -> None:
    """One error for an unknown chip, not one for each file."""
    for name in names:
        target.call("show_hardware", hardware_id=name)


def _upload_builtin(target: Target, group: str) -> Iterator[Entry]:
    if target.loads_builtin:
        note(f"{target.name} loads the built-in knowledge by itself when it starts")
    for submitted in target.upload_builtin(group):
        yield _entry(target, submitted["name"], submitted)


def _upload(target: Target, paths: Sequence[Path], about: About, quiet: bool) -> list[Entry]:
    """Upload every file. A refused file becomes an entry with the reason, and the next follows."""
    from ingestion.uploads import files_under, links_out

    files = list(files_under(paths))
    for link in links_out(paths):
        note(f"skipped      {link}: a link that leads out of the folder; name it to read it")
    if not files:
        raise NotFound("there are no files in these folders", hint="Check the paths.")
    if len(files) > 1 and (about.title or about.source_key):
        raise InvalidRequest(
            f"one title or source key for {len(files)} files",
            hint="Give --title and --source-key for one file at a time, or leave both out.",
        )
    _different_names(files)
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


def _different_names(files: Sequence[LocalFile]) -> None:
    """A file with the name of another is a new version of it, which two of one command are not."""
    named: dict[str, LocalFile] = {}
    for file in files:
        other = named.setdefault(file.name, file)
        if other.path.resolve() != file.path.resolve():
            raise InvalidRequest(
                f"{other.path} and {file.path} would be two versions of {file.name}",
                hint="Name the folder above both, or give each its --source-key, one at a time.",
            )


def _entry(target: Target, name: str, submitted: Json) -> Entry:
    job_id = submitted.get("job_id")
    entry = Entry(name, str(submitted["outcome"]), str(submitted["document_id"]), job_id)
    if entry.job_id is None:
        _resume(target, entry)
    return entry


def _resume(target: Target, entry: Entry) -> None:
    """A known file that was not read to its end is read again, instead of counting as unchanged."""
    document = target.call("show_document", document_id=str(entry.document_id))
    job_id, state = document.get("job_id"), document.get("job_state")
    if job_id is None or state in ("ready", "partial", None):
        return
    entry.job_id = str(job_id)
    if state == "failed":
        target.call("retry_job", job_id=entry.job_id)


def _report(group: str, entries: Sequence[Entry], coverage: dict[str, Json], as_json: bool) -> None:
    summary = counts_of(entries)
    if as_json:
        answer = {"group": group, "files": entries, "summary": summary, "coverage": coverage}
        write_json(answer)
        return
    listed = ", ".join(f"{count} {name}" for name, count in summary.items() if count)
    print(f"\n{len(entries)} files: {listed or 'nothing to do'}")
    for entry in entries:
        if entry.bad:
            print(describe(entry))
    for of_hardware in coverage.values():
        print(f"\n{coverage_text(of_hardware)}")
