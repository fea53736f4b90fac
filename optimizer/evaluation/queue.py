"""Evaluations that were sent over HTTP: one after the other, each as a `kernlore evaluate` in a
process of its own, so that nothing that was sent can end, hold up or read the service.

What was sent is rows (`kb.catalog.evaluations`), so every replica of a service shows it, and
where the process that accepted it is killed, another that can evaluate it does. What was measured
is in the catalog for good, under the evaluation's key. These are not the jobs of documents: the
service is not ready while one of those waits.
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
from kb.catalog.evaluations import Evaluations, SentEvaluations
from kb.catalog.work import Job
from kb.errors import Conflict, InternalError, KernloreError, NotFound, Unavailable, error_json
from kb.ids import new_id
from kb.plain import plain
from kb.scope import ALL_ACCESS, AccessScope
from kb.settings import Settings
from kb.workers import ROOT, ChildProcess, WorkerThread, keep_lease
from optimizer.evaluation.isolation.launch import AVAILABLE, PreparedProcess, PreparedProcesses
from retrieval.knowledge_base import KnowledgeBase

if TYPE_CHECKING:
    from optimizer.evaluation.bundle import Bundle


WAITING = 32  # more would wait for many minutes
ATTEMPTS = 3  # of services that end while they carry one out
SECONDS = 1800.0  # for one evaluation, whose own deadlines do not cover the problem's code
STOP_SECONDS = 10.0

EvaluationState = Literal["queued", "running", "ready", "failed"]

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

    def as_json(self) -> dict[str, Any]:
        """What `submission_from_json` reads."""
        folder = isinstance(self.problem, Path)
        return {
            "folder" if folder else "source": str(self.problem),
            "toml": self.toml,
            "bundle": asdict(self.bundle),
            "hardware": self.hardware,
            "cases": list(self.cases),
        }


def submission_from_json(stored: Mapping[str, Any]) -> Submission:
    """A submission as `as_json` wrote it."""
    from optimizer.evaluation.bundle import Bundle

    folder = stored.get("folder")
    problem: Path | str = stored["source"] if folder is None else Path(folder)
    bundle = Bundle(**stored["bundle"])
    return Submission(problem, stored["toml"], bundle, stored["hardware"], tuple(stored["cases"]))


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
    state: EvaluationState
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None


class EvaluationQueue:
    """Carries submissions out, one at a time; its thread starts with the first, or with `open`."""

    def __init__(self, base: KnowledgeBase, processes: EvaluationProcesses) -> None:
        """`processes` are closed with the queue."""
        self._base = base
        self._processes = processes
        self._rows = SentEvaluations(base.catalog)
        self._owner = new_id(f"evaluator{os.getpid()}")
        self._lease = base.settings.lease_seconds
        self._changing = threading.Lock()  # protects _child and _renewing
        self._child: RunningEvaluation | None = None
        self._renewing: ExitStack | None = None
        self._takes_over = False
        self._worker = WorkerThread("evaluation", self._work, self._lease)

    def open(self) -> None:
        """Also look, once in a lease, for what another process has left: for a service, which
        stays.
        """
        self._takes_over = True
        self._worker.wake()

    def submit(self, submission: Submission) -> EvaluationJob:
        """Queue it. Raises Unavailable where too many wait already."""
        identity = new_id("evj")
        self._keep_leases()
        waiting = self._rows.accept(
            identity, submission.as_json(), self._owner, self._lease, WAITING
        )
        if waiting is not None:
            raise Unavailable(
                f"{waiting} evaluations are waiting already",
                hint="Send it again when one of them has ended.",
            )
        accepted = self.get(identity)
        self._worker.wake()
        return replace(accepted, state="queued", started_at=None)  # it may have begun by now

    def get(self, job_id: str) -> EvaluationJob:
        """How far a submission is. Raises NotFound."""
        stored = self._rows.find(job_id)
        if stored is None:
            raise NotFound(
                f"no evaluation {job_id[:80]!r}",
                hint="The newest ids of POST /evaluations are kept. For an older one give the `key`"
                " of the result, or send the candidate again: a finished result is known.",
            )
        return _job(stored)

    def find(self, identity: str, access_scope: AccessScope = ALL_ACCESS) -> EvaluationJob:
        """A submission, or any finished evaluation of this catalog by its key, with what the
        knowledge base says about it now. Raises NotFound.
        """
        stored = Evaluations(self._base.catalog, access_scope).find(identity)
        if stored is None or stored.record is None:
            # What was sent has no hardware yet that could be looked at.
            return self.get("" if access_scope.restricted else identity)
        result = self._with_knowledge(stored.record)
        return EvaluationJob(identity, "ready", stored.created_at, result=result)

    def close(self) -> None:
        """End what runs; nothing new begins. What has not ended is left to whoever comes next."""
        with self._changing:
            self._worker.stop(0.0)  # before the lock is free again: no child may start after this
            if self._child is not None:
                self._child.end()
            renewing, self._renewing = self._renewing, None
        self._worker.stop(STOP_SECONDS)
        self._processes.close()
        if renewing is not None:
            renewing.close()
            self._rows.give_back(self._owner)

    def _keep_leases(self) -> None:
        """Renew the leases of what is this queue's, from now on."""

        def renew() -> bool:
            self._rows.renew(self._owner, self._lease)
            return True

        with self._changing:
            if self._renewing is None and not self._worker.stopped:
                self._renewing = ExitStack()
                self._renewing.enter_context(keep_lease(renew, self._lease, "evaluations"))

    def _work(self) -> bool:
        """Carry out the oldest submission; False where none waits."""
        stored = self._rows.claim(self._owner, self._lease) or self._taken_over()
        if stored is None:
            self._processes.rest()
            return False
        if stored.attempts > ATTEMPTS:
            self._rows.end_one(
                stored.id, self._owner, "failed", error=error_json(_deadly(stored.id))
            )
            return True
        self._keep_leases()
        try:
            result = self._evaluated(submission_from_json(stored.payload))
        except KernloreError as error:
            if self._worker.stopped:  # `close` leaves it to the next
                return False
            self._rows.end_one(stored.id, self._owner, "failed", error=error_json(error))
        except Exception:  # the job boundary: recorded, never swallowed
            if self._worker.stopped:  # the catalog is being closed
                return False
            log.exception("evaluation failed", job=stored.id)
            self._rows.end_one(
                stored.id, self._owner, "failed", error=error_json(_defect(stored.id))
            )
        else:
            if not self._rows.end_one(stored.id, self._owner, "ready", result=result):
                log.warning("evaluation lost", job=stored.id, reason="its lease ran out")
        return True

    def _taken_over(self) -> Job | None:
        """The oldest that another process has left and this machine can evaluate."""
        if not self._takes_over:
            return None
        possible = (left for left in self._rows.left() if self._is_possible(left.payload))
        taken = (self._rows.take_over(left.id, self._owner, self._lease) for left in possible)
        return next((stored for stored in taken if stored is not None), None)

    def _is_possible(self, stored: Mapping[str, Any]) -> bool:
        """Whether what another process has left can be evaluated on this machine."""
        from optimizer.evaluation.evaluate import ask_for, problem_sent
        from optimizer.evaluation.problem.load import load_problem

        sent = submission_from_json(stored)
        try:
            problem = sent.problem
            loaded = (
                load_problem(problem)
                if isinstance(problem, Path)
                else problem_sent(problem, sent.toml)
            )
            ask_for(self._base, loaded, sent.bundle, hardware=sent.hardware, cases=sent.cases)
        except (KernloreError, OSError) as error:
            log.info("evaluation left to others", reason=str(error))
            return False
        return True

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
        try:
            child = self._processes.start(
                ["--json", "--no-knowledge", *arguments], self._base.settings
            )
        except OSError as problem:
            raise Unavailable(
                f"no process could be started for the evaluation: {problem}",
                hint="Look whether this machine is short of memory, and send it again.",
            ) from problem
        with self._changing:
            self._child = child
        try:
            if self._worker.stopped:
                raise Unavailable("the service is stopping", hint="Send it again later.")
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


