"""Evaluations that were sent over HTTP: one after the other, each as a `kernlore evaluate` in a
process of its own, so that nothing that was sent can end, hold up or read the service.

What was sent is remembered while the service runs, the newest `KEPT` of it. What was measured is in
the catalog for good, under the evaluation's key. These are not jobs of the catalog: those belong to
documents, and the service is not ready while one of them waits.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import structlog

from kb import clock
from kb.catalog.search.evaluations import Evaluations
from kb.errors import InternalError, KernloreError, NotFound, Unavailable, error_json
from kb.ids import new_id
from kb.jobs import ENDED, ChildProcess, WorkerThread, check_transition
from kb.plain import plain
from kb.scope import ALL_ACCESS, AccessScope
from retrieval.knowledge_base import KnowledgeBase

if TYPE_CHECKING:
    from optimizer.evaluation.bundle import Bundle

KEPT = 200
WAITING = 32  # more would wait for many minutes
SECONDS = 1800.0  # for one evaluation, whose own deadlines do not cover the problem's code
STOP_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Submission:
    """What is to be evaluated.

    `problem` is a folder, or the text of a problem file; `toml` is the text of the declaration
    beside that file. `cases` are names; none means all.
    """

    problem: Path | str
    toml: str | None
    bundle: Bundle
    hardware: str
    cases: tuple[str, ...]

    def write(self, folder: Path) -> list[str]:
        """Lay it out as files in `folder`; the arguments of `kernlore evaluate` for them."""
        from optimizer.evaluation.bundle import MANIFEST

        problem = self.problem
        if isinstance(problem, str):
            problem = folder / "sent.py"
            problem.write_text(str(self.problem), encoding="utf-8")
            if self.toml is not None:
                problem.with_suffix(".toml").write_text(self.toml, encoding="utf-8")
        candidate, bundle = folder / "candidate", self.bundle
        bundle.write(candidate)
        manifest = {name: getattr(bundle, name) for name in ("main", "language", "entry")}
        manifest["parameters"] = dict(bundle.parameters)
        (candidate / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        cases = [f"--case={name}" for name in self.cases]
        return [f"--hardware={self.hardware}", *cases, "--", str(problem), str(candidate)]


def submission(
    base: KnowledgeBase,
    problem: str | Mapping[str, Any],
    candidate: Mapping[str, Any],
    hardware: str,
    cases: Sequence[str] = (),
) -> Submission:
    """Check what was sent as far as that goes without running any of it.

    `problem` is a shipped name, or `source` with `toml` or None. `candidate` has `files`, `main`,
    `language`, `parameters` and maybe `entry`. Raises InvalidRequest, NotFound, UnknownHardware,
    and Unavailable where it cannot be evaluated on this machine.
    """
    # Imported here: it takes seconds, and most services never evaluate anything.
    from optimizer.evaluation.bundle import Bundle, default_entry
    from optimizer.evaluation.evaluate import ask_for, entry_for, problem_named, problem_sent

    language, main = candidate["language"], candidate["main"]
    named = candidate.get("entry") or entry_for(base, hardware, language)
    bundle = Bundle(
        candidate["files"],
        main,
        language,
        named or default_entry(main),
        candidate["parameters"],
    )
    if isinstance(problem, str):
        loaded = problem_named(problem)
        place: Path | str = loaded.path.parent
        toml = None
    else:
        source, toml = str(problem["source"]), problem.get("toml")
        place, loaded = source, problem_sent(source, toml)
    ask_for(base, loaded, bundle, hardware=hardware, cases=tuple(cases))
    return Submission(place, toml, bundle, hardware, tuple(cases))


@dataclass(frozen=True)
class EvaluationJob:
    """One submission on its way.

    `result` is what `kernlore evaluate --json` prints. `error`, in the shape of all errors, says
    why an evaluation could not be carried out; a bad candidate is a result, not an error.
    """

    id: str
    state: Literal["queued", "running", "ready", "failed"]
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None


class EvaluationQueue:
    """Carries submissions out, one at a time; its thread starts with the first."""

    def __init__(self, base: KnowledgeBase, command: Sequence[str]) -> None:
        """`command` starts `kernlore evaluate` in a process of its own."""
        self._base = base
        self._command = tuple(command)
        self._changing = threading.Lock()  # protects _jobs, _waiting and _child
        self._jobs: dict[str, EvaluationJob] = {}
        self._waiting: deque[tuple[str, Submission]] = deque()
        self._child: ChildProcess | None = None
        self._worker = WorkerThread("evaluation", self._work)

    def submit(self, submission: Submission) -> EvaluationJob:
        """Queue it. Raises Unavailable where too many wait already."""
        with self._changing:
            if len(self._waiting) >= WAITING:
                raise Unavailable(
                    f"{len(self._waiting)} evaluations are waiting already",
                    hint="Send it again when one of them has ended.",
                )
            job = EvaluationJob(new_id("evj"), "queued", clock.now())
            self._forget_oldest()
            self._jobs[job.id] = job
            self._waiting.append((job.id, submission))
        self._worker.wake()
        return job

    def get(self, job_id: str) -> EvaluationJob:
        """How far a submission of this service is. Raises NotFound."""
        with self._changing:
            job = self._jobs.get(job_id)
        if job is None:
            raise NotFound(
                f"no evaluation {job_id[:80]!r}",
                hint="Ids of POST /evaluations hold until the service ends; after that, give the"
                " `key` of the result, or send the candidate again: a finished result is known.",
            )
        return job

    def find(self, identity: str, access_scope: AccessScope = ALL_ACCESS) -> EvaluationJob:
        """A submission of this service, or any finished evaluation of this data directory by its
        key, with what the knowledge base says about it now. Raises NotFound.
        """
        stored = Evaluations(self._base.catalog, access_scope).find(identity)
        if stored is None or stored.record is None:
            # What was sent has no hardware yet that could be looked at.
            return self.get("" if access_scope.restricted else identity)
        result = self._with_knowledge(stored.record)
        return EvaluationJob(identity, "ready", stored.created_at, result=result)

    def close(self) -> None:
        """End what runs; nothing new begins."""
        with self._changing:
            self._worker.stop(0.0)  # before the lock is free again: no child may start after this
            self._waiting.clear()
            if self._child is not None:
                self._child.end()
        self._worker.stop(STOP_SECONDS)

    def _forget_oldest(self) -> None:
        ended = [job.id for job in self._jobs.values() if job.state in ENDED]
        for job_id in ended[: max(0, len(self._jobs) - KEPT + 1)]:
            del self._jobs[job_id]

    def _work(self) -> bool:
        """Carry out the oldest submission; False where none waits."""
        with self._changing:
            if not self._waiting:
                return False
            job_id, submission = self._waiting.popleft()
        self._change(job_id, "running", started_at=clock.now())
        try:
            result = self._evaluated(submission)
        except KernloreError as error:
            self._change(job_id, "failed", finished_at=clock.now(), error=error_json(error))
        except Exception:  # the job boundary: recorded, never swallowed
            if self._worker.stopped:  # the catalog is being closed
                return False
            log.exception("evaluation failed", job=job_id)
            defect = error_json(_defect(job_id))
            self._change(job_id, "failed", finished_at=clock.now(), error=defect)
        else:
            self._change(job_id, "ready", finished_at=clock.now(), result=result)
        return True

    def _change(
        self, job_id: str, state: Literal["running", "ready", "failed"], **fields: Any
    ) -> None:
        with self._changing:
            job = self._jobs[job_id]
            check_transition(job.state, state)
            self._jobs[job_id] = replace(job, state=state, **fields)

    # -- one evaluation

    def _evaluated(self, submission: Submission) -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory(prefix="kernlore-sent-") as folder:
            out, err = self._run(submission.write(Path(folder)))
        return self._with_knowledge(_record(out, err))

    def _with_knowledge(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        # Imported here: it takes seconds, and most services never evaluate anything.
        from optimizer.evaluation.evaluate import with_knowledge
        from optimizer.evaluation.records import evaluation_from_json

        return dict(plain(with_knowledge(self._base, evaluation_from_json(record))))

    def _run(self, arguments: Sequence[str]) -> tuple[str, str]:
        """What the command wrote to standard output and error."""
        command = [*self._command, "--json", "--no-knowledge", *arguments]
        with self._changing:
            if self._worker.stopped:
                raise Unavailable("the service is stopping", hint="Send it again later.")
            self._child = child = ChildProcess(command, self._base.settings)
        try:
            return child.answer(SECONDS)
        except TimeoutError as late:
            raise Unavailable(
                f"the evaluation did not end within {SECONDS:.0f} s",
                hint="Send fewer or smaller cases; check that the problem's functions return.",
            ) from late
        finally:
            with self._changing:
                self._child = None
                child.end()


def _record(out: str, err: str) -> Mapping[str, Any]:
    """The evaluation as JSON. Raises the error that the command printed instead."""
    try:
        record = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError) as problem:
        raise Unavailable(
            f"the evaluation's process ended without an answer: {err.strip()[-2000:]}",
            hint="Check that importing the problem and calling its functions does not exit.",
        ) from problem
    if "validity" not in record:
        raise _CommandError(record)
    return dict(record)


class _CommandError(KernloreError):
    """An error that the command printed."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body["message"], hint=body["hint"], details=body["details"])
        self.code = body["code"]


def _defect(job_id: str) -> InternalError:
    return InternalError(
        "the service failed to carry this evaluation out",
        hint="This is a defect of Kernlore; report it with the evaluation's id, which the log has.",
        details={"evaluation_id": job_id},
    )
