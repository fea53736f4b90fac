"""Evaluations and hardware checks of a service, in child processes: sent code cannot read, delay or
end the service.

Evaluations sent over HTTP run one at a time, as `kernlore evaluate`. The queue is the table
`kb.catalog.evaluations.SentEvaluations`: every replica of the service sees all jobs, and another
replica continues the jobs of one that was killed. Results are stored in the catalog under the key
of the evaluation. These jobs do not affect the readiness of the service, unlike ingestion jobs.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol, cast

import structlog

from kb import telemetry
from kb.catalog.evaluations import Evaluations, Review, Reviews, SentEvaluations
from kb.catalog.work import Job
from kb.errors import Conflict, InternalError, KernloreError, NotFound, Unavailable, error_json
from kb.ids import new_id
from kb.plain import from_json, plain
from kb.scope import ALL_ACCESS, AccessScope
from kb.settings import Settings
from kb.workers import ROOT, ChildProcess, WorkerThread, environment, keep_lease
from optimizer.evaluation.isolation.launch import AVAILABLE, PreparedProcess, PreparedProcesses
from retrieval.knowledge_base import KnowledgeBase

# optimizer.evaluation.evaluate imports torch, which takes seconds: only services that evaluate
# import it, on first use.
if TYPE_CHECKING:
    from optimizer.evaluation.bundle import Bundle

MAX_WAITING = 32
MAX_ATTEMPTS = 3  # services that may end during one evaluation
SECONDS = 1800.0  # per evaluation; its own deadlines do not cover the problem's code
STOP_SECONDS = 10.0
IDLE_SECONDS = 300.0  # until a prepared process, of 350 MiB, is ended
CHECK_SECONDS = 180.0
MAX_NOTED = 8_000  # bytes of its error output in which the stage of an evaluation is looked for

EvaluationState = Literal["queued", "running", "ready", "failed"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Submission:
    """An evaluation to run.

    `problem` is a folder or the text of a problem file; `toml` is the declaration that belongs to
    that text. `cases` are names; () means all.
    """

    problem: Path | str
    toml: str | None
    bundle: Bundle
    hardware: str
    cases: tuple[str, ...]

    def write(self, folder: Path) -> list[str]:
        """Write problem and candidate into `folder`; returns the arguments of `kernlore
        evaluate`."""
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

    def as_json(self) -> dict[str, Any]:
        """The stored form, which `submission_from_json` reads."""
        folder = isinstance(self.problem, Path)
        return {
            "folder" if folder else "source": str(self.problem),
            "toml": self.toml,
            "bundle": asdict(self.bundle),
            "hardware": self.hardware,
            "cases": list(self.cases),
        }


def submission_from_json(stored: Mapping[str, Any]) -> Submission:
    """Read the output of `Submission.as_json`."""
    from optimizer.evaluation.bundle import Bundle

    folder = stored.get("folder")
    problem: Path | str = stored["source"] if folder is None else Path(folder)
    bundle = Bundle(**stored["bundle"])
    return Submission(problem, stored["toml"], bundle, stored["hardware"], tuple(stored["cases"]))


def check_submission(
    base: KnowledgeBase,
    problem: str | Mapping[str, Any],
    candidate: Mapping[str, Any],
    hardware: str,
    cases: Sequence[str] = (),
) -> Submission:
    """Check a submission without running any of its code.

    `problem` is the name of a shipped problem, or a mapping of `source` and, optionally, `toml`.
    `candidate` has `files`, `main`, `language`, `parameters` and, optionally, `entry`. Raises
    InvalidRequest, NotFound, UnknownHardware, and Unavailable if this machine cannot evaluate it.
    """
    from optimizer.evaluation.bundle import Bundle, default_entry
    from optimizer.evaluation.evaluate import check_request, entry_for, problem_from_text
    from optimizer.evaluation.problem.load import problem_named

    language, main = candidate["language"], candidate["main"]
    entry = candidate.get("entry") or entry_for(base, hardware, language) or default_entry(main)
    bundle = Bundle(candidate["files"], main, language, entry, candidate["parameters"])
    if isinstance(problem, str):
        loaded = problem_named(problem)
        location: Path | str = loaded.path.parent
        toml = None
    else:
        location, toml = str(problem["source"]), problem.get("toml")
        loaded = problem_from_text(location, toml)
    check_request(base, loaded, bundle, hardware=hardware, cases=tuple(cases))
    return Submission(location, toml, bundle, hardware, tuple(cases))


@dataclass(frozen=True)
class EvaluationJob:
    """The progress of one submission.

    `result` is the output of `kernlore evaluate --json`. `error`, in the shape of all errors, says
    why the evaluation could not run; an incorrect candidate is a result, not an error. `review` is
    a person's decision about the result's flags, which stay as they were measured. `stage` is what
    an evaluation does that this service runs, such as "measuring its time", with the other work on
    the machine.
    """

    id: str
    state: EvaluationState
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    review: Review | None = None
    stage: str = ""


class EvaluationQueue:
    """Runs submissions one at a time; its thread starts with `open` or the first `submit`."""

    def __init__(self, base: KnowledgeBase, processes: EvaluationProcesses) -> None:
        """The queue closes `processes`."""
        self._base = base
        self._processes = processes
        self._rows = SentEvaluations(base.catalog)
        self._owner = new_id(f"evaluator{os.getpid()}")
        self._lease = base.settings.lease_seconds
        self._lock = threading.Lock()  # protects _child and _renewing
        self._child: RunningEvaluation | None = None
        self._running = ""  # the job of the child
        self._renewing: ExitStack | None = None
        self._takes_over = False
        self._worker = WorkerThread("evaluation", self._work, self._lease)

    def open(self) -> None:
        """Also take over, once per lease time, jobs whose owner has ended: for long-lived
        services."""
        self._takes_over = True
        self._worker.wake()

    def submit(self, submission: Submission) -> EvaluationJob:
        """Add a job. Raises Unavailable if MAX_WAITING jobs are waiting."""
        job_id = new_id("evj")
        self._keep_leases()
        waiting = self._rows.accept(
            job_id, submission.as_json(), self._owner, self._lease, MAX_WAITING
        )
        if waiting is not None:
            raise Unavailable(
                f"{waiting} evaluations are waiting already",
                hint="Send it again when one of them has ended.",
            )
        accepted = self.get(job_id)
        self._worker.wake()
        return replace(accepted, state="queued", started_at=None)  # it may have started already

    def get(self, job_id: str) -> EvaluationJob:
        """The job with this id. Raises NotFound."""
        stored = self._rows.find(job_id)
        if stored is None:
            raise NotFound(
                f"no evaluation {job_id[:80]!r}",
                hint="Only the newest ids of POST /evaluations work. For an older one give the"
                " `key` of the result, or send the candidate again: a finished result is known.",
            )
        job, stage = _job(stored), ""
        with self._lock:
            child = self._child if self._running == job_id and job.state == "running" else None
            if isinstance(child, _ForkedEvaluation):
                stage = child.stage()
        return replace(job, stage=stage)

    def find(self, job_id: str, access_scope: AccessScope = ALL_ACCESS) -> EvaluationJob:
        """A job by its id, or any finished evaluation of the catalog by its key; a result includes
        the current knowledge about it. Raises NotFound."""
        stored = Evaluations(self._base.catalog, access_scope).find(job_id)
        if stored is None or stored.record is None:
            # The hardware of an unfinished job, which a restricted scope needs, is not known yet.
            job = self.get("" if access_scope.restricted else job_id)
        else:
            result = self._with_knowledge(stored.record)
            job = EvaluationJob(job_id, "ready", stored.created_at, result=result)
        key = str((job.result or {}).get("key", ""))
        reviews = Reviews(self._base.catalog, access_scope).latest([key]) if key else {}
        return replace(job, review=reviews.get(key))

    def close(self) -> None:
        """End the running evaluation and give unfinished jobs back to the queue."""
        with self._lock:
            self._worker.stop(0.0)  # while the lock is held: no child may start after this
            if self._child is not None:
                self._child.end()
            renewing, self._renewing = self._renewing, None
        self._worker.stop(STOP_SECONDS)
        self._processes.close()
        if renewing is not None:
            renewing.close()
            self._rows.give_back(self._owner)

    # -- the worker thread

    def _keep_leases(self) -> None:
        """Start to renew the leases of this queue's jobs."""

        def renew() -> bool:
            self._rows.renew(self._owner, self._lease)
            return True

        with self._lock:
            if self._renewing is None and not self._worker.stopped:
                self._renewing = ExitStack()
                self._renewing.enter_context(keep_lease(renew, self._lease, "evaluations"))

    def _work(self) -> bool:
        """Run the oldest job; False if the queue is empty."""
        stored = self._rows.claim(self._owner, self._lease) or self._take_over()
        if stored is None:
            self._processes.release()
            return False
        if stored.attempts > MAX_ATTEMPTS:
            self._fail(stored, _ended_services(stored.id))
            return True
        self._keep_leases()
        self._running = stored.id
        try:
            result = self._evaluate(submission_from_json(stored.payload))
        except Exception as error:
            if self._worker.stopped:  # `close` gives the job back
                return False
            if isinstance(error, KernloreError):
                self._fail(stored, error)
            else:
                log.exception("evaluation failed", job=stored.id)
                self._fail(stored, _defect(stored.id))
        else:
            if not self._rows.end_one(stored.id, self._owner, "ready", result=result):
                log.warning("evaluation lost", job=stored.id, reason="its lease ran out")
        return True

    def _fail(self, stored: Job, error: KernloreError) -> None:
        self._rows.end_one(stored.id, self._owner, "failed", error=error_json(error))

    def _take_over(self) -> Job | None:
        """The oldest job without an owner that this machine can evaluate."""
        if not self._takes_over:
            return None
        possible = (left for left in self._rows.left() if self._is_possible(left.payload))
        taken = (self._rows.take_over(left.id, self._owner, self._lease) for left in possible)
        return next((stored for stored in taken if stored is not None), None)

    def _is_possible(self, stored: Mapping[str, Any]) -> bool:
        """Whether this machine can evaluate a stored submission."""
        from optimizer.evaluation.evaluate import check_request, problem_from_text
        from optimizer.evaluation.problem.load import load_problem

        sent = submission_from_json(stored)
        try:
            if isinstance(sent.problem, Path):
                problem = load_problem(sent.problem)
            else:
                problem = problem_from_text(sent.problem, sent.toml)
            check_request(
                self._base, problem, sent.bundle, hardware=sent.hardware, cases=sent.cases
            )
        except (KernloreError, OSError) as error:
            log.info("evaluation left to others", reason=str(error))
            return False
        return True

    def _evaluate(self, submission: Submission) -> Mapping[str, Any]:
        with tempfile.TemporaryDirectory(prefix="kernlore-sent-") as folder:
            out, err = self._run(submission.write(Path(folder)))
        return self._with_knowledge(_record(out, err))

    def _with_knowledge(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        from optimizer.evaluation.evaluate import with_knowledge
        from optimizer.evaluation.records import Evaluation

        return dict(plain(with_knowledge(self._base, from_json(Evaluation, record))))

    def _run(self, arguments: Sequence[str]) -> tuple[str, str]:
        """Standard output and standard error of the command."""
        try:
            child = self._processes.start(
                ["--json", "--no-knowledge", *arguments], self._base.settings
            )
        except OSError as error:
            raise Unavailable(
                f"no process could be started for the evaluation: {error}",
                hint="Check whether this machine is short of memory, and send it again.",
            ) from error
        with self._lock:
            self._child = child
        try:
            if self._worker.stopped:
                raise Unavailable("the service is stopping", hint="Send it again later.")
            return child.answer(SECONDS)
        except TimeoutError as error:
            raise Unavailable(
                f"the evaluation did not end within {SECONDS:.0f} s",
                hint="Send fewer or smaller cases; check that the problem's functions return.",
            ) from error
        finally:
            with self._lock:
                self._child = None
                child.end()


def _job(stored: Job) -> EvaluationJob:
    queued = stored.state == "queued"  # a requeued job has a start
    return EvaluationJob(
        stored.id,
        cast(EvaluationState, stored.state),
        stored.created_at,
        None if queued else stored.started_at,
        stored.finished_at,
        stored.result or None,
        stored.error,
    )


def _record(out: str, err: str) -> Mapping[str, Any]:
    """The evaluation as JSON. Raises the error that the command printed."""
    try:
        record = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise Unavailable(
            f"the evaluation's process ended without an answer: {err.strip()[-2000:]}",
            hint="Check that importing the problem and calling its functions does not exit.",
        ) from error
    if "validity" not in record:
        raise _CommandError(record)
    return dict(record)


class _CommandError(KernloreError):
    """An error that the command printed."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        super().__init__(body["message"], hint=body["hint"], details=body["details"])
        self.code = body["code"]


def _ended_services(job_id: str) -> InternalError:
    return InternalError(
        f"this evaluation has ended {MAX_ATTEMPTS} services that carried it out",
        hint="It may need more memory than this machine has, or hang the device: evaluate it alone"
        " with `kernlore evaluate`.",
        details={"evaluation_id": job_id},
    )


def _defect(job_id: str) -> InternalError:
    return InternalError(
        "the service failed to carry this evaluation out",
        hint="This is a defect of Kernlore; report it with the evaluation's id, which is in the"
        " log.",
        details={"evaluation_id": job_id},
    )


# -- processes of evaluations


class RunningEvaluation(Protocol):
    """The process of one evaluation."""

    def answer(self, seconds: float) -> tuple[str, str]:
        """Standard output and standard error. Raises TimeoutError, without ending the process."""
        ...

    def end(self) -> None:
        """End the process and its descendants."""
        ...


class EvaluationProcesses:
    """Starts `kernlore evaluate`, by a fork of a prepared process if the system can fork."""

    def __init__(self, command: Sequence[str], entry: str) -> None:
        """`command` is `kernlore evaluate`; `entry` is the `module:function` that does the same
        with the arguments of that command."""
        self._command = tuple(command)
        self._prepared = PreparedProcesses(entry) if AVAILABLE else None

    def start(self, arguments: Sequence[str], settings: Settings) -> RunningEvaluation:
        """Start an evaluation. Raises OSError if no process can be started."""
        if self._prepared is None:
            return ChildProcess([*self._command, *arguments], settings)
        return _ForkedEvaluation(self._prepared, arguments, settings)

    def release(self) -> None:
        """End prepared processes that were unused for IDLE_SECONDS."""
        if self._prepared is not None:
            self._prepared.release(IDLE_SECONDS)

    def close(self) -> None:
        """End all processes."""
        if self._prepared is not None:
            self._prepared.close()


class _ForkedEvaluation:
    def __init__(
        self, prepared: PreparedProcesses, arguments: Sequence[str], settings: Settings
    ) -> None:
        variables = {**environment(settings), **telemetry.for_child()}
        with ExitStack() as files:
            self._out = files.enter_context(tempfile.TemporaryFile())
            self._err = files.enter_context(tempfile.TemporaryFile())
            output = self._out.fileno(), self._err.fileno()
            self._process: PreparedProcess = prepared.start(arguments, variables, ROOT, output)
            self._files = files.pop_all()

    def answer(self, seconds: float) -> tuple[str, str]:
        """See `RunningEvaluation.answer`."""
        if self._process.wait(seconds) is None:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return _read(self._out), _read(self._err)

    def stage(self) -> str:
        """The last line that it noted."""
        # Without a seek: the process writes at the same offset.
        noted = os.pread(self._err.fileno(), MAX_NOTED, 0).decode("utf-8", "replace").splitlines()
        return noted[-1] if noted else ""

    def end(self) -> None:
        """See `RunningEvaluation.end`."""
        self._process.end()
        self._files.close()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


# -- hardware checks

_CHECKING = threading.Lock()  # a check measures on the device: one at a time


def check_in_child(settings: Settings, command: Sequence[str], hardware: str) -> dict[str, Any]:
    """The answer of `kernlore hardware check HARDWARE --json`; `command` is `kernlore hardware
    check`. Raises Conflict during another check, and Unavailable after CHECK_SECONDS."""
    if not _CHECKING.acquire(blocking=False):
        raise Conflict("another chip is being checked", hint="Try it again in a minute.")
    try:
        child = ChildProcess([*command, "--json", "--", hardware], settings)
        try:
            printed, error_output = child.answer(CHECK_SECONDS)
        except TimeoutError as error:
            raise Unavailable(
                f"the check of {hardware} took longer than {CHECK_SECONDS:.0f} seconds",
                hint="See whether its tools end: run `kernlore hardware check` in a terminal.",
            ) from error
        finally:
            child.end()
    finally:
        _CHECKING.release()
    lines = printed.strip().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
        answer["languages"], answer["parts"]
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise InternalError(
            f"the check of {hardware} ended without an answer: {error_output.strip()[-500:]}",
            hint="Run `kernlore hardware check` in a terminal; it prints more.",
        ) from error
    return answer
