"""`kernlore jobs`: how far the reading of a document is, and watching files being read.

Watching knows nothing about how a file came in; it asks for jobs until each has ended. On a
terminal it moves one line, elsewhere it prints one plain line a file.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from api.cli.backends import Target, open_target
from api.cli.options import AsJson, DataDir, Url
from api.cli.output import Json, pairs, show

app = typer.Typer(help="Jobs: the progress of reading documents.")

JobId = Annotated[str, typer.Argument(help="The job_id that an upload returned.")]
POLL_SECONDS = 0.2
# Jobs end roughly in order; asking for the first few is enough to see all of them end.
POLLED_AT_ONCE = 32
ENDED = ("ready", "partial", "failed")


@app.command("show")
def show_(
    job_id: JobId, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Show the state, progress and result of one job."""
    with open_target(data_dir, url) as target:
        job = target.job(job_id)
    show(job, as_json, _job_text)


@app.command("retry")
def retry(
    job_id: JobId, data_dir: DataDir = None, url: Url = None, as_json: AsJson = False
) -> None:
    """Run a failed job again and wait for its end."""
    with open_target(data_dir, url) as target:
        target.retry_job(job_id)
        entry = Entry(name=job_id, outcome="retried", job_id=job_id)
        read_all(target, [entry], quiet=as_json)
        job = target.job(job_id)
    show(job, as_json, _job_text)
    if job["state"] == "failed":
        raise typer.Exit(1)


def _job_text(job: Json) -> str:
    kept = ("id", "state", "kind", "document_id", "attempts", "created_at", "finished_at")
    lines = {key: job.get(key) for key in kept}
    error = job.get("error") or {}
    lines |= {"progress": job.get("progress"), "result": job.get("result")}
    lines |= {"error": error.get("message"), "hint": error.get("hint")}
    return pairs(lines)


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


def read_all(target: Target, entries: Sequence[Entry], *, quiet: bool) -> None:
    """Wait until the job of every entry has ended, and print how each ended."""
    waiting = [entry for entry in entries if entry.job_id is not None]
    if not waiting:
        return
    with progress(quiet, len(waiting)) as display, target.reading():
        while waiting:
            for entry in waiting[:POLLED_AT_ONCE]:
                _poll(target, entry)
                if entry.state in ENDED:
                    display.line(describe(entry))
            left = [e for e in waiting if e.state not in ENDED]
            display.done(len(waiting) - len(left))
            if left and len(left) == len(waiting):
                time.sleep(POLL_SECONDS)
            waiting = left


def _poll(target: Target, entry: Entry) -> None:
    job = target.job(str(entry.job_id))
    entry.state = job["state"]
    entry.result = job.get("result") or {}
    entry.error = job.get("error")
    orphaned = entry.state == "failed" and (entry.error or {}).get("code") == "lease_expired"
    if orphaned and not entry.retried:  # its reader was stopped; that says nothing about the file
        entry.retried = True
        entry.state = target.retry_job(str(entry.job_id))["state"]
        entry.error = None


def describe(entry: Entry) -> str:
    """One line: how a file ended and why."""
    line = f"{entry.state or entry.outcome:<12} {entry.name}"
    reasons = problems(entry)
    if entry.result.get("passages") is not None:
        line += f"  ({entry.result['passages']} passages)"
    return line + (f": {'; '.join(reasons)}" if reasons else "")


def problems(entry: Entry) -> list[str]:
    """What went wrong with a file, in words."""
    if entry.error is not None:
        hint = entry.error.get("hint")
        return [str(entry.error.get("message")) + (f" ({hint})" if hint else "")]
    if entry.state != "partial":
        return []
    failed = entry.result.get("pages_failed") or ()
    pages = [f"page {int(f['page_index']) + 1}: {f['reason']}" for f in failed if "reason" in f]
    return [*pages[:3], *(str(warning) for warning in (entry.result.get("warnings") or ())[:3])]


def counts(entries: Sequence[Entry]) -> dict[str, int]:
    """How many files had which outcome, and how many ended in which state."""
    counted = Counter(entry.outcome for entry in entries)
    counted.update(entry.state for entry in entries if entry.state)
    order = ("created", "new_version", "unchanged", "duplicate_of", "refused")
    known = (*order, "ready", "partial", "failed")
    return {name: counted[name] for name in known} | {
        name: n for name, n in counted.items() if name not in known
    }


class Progress:
    """Where lines and counts are shown while files are read."""

    def __init__(self, write: Callable[[str], None], advance: Callable[[int], None]) -> None:
        self.line = write
        self.done = advance


@contextmanager
def progress(quiet: bool, total: int) -> Iterator[Progress]:
    """Show progress; `quiet` keeps standard output for the answer."""
    stream = sys.stderr if quiet else sys.stdout
    if not stream.isatty():
        yield Progress(lambda text: print(text, file=stream, flush=True), lambda count: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    console = Console(file=stream, highlight=False, markup=False)
    columns: Any = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield Progress(console.print, lambda count: bar.advance(task, count))
