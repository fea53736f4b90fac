"""Watching files being read: one request asks for all of them, until each has ended.

Knows nothing about how a file came in. On a terminal it moves a bar, elsewhere it prints one plain
line a file."""

from __future__ import annotations

import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from api.cli.backends import Target
from api.cli.output import Json, pairs
from kb.errors import KernloreError, NotFound

ENDED = ("ready", "partial", "failed")
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds between two requests
PAGE = 500  # jobs that ended since the last request
# How many jobs outside of the group are asked for, each by itself: another upload of the same
# files has taken them over.
POLLED_AT_ONCE = 32
ROWS_SHOWN = 6
UNREAD_ROWS = "rows with a number that were not read as facts"
WHY_UNREAD = (
    "where no reason stands there, no known fact is called so; a table with columns key, value and"
    " unit gives facts under any name"
)


@dataclass
class Entry:
    """One file of an upload. `state` is that of its job; None where nothing had to be read."""

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


def read_all(target: Target, entries: Sequence[Entry], *, group: str | None, quiet: bool) -> None:
    """Wait until the job of every entry has ended, and print how each ended. `group` is the one
    that the entries were sent in.
    """
    watch = _Watch(target, entries, group)
    if not watch.waiting:
        return
    pause = FIRST_PAUSE
    with _display(quiet, len(watch.waiting)) as display, target.reading():
        while True:
            counts = watch.poll(display.line)
            display.show(counts, len(watch.waiting))
            if not watch.waiting:
                return
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)


class _Watch:
    """The entries whose jobs have not ended, by job id: copies of a file share one."""

    def __init__(self, target: Target, entries: Sequence[Entry], group: str | None) -> None:
        self.waiting: dict[str, list[Entry]] = {}
        for entry in entries:
            if entry.job_id is not None:
                self.waiting.setdefault(entry.job_id, []).append(entry)
        self._target = target
        self._group = group
        self._since: str | None = None  # the newest end that was seen

    def poll(self, say: Callable[[str], None]) -> Json:
        """Take in what ended since the last time; the counts of the group."""
        counts: Json = {}
        if self._group is not None:
            counts = self._poll_group(say)
        if not counts.get("queued") and not counts.get("running"):
            for job_id in list(self.waiting)[:POLLED_AT_ONCE]:
                self._poll_single(job_id, say)
        return counts

    def _poll_group(self, say: Callable[[str], None]) -> Json:
        asked = {"group": self._group, "state": ENDED, "ended_since": self._since, "limit": PAGE}
        page = self._target.call("list_jobs", **asked)
        counts: Json = page["counts"]
        while True:
            for job in page["jobs"]:
                self._since = max(self._since or "", job["finished_at"])
                self._take(job, say)
            if page["cursor"] is None:
                return counts
            page = self._target.call("list_jobs", **asked, cursor=page["cursor"])

    def _poll_single(self, job_id: str, say: Callable[[str], None]) -> None:
        try:
            job = self._target.call("show_job", job_id=job_id)
        except KernloreError as error:
            if error.status != NotFound.status:
                raise
            job = {"id": job_id, "state": "failed", "error": error.as_json()}
        if job["state"] in ENDED:
            self._take(job, say)

    def _take(self, job: Json, say: Callable[[str], None]) -> None:
        entries = self.waiting.get(job["id"])
        if entries is None:
            return
        error = job.get("error") or {}
        if error.get("code") == "lease_expired" and not any(entry.retried for entry in entries):
            # Its reader was stopped, which says nothing about the file.
            self._target.call("retry_job", job_id=job["id"])
            for entry in entries:
                entry.retried = True
            return
        del self.waiting[job["id"]]
        for entry in entries:
            entry.state = job["state"]
            entry.result = job.get("result") or {}
            entry.error = job.get("error")
            say(describe(entry))


def describe(entry: Entry) -> str:
    """One line: how a file ended and why."""
    line = f"{entry.state or entry.outcome:<12} {entry.name}"
    reasons = problems(entry)
    if entry.result.get("passages") is not None:
        line += f"  ({entry.result['passages']} passages)"
    line += f": {'; '.join(reasons)}" if reasons else ""
    return "\n".join([line, *(f"{'':<12} {remark}" for remark in remarks(entry.result))])


def remarks(result: Json) -> list[str]:
    """What a document is to others, and what of its data sheets gave no fact: a few lines."""
    said = [str(remark) for remark in result.get("remarks") or ()]
    rows = result.get("rows_not_read") or ()
    if rows:
        more = f"; and {len(rows) - ROWS_SHOWN} more" if len(rows) > ROWS_SHOWN else ""
        listed = "; ".join(map(str, rows[:ROWS_SHOWN]))
        said.append(f"{UNREAD_ROWS}: {listed}{more}")
        said.append(f"    ({WHY_UNREAD})")
    return said


def report_lines(report: Json) -> Iterator[str]:
    """What was read of a document and what not: counts, one a line, then each list under its name,
    one entry a line.
    """
    counts = {key: value for key, value in report.items() if not isinstance(value, list | tuple)}
    yield from pairs({key.replace("_", " "): value for key, value in counts.items()}).splitlines()
    for key, entries in report.items():
        if not isinstance(entries, list | tuple) or not entries:
            continue
        yield ""
        yield f"{_TITLES.get(key, key.replace('_', ' '))}:"
        yield from (f"    {_entry_text(entry)}" for entry in entries)


