"""`kernlore jobs`: the progress of reading documents; also watches the jobs of an upload.

One request asks for all jobs of an upload, until each has ended. A terminal shows a bar, other
output gets one plain line a file.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from api.cli.command import AsJson, command, operation_command
from api.cli.output import Json, pairs, shortened, table
from api.cli.target import CommandTarget
from api.operations import documents
from kb import clock
from kb.catalog.jobs import JobState
from kb.errors import KernloreError, NotFound

app = typer.Typer(help="Jobs: the progress of reading documents.")

JobId = Annotated[str, typer.Argument(help="The job_id that an upload returned.")]
TITLE_LENGTH, PROBLEM_LENGTH = 48, 160


def _page_text(page: Json) -> str:
    states = ("queued", "running", "ready", "partial", "failed")
    counts = page["counts"]
    lines = [", ".join(f"{counts[state]} {state}" for state in states)]
    if counts["queued"] or counts["running"]:
        lines[0] += f"; {counts['passages_done']:,} of {counts['passages']:,} known passages done"
        if page["counts"].get("seconds_left") is not None:
            lines[0] += f", about {clock.time_left(page['counts']['seconds_left'])} left"
    if page["jobs"]:
        headers = ("job", "state", "document", "passages", "began", "took", "problem")
        lines += ["", table(headers, [_row(job) for job in page["jobs"]])]
    lines += _remark_lines(page["jobs"])
    if page["cursor"]:
        lines += ["", f"more: --cursor {page['cursor']}"]
    return "\n".join(lines)


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
    return "; ".join(_unread(job["result"])) if job["state"] == "partial" else ""


def _clock_time(stamp: str | None) -> str | None:
    """The local time of day; with the date where that is not today."""
    if stamp is None:
        return None
    moment = datetime.fromisoformat(stamp).astimezone()
    today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S")


def _remark_lines(jobs: Sequence[Json]) -> Iterator[str]:
    with_remarks = [job for job in jobs if (job["result"] or {}).get("remarks")]
    if with_remarks:
        yield from ("", "remarks:")
    for job in with_remarks:
        yield f"{job['id']}  {(job['document'] or {}).get('title') or ''}".rstrip()
        yield from (f"    {' '.join(str(remark).split())}" for remark in job["result"]["remarks"])


operation_command(
    app,
    "list",
    documents.list_jobs,
    help="List jobs, newest first.\n\n"
    "The first line counts all of the hardware and group by state; remarks on the listed documents"
    " come last.",
    options=("state", "hardware", "group", "limit", "cursor"),
    defaults={"limit": 50},
    text=_page_text,
)


def _job_text(job: Json) -> str:
    fields = ("id", "state", "stage", "kind", "document_id", "group", "attempts")
    times = ("created_at", "started_at", "finished_at", "seconds")
    error = job.get("error") or {}
    head = {key: job.get(key) for key in (*fields, *times)}
    head |= {"error": error.get("message"), "hint": error.get("hint")}
    read = {**(job.get("progress") or {}), **(job.get("result") or {})}
    report = {key: value for key, value in read.items() if key not in ("stage", "state")}
    return "\n".join([pairs(head), "", *report_lines(report)]).rstrip()


operation_command(
    app,
    "show",
    documents.show_job,
    help="Show the state, progress and result of one job.",
    parameters={"job_id": JobId},
    text=_job_text,
)


@command(app, text=_job_text, failed=lambda job: bool(job["state"] == "failed"))
def retry(target: CommandTarget, job_id: JobId, as_json: AsJson = False) -> Json:
    """Run a failed job again and wait for its end."""
    target.call(documents.retry_job, job_id)
    return _waited(target, job_id, as_json)


@command(app, text=_job_text, failed=lambda job: bool(job["state"] == "failed"))
def decide(
    target: CommandTarget,
    job_id: JobId,
    decision: Annotated[
        Literal["replace", "separate", "discard"],
        typer.Argument(help="replace, separate (keep both documents) or discard."),
    ],
    as_json: AsJson = False,
) -> Json:
    """Decide about a file that replaced nothing.

    Its text is unrelated to that of the document of the same name.
    """
    queued = target.call(documents.decide_version, job_id, decision=decision)
    if decision == "discard":
        return {**queued, "state": "discarded"}
    return _waited(target, str(queued["id"]), as_json)


def _waited(target: CommandTarget, job_id: str, quiet: bool) -> Json:
    retried = UploadedFile(name=job_id, outcome="retried", job_id=job_id)
    wait_for_jobs(target, [retried], group=None, quiet=quiet)
    return target.call(documents.show_job, job_id)


# -- waiting for the jobs of an upload

ENDED: tuple[JobState, ...] = ("ready", "partial", "failed")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds between two requests
PAGE = 500  # jobs of one request
# Most jobs outside of the group in one round, a request each: another upload of the same files has
# taken them over.
MOST_SINGLE = 32


@dataclass
class UploadedFile:
    """One file of an upload. `state` is that of its job; None where the file was known already."""

    name: str
    outcome: str
    document_id: str | None = None
    job_id: str | None = None
    state: str | None = None
    result: Json = field(default_factory=dict)
    error: Json | None = None
    retried: bool = False

    @property
    def bad(self) -> bool:
        """Whether it was refused or could not be read."""
        return self.outcome == "refused" or self.state == "failed"


def wait_for_jobs(
    target: CommandTarget, files: Sequence[UploadedFile], *, group: str | None, quiet: bool
) -> None:
    """Wait until the job of every file has ended, and print how each ended. `group` is that of
    their upload; with `quiet`, progress goes to standard error."""
    watch = _JobWatch(target, files, group)
    if not watch.waiting:
        return
    pause = FIRST_PAUSE
    with _display(quiet, len(watch.waiting)) as display, target.reading() as check:
        while True:
            counts = watch.poll(display.line)
            display.show(counts, len(watch.waiting))
            if not watch.waiting:
                return
            check()
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)


class _JobWatch:
    """The files whose jobs have not ended, by job id: copies of a file share one."""

    def __init__(
        self, target: CommandTarget, files: Sequence[UploadedFile], group: str | None
    ) -> None:
        self.waiting: dict[str, list[UploadedFile]] = {}
        for file in files:
            if file.job_id is not None:
                self.waiting.setdefault(file.job_id, []).append(file)
        self._target = target
        self._group = group
        self._since = ""  # the latest `finished_at`

    def poll(self, line: Callable[[str], None]) -> Json:
        """Take in the jobs that have ended since the last call; the counts of the group."""
        counts: Json = {}
        if self._group is not None:
            counts = self._poll_group(self._group, line)
        if not counts.get("queued") and not counts.get("running"):
            for job_id in list(self.waiting)[:MOST_SINGLE]:
                self._poll_single(job_id, line)
        return counts

    def _poll_group(self, group: str, line: Callable[[str], None]) -> Json:
        counts: Json = {}
        cursor, since = "", self._since
        while True:
            page = self._target.call(
                documents.list_jobs,
                group=group,
                state=list(ENDED),
                ended_since=since,
                limit=PAGE,
                cursor=cursor,
            )
            counts = counts or page["counts"]
            for job in page["jobs"]:
                self._since = max(self._since, job["finished_at"])
                self._take(job, line)
            if page["cursor"] is None:
                return counts
            cursor = page["cursor"]

    def _poll_single(self, job_id: str, line: Callable[[str], None]) -> None:
        try:
            job = self._target.call(documents.show_job, job_id)
        except KernloreError as error:
            if error.status != NotFound.status:
                raise
            job = {"id": job_id, "state": "failed", "error": error.as_json()}
        if job["state"] in ENDED:
            self._take(job, line)

    def _take(self, job: Json, line: Callable[[str], None]) -> None:
        files = self.waiting.get(job["id"])
        if files is None:
            return
        error = job.get("error") or {}
        if error.get("code") == "lease_expired" and not any(file.retried for file in files):
            # Its reader was stopped, which says nothing about the file.
            self._target.call(documents.retry_job, job["id"])
            for file in files:
                file.retried = True
            return
        del self.waiting[job["id"]]
        for file in files:
            file.state = job["state"]
            file.result = job.get("result") or {}
            file.error = job.get("error")
            line(file_text(file))


# -- text about files

ROWS_SHOWN = 6
UNREAD_ROWS = "rows and sentences with a number that were not read as facts"
WHY_UNREAD = (
    "a row without a reason is named like no known fact; a table with columns key, value and unit"
    " gives facts under any name"
)


def file_text(file: UploadedFile) -> str:
    """How a file ended and why, on one line; then remarks about it."""
    line = f"{file.state or file.outcome:<12} {file.name}"
    if file.result.get("passages") is not None:
        line += f"  ({file.result['passages']} passages)"
    if file.outcome == "duplicate_of":
        line += f"  {file.document_id}, which has the same bytes"
    if file.error is not None:
        hint = file.error.get("hint")
        line += f": {str(file.error.get('message')).removeprefix(f'{file.name} ')}"
        line += f" ({hint})" if hint else ""
    elif file.state == "partial" and (reasons := _unread(file.result)):
        line += f": {'; '.join(reasons)}"
    return "\n".join([line, *(f"{'':<12} {remark}" for remark in _remarks(file.result))])


def _remarks(result: Json) -> list[str]:
    """Remarks about a document, and rows of its data sheets that gave no fact."""
    remarks = [str(remark) for remark in result.get("remarks") or ()]
    rows = result.get("rows_not_read") or ()
    if rows:
        more = f"; and {len(rows) - ROWS_SHOWN} more" if len(rows) > ROWS_SHOWN else ""
        listed = "; ".join(map(str, rows[:ROWS_SHOWN]))
        remarks += [f"{UNREAD_ROWS}: {listed}{more}", f"    ({WHY_UNREAD})"]
    return remarks


def _unread(result: Json) -> list[str]:
    """The first pages that could not be read and the first warnings."""
    failed = result.get("pages_failed") or ()
    pages = [f"page {int(f['page_index']) + 1}: {f['reason']}" for f in failed if "reason" in f]
    return [*pages[:3], *(str(warning) for warning in (result.get("warnings") or ())[:3])]


_TITLES = {
    "rows_not_read": f"{UNREAD_ROWS} ({WHY_UNREAD})",
    "samples_left_out": "samples that are no whole kernel or no recipe",
    "pages_failed": "pages that could not be read",
    "headings_without_card": "headings that look like instructions and gave no card",
}


def report_lines(report: Json) -> Iterator[str]:
    """The report of reading a document: counts, one a line, then each list under its name."""
    counts = {key: value for key, value in report.items() if not isinstance(value, list | tuple)}
    yield from pairs({key.replace("_", " "): value for key, value in counts.items()}).splitlines()
    for key, entries in report.items():
        if not isinstance(entries, list | tuple) or not entries:
            continue
        yield ""
        yield f"{_TITLES.get(key, key.replace('_', ' '))}:"
        yield from (f"    {_entry_text(entry)}" for entry in entries)


def _entry_text(entry: Any) -> str:
    if isinstance(entry, Mapping):
        if "reason" in entry and "page_index" in entry:
            return f"page {int(entry['page_index']) + 1}: {entry['reason']}"
        return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in entry.items())
    return " ".join(str(entry).split())


def counts_of(files: Sequence[UploadedFile]) -> dict[str, int]:
    """How many files had each outcome, and how many ended in each state."""
    counted = Counter(file.outcome for file in files)
    counted.update(file.state for file in files if file.state)
    order = ("created", "new_version", "unchanged", "duplicate_of", "refused", *ENDED)
    return {name: counted[name] for name in (*order, *(n for n in counted if n not in order))}


# -- progress

READING_SHARE = 0.2  # of the bar; embedding takes most of the time
RATE_SECONDS = 30.0  # over which the rate is measured
# Evidence before a time left is shown: seconds of embedding, and the share of documents read.
EVIDENCE_SECONDS, EVIDENCE_DOCUMENTS = 5.0, 0.1


@dataclass(frozen=True)
class UploadProgress:
    """The progress of an upload. `share` is of the whole, 0 to 1. `rate`, in passages a second, and
    `seconds_left` are None until they can be estimated."""

    stage: str
    share: float
    documents: str
    passages: str
    rate: float | None
    seconds_left: float | None

    @property
    def text(self) -> str:
        """Documents, passages, rate and time left, short enough for a bar within 80 columns."""
        parts = [self.documents, self.passages]
        if self.rate is not None:
            parts.append(f"{self.rate:.0f}/s")
        if self.seconds_left is not None:
            minutes, seconds = divmod(round(self.seconds_left), 60)
            parts.append(f"{minutes}:{seconds:02} left")
        return ", ".join(parts)


class Pace:
    """Progress and rate of an upload of this many documents."""

    def __init__(self, documents: int) -> None:
        self._documents = documents
        self._share = 0.0
        self._seen: deque[tuple[float, int]] = deque()  # (time, passages done)

    def at(self, counts: Json, left: int, now: float) -> UploadProgress:
        """The progress by the counts of the group and the number of documents that have not ended.
        `now` is in seconds of any clock."""
        ended, embedding = self._documents - left, int(counts.get("embedding", 0))
        done, known = int(counts.get("passages_done", 0)), int(counts.get("passages", 0))
        read = min(self._documents, ended + embedding)
        expected = known * self._documents / read if read else 0.0
        share = READING_SHARE * read / self._documents
        share += (1 - READING_SHARE) * (done / expected if expected else 0.0)
        # More passages than expected do not move the bar back.
        self._share = max(self._share, min(share, 1.0)) if left else 1.0
        rate, seconds = self._rate(done, now)
        sure = seconds >= EVIDENCE_SECONDS and read >= EVIDENCE_DOCUMENTS * self._documents
        unread = read < self._documents
        return UploadProgress(
            stage="reading" if not embedding else "reading, embedding" if unread else "embedding",
            share=self._share,
            documents=f"{ended:,}/{self._documents:,} files",
            passages=f"{done:,}/{known:,}{'+' if unread else ''} passages",
            rate=rate,
            seconds_left=max(0.0, expected - done) / rate if rate and sure and left else None,
        )

    def _rate(self, done: int, now: float) -> tuple[float | None, float]:
        """Recent passages a second, and the seconds over which they were counted."""
        if not self._seen and not done:
            return None, 0.0
        self._seen.append((now, done))
        while now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        began, before = self._seen[0]
        if now <= began or done <= before:
            return None, 0.0
        return (done - before) / (now - began), now - began


@dataclass(frozen=True)
class _Display:
    """Prints lines, and shows counts of a group with the number of files that have not ended."""

    line: Callable[[str], None]
    show: Callable[[Json, int], None] = lambda counts, left: None


@contextmanager
def _display(quiet: bool, total: int) -> Iterator[_Display]:
    stream = sys.stderr if quiet else sys.stdout
    if not stream.isatty():
        yield _Display(lambda text: print(text, file=stream, flush=True))
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(file=stream, highlight=False, markup=False)
    columns: Any = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        pace = Pace(total)
        task = bar.add_task("reading", total=1.0, now=f"0/{total:,} files")

        def show(counts: Json, left: int) -> None:
            progress = pace.at(counts, left, time.monotonic())
            bar.update(
                task, description=progress.stage, completed=progress.share, now=progress.text
            )

        yield _Display(console.print, show)
