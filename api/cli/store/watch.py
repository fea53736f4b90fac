"""Watching files being read: a moving line on a terminal, one plain line a file elsewhere.

Knows nothing about how a file came in; it asks for jobs until each has ended.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from api.cli.backends import Target
from api.cli.output import Json

POLL_SECONDS = 0.2
# Jobs end roughly in order; asking for the first few is enough to see all of them end.
ASKED_AT_ONCE = 32
ENDED = ("ready", "partial", "failed")


@dataclass
class Entry:
    """One file on its way. `state` is its job's last one; None where nothing had to be read."""

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
        return self.outcome == "refused" or self.state == "failed"


def read_all(target: Target, entries: Sequence[Entry], *, quiet: bool) -> None:
    """Wait until every job of the entries has ended, and say of each how it ended."""
    waiting = [entry for entry in entries if entry.job_id is not None]
    if not waiting:
        return
    with progress(quiet, len(waiting)) as shown, target.reading():
        while waiting:
            for entry in waiting[:ASKED_AT_ONCE]:
                _ask(target, entry)
                if entry.state in ENDED:
                    shown.line(describe(entry))
            left = [e for e in waiting if e.state not in ENDED]
            shown.done(len(waiting) - len(left))
            if left and len(left) == len(waiting):
                time.sleep(POLL_SECONDS)
            waiting = left


def _ask(target: Target, entry: Entry) -> None:
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
    found = [f"page {int(f['page_index']) + 1}: {f['reason']}" for f in failed if "reason" in f]
    return [*found[:3], *(str(warning) for warning in (entry.result.get("warnings") or ())[:3])]


def counts(entries: Sequence[Entry]) -> dict[str, int]:
    """How many files had which outcome, and how many ended in which state."""
    found = Counter(entry.outcome for entry in entries)
    found.update(entry.state for entry in entries if entry.state)
    order = ("created", "new_version", "unchanged", "duplicate_of", "refused")
    known = (*order, "ready", "partial", "failed")
    return {name: found[name] for name in known} | {
        name: n for name, n in found.items() if name not in known
    }


class Progress:
    """Lines as they come. On standard error when the answer is JSON."""

    def __init__(self, write: Callable[[str], None], advance: Callable[[int], None]) -> None:
        self.line = write
        self.done = advance


@contextmanager
def progress(quiet: bool, total: int) -> Iterator[Progress]:
    """`quiet` keeps standard output for the answer."""
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
