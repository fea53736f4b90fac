"""A trajectory: every change of a search, parent to child, with the measurements of both kernels.

It is made from a search tree and stored as JSON. `EvaluationSummary` has exactly the fields that
the stored form has of an evaluation, so the curator decides the same from a stored trajectory as
from the tree. A stored trajectory that is read and stored again is the same JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kb.plain import from_json
from kb.problem_terms import op_family
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import CaseTiming, Evaluation, Interval, TimingState, Validity
from optimizer.search.records import REFERENCE, Node, Proposal
from optimizer.search.tree import Tree

SHARES = ("matmul_peak_pct", "copy_bandwidth_pct")
# The quantities that bound advice: bytes to move and loop lengths decide how a kernel is tuned.
# The others follow from these, the operator and the element type.
BOUNDING = ("compulsory_bytes", "reduction_length")


@dataclass(frozen=True)
class TrajectoryProblem:
    """The problem that a trajectory is about.

    `family` is the operator family. `cases` holds the names of cases by kind (searched, held_out).
    `sizes` maps a case to its numbers, by the name of a dimension or of a quantity of
    `kb/problem_terms.toml`; a case of unknown sizes is missing.
    """

    name: str
    sha256: str
    op: str
    family: str
    dtype: str | None
    cases: Mapping[str, tuple[str, ...]]
    source: str = ""
    sizes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class EvaluationSummary:
    """The part of an evaluation that a trajectory stores.

    `checks` counts the correctness checks that passed, and all of them. `signals` are those of the
    verdict, the leading one first. `flags` are integrity findings as sentences; if `rejected`, one
    of them or a person ended the evaluation. `reviewed` is a person's decision about the flags as
    a sentence, or empty. It changes neither `flags` nor `speedup`.
    """

    key: str
    validity: Validity
    timing: TimingState
    harness: str
    toolchain: str
    device: str
    checks: tuple[int, int]
    signals: tuple[str, ...]
    metrics: Mapping[str, float | str]
    speedup: Interval | None
    cases: tuple[CaseTiming, ...]
    flags: tuple[str, ...]
    rejected: bool
    message: str
    reviewed: str = ""

    @property
    def held(self) -> bool:
        """Whether nothing is learned from it before a person has decided about its flags."""
        return bool(self.flags) and not (self.rejected or self.reviewed)

    @property
    def correct(self) -> bool:
        """Whether every check passed and nothing was rejected."""
        return self.validity == "correct"


@dataclass(frozen=True)
class MeasuredKernel:
    """One kernel of a change. `number` is that of its node; the problem's reference has no
    proposal."""

    number: int
    proposal: Proposal | None
    evaluation: EvaluationSummary | None

    @property
    def bundle(self) -> Bundle | None:
        return self.proposal.bundle if self.proposal is not None else None

    @property
    def speedup(self) -> Interval | None:
        """The reference's time over this kernel's."""
        return self.evaluation.speedup if self.evaluation is not None else None

    @property
    def signals(self) -> tuple[str, ...]:
        """Signals of the verdict, the leading one first."""
        return self.evaluation.signals if self.evaluation is not None else ()

    def timing(self, case: str) -> CaseTiming | None:
        """The times of one case; None if it was not timed."""
        cases = self.evaluation.cases if self.evaluation is not None else ()
        return next((timing for timing in cases if timing.case == case), None)


@dataclass(frozen=True)
class TrajectoryStep:
    """A change, from parent to child.

    `shown` holds ids of the knowledge that its proposer was shown, by kind (excerpts, moves,
    skills). `texts` are the proposer's own remarks, which are untrusted data. `provenance` says
    where the child comes from, and nothing about its merit.
    """

    parent: MeasuredKernel
    child: MeasuredKernel
    shown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    texts: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def proposal(self) -> Proposal:
        assert self.child.proposal is not None  # the reference is never a child
        return self.child.proposal


@dataclass(frozen=True)
class Trajectory:
    """All changes of one search, in order.

    `lineage` is that of the hardware, itself first. The curator learns nothing from a trajectory
    that was not `evaluated_here`, by this product's harness.
    """

    id: str
    subject: TrajectoryProblem
    hardware: str
    lineage: tuple[str, ...]
    steps: tuple[TrajectoryStep, ...]
    evaluated_here: bool
    actor: str = "optimizer"

    def as_json(self) -> dict[str, Any]:
        """The stored form. `trajectory_from_json` reads it."""
        return {
            **vars(self),
            "subject": asdict(self.subject),
            "steps": [_step_as_json(step) for step in self.steps],
        }


# -- made from a search tree


def steps_of(
    tree: Tree,
    texts: Mapping[int, tuple[str, ...]] | None = None,
    reviewed: Mapping[str, str] | None = None,
    provenance: Mapping[int, Mapping[str, str]] | None = None,
) -> tuple[TrajectoryStep, ...]:
    """A step for each node with a proposal. `texts` are the proposer's remarks and `provenance`
    origins by number of the node, `reviewed` people's decisions by key of the evaluation."""

    def kernel(node: Node) -> MeasuredKernel:
        # A duplicate has the evaluation of the node that it repeats.
        evaluation = (node if node.same_as is None else tree[node.same_as]).evaluation
        summary = None
        if evaluation is not None:
            summary = summary_of(evaluation, (reviewed or {}).get(evaluation.key, ""))
        return MeasuredKernel(node.number, node.proposal, summary)

    return tuple(
        TrajectoryStep(
            parent=kernel(tree[node.parent if node.parent is not None else REFERENCE]),
            child=kernel(node),
            shown={
                "excerpts": node.shown.excerpts,
                "moves": node.shown.moves,
                "skills": node.shown.skills,
            },
            texts=(texts or {}).get(node.number, ()),
            provenance=(provenance or {}).get(node.number, {}),
        )
        for node in tree
        if node.proposal is not None
    )


