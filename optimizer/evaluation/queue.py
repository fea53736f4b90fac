"""Evaluations that were asked for over HTTP: one after the other, each as a `kernlore evaluate` of
its own process, so that nothing that was sent can end, hold up or read the service.

What was asked for is remembered while the service runs, the newest `KEPT` of it; what was found is
in the catalog for good, under the evaluation's key. Not jobs of the catalog: those belong to
documents, and the service is not ready while one of them waits.
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import structlog

from kb import clock
from kb.child_process import ROOT, end_group, environment
from kb.errors import InternalError, KernloreError, NotFound, Unavailable, error_json
from kb.ids import new_id
from kb.plain import plain
from retrieval.knowledge_base import KnowledgeBase

if TYPE_CHECKING:
    from optimizer.evaluation.bundle import Bundle

KEPT = 200
WAITING = 32  # more would wait for many minutes
SECONDS = 1800.0  # for one evaluation, whose own deadlines do not cover the problem's code
STOP_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Sent:
    """What is to be evaluated. problem: a folder, or the text of a file; toml: of the declaration
    beside that file."""

    problem: Path | str
    toml: str | None
    bundle: Bundle
    hardware: str
    cases: tuple[str, ...]

    def write(self, folder: Path) -> list[str]:
        """Lay it out as files; the arguments of `kernlore evaluate`."""
        from optimizer.evaluation.bundle import MANIFEST

        problem = self.problem
        if isinstance(problem, str):
            problem = folder / "sent.py"
            problem.write_text(str(self.problem), encoding="utf-8")
            if self.toml is not None:
                problem.with_suffix(".toml").write_text(self.toml, encoding="utf-8")
        candidate, bundle = folder / "candidate", self.bundle
        bundle.write(candidate)
        told = {name: getattr(bundle, name) for name in ("main", "language", "entry")}
        told["parameters"] = dict(bundle.parameters)
        (candidate / MANIFEST).write_text(json.dumps(told), encoding="utf-8")
        cases = [f"--case={name}" for name in self.cases]
        return [f"--hardware={self.hardware}", *cases, "--", str(problem), str(candidate)]


@dataclass(frozen=True)
class EvaluationJob:
    """One request. result: what `kernlore evaluate --json` prints. error: in the one error shape,
    of an evaluation that could not be carried out; a bad candidate is a result."""

    id: str
    state: Literal["queued", "running", "ready", "failed"]
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None


class EvaluationQueue:
    """The thread starts with the first request."""

    def __init__(self, base: KnowledgeBase, command: Sequence[str]) -> None:
        """`command` starts `kernlore evaluate` in a process of its own."""
        self._base = base
        self._command = tuple(command)
        self._changing = threading.Lock()  # protects _jobs, _thread and _child
        self._jobs: dict[str, EvaluationJob] = {}
        self._waiting: queue.SimpleQueue[tuple[str, Sent] | None] = queue.SimpleQueue()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[str] | None = None

    def submit(self, sent: Sent) -> EvaluationJob:
        """Unavailable when too many wait already."""
        with self._changing:
            waiting = sum(job.state == "queued" for job in self._jobs.values())
            if waiting >= WAITING:
                raise Unavailable(
                    f"{waiting} evaluations are waiting already",
                    hint="Send it again when one of them has ended.",
                )
            job = EvaluationJob(new_id("evj"), "queued", clock.now())
            self._forget_oldest()
            self._jobs[job.id] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="evaluation", daemon=True)
                self._thread.start()
        self._waiting.put((job.id, sent))
        return job

    def get(self, job_id: str) -> EvaluationJob:
        with self._changing:
            job = self._jobs.get(job_id)
        if job is None:
            raise NotFound(
                f"no evaluation {job_id[:80]!r}",
                hint="Ids of POST /evaluations hold until the service ends; after that, give the"
                " `key` of the result, or send the candidate again: what was finished is known.",
            )
        return job

    def close(self) -> None:
        """End what runs; nothing new begins."""
        with self._changing:
            self._stopped = True
            if self._child is not None:
                end_group(self._child)
        self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _forget_oldest(self) -> None:
        ended = [job.id for job in self._jobs.values() if job.state in ("ready", "failed")]
        for job_id in ended[: max(0, len(self._jobs) - KEPT + 1)]:
            del self._jobs[job_id]

    def _work(self) -> None:
        while (taken := self._waiting.get()) is not None and not self._stopped:
            job_id, sent = taken
            self._change(job_id, state="running", started_at=clock.now())
            try:
                told = {"state": "ready", "result": self._evaluated(sent)}
            except KernloreError as error:
                told = {"state": "failed", "error": error_json(error)}
            except Exception:  # the job boundary: recorded, never swallowed
                if self._stopped:  # the catalog is being closed
                    return
                log.exception("evaluation failed", job=job_id)
                told = {"state": "failed", "error": error_json(_defect(job_id))}
            self._change(job_id, finished_at=clock.now(), **told)

    def _change(self, job_id: str, **told: Any) -> None:
        with self._changing:
            self._jobs[job_id] = replace(self._jobs[job_id], **told)

    # -- one evaluation

    def _evaluated(self, sent: Sent) -> Mapping[str, Any]:
        # Imported here: it takes seconds, and most services never evaluate anything.
        from optimizer.evaluation.evaluate import with_knowledge
        from optimizer.evaluation.records import evaluation_from_json

        with tempfile.TemporaryDirectory(prefix="kernlore-sent-") as folder:
            told = _answer(*self._ran(sent.write(Path(folder))))
        answer = plain(with_knowledge(self._base, evaluation_from_json(told)))
        return dict(answer)

    def _ran(self, arguments: list[str]) -> tuple[str, str]:
        """What the command wrote to standard output and error."""
        options = ("--json", "--no-knowledge")
        command = [*self._command, *options, *arguments]
        with self._changing:
            if self._stopped:
                raise Unavailable("the service ends", hint="Send it to the next one.")
            self._child = child = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(self._base.settings),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        try:
            return child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as late:
            raise Unavailable(
                f"the evaluation did not end within {SECONDS:.0f} s",
                hint="Send fewer or smaller cases; check that the problem's functions return.",
            ) from late
        finally:
            with self._changing:
                self._child = None
                end_group(child)


def _answer(out: str, err: str) -> Mapping[str, Any]:
    """The evaluation as JSON, or the error that the command told."""
    try:
        told = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError) as problem:
        raise Unavailable(
            f"the evaluation's process ended without an answer: {err.strip()[-2000:]}",
            hint="Check that importing the problem and calling its functions does not exit.",
        ) from problem
    if "validity" not in told:
        raise _Told(told)
    return dict(told)


class _Told(KernloreError):
    """An error that the command reported."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        super().__init__(told["message"], hint=told["hint"], details=told["details"])
        self.code = told["code"]


def _defect(job_id: str) -> InternalError:
    return InternalError(
        "the service failed to carry this evaluation out",
        hint="This is a defect of Kernlore; report it with the evaluation's id, which the log has.",
        details={"evaluation_id": job_id},
    )
