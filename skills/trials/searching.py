"""One side of a trial: a search with a skill or without it, and its kernels measured anew."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kb.catalog.skills import SkillRow
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.evaluation.timing.statistics import combined
from optimizer.search.bench.local import LocalBench, problem_view
from optimizer.search.goal import Goal
from optimizer.search.knowledge import (
    Knowledge,
    KnowledgeSource,
    Query,
    ShownSkill,
    applicable_moves,
)
from optimizer.search.loop import Search
from optimizer.search.records import Node, Proposal
from optimizer.search.runs.skill_moves import remedies_of, skill_of
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import Asking
from optimizer.search.synthesizers.recipe.recipe import Recipe
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer
from optimizer.search.tree import Tree
from skills.trials.held_out import HeldOutCase
from skills.trials.trial import Arm, TrialContext

ROUNDS = 2  # of fresh processes for each winner


@dataclass(frozen=True)
class Searches:
    """Searches of one budget, counted in candidates, in one context."""

    context: TrialContext
    budget: int

    def languages(self, skill: SkillRow) -> list[str]:
        """Languages of the hardware that the skill is about."""
        about = skill.scopes.languages
        return [n for n in self.context.hardware.languages if not about or n in about]

    def run(
        self,
        bench: LocalBench,
        target: HeldOutCase,
        seed: int,
        languages: Sequence[str],
        skill: SkillRow | None = None,
        recipe: Recipe | None = None,
        without: str = "",
    ) -> Tree:
        """The tree of one search, with a skill and its recipe or `without` the skill of a name."""
        recipes = [other for other in self.context.recipes if other.name != without]
        if recipe is not None:
            recipes = [recipe, *(other for other in recipes if other.name != recipe.name)]
        knowledge = WithSkill(self.context.knowledge, skill, without)
        with tempfile.TemporaryDirectory(prefix="kernlore-ablation-") as folder:
            run = RunRow(
                id="arm",
                problem=str(target.problem.path),
                problem_sha256=target.problem.sha256,
                hardware=self.context.hardware.id,
                goal=Goal(candidates=self.budget, seed=seed),
            )
            store = FileStore(Path(folder))
            store.begin(run)
            search = Search(
                row=run,
                store=store,
                bench=bench,
                synthesizers=[RecipeSynthesizer(recipes, languages)],
                knowledge=knowledge,
                problem=problem_view(target.problem, bench.device),
                hardware=self.context.hardware,
                listener=_Silent(),
            )
            search.run()
            return search.tree


class WithSkill:
    """Knowledge with one skill among it, or without one of that name."""

    def __init__(self, source: KnowledgeSource, skill: SkillRow | None, without: str) -> None:
        self._source = source
        self._skill = skill
        self._without = without or (skill.name if skill is not None else "")

    def consult(self, query: Query) -> Knowledge:
        """What the source answers, with the skill in it or without it. It is consulted as if nobody
        ran: nothing is withheld by chance, and both arms see the same."""
        knowledge = self._source.consult(replace(query, run_id=""))
        skills = tuple(s for s in knowledge.skills if s.name != self._without)
        remedies = tuple(r for r in knowledge.moves if skill_of(r.id) != self._without)
        if self._skill is None:
            return replace(knowledge, skills=skills, moves=remedies)
        own = ShownSkill(self._skill.name, self._skill.description, self._skill.body, 1.0)
        moves = applicable_moves(remedies_of(self._skill), query, knowledge.facts)
        return replace(knowledge, skills=(own, *skills), moves=(*moves, *remedies))

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        """Trials say nothing of how useful an answer was to a run."""


def confirmed(bench: LocalBench, proposal: Proposal) -> list[Evaluation]:
    """Measure a proposal anew, in ROUNDS of fresh processes."""
    return [bench.confirm(proposal, held_out=False) for _ in range(ROUNDS)]


def figure_of(evaluations: Sequence[Evaluation]) -> Interval | None:
    """The reference over a kernel, from several evaluations of it; None where none has a figure."""
    intervals = [
        (evaluation.speedup, 1.0) for evaluation in evaluations if evaluation.speedup is not None
    ]
    return combined(intervals) if intervals else None


def arm_of(tree: Tree, best: Node | None) -> Arm:
    """One side of a trial: its tree, and the best node of it."""
    return Arm(
        tried=len(tree) - 1,
        correct=sum(node.correct for node in tree.nodes[1:]),
        best=best.speedup if best is not None else None,
        best_key=best.evaluation.key if best is not None and best.evaluation is not None else "",
    )


class _Silent:
    def node(self, node: Node, tree: Tree) -> None:
        """A trial is reported as a whole."""

    def asking(self, asking: Asking) -> None: ...

    def log(self, message: str) -> None:
        """A trial is reported as a whole."""
