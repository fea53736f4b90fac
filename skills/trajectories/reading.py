"""Trajectories read back: what the curator distils, and what a list shows.

What people answered to integrity flags is applied here, between the store and the curator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kb.catalog.search.reviews import Reviews
from kb.catalog.search.trajectories import StoredTrajectory
from kb.errors import Conflict, InvalidRequest
from kb.plain import plain
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.runs.knowledge import library_recipes
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.curator.records import Trajectory, trajectory_from_json
from skills.trajectories.accept import trajectory_store
from skills.trajectories.build import main_case, roles_of, trajectory_of
from skills.trajectories.reviewed import flagged_keys, reviewed_trajectory


def trajectory(base: KnowledgeBase, identity: str) -> Trajectory:
    """Of a run's id, or of a told trajectory that is ready, with people's answers to its flags.
    Raises NotFound, and Conflict for one that was not evaluated here: nothing in it is to be
    believed."""
    found = _measured(base, identity)
    answers = Reviews(base.catalog).latest(flagged_keys(found))
    return reviewed_trajectory(found, answers)


def _measured(base: KnowledgeBase, identity: str) -> Trajectory:
    if identity.startswith("run_"):
        return _of_run(base, run_store(base).run(identity))
    store = trajectory_store(base)
    row = store.find(identity)
    found = store.results(row)
    if row.state != "ready" or found is None:
        raise Conflict(
            f"{row.id} is {row.state}: nothing of it was measured here",
            hint="Wait until it is ready, or verify it where its hardware is.",
        )
    return trajectory_from_json(found["trajectory"])


def parameter_roles(base: KnowledgeBase) -> dict[str, dict[str, str]]:
    """Of the active recipes, for the curator's contrast."""
    return roles_of(library_recipes(base))


def searched_problem(run: RunRow) -> Problem:
    """The problem of a run; InvalidRequest where its file is another one by now."""
    problem = load_problem(Path(run.problem))
    if problem.sha256 != run.problem_sha256:
        raise InvalidRequest(
            f"{run.problem} is not the problem of {run.id} any more",
            hint="Put the file back that was searched, or leave this run out.",
        )
    return problem


def shown(row: StoredTrajectory, **more: Any) -> dict[str, Any]:
    """As the doors answer it."""
    return {
        "id": row.id,
        "origin": row.origin,
        "state": row.state,
        "created_at": row.created_at,
        **row.summary,
        "evaluated_here": row.state == "ready",
        **more,
    }


def list_trajectories(base: KnowledgeBase, *, with_runs: bool = False) -> list[dict[str, Any]]:
    """External trajectories, newest first; then runs, newest first, if wanted."""
    rows = [shown(row) for row in trajectory_store(base).latest()]
    for run in run_store(base).latest() if with_runs else ():
        rows.append(
            {
                "id": run.id,
                "origin": "run",
                "state": run.state,
                "problem": run.problem,
                "hardware": run.hardware,
                "steps": None,
                "created_at": None,
            }
        )
    return [plain(row) for row in rows]


def show_trajectory(base: KnowledgeBase, identity: str) -> dict[str, Any]:
    """An external trajectory, with what was measured once it is ready, or the trajectory of a run.
    Raises NotFound.
    """
    if identity.startswith("run_"):
        answer: dict[str, Any] = {"id": identity, "trajectory": trajectory(base, identity)}
    else:
        row = trajectory_store(base).find(identity)
        measured = trajectory(base, row.id) if row.state == "ready" else None
        answer = shown(row, trajectory=measured)
    values: dict[str, Any] = plain(answer)
    return values


def main_dtype(base: KnowledgeBase, problem: Problem) -> str | None:
    """Of the problem's main case as it was evaluated, where the problem declares none."""
    main = main_case(problem)
    return main.dtype or trajectory_store(base).dtype_of(problem.sha256, main.name)


def _of_run(base: KnowledgeBase, run: RunRow) -> Trajectory:
    problem = searched_problem(run)
    return trajectory_of(
        run,
        Tree(run_store(base).nodes(run.id)),
        problem,
        lineage=tuple(base.registry.lineage(run.hardware)),
        dtype=main_dtype(base, problem),
    )
