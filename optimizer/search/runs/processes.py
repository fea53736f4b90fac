"""Runs that the service carries out: each a process of its own, so that cancelling one can end
everything it started.

What is remembered here is only what runs now; runs and nodes are rows of the catalog.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from kb.child_process import ROOT, end_group, environment
from kb.errors import Conflict, NotFound
from kb.ids import new_id
from optimizer.search.runs.run_store import run_store
from optimizer.search.synthesizers.external import Mailbox
from retrieval.knowledge_base import KnowledgeBase

GRACE_SECONDS = 2.0  # for the run to end by itself and write its last row
MAX_RUNNING = 2


@dataclass(frozen=True)
class Sent:
    """A problem: where it lies here, or its text and that of the toml beside it."""

    path: str | None
    source: str = ""
    toml: str | None = None

    def placed(self, folder: Path) -> str:
        """Its path; what was sent as text is kept beside the run."""
        if self.path is not None:
            return self.path
        place = folder / "problem.py"
        place.write_text(self.source, encoding="utf-8")
        if self.toml is not None:
            place.with_suffix(".toml").write_text(self.toml, encoding="utf-8")
        return str(place)


@dataclass
class _Child:
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    goal: Mapping[str, Any]


class RunProcesses:
    """Starts, watches and ends runs."""

    def __init__(self, base: KnowledgeBase, command: Sequence[str]) -> None:
        """`command` starts one run; its description is appended as one JSON argument."""
        self._base = base
        self._command = tuple(command)
        self._changing = threading.Lock()  # protects _children
        self._children: dict[str, _Child] = {}

    def start(
        self, problem: Sent, hardware: str, goal: Mapping[str, Any], proposers: tuple[str, ...]
    ) -> str:
        """The id of a run that has begun. Raises Conflict where too many run already: they would
        wait for the same device."""
        run_id = new_id("run")
        folder = self.folder(run_id)
        folder.mkdir(parents=True, exist_ok=True)
        told = {
            "run": run_id,
            "problem": problem.placed(folder),
            "hardware": hardware,
            "goal": dict(goal),
            "proposers": list(proposers),
        }
        with self._changing:
            running = sum(child.process.poll() is None for child in self._children.values())
            if running >= MAX_RUNNING:
                raise Conflict(f"{running} runs are going on", hint="Cancel one, or wait for it.")
            log = (folder / "log").open("wb")
            process = subprocess.Popen(
                [*self._command, json.dumps(told)],
                cwd=ROOT,
                env=environment(self._base.settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._children[run_id] = _Child(process, log, goal)
        return run_id

    def folder(self, run_id: str) -> Path:
        return self._base.settings.data_dir.absolute() / "runs" / run_id

    def mailbox(self, run_id: str) -> Mailbox:
        return Mailbox(self.folder(run_id) / "mail")

    def state(self, run_id: str) -> dict[str, Any] | None:
        """Of a run that has no row yet: starting, or failed with what its process said."""
        with self._changing:
            child = self._children.get(run_id)
        if child is None:
            return None
        if child.process.poll() is None:
            return {"id": run_id, "state": "starting"}
        said = (self.folder(run_id) / "log").read_bytes()[-4_000:].decode("utf-8", "replace")
        return {"id": run_id, "state": "failed", "ended": said.strip()}

    def alive(self, run_id: str) -> bool:
        with self._changing:
            child = self._children.get(run_id)
        return child is not None and child.process.poll() is None

    def cancel(self, run_id: str) -> None:
        """Nothing of it is alive when this returns: it is asked first, then ended."""
        store = run_store(self._base)
        with suppress(NotFound):
            store.cancel(run_id)
        with self._changing:
            child = self._children.get(run_id)
        if child is None:
            return
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(GRACE_SECONDS)
        self._end(child)
        with suppress(NotFound):
            run = store.run(run_id)
            if run.state == "running":
                store.update(replace(run, state="cancelled", ended="it was cancelled"))

    def close(self) -> None:
        with self._changing:
            children = list(self._children.values())
        for child in children:
            self._end(child)

    def _end(self, child: _Child) -> None:
        end_group(child.process, GRACE_SECONDS / 2)
        child.log.close()
