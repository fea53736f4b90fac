"""From the body of `POST /trajectories` to an external trajectory. Nothing of it runs here."""

from __future__ import annotations

from collections.abc import Callable

from api.bodies import ProblemBody, TrajectoryBody, TrajectoryStepBody
from kb.catalog.trajectories import StoredTrajectory
from kb.errors import InvalidRequest
from optimizer.evaluation.bundle import Bundle, default_entry
from optimizer.evaluation.evaluate import entry_for, problem_named
from optimizer.evaluation.problem.load import SHIPPED, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Problem
from retrieval.knowledge_base import KnowledgeBase
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


def accept_body(base: KnowledgeBase, body: TrajectoryBody) -> StoredTrajectory:
    """Check a body without running any of it, and store it to be evaluated. Raises InvalidRequest,
    NotFound and UnknownHardware.
    """
    trajectory, problem = external_trajectory(
        body,
        lambda name: resolved_hardware(base, name),
        lambda hardware, language: entry_for(base, hardware, language),
    )
    return accept(base, trajectory, problem, "export" if body.lines is not None else "told")


def external_trajectory(
    body: TrajectoryBody,
    resolve: Callable[[str], str],
    entry_of: Callable[[str, str], str] = lambda hardware, language: "",
) -> tuple[ExternalTrajectory, Problem]:
    """The trajectory and its problem. `resolve` gives the id of a hardware by its name, `entry_of`
    the entry that its own toolchain for a language states, or an empty text."""
    if (body.steps is None) == (body.lines is None):
        raise InvalidRequest(
            "give `steps` or `lines`, one of them",
            hint="`steps` are those of another optimizer, `lines` those of an exported run.",
        )
    if body.lines is not None:
        return _of_lines(body, read_lines(body.lines), resolve)
    if body.problem is None or body.hardware is None:
        raise InvalidRequest(
            "`problem` or `hardware` is missing", hint="Name both, or send an exported run's lines."
        )
    hardware = body.hardware
    steps = tuple(
        _step(number, step, body, lambda language: entry_of(hardware, language))
        for number, step in enumerate(body.steps or (), 1)
    )
    trajectory = ExternalTrajectory(
        _place(body.problem), resolve(body.hardware), steps, body.actor, body.licence or None
    )
    return trajectory, problem_of(trajectory.problem)


def _place(problem: str | ProblemBody) -> ExternalProblem:
    if isinstance(problem, str):
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


def _of_lines(
    body: TrajectoryBody, run: ExportedRun, resolve: Callable[[str], str]
) -> tuple[ExternalTrajectory, Problem]:
    place = _shipped(run.problem_sha256) if body.problem is None else _place(body.problem)
    problem = problem_of(place)
    if problem.sha256 != run.problem_sha256:
        raise InvalidRequest(
            f"the problem {problem.name} here differs from that of {run.run[:80]}",
            hint="Send `problem` with the source and toml that were searched.",
        )
    hardware = resolve(body.hardware or run.hardware)
    return ExternalTrajectory(place, hardware, run.steps, body.actor, body.licence), problem


def _shipped(sha256: str) -> ExternalProblem:
    for name in shipped_problems():
        if load_problem(SHIPPED / name).sha256 == sha256:
            return ExternalProblem(name=name)
    raise InvalidRequest(
        "the lines are about a problem that is not built in",
        hint="Send `problem` with its source and toml beside the lines.",
    )