_TITLES = {
    "rows_not_read": f"{UNREAD_ROWS} ({WHY_UNREAD})",
    "samples_left_out": "samples that are no whole kernel or no recipe",
    "pages_failed": "pages that could not be read",
    "headings_without_card": "headings that look like instructions and gave no card",
}


def _entry_text(entry: Any) -> str:
    if isinstance(entry, Mapping):
        if "reason" in entry and "page_index" in entry:
            return f"page {int(entry['page_index']) + 1}: {entry['reason']}"
        return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in entry.items())
    return " ".join(str(entry).split())


def problems(entry: Entry) -> list[str]:
    """What went wrong with a file, in words."""
    if entry.error is not None:
        hint = entry.error.get("hint")
        return [str(entry.error.get("message")) + (f" ({hint})" if hint else "")]
    return unread(entry.result) if entry.state == "partial" else []


def unread(result: Json) -> list[str]:
    """What of a document could not be read, in words: the first of it."""
    failed = result.get("pages_failed") or ()
    pages = [f"page {int(f['page_index']) + 1}: {f['reason']}" for f in failed if "reason" in f]
    return [*pages[:3], *(str(warning) for warning in (result.get("warnings") or ())[:3])]


def counts_of(entries: Sequence[Entry]) -> dict[str, int]:
    """How many files had which outcome, and how many ended in which state."""
    counted = Counter(entry.outcome for entry in entries)
    counted.update(entry.state for entry in entries if entry.state)
    order = ("created", "new_version", "unchanged", "duplicate_of", "refused")
    known = (*order, "ready", "partial", "failed")
    return {name: counted[name] for name in known} | {
        name: n for name, n in counted.items() if name not in known
    }


# -- what is shown meanwhile

READING_SHARE = 0.2  # of the bar; to embed takes most of the time
RATE_SECONDS = 30.0  # the rate is that of so long
EVIDENCE_SECONDS = 5.0  # no time left is named before so much of embedding was seen
EVIDENCE_DOCUMENTS = 0.1  # nor before so much of the documents was read


@dataclass(frozen=True)
class Standing:
    """How far an upload is. `share` is of all of it, 0 to 1; `rate` in passages a second, and
    `seconds_left`, are None without evidence.
    """

    stage: str
    share: float
    documents: str
    passages: str
    rate: float | None
    seconds_left: float | None


class Pace:
    """Says how far an upload of so many documents is, and how fast."""

    def __init__(self, documents: int) -> None:
        self._documents = documents
        self._share = 0.0
        self._seen: deque[tuple[float, int]] = deque()  # (time, passages done)

    def at(self, counts: Json, left: int, now: float) -> Standing:
        """Where it stands by the counts of its group and the number of documents that have not
        ended. `now` is in seconds of any clock.
        """
        ended, embedding = self._documents - left, int(counts.get("embedding", 0))
        done, known = int(counts.get("passages_done", 0)), int(counts.get("passages", 0))
        read = min(self._documents, ended + embedding)
        expected = known * self._documents / read if read else 0.0
        share = READING_SHARE * read / self._documents
        share += (1 - READING_SHARE) * (done / expected if expected else 0.0)
        # More passages than expected do not move it back.
        self._share = max(self._share, min(share, 1.0)) if left else 1.0
        rate, seconds = self._rate(done, now)
        sure = seconds >= EVIDENCE_SECONDS and read >= EVIDENCE_DOCUMENTS * self._documents
        unread = read < self._documents
        return Standing(
            stage="reading" if not embedding else "reading, embedding" if unread else "embedding",
            share=self._share,
            documents=f"{ended:,}/{self._documents:,} files",
            passages=f"{done:,}/{known:,}{'+' if unread else ''} passages",
            rate=rate,
            seconds_left=max(0.0, expected - done) / rate if rate and sure and left else None,
        )

    def _rate(self, done: int, now: float) -> tuple[float | None, float]:
        """Passages a second of late, and the seconds over which they were counted."""
        if not self._seen and not done:
            return None, 0.0
        self._seen.append((now, done))
        while now - self._seen[0][0] > RATE_SECONDS:
            self._seen.popleft()
        began, before = self._seen[0]
        if now <= began or done <= before:
            return None, 0.0
        return (done - before) / (now - began), now - began


class Display:
    """Where lines and counts are shown while files are read."""

    def __init__(
        self, line: Callable[[str], None], show: Callable[[Json, int], None] | None = None
    ) -> None:
        self.line = line
        self.show = show or (lambda counts, left: None)


@contextmanager
def _display(quiet: bool, total: int) -> Iterator[Display]:
    """Show progress; `quiet` keeps standard output for the answer."""
    stream = sys.stderr if quiet else sys.stdout
    if not stream.isatty():
        yield Display(lambda text: print(text, file=stream, flush=True))
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(file=stream, highlight=False, markup=False)
    columns: Any = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        pace = Pace(total)
        task = bar.add_task("reading", total=1.0, now=f"0/{total:,} files")

        def show(counts: Json, left: int) -> None:
            standing = pace.at(counts, left, time.monotonic())
            now = figures(standing)
            bar.update(task, description=standing.stage, completed=standing.share, now=now)

        yield Display(console.print, show)


def figures(standing: Standing) -> str:
    """Documents, passages, rate and time left, so short that 80 columns leave room for the bar."""
    parts = [standing.documents, standing.passages]
    if standing.rate is not None:
        parts.append(f"{standing.rate:.0f}/s")
    if standing.seconds_left is not None:
        minutes, seconds = divmod(round(standing.seconds_left), 60)
        parts.append(f"{minutes}:{seconds:02} left")
    return ", ".join(parts)
