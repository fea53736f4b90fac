"""`kernlore jobs`: what is being read, how far it is, and a second attempt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated

import typer

from api.cli.backends import open_target
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, pairs, shortened, show, table
from api.cli.reading import Entry, read_all, report_lines, unread

app = typer.Typer(help="Jobs: the progress of reading documents.")

JobId = Annotated[str, typer.Argument(help="The job_id that an upload returned.")]
TITLE_LENGTH, PROBLEM_LENGTH = 48, 160


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="Only jobs in this state: queued, running, ready, partial or failed; repeat for"
            " several."
        ),
    ] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Only jobs of documents about this hardware.")
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Only jobs of this group, which an upload named.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Jobs to show.", min=1, max=500)] = 50,
    cursor: Annotated[
        str | None, typer.Option(help="Where the next page begins, as the page before says.")
    ] = None,
    data_dir: DataDir = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List what is being read and what was.

    Newest first. The first line counts all of the hardware and group by state; remarks on the
    listed documents come last.
    """
    with open_target(data_dir, url) as target:
        page = target.call(
            "list_jobs",
            state=state or None,
            hardware=hardware,
            group=group,
            limit=limit,
            cursor=cursor,
        )
    show(page, as_json, _page_text)


def _page_text(page: Json) -> str:
    states = ("queued", "running", "ready", "partial", "failed")
    counts = page["counts"]
    lines = [", ".join(f"{counts[state]} {state}" for state in states)]
    if counts["queued"] or counts["running"]:
        lines[0] += f"; {counts['passages_done']:,} of {counts['passages']:,} known passages done"
    if page["jobs"]:
        headers = ("job", "state", "document", "passages", "began", "took", "problem")
        lines += ["", table(headers, [_row(job) for job in page["jobs"]])]
    lines += _remark_lines(page["jobs"])
    if page["cursor"]:
        lines += ["", f"more: --cursor {page['cursor']}"]
    return "\n".join(lines)


def _remark_lines(jobs: Sequence[Json]) -> Iterator[str]:
    """What the listed documents are to others, and what they no longer say."""
    said = [(job, remarks) for job in jobs if (remarks := (job["result"] or {}).get("remarks"))]
    if said:
        yield from ("", "remarks:")
    for job, remarks in said:
        yield f"{job['id']}  {(job['document'] or {}).get('title') or ''}".rstrip()
        yield from (f"    {' '.join(str(remark).split())}" for remark in remarks)


def _row(job: Json) -> list[str | None]:
    document = job["document"] or {}
    passages = None if job["passages"] is None else f"{job['passages_done']}/{job['passages']}"
    return [
        job["id"],
        ": ".join(filter(None, (job["state"], job["stage"]))),
        shortened(document.get("title") or "", TITLE_LENGTH) or None,
        passages,
        _clock_time(job["started_at"]),
        None if job["seconds"] is None else f"{job['seconds']:.1f} s",
        shortened(_problem(job), PROBLEM_LENGTH) or None,
    ]


def _problem(job: Json) -> str:
    error = job["error"]
    if error:
        return f"{error['message']} ({error['hint']})" if error["hint"] else error["message"]
    return "; ".join(unread(job["result"])) if job["state"] == "partial" else ""


def _clock_time(stamp: str | None) -> str | None:
    """The local time of day; with the date where it is another day's."""
    if stamp is None:
        return None
    moment = datetime.fromisoformat(stamp).astimezone()
    today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


@app.command("show")
def show_(
    job_id: JobId, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Show the state, progress and result of one job."""
    with open_target(data_dir, url) as target:
        job = target.call("show_job", job_id=job_id)
    show(job, as_json, _job_text)


@app.command("retry")
def retry(
    job_id: JobId, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Run a failed job again and wait for its end."""
    with open_target(data_dir, url) as target:
        target.call("retry_job", job_id=job_id)
        entry = Entry(name=job_id, outcome="retried", job_id=job_id)
        read_all(target, [entry], group=None, quiet=as_json)
        job = target.call("show_job", job_id=job_id)
    show(job, as_json, _job_text)
    if job["state"] == "failed":
        raise typer.Exit(1)


def _job_text(job: Json) -> str:
    kept = ("id", "state", "stage", "kind", "document_id", "group", "attempts")
    times = ("created_at", "started_at", "finished_at", "seconds")
    lines = {key: job.get(key) for key in (*kept, *times)}
    error = job.get("error") or {}
    lines |= {"error": error.get("message"), "hint": error.get("hint")}
    read = {**(job.get("progress") or {}), **(job.get("result") or {})}
    told = {key: value for key, value in read.items() if key not in ("stage", "state")}
    return "\n".join([pairs(lines), "", *report_lines(told)]).rstrip()
