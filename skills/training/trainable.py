"""What may be trained on, under which licence it stands, and why the rest may not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kb.errors import NotFound
from optimizer.evaluation.problem.load import SHIPPED, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.llm.settings import Redaction
from retrieval.knowledge_base import KnowledgeBase
from skills.skill_library import SkillLibrary
from skills.training.samples import Licences, TrainingSample
from skills.training.shown_knowledge import SHIPPED as SHIPPED_SKILL

_SPDX = re.compile(
    r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9][A-Za-z0-9 .()+-]*?)[ \t*/>-]*$", re.M
)


@dataclass(frozen=True)
class TrainableSamples:
    """What may be trained on. `left_out` counts the other samples by reason; each counts under its
    first one."""

    samples: tuple[TrainingSample, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)


def trainable(samples: Sequence[TrainingSample]) -> TrainableSamples:
    """The samples that may be trained on, in their order. Of several with the same bundle for the
    same problem and hardware the first is kept."""
    redaction = Redaction()
    left_out = Counter[str]()
    seen: set[tuple[str, str, str]] = set()
    kept = []
    for sample in samples:
        bundle = (sample.problem_sha256, sample.hardware, sample.bundle_sha256)
        reason = refusal(sample, redaction)
        if not reason and bundle in seen:
            reason = "the same bundle as another"
        if reason:
            left_out[reason] += 1
            continue
        seen.add(bundle)
        kept.append(sample)
    return TrainableSamples(tuple(kept), left_out)


def refusal(sample: TrainingSample, redaction: Redaction) -> str:
    """Why it may not be trained on; empty where it may."""
    if sample.reward.validity == "rejected":
        return "rejected for integrity"
    if sample.reward.flags:
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
    """Whether a configured secret, or a text in the form of a key, is in the sample."""
    texts = (sample.prompt.system, sample.prompt.user, sample.completion, str(sample.state))
    return any(redaction.error(text) != text for text in texts)


def stated_licence(text: str) -> str | None:
    """What an SPDX line of a source says."""
    line = _SPDX.search(text)
    return line[1].strip() if line is not None else None


OWN = "Apache-2.0"  # of this repository: shipped problems, built-in recipes


class LicenceBook:
    """Under which licence candidates and problems stand. `accepted` names models whose terms let
    their answers be trained on."""

    def __init__(self, base: KnowledgeBase, accepted: tuple[str, ...]) -> None:
        self._base = base
        self._accepted = frozenset(accepted)
        self._shipped = {load_problem(SHIPPED / name).sha256 for name in shipped_problems()}

    def of(self, problem: Problem, proposal: Proposal, stated: str | None) -> Licences:
        """The licences of a candidate and its problem, None where not known. `stated` is what the
        sender of an external trajectory stated; None for a run of this product."""
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
        try:
            skill = SkillLibrary(self._base.catalog).show(name or "")
        except NotFound:
            return None
        if skill.origin == SHIPPED_SKILL:
            return OWN
        licence = skill.front_matter.get("license")
        return licence if isinstance(licence, str) else None
