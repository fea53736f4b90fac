"""A trajectory: every change of a run, parent to child, with what the harness measured of both.

It is built from a run of this product or, after everything in it was evaluated again here, from a
trajectory of another optimizer. The kernels and figures are the optimizer's own records. Stored as
JSON, a trajectory keeps of them what the curator reads; the form and its reader are at the end of
this module, and a stored trajectory that is read and written again is the same JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import (
    CaseCheck,
    CaseTiming,
    Evaluation,
    Flag,
    Interval,
    verdict_from_json,
)
from optimizer.search.records import Proposal


@dataclass(frozen=True)
class TrajectoryProblem:
    """The problem that a trajectory is about.

    `family` is the operator family. `cases` holds the names of cases by kind (searched, held_out).
    `sizes` holds, for each case, numbers by the name of a dimension or of a quantity of
    `kb/problem_terms.toml`; a case whose sizes are not known is missing.
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
class MeasuredKernel:
    """A kernel of a change and its evaluation here.

    `number` is that of its node. The problem's own reference has no proposal. `reviewed` is what a
    person answered to the evaluation's flags, in words; empty without an answer.
    """

    number: int
    proposal: Proposal | None
    evaluation: Evaluation | None
    reviewed: str = ""

    @property
    def bundle(self) -> Bundle | None:
        """The kernel's files, None for the reference."""
        return self.proposal.bundle if self.proposal is not None else None

    @property
    def speedup(self) -> Interval | None:
        """The reference's time over this kernel's."""
        return self.evaluation.speedup if self.evaluation is not None else None

    @property
    def signals(self) -> tuple[str, ...]:
        """Signals of the verdict, the leading one first."""
        return self.evaluation.verdict.signal_ids if self.evaluation is not None else ()

    @property
    def checks(self) -> tuple[int, int]:
        """Correctness checks that passed, and all of them."""
        checks = self.evaluation.checks if self.evaluation is not None else ()
        return sum(check.ok for check in checks), len(checks)

    @property
    def flags(self) -> tuple[str, ...]:
        """Integrity findings in words."""
        flags = self.evaluation.flags if self.evaluation is not None else ()
        return tuple(flag.message for flag in flags)

    @property
    def rejected(self) -> bool:
        """Whether an integrity finding, or a person, ended it."""
        if self.evaluation is None:
            return False
        ended = any(flag.severity == "reject" for flag in self.evaluation.flags)
        return ended or self.evaluation.validity == "rejected"


@dataclass(frozen=True)
class TrajectoryStep:
    """A change, from parent to child.

    `shown` holds ids of everything that its proposer was shown, by kind (excerpts, moves, skills).
    `texts` are the proposer's own words about it, data of unknown trust.
    """

    parent: MeasuredKernel
    child: MeasuredKernel
    shown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    texts: tuple[str, ...] = ()

    @property
    def proposal(self) -> Proposal:
        """The proposal of the child."""
        assert self.child.proposal is not None  # the reference is nobody's change
        return self.child.proposal


