"""Takes a told trajectory in: checked as far as that goes without running any of it, then a row."""

from __future__ import annotations

from typing import Any

from api.evaluation import ask_for, choose_target
from api.services import Services
from api.trajectories.bodies import TrajectoryBody
from api.trajectories.telling import problem_of, told_from
from kb.catalog.search.trajectories import State, StoredTrajectory, Trajectories
from kb.errors import InvalidRequest, Unavailable
from optimizer.curation.told import Told, ToldStep, about_step, told_from_json
from optimizer.evaluation.targets import AUTO
from optimizer.problem.spec import Problem

AGAIN: tuple[State, ...] = ("failed", "unverified")


def trajectory_store(services: Services) -> Trajectories:
    return Trajectories(services.catalog, services.blobs)


def accept(services: Services, body: TrajectoryBody) -> StoredTrajectory:
    """Its row: queued, or unverified where its hardware is not here. What was told before has its
    row already; one that failed or was not verified is tried again."""
    told, problem = told_from(body, lambda name: _resolved(services, name))
    absent = absence(services, told, problem)
    store = trajectory_store(services)
    state: State = "unverified" if absent else "queued"
    store.expire()
    store.add(told.id, _origin(body), state, told.as_json(), _summary(told, problem, absent))
    return again(services, store.find(told.id))


def again(services: Services, row: StoredTrajectory) -> StoredTrajectory:
    """One that failed or was not verified is queued anew, if its hardware is here now. Any other is
    left as it is: somebody has it in hand, or it is ready."""
    if row.state not in AGAIN:
        return row
    store = trajectory_store(services)
    told = told_from_json(store.report(row))
    absent = absence(services, told, problem_of(told.problem))
    state: State = "unverified" if absent else "queued"
    store.change(row.id, state, only_from=AGAIN, reason=absent, error=None)
    return store.find(row.id)


def absence(services: Services, told: Told, problem: Problem) -> str:
    """Why nothing of it can be measured here, in words; empty where it can. Raises InvalidRequest
    for a step that no machine could evaluate."""
    reasons: dict[str, str] = {}
    for step in told.steps:
        language = step.bundle.language
        _check_cases(step, problem)
        if language in reasons:
            continue
        try:
            asked = ask_for(services, problem, step.bundle, hardware=told.hardware)
        except Unavailable as error:
            reasons[language] = error.message
            continue
        except InvalidRequest as error:
            raise about_step(step.number, error) from None
        target = asked.chosen.target
        here = target.device is not None or target.templates
        reasons[language] = "" if here else f"no {target.hardware} in this machine"
    return next((reason for reason in reasons.values() if reason), "")


def _check_cases(step: ToldStep, problem: Problem) -> None:
    """Held-out ones are for nobody to choose."""
    known = [case.name for case in problem.searched]
    for name in step.cases:
        if name not in known:
            raise InvalidRequest(
                f"step {step.number}: {problem.name} has no case {name[:80]!r}",
                hint=f"It has {', '.join(known)}.",
            )


def _resolved(services: Services, name: str) -> str:
    """auto: what is here."""
    if name == AUTO:
        return choose_target(services, AUTO, "torch").target.hardware
    return str(services.registry.resolve(name))


def _origin(body: TrajectoryBody) -> str:
    return "export" if body.lines is not None else "told"


def _summary(told: Told, problem: Problem, absent: str) -> dict[str, Any]:
    return {
        "problem": problem.name,
        "problem_sha256": problem.sha256,
        "hardware": told.hardware,
        "languages": sorted({step.bundle.language for step in told.steps}),
        "steps": len(told.steps),
        "actor": told.actor,
        "licence": told.licence,
        "reason": absent,
    }
