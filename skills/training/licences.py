"""Under which licence a candidate and its problem stand, as far as that is known here."""

from __future__ import annotations

from kb.errors import NotFound
from optimizer.evaluation.problem.load import SHIPPED, load_problem, shipped_problems
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.records import Proposal
from retrieval.knowledge_base import KnowledgeBase
from skills.skill_library import SkillLibrary
from skills.training.samples import Licences
from skills.training.shown_knowledge import SHIPPED as SHIPPED_SKILL
from skills.training.trainable import stated_licence

OWN = "Apache-2.0"  # of this repository: shipped problems, built-in recipes


class LicenceBook:
    """accepted: models whose terms let their answers be trained on."""

    def __init__(self, base: KnowledgeBase, accepted: tuple[str, ...]) -> None:
        self._base = base
        self._accepted = frozenset(accepted)
        self._shipped = {load_problem(SHIPPED / name).sha256 for name in shipped_problems()}

    def of(self, problem: Problem, proposal: Proposal, stated: str | None) -> Licences:
        """stated: by who told the trajectory; nothing for a run of this product."""
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
            found = SkillLibrary(self._base.catalog).show(name or "")
        except NotFound:
            return None
        if found.origin == SHIPPED_SKILL:
            return OWN
        licence = found.front_matter.get("license")
        return licence if isinstance(licence, str) else None
