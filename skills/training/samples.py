"""One candidate as a training sample: what was shown, what was proposed, what came of it.

Knows no file format and no trainer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from optimizer.evaluation.records import Evaluation, Interval
from optimizer.evaluation.timing.statistics import independent_ratio
from optimizer.search.records import REFERENCE, Node
from optimizer.search.tree import Tree

PromptOrigin = Literal["stored", "rendered"]
FAILED = ("incorrect", "crashed", "timed_out", "not_compiled", "rejected")


@dataclass(frozen=True)
class TrainingPrompt:
    """Two messages. Origin `stored`: a model was sent these; `rendered`: what a model would have
    been sent from the same state. `left_out` holds ids whose texts are not in it."""

    system: str
    user: str
    origin: PromptOrigin
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reward:
    """What came of a candidate. `value` is the lower bound of the speed-up over the reference; 0
    for what failed; None where nothing is known, which is not 0. `over_parent` is the speed-up
    against the candidate that it changes, from figures of sessions of their own. `cases` are those
    that the figure is over."""

    value: float | None
    validity: str
    timing: str
    checks: tuple[int, int]
    speedup: Interval | None
    over_parent: Interval | None
    cases: tuple[str, ...]
    flags: tuple[str, ...]
    harness: str
    toolchain: str
    device: str
    evaluation: str


@dataclass(frozen=True)
class Licences:
    """SPDX ids, or `model:NAME` for what a model wrote whose terms were accepted; None where it is
    not known."""

    problem: str | None
    source: str | None


@dataclass(frozen=True)
class TrainingSample:
    """One candidate as a training sample. `trajectory` is the id of the run or the external
    trajectory, `origin` that of the candidate, `problem` the problem's name. `state` holds what was
    shown and what was known of the parent."""

    trajectory: str
    node: int
    parent: int
    external: bool
    origin: str
    synthesizer: str
    model: str | None
    problem: str
    problem_sha256: str
    problem_source: str
    problem_toml: str | None
    hardware: str
    language: str
    bundle_sha256: str
    prompt: TrainingPrompt
    state: Mapping[str, Any]
    completion: str
    reward: Reward
    licences: Licences

    @property
    def id(self) -> str:
        """Of the trajectory and the node."""
        return f"{self.trajectory}/{self.node}"

    def provenance(self) -> dict[str, Any]:
        """Where the reward comes from."""
        return {
            "trajectory": self.trajectory,
            "node": self.node,
            "parent": self.parent,
            "told": self.external,
            "origin": self.origin,
            "synthesizer": self.synthesizer,
            "model": self.model,
            "problem_sha256": self.problem_sha256,
            "bundle_sha256": self.bundle_sha256,
            "licences": asdict(self.licences),
            "left_out": list(self.prompt.left_out),
            **asdict(self.reward),
        }


def reward_of(tree: Tree, node: Node) -> Reward | None:
    """The reward of a node; None where the harness has no result for the kernel."""
    evaluation = node.evaluation
    if node.state not in ("evaluated", "unmeasured") or evaluation is None:
        return None
    known = evaluation.speedup if evaluation.correct else None
    value = 0.0 if evaluation.validity in FAILED else (known.low if known is not None else None)
    return Reward(
        value=value,
        validity=evaluation.validity,
        timing=evaluation.timing,
        checks=(sum(check.ok for check in evaluation.checks), len(evaluation.checks)),
        speedup=known,
        over_parent=_over_parent(tree, node, evaluation),
        cases=timed_cases(evaluation),
        flags=tuple(flag.message for flag in evaluation.flags),
        harness=evaluation.harness,
        toolchain=evaluation.toolchain,
        device=evaluation.device,
        evaluation=evaluation.key,
    )


def timed_cases(evaluation: Evaluation) -> tuple[str, ...]:
    """Names of the cases that were timed, sorted."""
    return tuple(sorted(timing.case for timing in evaluation.timings))


def state_of(tree: Tree, node: Node) -> dict[str, Any]:
    """What was shown, by ids, and what was known of the parent."""
    parent = tree[node.parent or REFERENCE]
    evaluation = parent.evaluation
    bundle = parent.proposal.bundle if parent.proposal is not None else None
    return {
        "shown": asdict(node.shown),
        "parent": {
            "node": parent.number,
            "files": dict(bundle.files) if bundle is not None else {},
            "validity": evaluation.validity if evaluation is not None else None,
            "signals": list(parent.signals),
            "verdict": evaluation.verdict.as_json() if evaluation is not None else {},
            "speedup": asdict(parent.speedup) if parent.speedup is not None else None,
        },
        "inherited": node.inherited,
    }


def _over_parent(tree: Tree, node: Node, evaluation: Evaluation) -> Interval | None:
    """None where the two have no figures of the same cases and clock."""
    parent = tree[node.parent or REFERENCE]
    own = evaluation.speedup
    if parent.number == REFERENCE:
        return own
    other = parent.evaluation
    if other is None or own is None or other.speedup is None:
        return None
    comparable = (timed_cases(evaluation), evaluation.device, evaluation.timing)
    if comparable != (timed_cases(other), other.device, other.timing):
        return None
    return independent_ratio(own, other.speedup)
