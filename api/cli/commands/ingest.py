"""`kernlore ingest`: read files and folders, and report on each and on coverage."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.command import AsJson, DataDir, Ray, Url, command
from api.cli.commands.hardware import NO_FACTS, coverage_text, reading_text
from api.cli.commands.jobs import UploadedFile, counts_of, file_text, wait_for_jobs
from api.cli.output import Json, note, show
from api.cli.target import CommandTarget, cluster_at, open_target, opened
from api.operations import Incoming, documents, hardware
from ingestion.model_calls import AT_ONCE
from kb.errors import InvalidRequest, KernloreError, NotFound, UnsupportedFormat
from kb.ids import new_id
from kb.plain import Doc

if TYPE_CHECKING:
    from ingestion.includes import JoinedUpload
    from ingestion.uploads import LocalFile


@command()
def ingest(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files and folders to read.")] = None,
    hardware: Annotated[
        list[str] | None, Doc("Hardware that they are about; repeat for each.")
    ] = None,
    category: Annotated[str | None, Doc("Category: constraint, guidance or hardware.")] = None,
    language: Annotated[
        list[str] | None, Doc("Language that they are about, like triton; repeat for each.")
    ] = None,
    title: Annotated[str | None, Doc("Title of a single document.")] = None,
    source_key: Annotated[
        str | None,
        Doc(
            "A name that stays the same over the revisions of a document. Default: hardware"
            " and file name."
        ),
    ] = None,
    replace: Annotated[
        bool, Doc("Replace documents of the same name also if their text is unrelated.")
    ] = False,
    builtin: Annotated[bool, Doc("Read the built-in knowledge too.")] = False,
    models: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Then have this language model read the documents of the hardware, as"
            " `kernlore hardware read`.",
        ),
    ] = "",
    api_base: Annotated[
        str | None, Doc("With --models: address of an OpenAI-compatible server.")
    ] = None,
    ray: Ray = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> bool:
    """Read files and folders into the knowledge base.

    Waits until each file is searchable, or refused with a reason. Exits 1 if any was refused or
    could not be read. `kernlore jobs list --group GROUP` shows the same in another terminal; the
    JSON names the group.
    """
    if not paths and not builtin:
        raise InvalidRequest(
            "nothing to ingest", hint="Give files or folders, or --builtin for the built-in ones."
        )
    group = new_id("upl")
    chips = tuple(hardware or ())
    if models and not chips:
        raise InvalidRequest(
            "--models without --hardware", hint="Name the hardware that the files are about."
        )
    about = {
        "hardware": chips,
        "category": category,
        "languages": tuple(language or ()),
        "title": title,
        "source_key": source_key,
        "replace": replace,
        "group": group,
    }
    with _target(data_dir, url, ray) as target:
        files: list[UploadedFile] = []
        if builtin:
            files += [_submitted(target, s["name"], s) for s in target.upload_builtin(group)]
        if paths:
            for chip in chips:  # one error for an unknown chip, not one for each file
                target.call(show_hardware, chip)
            files += _upload(target, paths, about, as_json)
        try:
            wait_for_jobs(target, files, group=group, quiet=as_json)
        except KeyboardInterrupt:
            note("stopped; nothing is lost, the same command continues from here")
            raise
        read = [_read(target, chip, models, api_base) for chip in chips if models]
        coverage = {chip: target.call(show_coverage, chip) for chip in chips}
        waiting = {chip: len(_proposed(target, chip)) for chip in chips}
    answer = {"group": group, "files": files, "summary": counts_of(files), "coverage": coverage}
    if models:
        answer["read"] = read
    show(answer, as_json, lambda _: _report(files, coverage, waiting, read))
    return any(file.bad for file in files) or any(report["left"] for report in read)


show_hardware, show_coverage = hardware.show_hardware, hardware.show_coverage


@contextmanager
def _target(data_dir: Path | None, url: str | None, ray: str | None) -> Iterator[CommandTarget]:
    """The target of the files. With a cluster it is this process, also where a service runs, which
    then takes its share of the queue."""
    if ray is None:
        with open_target(data_dir, url) as target:
            yield target
        return
    if url is not None:
        raise InvalidRequest(
            "--ray and --url exclude each other",
            hint="Give the data directory: the catalog is filled from here.",
        )
    with opened(data_dir) as local, cluster_at(ray, ("kb", "ingestion")) as cluster:
        local.read_on(cluster)
        yield local


def _upload(
    target: CommandTarget, paths: Sequence[Path], about: dict[str, Any], quiet: bool
) -> list[UploadedFile]:
    """Upload every file. A refused file gets its reason, and the next one follows."""
    from ingestion.uploads import files_under, links_out

    found = list(files_under(paths))
    for link in links_out(paths):
        note(f"skipped      {link}: a link that leads out of the folder; name it to read it")
    if not found:
        raise NotFound("there are no files in these folders", hint="Check the paths.")
    if len(found) > 1 and (about["title"] or about["source_key"]):
        raise InvalidRequest(
            f"one title or source key for {len(found)} files",
            hint="Give --title and --source-key for one file at a time, or leave both out.",
        )
    _check_names(found)
    joined = _joined(found)
    files: list[UploadedFile] = []
    for file in sorted(found, key=lambda file: file.name in joined.part_of):
        if whole := joined.part_of.get(file.name):
            uploaded = [_included(file.name, next(f for f in files if f.name == whole))]
        else:
            uploaded = _sent(target, file, joined, about)
        files += uploaded
        for each in uploaded:
            if quiet:
                note(file_text(each))
            else:
                print(file_text(each), flush=True)
    return files


def _sent(
    target: CommandTarget, file: LocalFile, joined: JoinedUpload, about: dict[str, Any]
) -> list[UploadedFile]:
    """Upload one file with the text of those that it includes; an archive is several."""
    try:
        if file.name in joined.errors:
            raise joined.errors[file.name]
        text = joined.texts.get(file.name)
        with file.path.open("rb") if text is None else BytesIO(text) as content:
            incoming = (Incoming(file.name, content),)
            answer = target.call(documents.upload, file=incoming, **about)
        return [_answered(target, file.name, each) for each in _each_of(answer)]
    except KernloreError as error:
        if error.status >= 500:
            raise
        return [UploadedFile(file.name, "refused", error=error.as_json())]
    except OSError as error:
        unread = UnsupportedFormat(
            f"cannot be read: {error.strerror}", hint="Check its permissions."
        )
        return [UploadedFile(file.name, "refused", error=unread.as_json())]


def _joined(files: Sequence[LocalFile]) -> JoinedUpload:
    """The files that include each other; one that cannot be opened is refused later."""
    from ingestion.includes import join_includes

    paths = {file.name: file.path for file in files if os.access(file.path, os.R_OK)}
    return join_includes(paths, lambda name: paths[name].read_bytes())


def _included(name: str, whole: UploadedFile) -> UploadedFile:
    """The answer for a file whose text is in the document of another."""
    if whole.outcome == "refused":
        return UploadedFile(name, "refused", error=whole.error)
    return UploadedFile(name, "included", whole.document_id)


def _each_of(answer: Json) -> list[Json]:
    """The files of an upload: one, or those of an archive."""
    return list(answer["documents"]) if "documents" in answer else [answer]


def _answered(target: CommandTarget, name: str, answer: Json) -> UploadedFile:
    if "error" in answer:
        return UploadedFile(answer["name"], "refused", error=answer["error"])
    return _submitted(target, answer.get("name") or name, answer)


def _check_names(files: Sequence[LocalFile]) -> None:
    """Refuse two files of one name: the second would become a new version of the first."""
    named: dict[str, LocalFile] = {}
    for file in files:
        other = named.setdefault(file.name, file)
        if other.path.resolve() != file.path.resolve():
            raise InvalidRequest(
                f"{other.path} and {file.path} would be two versions of {file.name}",
                hint="Name the folder above both, or give each its --source-key, one at a time.",
            )


def _submitted(target: CommandTarget, name: str, submitted: Json) -> UploadedFile:
    """A file that was accepted. A known one that was not read to its end is read again, instead of
    counting as unchanged."""
    document_id, job_id = str(submitted["document_id"]), submitted.get("job_id")
    if job_id is None:
        document = target.call(documents.show_document, document_id)
        if document.get("job_state") not in ("ready", "partial", None):
            job_id = document.get("job_id")
            if job_id is not None and document["job_state"] == "failed":
                target.call(documents.retry_job, job_id)
    return UploadedFile(name, str(submitted["outcome"]), document_id, job_id)


def _proposed(target: CommandTarget, chip: str) -> Sequence[Json]:
    facts: Sequence[Json] = target.call(hardware.list_facts, chip, status="proposed")["facts"]
    return facts


def _read(target: CommandTarget, chip: str, models: str, api_base: str | None) -> Json:
    """Have a model read the documents of a chip, a few calls in each request; the sum of their
    reports, with the rates of the last."""
    total: Json = {}
    while True:
        report = target.call(
            hardware.read_documents, chip, models=models, api_base=api_base, most=AT_ONCE
        )
        total = _sum(total, report) if total else report
        if not report["left"] or not report["read"]:
            return total
        note(f"{total['read']} sections of {chip} read, {report['left']} left")


def _sum(before: Json, report: Json) -> Json:
    def added(first: Json, second: Json, *names: str) -> Json:
        pairs = {name: (first[name], second[name]) for name in names}
        return {name: None if None in (a, b) else a + b for name, (a, b) in pairs.items()}

    calls = ("calls", "tokens_in", "tokens_out", "usd", "failed")
    return {
        **report,
        **added(before, report, "read", "empty", "lines", "pages"),
        "known": before["known"],
        "dropped": Counter(before["dropped"]) + Counter(report["dropped"]),
        "spent": {**report["spent"], **added(before["spent"], report["spent"], *calls)},
    }


def _report(
    files: Sequence[UploadedFile],
    coverage: dict[str, Json],
    waiting: dict[str, int],
    read: Sequence[Json] = (),
) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in counts_of(files).items() if count)
    lines = [f"\n{len(files)} files: {counts or 'nothing to do'}"]
    lines += [f"{file.state or file.outcome:<12} {file.name}" for file in files if file.bad]
    lines += [f"\n{reading_text(report)}" for report in read]
    lines += [f"\n{coverage_text(chip)}" for chip in coverage.values()]
    lines += [
        f"\n{count} proposed {'fact waits' if count == 1 else 'facts wait'} for a decision:"
        f" kernlore hardware facts {chip} --proposed"
        for chip, count in waiting.items()
        if count
    ]
    if coverage and not any(waiting.values()):
        lines.append(f"\nno proposed facts; {NO_FACTS}")
        lines += [f'\nask: kernlore retrieve "QUESTION" --hardware {chip}' for chip in coverage]
    return "\n".join(lines)
