"""The trajectories of runs and of external optimizers, read back for the curator and for lists.

Only evaluations of this product's harness get in; what a proposer claims about its own candidates
is kept as text and never as a figure. People's answers to integrity flags are applied here, between
the store and the curator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Required

from typing_extensions import TypedDict

from kb.catalog.evaluations import Reviews
from kb.catalog.trajectories import StoredTrajectory
from kb.errors import InvalidRequest
from kb.plain import Doc, plain
from kb.problem_terms import op_family
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.search.records import REFERENCE, Node
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.trajectories.accept import trajectory_store, untimed_steps
from skills.trajectories.records import Side, Step, Subject, Trajectory, trajectory_from_json
from skills.trajectories.reviews import flagged_keys, not_measured, reviewed_trajectory

# What decides how a kernel is to be tuned: what it has to move, and how long its loops are. Other
# quantities follow from these, the operator and the element type.
BOUNDING = ("compulsory_bytes", "reduction_length")


class ListedTrajectory(TypedDict, total=False):
    """The search of another optimizer, or a run as one."""

    id: Required[str]
    origin: Required[str]
    state: Required[Annotated[str, Doc("queued, running, ready, failed or unverified.")]]
    created_at: Required[str | None]


class ListedTrajectories(TypedDict):
    """Trajectories, newest first."""

    trajectories: list[ListedTrajectory]


class ShownTrajectory(TypedDict, total=False):
    """A trajectory; `trajectory` is there once it was measured."""

    id: Required[str]
    state: str
    trajectory: dict[str, Any] | None


# -- from the store


def trajectory(base: KnowledgeBase, identity: str) -> Trajectory:
    """A run as a trajectory, or an external one that is ready, with people's answers to its flags.

    `identity` is the id of either. Raises NotFound, and Conflict for one that was not evaluated
    here: nothing in it counts.
    """
    measured = _measured(base, identity)
    answers = Reviews(base.catalog, base.access).latest(flagged_keys(measured))
    return reviewed_trajectory(measured, answers)


def _measured(base: KnowledgeBase, identity: str) -> Trajectory:
    if identity.startswith("run_"):
        return _of_run(base, run_store(base).run(identity))
    store = trajectory_store(base)
    row = store.find(identity)
    measured = store.results(row)
    if row.state != "ready" or measured is None:
        raise not_measured(row)
    return trajectory_from_json(measured["trajectory"])


def list_trajectories(base: KnowledgeBase, *, with_runs: bool = False) -> list[ListedTrajectory]:
    """External trajectories, newest first; then runs, newest first, if wanted."""
    rows = [trajectory_row(row) for row in trajectory_store(base).latest()]
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


def show_trajectory(base: KnowledgeBase, trajectory_id: str) -> ShownTrajectory:
    """`trajectory` is present once the state is ready. The id of a run may be given too."""
    identity = trajectory_id
    if identity.startswith("run_"):
        answer: dict[str, Any] = {"id": identity, "trajectory": _answered(base, identity)}
    else:
        row = trajectory_store(base).find(identity)
        measured = _answered(base, row.id) if row.state == "ready" else None
        answer = trajectory_row(row, trajectory=measured)
    shown: ShownTrajectory = plain(answer)
    return shown


def _answered(base: KnowledgeBase, identity: str) -> dict[str, Any]:
    """The stored form of a trajectory, with `reviewed` for every measured kernel: empty where
    nobody answered its flags."""
    record = trajectory(base, identity).as_json()
    for step in record["steps"]:
        for side in (step["parent"], step["child"]):
            if side["measured"] is not None:
                side["measured"].setdefault("reviewed", "")
    return record


def _of_run(base: KnowledgeBase, run: RunRow) -> Trajectory:
    problem = searched_problem(run)
    return trajectory_of(
        run,
        Tree(run_store(base).nodes(run.id)),
        problem,
        lineage=base.registry.lineage_or_id(run.hardware),
        dtype=main_dtype(base, problem),
    )


def searched_problem(run: RunRow) -> Problem:
    """The problem of a run. Raises InvalidRequest where its file has changed since."""
    problem = load_problem(Path(run.problem))
    if problem.sha256 != run.problem_sha256:
        raise InvalidRequest(
            f"{run.problem} is not the problem of {run.id} any more",
            hint="Put the file back that was searched, or leave this run out.",
        )
    return problem


def main_dtype(base: KnowledgeBase, problem: Problem) -> str | None:
    """The element type of the problem's main case: as declared, else as it was evaluated."""
    main = main_case(problem)
    return main.dtype or trajectory_store(base).dtype_of(problem.sha256, main.name)