def _job(stored: Job) -> EvaluationJob:
    queued = stored.state == "queued"  # again, where it has a start
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


def _deadly(job_id: str) -> InternalError:
    return InternalError(
        f"this evaluation has ended {ATTEMPTS} services that carried it out",
        hint="It may take more memory than there is, or hang the device: evaluate it by itself with"
        " `kernlore evaluate`.",
        details={"evaluation_id": job_id},
    )


def _defect(job_id: str) -> InternalError:
    return InternalError(
        "the service failed to carry this evaluation out",
        hint="This is a defect of Kernlore; report it with the evaluation's id, which the log has.",
        details={"evaluation_id": job_id},
    )


# -- evaluate processes: `kernlore evaluate` for a service, each time in a process of its own.

REST_SECONDS = 300.0  # after which what waits for an evaluation is ended: it holds 350 MiB


class RunningEvaluation(Protocol):
    """An evaluation on its way."""

    def answer(self, seconds: float) -> tuple[str, str]:
        """What it wrote to standard output and error. Raises TimeoutError where it did not end in
        time; it still runs then.
        """
        ...

    def end(self) -> None:
        """End it and what it has started."""
        ...


class EvaluationProcesses:
    """Starts evaluations: where processes can be forked, without importing anything again."""

    def __init__(self, command: Sequence[str], entry: str) -> None:
        """`command` is `kernlore evaluate`; `entry` is the `module:function` that does the same
        with the arguments of that command.
        """
        self._command = tuple(command)
        self._prepared = PreparedProcesses(entry) if AVAILABLE else None

    def start(self, arguments: Sequence[str], settings: Settings) -> RunningEvaluation:
        """An evaluation that has begun. Raises OSError where no process could be made."""
        if self._prepared is None:
            return ChildProcess([*self._command, *arguments], settings)
        return _Forked(self._prepared, arguments, settings)

    def rest(self) -> None:
        """Give back the memory of what has been waiting for an evaluation for long."""
        if self._prepared is not None:
            self._prepared.rest(REST_SECONDS)

    def close(self) -> None:
        """End what was started, and what waits."""
        if self._prepared is not None:
            self._prepared.close()


