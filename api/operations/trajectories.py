"""Trajectories: searches of other optimizers, evaluated here before they are used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from api.operations import Media, operation
from api.operations.bodies import ProblemBody, TrajectoryBody, TrajectoryStepBody
from api.strict_json import load_json
from kb.catalog.trajectories import StoredTrajectory
from kb.errors import InvalidRequest
from kb.plain import plain
from optimizer.evaluation.bundle import Bundle, default_entry
from optimizer.evaluation.problem.load import SHIPPED, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Problem
from retrieval.knowledge_base import KnowledgeBase
from skills.trajectories import reading
from skills.trajectories.external import (
    ExportedRun,
    ExternalProblem,
    ExternalStep,
    ExternalTrajectory,
    about_step,
    file_name,
    problem_of,
    read_lines,
)
from skills.trajectories.queue import accept, resolved_hardware
from skills.trajectories.reading import ListedTrajectories, ListedTrajectory
from skills.trajectories.sessions import Session, session_of

if TYPE_CHECKING:
    from api.services import Services

declared = partial(operation, tag="trajectories")


def _read_lines(text: str, _: None) -> Any:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                rows.append(load_json(line.encode()))
            except InvalidRequest as error:
                raise InvalidRequest(f"line {number}: {error.message}", hint=error.hint) from None
    return {"lines": rows}


@declared(
    "POST /trajectories",
    "Send the search of another optimizer",
    role="writer",
    upload=True,
    status=202,
    runs_code=True,
    media=(
        Media(
            ("application/x-ndjson", "application/jsonl", "application/jsonlines"),
            "trajectory.jsonl of an export",
            "",
            read=_read_lines,
        ),
    ),
    example={
        "problem": "map_id",
        "hardware": "x86-64",
        "language": "cpp",
        "actor": "my-optimizer",
        "steps": [{"parent": 0, "source": "// a kernel", "plan": "binary search"}],
    },
)
def submit_trajectory(services: Services, trajectory: TrajectoryBody) -> ListedTrajectory:
    """Every step is evaluated here; claims of the sender are stored with the measurements, and
    not used. `lines` may be the transcript of a coding agent: every version of a candidate that it
    wrote is a step. `state` is queued, running, ready or failed, and unverified where the hardware
    is not in this machine. Sending the same trajectory again gives the same id, and evaluates it
    again if it was not ready."""
    queue = services.running.trajectories
    queue.check_room()
    row = accept_body(services, trajectory)
    if row.state == "queued":
        queue.wake()
    accepted: ListedTrajectory = plain(reading.trajectory_row(row))
    return accepted


@declared("GET /trajectories", "List external trajectories, newest first")
def list_trajectories(services: Services) -> ListedTrajectories:
    """Each trajectory with its state, problem, hardware and number of steps."""
    return {"trajectories": reading.list_trajectories(services)}


show_trajectory = declared(
    "GET /trajectories/{trajectory_id}", "Show how far a trajectory is, and its measurements"
)(reading.show_trajectory)


# -- from a body to an external trajectory; no code runs


def accept_body(
    base: KnowledgeBase, body: TrajectoryBody, origin: str = "told"
) -> StoredTrajectory:
    """Check a body without running any of it, and store it to be evaluated. `origin` is that of
    its steps. Raises InvalidRequest, NotFound and UnknownHardware."""
    from optimizer.evaluation.evaluate import entry_for

    if (body.steps is None) == (body.lines is None):
        raise InvalidRequest(
            "give `steps` or `lines`, one of them",
            hint="`steps` are those of an optimizer, `lines` those of an export or transcript.",
        )
    if body.lines is not None and "problem_sha256" in body.lines[0]:
        trajectory, problem = _of_lines(base, body, read_lines(body.lines))
        return accept(base, trajectory, problem, "export")
    sent = body.steps or ()
    if body.lines is not None:
        sent = steps_of_session(session_of(body.lines, body.entry or ""))
        origin = "session"
    if body.problem is None or body.hardware is None:
        raise InvalidRequest(
            "`problem` or `hardware` is missing",
            hint="Name both, or send an exported run's lines. Without a problem nothing can be"
            " measured, so nothing is stored.",
        )
    entry_of = partial(entry_for, base, body.hardware)
    steps = tuple(_step(number, step, body, entry_of) for number, step in enumerate(sent, 1))
    place, hardware = _place(body.problem), resolved_hardware(base, body.hardware)
    trajectory = ExternalTrajectory(place, hardware, steps, body.actor, body.licence or None)
    return accept(base, trajectory, problem_of(place), origin)


def steps_of_session(session: Session) -> list[TrajectoryStepBody]:
    """The candidates of another tool's session as steps."""
    return [
        TrajectoryStepBody(
            parent=step.parent,
            files={step.name: step.source},
            main=step.name,
            entry="ModelNew" if step.name.endswith(".py") else step.entry,
            language=step.language,
            plan=step.plan,
            claimed_speedup=step.claimed,
            provenance=dict(step.provenance),
        )
        for step in session.steps
    ]


def _of_lines(
    base: KnowledgeBase, body: TrajectoryBody, run: ExportedRun
) -> tuple[ExternalTrajectory, Problem]:
    place = _shipped(run.problem_sha256) if body.problem is None else _place(body.problem)
    problem = problem_of(place)
    if problem.sha256 != run.problem_sha256:
        raise InvalidRequest(
            f"the problem {problem.name} here differs from that of {run.run[:80]}",
            hint="Send `problem` with the source and toml that were searched.",
        )
    hardware = resolved_hardware(base, body.hardware or run.hardware)
    return ExternalTrajectory(place, hardware, run.steps, body.actor, body.licence), problem


def _shipped(sha256: str) -> ExternalProblem:
    for name in shipped_problems():
        if load_problem(SHIPPED / name).sha256 == sha256:
            return ExternalProblem(name=name)
    raise InvalidRequest(
        "the lines are about a problem that is not built in",
        hint="Send `problem` with its source and toml along with the lines.",
    )


def _place(problem: str | ProblemBody) -> ExternalProblem:
    if isinstance(problem, str):
        from optimizer.evaluation.problem.load import problem_named

        return ExternalProblem(name=problem_named(problem).path.parent.name)
    return ExternalProblem(None, problem.source, problem.toml)


def _step(
    number: int, step: TrajectoryStepBody, body: TrajectoryBody, entry_of: Callable[[str], str]
) -> ExternalStep:
    language = step.language or body.language
    if language is None:
        raise InvalidRequest(
            f"step {number} has no language", hint="Name it in the step, or for all of them."
        )
    try:
        files, main = _files(step, language)
        entry = step.entry or entry_of(language) or default_entry(main)
        bundle = Bundle(files, main, language, entry, step.parameters)
    except InvalidRequest as error:
        raise about_step(number, error) from None
    claim = step.claimed_speedup
    return ExternalStep(
        number,
        step.parent,
        bundle,
        step.plan,
        tuple(step.claimed),
        tuple(step.told),
        None if claim is None else float(claim),
        tuple(step.cases),
        step.provenance,
    )


def _files(step: TrajectoryStepBody, language: str) -> tuple[dict[str, str], str]:
    if (step.source is None) == (step.files is None):
        raise InvalidRequest(
            "give `source` or `files`, one of them", hint="`files` go with `main`."
        )
    if step.source is not None:
        name = step.main or file_name(language)
        return {name: step.source}, name
    files = step.files or {}
    if step.main is None and len(files) != 1:
        raise InvalidRequest("`main` is missing", hint="Name the file that is compiled.")
    return files, step.main or next(iter(files))
