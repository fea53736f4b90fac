"""One candidate as a training sample: its prompt, its answer and its reward; and which samples may
be used for training. Knows no file format and no trainer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kb.catalog.skills.reading import find_skill
from kb.scope import ALL_ACCESS
from optimizer.evaluation.problem.load import SHIPPED, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.evaluation.timing.statistics import independent_ratio
from optimizer.search.records import REFERENCE, Node, Proposal
from optimizer.search.synthesizers.llm.settings import Redaction
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase

PromptOrigin = Literal["stored", "rendered"]
FAILED = ("incorrect", "unsupported", "crashed", "timed_out", "not_compiled", "rejected")


@dataclass(frozen=True)
class TrainingPrompt:
    """Two messages. Origin `stored`: they were sent to a model; `rendered`: they would have been
    sent to one from the same state. `left_out` holds ids whose texts are left out."""

    system: str
    user: str
    origin: PromptOrigin
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reward:
    """The result of a candidate. `value` is the lower bound of the speed-up over the reference, 0
    for a failed candidate, None if unknown. `over_parent` is the speed-up over its parent, from two
    figures that were each taken against the reference. `cases` are those of the figures. `flags`
    are integrity findings; if `held`, a person has to decide about them."""

    value: float | None
    validity: str
    timing: str
    checks: tuple[int, int]
    speedup: Interval | None
    over_parent: Interval | None
    cases: tuple[str, ...]
    flags: tuple[str, ...]
    held: bool
    harness: str
    toolchain: str
    device: str
    evaluation: str


@dataclass(frozen=True)
class Licences:
    """SPDX ids, or `model:NAME` for the answer of a model whose terms were accepted; None if
    unknown."""

    problem: str | None
    source: str | None


@dataclass(frozen=True)
class TrainingSample:
    """One candidate as a training sample. `trajectory` is the id of its search. `state` holds what
    its proposer was shown, and the parent's results."""

    trajectory: str
    node: int
    parent: int
    external: bool
    proposal: Proposal
    problem: Problem
    problem_toml: str | None
    hardware: str
    prompt: TrainingPrompt
    state: Mapping[str, Any]
    completion: str
    reward: Reward
    licences: Licences

    @property
    def id(self) -> str:
        return f"{self.trajectory}/{self.node}"

    def provenance(self) -> dict[str, Any]:
        return {
            "trajectory": self.trajectory,
            "node": self.node,
            "parent": self.parent,
            "told": self.external,
            "origin": self.proposal.origin,
            "synthesizer": self.proposal.synthesizer,
            "model": self.proposal.model,
            "problem_sha256": self.problem.sha256,
            "bundle_sha256": self.proposal.bundle.sha256,
            "licences": asdict(self.licences),
            "left_out": list(self.prompt.left_out),
            **asdict(self.reward),
        }


def reward_of(tree: Tree, node: Node) -> Reward | None:
    """The reward of a node; None if the harness has no result for the kernel."""
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
        held=any(flag.severity == "review" for flag in evaluation.flags),
        harness=evaluation.harness,
        toolchain=evaluation.toolchain,
        device=evaluation.device,
        evaluation=evaluation.key,
    )


def timed_cases(evaluation: Evaluation) -> tuple[str, ...]:
    return tuple(sorted(timing.case for timing in evaluation.timings))


def state_of(tree: Tree, node: Node) -> dict[str, Any]:
    """The ids that the proposer was shown, and the parent's results."""
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
    """The speed-up over the parent; None without figures of the same cases and clock."""
    own = evaluation.speedup if evaluation.correct else None
    if (parent := tree[node.parent or REFERENCE]).number == REFERENCE:
        return own
    other = parent.evaluation
    if other is None or own is None or other.speedup is None or not other.correct:
        return None
    comparable = (timed_cases(evaluation), evaluation.device, evaluation.timing)
    same = comparable == (timed_cases(other), other.device, other.timing)
    return independent_ratio(own, other.speedup) if same else None


# -- which samples may be used for training

SHIPPED_SKILL = "shipped"  # origin of a skill

_SPDX = re.compile(
    r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9][A-Za-z0-9 .()+-]*?)[ \t*/>-]*$", re.M
)


def trainable(samples: Sequence[TrainingSample]) -> tuple[list[TrainingSample], Counter[str]]:
    """The samples that may be used for training, and a count of the others by their first reason.
    Of equal bundles for the same problem and hardware the first is taken."""
    redaction = Redaction()
    left_out = Counter[str]()
    usable: dict[tuple[str, str, str], TrainingSample] = {}
    for sample in samples:
        key = (sample.problem.sha256, sample.hardware, sample.proposal.bundle.sha256)
        reason = refusal(sample, redaction)
        if not reason and key in usable:
            reason = "the same bundle as another"
        if reason:
            left_out[reason] += 1
        else:
            usable[key] = sample
    return list(usable.values()), left_out


def refusal(sample: TrainingSample, redaction: Redaction) -> str:
    """The reason why a sample may not be used for training, or ""."""
    if sample.reward.validity == "rejected":
        return "rejected for integrity"
    if sample.reward.held:
        return "held for a person by an integrity flag"
    if sample.reward.value is None:
        return "without a known reward"
    if sample.licences.problem is None:
        return "of a problem without a known licence"
    if sample.licences.source is None:
        return "of a source without a known licence"
    if holds_secret(sample, redaction):
        return "with what looks like a secret"
    return ""


def holds_secret(sample: TrainingSample, redaction: Redaction) -> bool:
    """Whether the sample has a configured secret, or a text that looks like a key."""
    texts = (sample.prompt.system, sample.prompt.user, sample.completion, str(sample.state))
    return any(redaction.error(text) != text for text in texts)


def stated_licence(text: str) -> str | None:
    line = _SPDX.search(text)
    return line[1].strip() if line is not None else None


OWN = "Apache-2.0"  # shipped problems, built-in recipes


class LicenceBook:
    """The licences of candidates and problems. `accepted` names models whose terms allow training
    on their answers."""

    def __init__(self, base: KnowledgeBase, accepted: tuple[str, ...]) -> None:
        self._base = base
        self._accepted = frozenset(accepted)
        self._shipped = {load_problem(SHIPPED / name).sha256 for name in shipped_problems()}

    def of(self, problem: Problem, proposal: Proposal, stated: str | None) -> Licences:
        """The licences of a candidate and its problem. `stated` is the one that the sender of an
        external trajectory stated; None for a run."""
        about = OWN if problem.sha256 in self._shipped else None
        about = about or stated_licence(problem.source) or stated
        return Licences(about, self._source(proposal, about, stated))

    def _source(self, proposal: Proposal, problem: str | None, stated: str | None) -> str | None:
        if proposal.origin in ("config", "rewrite"):  # made from the problem's own text
            return problem
        if proposal.origin == "recipe":
            return self._recipe(proposal.recipe)
        if proposal.origin == "llm":
            return f"model:{proposal.model}" if proposal.model in self._accepted else None
        return stated_licence(proposal.bundle.source) or stated

    def _recipe(self, name: str | None) -> str | None:
        with self._base.catalog.read() as connection:
            skill = find_skill(connection, name or "", ALL_ACCESS)
        if skill is None:
            return None
        return OWN if skill.origin == SHIPPED_SKILL else skill.license