def summary_of(evaluation: Evaluation, reviewed: str = "") -> EvaluationSummary:
    """The summary of an evaluation. `reviewed` is a person's decision about its flags."""
    return EvaluationSummary(
        key=evaluation.key,
        validity=evaluation.validity,
        timing=evaluation.timing,
        harness=evaluation.harness,
        toolchain=evaluation.toolchain,
        device=evaluation.device,
        checks=(sum(check.ok for check in evaluation.checks), len(evaluation.checks)),
        signals=evaluation.verdict.signal_ids,
        metrics={**_shares_of_limits(evaluation), **evaluation.metrics},
        speedup=evaluation.speedup,
        cases=evaluation.timings,
        flags=tuple(flag.message for flag in evaluation.flags),
        rejected=any(flag.severity == "reject" for flag in evaluation.flags),
        message=evaluation.message,
        reviewed=reviewed,
    )


def _shares_of_limits(evaluation: Evaluation) -> dict[str, float]:
    """Shares of measured limits in the evidence of the verdict."""
    evidence = (row for signal in evaluation.verdict.signals for row in signal.evidence)
    return {row["name"]: row["value"] for row in evidence if row.get("name") in SHARES}


def problem_of_trajectory(
    problem: Problem, dtype: str | None, nodes: Iterable[Node]
) -> TrajectoryProblem:
    """The problem as a trajectory describes it. `dtype` is used if the problem declares none;
    `nodes` are those of the search, whose verdicts have the quantities of cases."""
    bounds = measured_sizes(nodes)
    return TrajectoryProblem(
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


def main_case(problem: Problem) -> Case:
    """The first timed case that a search may see."""
    return next((case for case in problem.searched if case.timed), problem.cases[0])


def measured_sizes(nodes: Iterable[Node]) -> dict[str, dict[str, float]]:
    """The BOUNDING quantities by case, as the verdicts of evaluations state them, so that no
    problem's code has to run.

    A verdict of an older harness names no case; it counts if a single case was timed.
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


def _sizes(case: Case) -> dict[str, float]:
    return {
        name: value
        for name, value in case.constants.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


# -- the stored form


def _step_as_json(step: TrajectoryStep) -> dict[str, Any]:
    proposal = step.proposal
    return {
        "parent": kernel_as_json(step.parent),
        "child": kernel_as_json(step.child),
        "synthesizer": proposal.synthesizer,
        "origin": proposal.origin,
        "plan": proposal.plan,
        "claimed": tuple(proposal.claimed),
        "attributed": tuple(proposal.attributed),
        "shown": dict(step.shown),
        "told": step.texts,
        **({"provenance": dict(step.provenance)} if step.provenance else {}),
    }


def kernel_as_json(kernel: MeasuredKernel) -> dict[str, Any]:
    proposal, summary = kernel.proposal, kernel.evaluation
    return {
        "number": kernel.number,
        "kernel": None
        if proposal is None
        else {
            "language": proposal.bundle.language,
            "main": proposal.bundle.main,
            "entry": proposal.bundle.entry,
            "files": dict(proposal.bundle.files),
            "recipe": proposal.recipe,
            "values": dict(proposal.values),
        },
        "measured": None if summary is None else _summary_as_json(summary),
    }


def _summary_as_json(summary: EvaluationSummary) -> dict[str, Any]:
    row = asdict(summary)
    names = ("case", "baseline_us", "candidate_us", "speedup", "state")
    row["cases"] = [{name: case[name] for name in names} for case in row["cases"]]
    if not summary.reviewed:  # as in rows from before there were reviews
        del row["reviewed"]
    return row


def trajectory_from_json(row: Mapping[str, Any]) -> Trajectory:
    """The trajectory of its stored form. Raises KeyError or TypeError for anything else."""
    subject = row["subject"]
    cases = {kind: tuple(names) for kind, names in subject["cases"].items()}
    return Trajectory(
        **{
            **row,
            "subject": TrajectoryProblem(**{**subject, "cases": cases}),
            "lineage": tuple(row["lineage"]),
            "steps": tuple(_step_from_json(step) for step in row["steps"]),
        }
    )


def _step_from_json(row: Mapping[str, Any]) -> TrajectoryStep:
    proposed = {
        "synthesizer": row["synthesizer"],
        "plan": row["plan"],
        "claimed": tuple(row["claimed"]),
        "attributed": tuple(row["attributed"]),
    }
    return TrajectoryStep(
        parent=_kernel_from_json(row["parent"], "external", {"synthesizer": ""}),
        child=_kernel_from_json(row["child"], row["origin"], proposed),
        shown={kind: tuple(ids) for kind, ids in row["shown"].items()},
        texts=tuple(row["told"]),
        provenance=row.get("provenance", {}),
    )


def _kernel_from_json(
    row: Mapping[str, Any], origin: Any, proposed: Mapping[str, Any]
) -> MeasuredKernel:
    """The stored form has of a parent's proposal the kernel alone."""
    kernel, summary = row["kernel"], row["measured"]
    proposal = None
    if kernel is not None:
        bundle = Bundle(
            kernel["files"], kernel["main"], kernel["language"], kernel["entry"], origin=origin
        )
        proposal = Proposal(bundle, recipe=kernel["recipe"], values=kernel["values"], **proposed)
    return MeasuredKernel(
        row["number"], proposal, None if summary is None else from_json(EvaluationSummary, summary)
    )