class _Forked:
    def __init__(
        self, prepared: PreparedProcesses, arguments: Sequence[str], settings: Settings
    ) -> None:
        variables = {**jobs.environment(settings), **telemetry.for_child()}
        with ExitStack() as files:
            self._out = files.enter_context(tempfile.TemporaryFile())
            self._err = files.enter_context(tempfile.TemporaryFile())
            output = self._out.fileno(), self._err.fileno()
            self._process: PreparedProcess = prepared.start(arguments, variables, ROOT, output)
            self._files = files.pop_all()

    def answer(self, seconds: float) -> tuple[str, str]:
        """As `Evaluating.answer`."""
        if self._process.wait(seconds) is None:
            raise TimeoutError(f"no answer within {seconds:.0f} s")
        return _read(self._out), _read(self._err)

    def end(self) -> None:
        """As `Evaluating.end`."""
        self._process.end()
        self._files.close()


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


# -- check process: The check of a hardware for a service: carried out by `kernlore hardware check

CHECK_SECONDS = 180.0

_one = threading.Lock()  # a check measures on the device: one at a time


def check_apart(settings: Settings, command: Sequence[str], hardware: str) -> dict[str, Any]:
    """What `kernlore hardware check HARDWARE --json` answers; `command` starts `kernlore hardware
    check`. Raises Conflict while another check is going on, and Unavailable where it takes too
    long.
    """
    if not _one.acquire(blocking=False):
        raise Conflict("another chip is being checked", hint="Try it again in a minute.")
    try:
        child = ChildProcess([*command, "--json", "--", hardware], settings)
        try:
            printed, complaint = child.answer(CHECK_SECONDS)
        except TimeoutError as error:
            raise Unavailable(
                f"the check of {hardware} took longer than {CHECK_SECONDS:.0f} seconds",
                hint="See whether its tools end: run `kernlore hardware check` in a terminal.",
            ) from error
        finally:
            child.end()
    finally:
        _one.release()
    lines = printed.strip().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
        answer["languages"], answer["parts"]
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise InternalError(
            f"the check of {hardware} ended without an answer: {complaint.strip()[-500:]}",
            hint="Run `kernlore hardware check` in a terminal; it prints more.",
        ) from error
    return answer
