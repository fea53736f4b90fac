"""Runs of a service, each in a separate process, so that cancelling one ends everything it started.

Runs, nodes, leases and mail are rows of the catalog, so every replica of a service shows a run,
takes candidates for it and can end it. This process only holds its own child processes.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from kb.catalog.runs import RunMail
from kb.data_dir import private_folder
from kb.errors import Conflict, InvalidRequest, NotFound
from kb.ids import new_id
from kb.plain import from_json
from kb.workers import ChildProcess, WorkerThread
from optimizer.search.runs.run_store import (
    AcceptedStep,
    RunContext,
    ShownRun,
    announce,
    cancel_run,
    cancel_start,
    owner_of,
    run_store,
    shown_run,
    start_of,
)
from optimizer.search.synthesizers.external import CONTEXT_TOKENS, NOTHING_MORE
from retrieval.knowledge_base import KnowledgeBase

GRACE_SECONDS = 2.0  # for the run to end by itself and write its last row
CANCEL_SECONDS = 5.0  # within which another replica ends a run that it has started
LOOK_SECONDS = 1.0  # between two checks for runs that another replica cancelled
ENDED_ELSEWHERE = "its process ended before the run began; the replica that started it has its log"
STILL_ENDING = (
    "its end was requested; a process that this service did not start (of a command, or of a"
    " service that was killed) still works on it and ends after the candidate that it is measuring"
)
MAX_RUNNING = 2
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class SubmittedProblem:
    """A problem as the path of a file, or as text with a name and the text of its toml file."""

    path: str | None
    source: str = ""
    toml: str | None = None
    name: str = "sent"

    def written(self, folder: Path) -> str:
        """The path of its file; text is written to a file in `folder`."""
        if self.path is not None:
            return self.path
        file = folder / f"{self.name}.py"
        file.write_text(self.source, encoding="utf-8")
        if self.toml is not None:
            file.with_suffix(".toml").write_text(self.toml, encoding="utf-8")
        return str(file)


def submitted_problem(problem: str | Mapping[str, Any]) -> SubmittedProblem:
    """Check the name of a shipped problem, or {source, toml, name} where the last two are optional,
    without running it. Raises NotFound and InvalidRequest."""
    from optimizer.evaluation.evaluate import problem_from_text
    from optimizer.evaluation.problem.load import problem_named

    if isinstance(problem, str):
        return SubmittedProblem(str(problem_named(problem).path))
    source, toml = problem["source"], problem.get("toml")
    problem_from_text(source, toml)
    name = problem.get("name") or SubmittedProblem.name
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} cannot be the name of a problem",
            hint="Use 1 to 64 letters, digits, `-` and `_`.",
        )
    return SubmittedProblem(None, source, toml, name)


class ServiceRuns:
    """Starts, shows and ends the runs of a service, and hands candidates to them."""

    def __init__(self, base: KnowledgeBase, command: Sequence[str]) -> None:
        """`command` starts a run; its description is appended as one JSON argument."""
        self._base = base
        self._command = tuple(command)
        self._changing = threading.Lock()  # protects _children
        self._children: dict[str, ChildProcess] = {}
        self._watching = WorkerThread("runs", self._end_cancelled, LOOK_SECONDS)

    def start(
        self,
        problem: str | Mapping[str, Any],
        hardware: str,
        goal: Mapping[str, Any],
        proposers: Sequence[str],
        context_tokens: int = CONTEXT_TOKENS,
    ) -> str:
        """Start a run and return its id.

        `problem` is as in `submitted_problem`, `goal` has the fields of `Goal`, and `hardware` is
        an id, name or alias, or `auto`. `context_tokens` bounds the knowledge for an external
        proposer. Raises InvalidRequest, NotFound, UnknownHardware, Unavailable for a chip that
        cannot be run here, and Conflict for more than MAX_RUNNING runs, which would wait for the
        same device.
        """
        from optimizer.search.goal import Goal
        from optimizer.search.runs.places import refuse_absent

        checked_goal = asdict(from_json(Goal, goal))
        submitted = submitted_problem(problem)
        refuse_absent(self._base, hardware, checked_goal["language"])
        run_id = new_id("run")
        folder = private_folder(self.folder(run_id))
        description = {
            "run": run_id,
            "problem": submitted.written(folder),
            "hardware": hardware,
            "goal": dict(checked_goal),
            "proposers": list(proposers),
            "context_tokens": context_tokens,
        }
        with self._changing:
            running = [key for key, child in self._children.items() if child.alive]
            if len(running) >= MAX_RUNNING:
                raise Conflict(
                    f"{len(running)} runs are going on: {', '.join(running)}",
                    hint="Wait for one, or end one: POST /runs/{run_id}/cancel.",
                    details={"runs": running},
                )
            command = [*self._command, json.dumps(description)]
            log = folder / "log"
            asked = ("problem", "hardware", "goal")
            announce(self._base, run_id, {name: description[name] for name in asked})
            self._children[run_id] = ChildProcess(command, self._base.settings, output=log)
        self._watching.wake()
        return run_id

    def folder(self, run_id: str) -> Path:
        """The folder of a run's files."""
        return self._base.settings.data_dir.absolute() / "runs" / run_id

    def mailbox(self, run_id: str) -> RunMail:
        """The mail through which a run gets candidates of an external proposer."""
        return RunMail(self._base.catalog, run_id)

    def show(self, run_id: str) -> ShownRun:
        """Goal, state and result of a run. One without a row yet is `starting`, or `failed` with
        the end of what its process printed. Raises NotFound."""
        try:
            row = shown_run(run_store(self._base).run(run_id))
        except NotFound:
            beginning = self._beginning(run_id)
            if beginning is None:
                raise
            return beginning
        if row["state"] == "running" and owner_of(self._base, run_id) is None:
            row["note"] = "no process works on it; `kernlore runs resume` continues it"
        return row

    def _beginning(self, run_id: str) -> ShownRun | None:
        """A run without a row yet, of this service or of another replica."""
        state = start_of(self._base, run_id)
        with self._changing:
            child = self._children.get(run_id)
        if state == "cancelled":
            return {"id": run_id, "state": state, "ended": "it was cancelled"}
        if child is None and state == "failed":
            return {"id": run_id, "state": state, "ended": ENDED_ELSEWHERE}
        if child is None:
            return None if state is None else {"id": run_id, "state": state}
        if child.alive:
            return {"id": run_id, "state": "starting"}
        printed = (self.folder(run_id) / "log").read_bytes()[-4_000:].decode("utf-8", "replace")
        return {"id": run_id, "state": "failed", "ended": printed.strip()}

    def alive(self, run_id: str) -> bool:
        """Whether a process of any replica works on the run."""
        return owner_of(self._base, run_id) is not None

    def context(self, run_id: str) -> RunContext:
        """The context of the next candidate of a run. `waiting` is false while the run is
        measuring, or has ended; `context` is None then. Raises NotFound."""
        state = self.show(run_id)["state"]
        context = self.mailbox(run_id).open_context()
        waiting = context is not None and self.alive(run_id)
        return {"waiting": waiting, "state": state, "context": context if waiting else None}

    def propose(
        self,
        run_id: str,
        step: int,
        candidate: Mapping[str, Any] | None,
        plan: str = "",
        used: Sequence[str] = (),
    ) -> AcceptedStep:
        """Hand a run the candidate that it waits for; `step` is that of its context.

        `candidate` has `files`, `main`, `language`, `parameters` and optionally `entry`; None ends
        the proposals, and the run too unless it has other proposers. `used` are ids of shown
        knowledge. Raises NotFound, InvalidRequest for files that are no candidate, and Conflict for
        a step that has one already.
        """
        from optimizer.evaluation.bundle import Bundle, default_entry
        from optimizer.evaluation.evaluate import entry_for
        from optimizer.evaluation.targets import AUTO

        hardware = str(self.show(run_id).get("hardware", AUTO))
        if candidate is None:
            self.mailbox(run_id).answer(step, NOTHING_MORE)
            return {"run": run_id, "step": step, "state": "accepted"}
        answer = {**candidate, "plan": plan, "used": list(used)}
        if answer.get("entry") is None:
            named = entry_for(self._base, hardware, candidate["language"])
            answer["entry"] = named or default_entry(candidate["main"])
        # Raises here, so that the sender gets the reason and the run does not spend a step on it.
        Bundle(candidate["files"], candidate["main"], candidate["language"], answer["entry"])
        self.mailbox(run_id).answer(step, answer)
        return {"run": run_id, "step": step, "state": "accepted"}

    def cancel(self, run_id: str) -> ShownRun:
        """End a run and show it. It is requested to end first; no process of a run that this
        service started is alive when this returns. Of another replica, its processes end within a
        few seconds; one of a command, or of a service that was killed, ends after its candidate,
        and the answer has a `note` while it has not. Raises NotFound."""
        with self._changing:
            child = self._children.get(run_id)
        starting = cancel_start(self._base, run_id)
        if child is not None:
            with suppress(NotFound):
                run_store(self._base).cancel(run_id)
            self._end(run_id, child)
            return self.show(run_id)
        if starting:
            return self.show(run_id)
        with suppress(NotFound):
            cancel_run(self._base, run_id)
            deadline = time.monotonic() + CANCEL_SECONDS
            while self.alive(run_id) and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS / 10)
        run = self.show(run_id)
        if self.alive(run_id):
            run["note"] = STILL_ENDING
        return run

    def _end(self, run_id: str, child: ChildProcess) -> None:
        """End the process of a cancelled run, and store its state if the process did not."""
        store = run_store(self._base)
        child.wait(GRACE_SECONDS)
        child.end(GRACE_SECONDS / 2)
        with suppress(NotFound):
            run = store.run(run_id)
            if run.state == "running":
                store.update(replace(run, state="cancelled", ended="it was cancelled"))

    def _end_cancelled(self) -> bool:
        """End runs of this service that another replica cancelled; returns False: wait again."""
        store = run_store(self._base)
        with self._changing:
            alive = {key: child for key, child in self._children.items() if child.alive}
        for run_id, child in alive.items():
            if start_of(self._base, run_id) == "cancelled":
                child.end(GRACE_SECONDS / 2)
                continue
            with suppress(NotFound):
                if store.cancelled(run_id):
                    self._end(run_id, child)
        return False

    def close(self) -> None:
        """End every run of this service."""
        self._watching.stop(GRACE_SECONDS)
        with self._changing:
            children = list(self._children.values())
        for child in children:
            child.end(GRACE_SECONDS / 2)
