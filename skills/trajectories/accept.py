"""Accepts an external trajectory: checks it as far as that goes without running any of it, then
stores it as a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kb.catalog.search.trajectories import State, StoredTrajectory, Trajectories
from kb.errors import InvalidRequest, Unavailable
from optimizer.evaluation.evaluate import AUTO, ask_for, choose_target
from optimizer.evaluation.problem.spec import Problem
from retrieval.knowledge_base import KnowledgeBase
from skills.trajectories.external_trajectory import (
    ExternalStep,
    ExternalTrajectory,
    about_step,
    external_trajectory_from_json,
    problem_of,
)

AGAIN: tuple[State, ...] = ("failed", "unverified")


def trajectory_store(base: KnowledgeBase) -> Trajectories:
    """The external trajectories of a knowledge base."""
    return Trajectories(base.catalog, base.blobs, base.access)


def accept(
    base: KnowledgeBase, external: ExternalTrajectory, problem: Problem, origin: str
) -> StoredTrajectory:
    """Store an external trajectory: `queued`, or `unverified` where its hardware is not here.

    `origin` is `told` (another optimizer) or `export` (the lines of an exported run). A trajectory
    that was sent before keeps its row; `requeue` says which of them are tried again.
    """
    absent = absence(base, external, problem)
    store = trajectory_store(base)
    state: State = "unverified" if absent else "queued"
    store.expire()
    store.add(external.id, origin, state, external.as_json(), _summary(external, problem, absent))
    return requeue(base, store.find(external.id))


def requeue(base: KnowledgeBase, row: StoredTrajectory) -> StoredTrajectory:
    """Queue a trajectory anew that failed or was not verified, or of which the machine was too busy
    to time a step, if its hardware is here now. Any other is left as it is: a worker has it, or it
    is ready."""
    untimed = row.state == "ready" and bool(untimed_steps(row.summary))
    if row.state not in AGAIN and not untimed:
        return row
    store = trajectory_store(base)
    external = external_trajectory_from_json(store.report(row))
    absent = absence(base, external, problem_of(external.problem))
    if untimed and absent:
        return row  # what was measured of it stays
    state: State = "unverified" if absent else "queued"
    from_states: tuple[State, ...] = ("ready",) if untimed else AGAIN
    store.change(row.id, state, only_from=from_states, reason=absent, error=None)
    return store.find(row.id)


def untimed_steps(summary: Mapping[str, Any]) -> list[int]:
    """The steps of a ready trajectory that the machine was too busy to time."""
    verdicts = summary.get("verdicts") or ()
    return [verdict["step"] for verdict in verdicts if verdict.get("timing") == "repeat"]


def absence(base: KnowledgeBase, external: ExternalTrajectory, problem: Problem) -> str:
    """Why no step of a trajectory can be measured here, in words; empty where it can. Raises
    InvalidRequest for a step that no machine could evaluate."""
    reasons: dict[str, str] = {}
    for step in external.steps:
        language = step.bundle.language
        _check_cases(step, problem)
        if language in reasons:
            continue
        try:
            request = ask_for(base, problem, step.bundle, hardware=external.hardware)
        except Unavailable as error:
            reasons[language] = error.message
            continue
        except InvalidRequest as error:
            if not _lacks_toolchain(base, external.hardware, language):
                raise about_step(step.number, error) from None
            reasons[language] = error.message
            continue
        target = request.chosen.target
        here = target.device is not None or target.templates
        reasons[language] = "" if here else f"no {target.hardware} in this machine"
    return next((reason for reason in reasons.values() if reason), "")


def _lacks_toolchain(base: KnowledgeBase, hardware: str, language: str) -> bool:
    """Whether a language is one of the chip's, and nothing that is registered says how to compile
    it: a toolchain may be stated later."""
    known = base.registry.all()
    specs = [known[place] for place in base.registry.lineage(hardware) if place in known]
    stated = any(language in spec.languages for spec in specs)
    return stated and not any(language in spec.toolchains for spec in specs)


def _check_cases(step: ExternalStep, problem: Problem) -> None:
    """Held-out ones are for nobody to choose."""
    known = [case.name for case in problem.searched]
    for name in step.cases:
        if name not in known:
            raise InvalidRequest(
                f"step {step.number}: {problem.name} has no case {name[:80]!r}",
                hint=f"It has {', '.join(known)}.",
            )


def resolved_hardware(base: KnowledgeBase, name: str) -> str:
    """The id of a hardware name or alias; of `auto`, the id of what is here. Raises
    UnknownHardware."""
    if name == AUTO:
        return choose_target(base, AUTO, "torch").target.hardware
    return str(base.registry.resolve(name))


def _summary(external: ExternalTrajectory, problem: Problem, absent: str) -> dict[str, Any]:
    return {
        "problem": problem.name,
        "problem_sha256": problem.sha256,
        "hardware": external.hardware,
        "languages": sorted({step.bundle.language for step in external.steps}),
        "steps": len(external.steps),
        "actor": external.actor,
        "licence": external.licence,
        "reason": absent,
    }
