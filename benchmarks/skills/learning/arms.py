"""Arms that differ in what they know of a library, replayed over a measured table.

A learned recipe is the template of a curated one with other defaults, so its instances are points
of the curated one's space: the table has them under that name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from benchmarks.search.replay.answers import Answers
from benchmarks.search.replay.arms import (
    MemoryStore,
    Replayed,
    Strict,
    TableBench,
    Target,
    started_anywhere,
)
from benchmarks.search.replay.spaces import Space
from benchmarks.search.replay.table import Table
from kb.catalog.skills import SkillRow
from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import canonical_dtype, canonical_op
from optimizer.evaluation.records import Evaluation
from optimizer.search.goal import Goal, PolicyName
from optimizer.search.knowledge import (
    Knowledge,
    KnowledgeSource,
    Query,
    ShownSkill,
    applicable_moves,
)
from optimizer.search.loop import Search
from optimizer.search.records import Proposal
from optimizer.search.runs.skill_moves import recipe_of, remedies_of, skill_of
from optimizer.search.store import RunRow
from optimizer.search.synthesizers.recipe.recipe import Recipe
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer
from optimizer.search.tree import Tree

POLICY: PolicyName = "best-first"


@dataclass(frozen=True)
class Knows:
    """What a run of an arm knows. curated: recipes' defaults, facts, moves and documents; without
    it a run starts at a point drawn from the seed. skills: of the learned tier. offered: they stand
    before everything else, as in the curator's own trials, and not only where the product's answers
    had them. conditions: they are offered only where their preconditions do not exclude it."""

    name: str
    curated: bool = True
    skills: tuple[SkillRow, ...] = ()
    offered: bool = False
    conditions: bool = True


NOTHING = Knows("nothing", curated=False)
CURATED = Knows("curated")


@dataclass(frozen=True)
class Library:
    """Answers of a knowledge base, as the arm has them. learned: names of every learned skill."""

    source: KnowledgeSource
    arm: Knows
    learned: frozenset[str]

    def consult(self, query: Query) -> Knowledge:
        knowledge = self.source.consult(query)
        mine = frozenset(skill.name for skill in self.arm.skills)
        hidden = self.learned if self.arm.offered else self.learned - mine
        knowledge = replace(
            knowledge,
            skills=tuple(s for s in knowledge.skills if s.name not in hidden),
            moves=tuple(r for r in knowledge.moves if skill_of(r.id) not in hidden),
        )
        return self._with_offers(knowledge, query) if self.arm.offered else knowledge

    def _with_offers(self, knowledge: Knowledge, query: Query) -> Knowledge:
        holding = [
            skill
            for skill in self.arm.skills
            if not self.arm.conditions
            or applies(skill, query.op, query.dtype, query.language, query.signals, query.problem)
        ]
        shown = (ShownSkill(skill.name, skill.description, "", 1.0) for skill in holding)
        moves = tuple(remedy for skill in holding for remedy in remedies_of(skill))
        if self.arm.conditions:
            moves = applicable_moves(moves, query, knowledge.facts)
        return replace(
            knowledge, skills=(*shown, *knowledge.skills), moves=(*moves, *knowledge.moves)
        )

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Nobody to tell."""


def applies(
    skill: SkillRow,
    op: str,
    dtype: str | None,
    language: str | None,
    signals: Collection[str],
    sizes: Mapping[str, Any] | None = None,
) -> bool:
    """Whether none of these excludes it. sizes: quantities of the problem, as far as known."""
    if skill.predicate is None:
        return True
    problem = {
        **(sizes or {}),
        "op": canonical_op(op),
        "dtype": canonical_dtype(dtype) if dtype else None,
        "language": language,
    }
    known = Bindings(signals=set(signals), metrics={}, facts={}, problem=problem)
    return compile_predicate(skill.predicate).evaluate(known).value is not False


@dataclass(frozen=True)
class NamedBench:
    """A table's bench that knows learned recipes under the name of the curated one. base: by the
    learned one's name."""

    inner: TableBench
    base: Mapping[str, str] = field(default_factory=dict)
    at_once: int = 1

    def reference(self) -> Evaluation:
        return self.inner.reference()

    def evaluate(self, proposal: Proposal) -> Evaluation:
        named = proposal.recipe or ""
        return self.inner.evaluate(replace(proposal, recipe=self.base.get(named, named)))


def learned_recipes(space: Space, skills: Sequence[SkillRow]) -> dict[str, tuple[Recipe, str]]:
    """Learned recipes within the space, each with the name of the curated one that it tuned; those
    whose defaults the thinned space lacks are left out."""
    recipes = {}
    for skill in skills:
        recipe = recipe_of(skill)
        for fitting in space.fittings if recipe is not None else ():
            base = fitting.recipe
            if recipe is None or recipe.template != base.template:
                continue
            if all(recipe.defaults.get(p.name) in p.values for p in base.parameters):
                parameters = tuple(
                    replace(p, default=recipe.defaults[p.name]) for p in base.parameters
                )
                tuned = replace(base, name=skill.name, parameters=parameters)
                recipes[skill.name] = (tuned, base.name)
    return recipes


def replay(
    space: Space,
    table: Table,
    arm: Knows,
    seed: int,
    answers: Answers,
    target: Target,
    learned: frozenset[str],
) -> Replayed:
    """One run until the share of the best measured point is reached, or it is cut off."""
    name, most = space.problem.name, min(target.most, len(space.points()))
    language = space.ground.language
    tuned = learned_recipes(space, arm.skills)
    recipes = space.recipes
    if not arm.curated:
        recipes = [started_anywhere(fitting, seed) for fitting in space.fittings]
    hardware = target.hardware if arm.curated else replace(target.hardware, facts={})
    wanted = target.share * table.best(name)
    goal = Goal(
        language=language,
        target=wanted,
        candidates=most,
        knowledge=arm.curated,
        policy=POLICY,
        seed=seed,
    )
    search = Search(
        row=RunRow("run_replay", name, space.problem.sha256, hardware.id, goal),
        store=MemoryStore(),
        bench=NamedBench(TableBench(table, name), {k: base for k, (_, base) in tuned.items()}),
        synthesizers=[
            RecipeSynthesizer([*recipes, *(recipe for recipe, _ in tuned.values())], [language])
        ],
        knowledge=Library(answers, arm, learned),
        problem=space.view,
        hardware=hardware,
        listener=Strict(),
    )
    ended = search.run()
    best = search.tree.best
    reached = best is not None and best.merit >= wanted
    candidates = len(search.tree) - 1 if reached else most
    stood = standings(search.tree, table.best(name))
    return Replayed(name, arm.name, POLICY, seed, candidates, reached, ended.ended, stood)


def standings(tree: Tree, best: float) -> tuple[float, ...]:
    """Before the first candidate and after each, as a share of `best`; the reference counts."""
    merits = (node.merit if node.correct else 0.0 for node in tree.nodes[1:])
    return tuple(merit / best for merit in accumulate(merits, max, initial=1.0))
