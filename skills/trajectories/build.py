"""The curator's record of a run: every change, parent to child, with what the harness found.

Only evaluations of this product's harness get in; what a proposer says of its own candidates is
kept as text and never as a figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kb.problem_terms import op_family
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import CaseTiming, Evaluation, Interval
from optimizer.search.records import REFERENCE, Node
from optimizer.search.store import RunRow
from optimizer.search.tree import Tree
from skills.curator.quantities import BOUNDING
from skills.curator.records import (
    CaseFigure,
    Kernel,
    Measured,
    Ratio,
    Side,
    Step,
    Subject,
    Trajectory,
)
from skills.curator.storing import roles_of as roles_of  # read here beside the trajectories


def trajectory_of(
    run: RunRow,
    tree: Tree,
    problem: Problem,
    *,
    lineage: Sequence[str] = (),
    dtype: str | None = None,
) -> Trajectory:
    """All changes of a run, in the order of its nodes; its id is the run's, under which
    `/trajectories` shows it. lineage: of the hardware, itself first. dtype: of the main case, where
    the problem does not declare one."""
    return Trajectory(
        id=run.id,
        subject=subject_of(problem, dtype, measured_sizes(tree)),
        hardware=run.hardware,
        lineage=tuple(lineage) or (run.hardware,),
        steps=steps_of(tree),
        evaluated_here=True,
    )


def steps_of(tree: Tree, told: Mapping[int, tuple[str, ...]] | None = None) -> tuple[Step, ...]:
    """told: texts of the proposer, by number of the node."""
    texts = told or {}
    return tuple(
        _step(tree, node, texts.get(node.number, ())) for node in tree if node.proposal is not None
    )


def main_case(problem: Problem) -> Case:
    """The first timed one that a search may see."""
    return next((case for case in problem.searched if case.timed), problem.cases[0])


def measured_sizes(nodes: Iterable[Node]) -> dict[str, dict[str, float]]:
    """Quantities that bound advice, by the case that led a verdict. They are read from evaluations:
    nobody runs a problem's code to read what was found of it. An evaluation from before verdicts
    named their case tells them where one case alone was timed."""
    found: dict[str, dict[str, float]] = {}
    for node in nodes:
        evaluation = node.evaluation
        if evaluation is None:
            continue
        timed = [timing.case for timing in evaluation.timings]
        case = evaluation.verdict.case or (timed[0] if len(timed) == 1 else "")
        told = evaluation.verdict.problem
        sizes = {name: float(told[name]) for name in BOUNDING if name in told}
        if case and sizes:
            found.setdefault(case, sizes)
    return found


def subject_of(
    problem: Problem,
    dtype: str | None = None,
    quantities: Mapping[str, Mapping[str, float]] | None = None,
) -> Subject:
    """dtype: where the problem declares none. quantities: of cases, told beside their dimensions,
    so that advice is bounded by the sizes that it was found at."""
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


def measured_of(found: Evaluation) -> Measured:
    """An evaluation as the curator reads it."""
    return Measured(
        key=found.key,
        validity=found.validity,
        timing=found.timing,
        harness=found.harness,
        toolchain=found.toolchain,
        device=found.device,
        checks=(sum(check.ok for check in found.checks), len(found.checks)),
        signals=found.verdict.signal_ids,
        metrics=dict(found.metrics),
        speedup=ratio_of(found.speedup),
        cases=tuple(_figure(timing) for timing in found.timings),
        flags=tuple(flag.message for flag in found.flags),
        rejected=any(flag.severity == "reject" for flag in found.flags),
        message=found.message,
    )


def _step(tree: Tree, node: Node, told: tuple[str, ...]) -> Step:
    proposal = node.proposal
    assert proposal is not None  # the reference is nobody's change
    shown = node.shown
    return Step(
        parent=_side(tree, tree[node.parent if node.parent is not None else REFERENCE]),
        child=_side(tree, node),
        synthesizer=proposal.synthesizer,
        origin=proposal.origin,
        plan=proposal.plan,
        claimed=tuple(proposal.claimed),
        attributed=tuple(proposal.attributed),
        shown={"excerpts": shown.excerpts, "moves": shown.moves, "skills": shown.skills},
        told=told,
    )


def _side(tree: Tree, node: Node) -> Side:
    """A duplicate has what was found of the node that it repeats."""
    found = node.evaluation
    if node.same_as is not None:
        found = tree[node.same_as].evaluation
    measured = measured_of(found) if found is not None else None
    return Side(node.number, _kernel(node), measured)


def _kernel(node: Node) -> Kernel | None:
    proposal = node.proposal
    if proposal is None:
        return None
    bundle: Bundle = proposal.bundle
    return Kernel(
        bundle.language,
        bundle.main,
        bundle.entry,
        dict(bundle.files),
        proposal.recipe,
        dict(proposal.values),
    )


def _figure(timing: CaseTiming) -> CaseFigure:
    return CaseFigure(
        timing.case,
        timing.baseline_us,
        timing.candidate_us,
        ratio_of(timing.speedup),
        timing.state,
    )


def ratio_of(found: Interval | None) -> Ratio | None:
    """The curator's form of an interval."""
    return None if found is None else Ratio(found.value, found.low, found.high, found.n)


def _sizes(case: Case) -> dict[str, float]:
    return {
        name: value
        for name, value in case.constants.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
