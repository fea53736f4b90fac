"""Runs that the service carries out: each a process of its own, so that cancelling one can end
everything it started.

Runs, nodes, who works on a run and what it asks are rows of the catalog, so every replica of a
service shows a run, takes candidates for it and can end it. What is remembered here are the child
processes of this service.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kb.catalog.runs import RunMail
from kb.data_dir import private_folder
from kb.errors import Conflict, InvalidRequest, NotFound
from kb.ids import new_id
from kb.workers import ChildProcess, WorkerThread
from optimizer.search.runs.run_lock import announce, cancel_start, owner_of, start_of
from optimizer.search.runs.run_store import cancel_run, run_store
from optimizer.search.synthesizers.external import CONTEXT_TOKENS, NOTHING_MORE
from retrieval.knowledge_base import KnowledgeBase

GRACE_SECONDS = 2.0  # for the run to end by itself and write its last row
CANCEL_SECONDS = 5.0  # within which another replica ends a run that it has started
LOOK_SECONDS = 1.0  # between two looks at what was cancelled elsewhere
ENDED_ELSEWHERE = "its process ended before the run began; the replica that started it has its log"
STILL_ENDING = (
    "it was asked to end; a process that this service did not start (of a command, or of a service"
    " that was killed) still works on it and ends after the candidate that it is measuring"
)
MAX_RUNNING = 2
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class SubmittedProblem:
    """A problem: where its file lies here, or its text and that of the toml beside it. `name` is
    what a problem that was sent as text is called.
    """

    path: str | None
    source: str = ""
    toml: str | None = None
    name: str = "sent"

    def place(self, folder: Path) -> str:
        """The path of its file; what was sent as text is written to the run's folder."""
        if self.path is not None:
            return self.path
        file = folder / f"{self.name}.py"
        file.write_text(self.source, encoding="utf-8")
        if self.toml is not None:
            file.with_suffix(".toml").write_text(self.toml, encoding="utf-8")
        return str(file)


def submitted_problem(problem: str | Mapping[str, Any]) -> SubmittedProblem:
    """Check a shipped name, or `source` with `toml` or None and maybe a `name`, without running any
    of it. Raises NotFound and InvalidRequest.
    """
    from optimizer.evaluation.evaluate import problem_from_text, problem_named

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
        """`command` starts one run; its description is appended as one JSON argument."""
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
        """The id of a run that has begun.

        `problem` is a shipped name, or `source` with `toml` or None and maybe a `name`; `goal` has
        the fields of `Goal`; `hardware` is an id, name or alias, or `auto`; `context_tokens` bounds
        the knowledge that is packed for an external proposer. Raises InvalidRequest, NotFound,
        UnknownHardware, Unavailable for a chip that cannot be run here, and Conflict where too many
        run already: they would wait for the same device.
        """
        from optimizer.search.goal import goal_from_json
        from optimizer.search.runs.places import refuse_absent

        checked_goal = goal_from_json(goal).as_json()
        submitted = submitted_problem(problem)
        refuse_absent(self._base, hardware, checked_goal["language"])
        run_id = new_id("run")
        folder = private_folder(self.folder(run_id))
        description = {
            "run": run_id,
            "problem": submitted.place(folder),
            "hardware": hardware,
            "goal": dict(checked_goal),
            "proposers": list(proposers),
            "context_tokens": context_tokens,
        }
        with self._changing:
            running = sum(child.alive for child in self._children.values())
            if running >= MAX_RUNNING:
                raise Conflict(f"{running} runs are going on", hint="Cancel one, or wait for it.")
            command = [*self._command, json.dumps(description)]
            log = folder / "log"
            announce(self._base, run_id)
            self._children[run_id] = ChildProcess(command, self._base.settings, output=log)
        self._watching.wake()
        return run_id

    def folder(self, run_id: str) -> Path:
        """Where a run of the service keeps its files."""
        return self._base.settings.data_dir.absolute() / "runs" / run_id

    def mailbox(self, run_id: str) -> RunMail:
        """Where a run asks for candidates and finds them."""
        return RunMail(self._base.catalog, run_id)

    def show(self, run_id: str) -> dict[str, Any]:
        """Goal, state and result of a run. One without a row yet is `starting`, or `failed` with
        the end of what its process printed. Raises NotFound.
        """
        try:
            row = run_store(self._base).run(run_id).as_json()
        except NotFound:
            beginning = self._beginning(run_id)
            if beginning is None:
                raise
            return beginning
        if row["state"] == "running" and owner_of(self._base, run_id) is None:
            row["note"] = "no process works on it; `kernlore runs resume` goes on with it"
        return row

    def _beginning(self, run_id: str) -> dict[str, Any] | None:
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
        """Whether a process works on it, of this service or of another replica."""
        return owner_of(self._base, run_id) is not None

    def context(self, run_id: str) -> dict[str, Any]:
        """What the next candidate of a run is to be made from. `waiting` is false while the run is
        measuring, or has ended; `context` is None then. Raises NotFound.
        """
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
    ) -> dict[str, Any]:
        """Hand a run the candidate that it waits for; `step` is that of its context.

        `candidate` has `files`, `main`, `language`, `parameters` and maybe `entry`; None says that
        there is nothing more to propose, upon which the run ends unless others propose too. `used`
        are ids of shown knowledge. Raises NotFound, InvalidRequest for files that make no
        candidate, and Conflict for a step that has one already.
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
        # Refused here, where its sender sees why; the run would spend its step on it.
        Bundle(candidate["files"], candidate["main"], candidate["language"], answer["entry"])
        self.mailbox(run_id).answer(step, answer)
        return {"run": run_id, "step": step, "state": "accepted"}

    def cancel(self, run_id: str) -> dict[str, Any]:
        """End a run and show it. It is asked to end first; nothing of one that this service has
        started is alive when this returns. Of another replica, its processes end within a few
        seconds; one of a command, or of a service that was killed, ends after its candidate, and
        the answer has a `note` while it has not. Raises NotFound.
        """
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
        still = {"note": STILL_ENDING} if self.alive(run_id) else {}
        return {**self.show(run_id), **still}

    def _end(self, run_id: str, child: ChildProcess) -> None:
        """End the process of a cancelled run, and record that where it could not do so itself."""
        store = run_store(self._base)
        child.wait(GRACE_SECONDS)
        child.end(GRACE_SECONDS / 2)
        with suppress(NotFound):
            run = store.run(run_id)
            if run.state == "running":
                store.update(replace(run, state="cancelled", ended="it was cancelled"))

    def _end_cancelled(self) -> bool:
        """End what another replica was asked to cancel; False: there is nothing more to do now."""
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