def trajectory_row(row: StoredTrajectory, **more: Any) -> dict[str, Any]:
    """An external trajectory as lists, HTTP and the command line show it."""
    return {
        "id": row.id,
        "origin": row.origin,
        "state": row.state,
        "created_at": row.created_at,
        **_advised(row),
        "evaluated_here": row.state == "ready",
        **more,
    }


def _advised(row: StoredTrajectory) -> Mapping[str, Any]:
    """The summary, with a message where the machine was too busy to time a step."""
    untimed = untimed_steps(row.summary)
    if not untimed:
        return row.summary
    busy = (
        "it was not timed: the machine was busy. Stop other work and run"
        f" `kernlore trajectories verify {row.id}`"
    )
    verdicts = [
        {**v, "message": v["message"] or busy} if v["step"] in untimed else v
        for v in row.summary["verdicts"]
    ]
    return {**row.summary, "verdicts": verdicts}


# -- from a search tree


def trajectory_of(
    run: RunRow,
    tree: Tree,
    problem: Problem,
    *,
    lineage: Sequence[str] = (),
    dtype: str | None = None,
) -> Trajectory:
    """All changes of a run, in the order of its nodes. Its id is the run's, under which
    `/trajectories` shows it.

    `lineage` is that of the hardware, itself first. `dtype` is that of the main case, where the
    problem does not declare one.
    """
    return Trajectory(
        id=run.id,
        subject=subject_of(problem, dtype, measured_sizes(tree)),
        hardware=run.hardware,
        lineage=tuple(lineage) or (run.hardware,),
        steps=steps_of(tree),
        evaluated_here=True,
    )


def steps_of(tree: Tree, texts: Mapping[int, tuple[str, ...]] | None = None) -> tuple[Step, ...]:
    """A step for each node with a proposal. `texts` are the proposer's own, by number of the
    node."""
    by_number = texts or {}
    return tuple(
        Step(
            parent=_side(tree, tree[node.parent if node.parent is not None else REFERENCE]),
            child=_side(tree, node),
            shown={
                "excerpts": node.shown.excerpts,
                "moves": node.shown.moves,
                "skills": node.shown.skills,
            },
            texts=by_number.get(node.number, ()),
        )
        for node in tree
        if node.proposal is not None
    )


def _side(tree: Tree, node: Node) -> Side:
    """A duplicate has the evaluation of the node that it repeats."""
    measured = node if node.same_as is None else tree[node.same_as]
    return Side(node.number, node.proposal, measured.evaluation)


def main_case(problem: Problem) -> Case:
    """The first timed case that a search may see."""
    return next((case for case in problem.searched if case.timed), problem.cases[0])


def measured_sizes(nodes: Iterable[Node]) -> dict[str, dict[str, float]]:
    """Quantities that bound advice, by the case that led a verdict.

    They are read from evaluations, so that no problem's code has to run. An evaluation from before
    verdicts named their case has them where one case alone was timed.
    """
    by_case: dict[str, dict[str, float]] = {}
    for node in nodes:
        evaluation = node.evaluation
        if evaluation is None:
            continue
        timed = [timing.case for timing in evaluation.timings]
        case = evaluation.verdict.case or (timed[0] if len(timed) == 1 else "")
        quantities = evaluation.verdict.problem
        sizes = {name: float(quantities[name]) for name in BOUNDING if name in quantities}
        if case and sizes:
            by_case.setdefault(case, sizes)
    return by_case


def subject_of(
    problem: Problem,
    dtype: str | None = None,
    quantities: Mapping[str, Mapping[str, float]] | None = None,
) -> Subject:
    """What a trajectory says about its problem.

    `dtype` is used where the problem declares none. `quantities` of cases are kept beside their
    dimensions, so that advice is bounded by the sizes that it was measured at.
    """
    bounds = quantities or {}
    return Subject(
        name=problem.name,
        sha256=problem.sha256,
        op=problem.op,
        family=op_family(problem.op),
        dtype=main_case(problem).dtype or dtype,
        cases={
            "searched": tuple(case.name for case in problem.searched),
            "held_out": tuple(case.name for case in problem.held_out),
        },
        source=problem.source,
        sizes={case.name: {**_sizes(case), **bounds.get(case.name, {})} for case in problem.cases},
    )


def _sizes(case: Case) -> dict[str, float]:
    return {
        name: value
        for name, value in case.constants.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
