"""Starts a check of the knowledge when a tool of this machine has a version that nothing was
checked with.

The check runs in a child process with the lowest priority, and not while a kernel is measured. It
is a job of the kind `check`. Does not know how anything is checked (`optimizer.knowledge_check`).
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import structlog

from kb.catalog import tables as t
from kb.catalog.engine import Catalog
from kb.catalog.knowledge.validities import stored_validities
from kb.catalog.work import Job, Work
from kb.errors import InternalError, error_json
from kb.hardware.detection import detect_versions
from kb.ids import JobId, new_id
from kb.validity import load_tools
from kb.workers import ChildProcess, keep_lease
from retrieval.diagnose.error_programs import load_error_evidence
from retrieval.knowledge_base import KnowledgeBase

KIND = "check"
LOOK_SECONDS = 600.0  # a look starts each tool once, and a check uses a processor for minutes
REPORT_SECONDS = 2.0
STOP_SECONDS = 10.0
TAIL = 500  # characters of a failed check's output

log = structlog.get_logger(__name__)


def new_versions(catalog: Catalog) -> dict[str, str]:
    """The versions of this machine's tools with which nothing was checked, of tools with which
    something was. Versions of a job that has ended or is running are not new."""
    with catalog.read() as connection:
        stored = stored_validities(connection).by_subject.values()
        jobs = Work(catalog, KIND).matching(connection)
    known = {
        (validity.tool, validity.max)
        for validities in (*stored, *load_error_evidence().validities.values())
        for validity in validities
        if validity.checked != "read" and validity.min == validity.max
    }
    tools = {tool for tool, _ in known if tool}
    known |= {pair for job in jobs for pair in job.payload["tools"].items()}
    releases = {
        tool: load_tools().by_id[tool].release(version)
        for tool, version in detect_versions().items()
        if tool in tools
    }
    return {tool: release for tool, release in releases.items() if (tool, release) not in known}


class ToolchainWatch:
    """A thread that looks for new versions between `open` and `close`. `command` is `kernlore
    knowledge check`."""

    def __init__(self, base: KnowledgeBase, command: Sequence[str]) -> None:
        self._base = base
        self._command = ("nice", "-n", "19", *command, "--json")
        self._work = Work(base.catalog, KIND)
        self._owner = new_id(f"service{os.getpid()}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toolchains", daemon=True)

    def open(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; a running check is queued again for the next service."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception:  # the thread's boundary
                log.exception("toolchains cannot be checked")

    def look(self) -> Job | None:
        """Queue a check if a tool has a new version, and run the queued check; the job that ended.
        Does nothing while the built-in knowledge is loaded or a kernel is measured."""
        if not self._base.knowledge_loaded or self._measuring():
            return None
        new = new_versions(self._base.catalog)
        with self._base.catalog.write() as connection:
            self._work.requeue(connection, [j.id for j in self._work.abandoned(connection)])
            if new:
                named = (f"{load_tools().by_id[tool].title} {v}" for tool, v in new.items())
                payload = {"title": f"Check of the knowledge with {', '.join(named)}", "tools": new}
                self._work.add(connection, JobId(new_id("job")), payload)
        job = self._work.take(self._owner, self._base.settings.lease_seconds)
        if job is None:
            return None
        self._check(job)
        return self._work.find(job.id)

    def _measuring(self) -> bool:
        kinds = t.work.c.kind.in_(("evaluation", "run"))
        query = sa.select(t.work.c.id).where(kinds, t.work.c.state == "running").limit(1)
        with self._base.catalog.read() as connection:
            return connection.scalar(query) is not None

    def _check(self, job: Job) -> None:
        lease = self._base.settings.lease_seconds
        log.info("knowledge is checked", tools=job.payload["tools"])
        with tempfile.TemporaryDirectory(prefix="kernlore-check-") as folder:
            output = Path(folder) / "output"
            tools = (f"--tool={tool}" for tool in job.payload["tools"])
            child = ChildProcess([*self._command, *tools], self._base.settings, output)
            try:
                with keep_lease(
                    lambda: self._work.renew(self._owner, lease, job.id), lease, f"check {job.id}"
                ) as lost:
                    while child.alive and not self._stop.is_set() and not lost.is_set():
                        self._stop.wait(REPORT_SECONDS)
                        self._report(job, output)
            finally:
                stopped = child.alive
                child.end()
            if stopped:
                self._work.give_back(self._owner, job.id)
                return
            self._end(job, output.read_text(encoding="utf-8", errors="replace"))

    def _report(self, job: Job, output: Path) -> None:
        """Store how many entries were checked."""
        entries = output.read_bytes().count(b"\n")
        with self._base.catalog.write(rows_only=True) as connection:
            values = {"progress": {"entries_checked": entries}}
            self._work.update_held(connection, job.id, self._owner, values)

    def _end(self, job: Job, printed: str) -> None:
        """Store the counts of the check's last line, or why it has none."""
        result: dict[str, Any] = {}
        with suppress(IndexError, ValueError, KeyError, TypeError):
            answer = json.loads(printed.strip().splitlines()[-1])
            counts = Counter(change["change"] for change in answer["changes"])
            expired = [c["subject"] for c in answer["changes"] if c["change"] == "expired"]
            remarks = [*answer["remarks"], *(f"expired: {subject}" for subject in expired)]
            result = {**counts, "not_checked": len(answer["not_checked"]), "remarks": remarks}
        failure = InternalError(
            f"the check ended without an answer: {printed.strip()[-TAIL:]}",
            hint="Run `kernlore knowledge check` in a terminal; it prints more.",
        )
        with self._base.catalog.write() as connection:
            self._work.end(
                connection,
                job.id,
                self._owner,
                "ready" if result else "failed",
                result,
                None if result else error_json(failure),
            )
        log.info("knowledge was checked", **{k: v for k, v in result.items() if k != "remarks"})