@dataclass(frozen=True)
class Trajectory:
    """All changes of one run, in their order.

    `lineage` is that of the hardware, itself first. `evaluated_here` says that every figure in it
    was measured by this product's harness; no other figure counts.
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
            "id": self.id,
            "subject": asdict(self.subject),
            "hardware": self.hardware,
            "lineage": self.lineage,
            "steps": [_step_as_json(step) for step in self.steps],
            "evaluated_here": self.evaluated_here,
            "actor": self.actor,
        }


# -- the stored form: written


def _step_as_json(step: TrajectoryStep) -> dict[str, Any]:
    proposal = step.proposal
    return {
        "parent": side_as_json(step.parent),
        "child": side_as_json(step.child),
        "synthesizer": proposal.synthesizer,
        "origin": proposal.origin,
        "plan": proposal.plan,
        "claimed": tuple(proposal.claimed),
        "attributed": tuple(proposal.attributed),
        "shown": dict(step.shown),
        "told": step.texts,
    }


def side_as_json(side: MeasuredKernel) -> dict[str, Any]:
    """A side in the stored form: what of its kernel and evaluation the curator reads."""
    return {
        "number": side.number,
        "kernel": None if side.proposal is None else _kernel_as_json(side.proposal),
        "measured": None if side.evaluation is None else _evaluation_as_json(side, side.evaluation),
    }


def _kernel_as_json(proposal: Proposal) -> dict[str, Any]:
    bundle = proposal.bundle
    return {
        "language": bundle.language,
        "main": bundle.main,
        "entry": bundle.entry,
        "files": dict(bundle.files),
        "recipe": proposal.recipe,
        "values": dict(proposal.values),
    }


def _evaluation_as_json(side: MeasuredKernel, evaluation: Evaluation) -> dict[str, Any]:
    """Without `reviewed` where nobody answered, as it was stored before there were answers."""
    row = {
        "key": evaluation.key,
        "validity": evaluation.validity,
        "timing": evaluation.timing,
        "harness": evaluation.harness,
        "toolchain": evaluation.toolchain,
        "device": evaluation.device,
        "checks": side.checks,
        "signals": side.signals,
        "metrics": dict(evaluation.metrics),
        "speedup": _interval_as_json(evaluation.speedup),
        "cases": [_timing_as_json(timing) for timing in evaluation.timings],
        "flags": side.flags,
        "rejected": any(flag.severity == "reject" for flag in evaluation.flags),
        "message": evaluation.message,
    }
    return {**row, "reviewed": side.reviewed} if side.reviewed else row


def _timing_as_json(timing: CaseTiming) -> dict[str, Any]:
    return {
        "case": timing.case,
        "baseline_us": timing.baseline_us,
        "candidate_us": timing.candidate_us,
        "speedup": _interval_as_json(timing.speedup),
        "state": timing.state,
    }


def _interval_as_json(interval: Interval | None) -> dict[str, Any] | None:
    return None if interval is None else asdict(interval)


# -- the stored form: read


def trajectory_from_json(row: Mapping[str, Any]) -> Trajectory:
    """The trajectory of its stored form. Fields of kernels and evaluations that the form leaves out
    are empty. Raises KeyError or TypeError for anything else."""
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
    child = side_from_json(row["child"])
    if child.proposal is not None:
        proposal = replace(
            child.proposal,
            bundle=replace(child.proposal.bundle, origin=row["origin"]),
            synthesizer=row["synthesizer"],
            plan=row["plan"],
            claimed=tuple(row["claimed"]),
            attributed=tuple(row["attributed"]),
        )
        child = replace(child, proposal=proposal)
    shown = {kind: tuple(ids) for kind, ids in row["shown"].items()}
    return TrajectoryStep(side_from_json(row["parent"]), child, shown, tuple(row["told"]))


def side_from_json(row: Mapping[str, Any]) -> MeasuredKernel:
    """The side that `side_as_json` wrote. Who proposed the kernel is not part of it."""
    kernel, evaluation = row["kernel"], row["measured"]
    language = kernel["language"] if kernel is not None else ""
    return MeasuredKernel(
        row["number"],
        None if kernel is None else _proposal_from_json(kernel),
        None if evaluation is None else _evaluation_from_json(evaluation, language),
        "" if evaluation is None else evaluation.get("reviewed", ""),
    )


def _proposal_from_json(row: Mapping[str, Any]) -> Proposal:
    bundle = Bundle(row["files"], row["main"], row["language"], row["entry"])
    return Proposal(bundle, "", recipe=row["recipe"], values=row["values"])


def _evaluation_from_json(row: Mapping[str, Any], language: str) -> Evaluation:
    """Checks are counted in the stored form, and of several flags the last one ended it."""
    passed, count = row["checks"]
    last = len(row["flags"]) - 1
    return Evaluation(
        key=row["key"],
        problem="",
        candidate="",
        language=language,
        hardware="",
        device=row["device"],
        toolchain=row["toolchain"],
        harness=row["harness"],
        validity=row["validity"],
        timing=row["timing"],
        reached="diagnose",
        message=row["message"],
        checks=tuple(CaseCheck("", number, number < passed) for number in range(count)),
        timings=tuple(_timing_from_json(timing) for timing in row["cases"]),
        speedup=_interval_from_json(row["speedup"]),
        flags=tuple(
            Flag(0, "reject" if row["rejected"] and number == last else "review", message)
            for number, message in enumerate(row["flags"])
        ),
        metrics=row["metrics"],
        verdict=verdict_from_json({"signals": [{"id": signal} for signal in row["signals"]]}),
    )


def _timing_from_json(row: Mapping[str, Any]) -> CaseTiming:
    return CaseTiming(**{**row, "speedup": _interval_from_json(row["speedup"])})


def _interval_from_json(row: Mapping[str, Any] | None) -> Interval | None:
    return None if row is None else Interval(**row)
