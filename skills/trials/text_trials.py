"""Trials of skills that are text: a model writes kernels with the skill in its request, without it,
and with a placebo, another skill of the language that is about other operators.

The drafts are written first, each from a request of its arm alone and independently of the other
drafts. They are evaluated like candidates of recipes (`RecipeTrials`), here or in a packed session.
The interval of a gain is that of the timing; drafts of one request differ by more, which shows in
the figure of the placebo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from kb.catalog.skills.reading import SkillRow, list_skills
from kb.errors import KernloreError, Unavailable
from kb.ids import new_id
from kb.predicates import Bindings, compile_predicate
from kb.problem_terms import canonical_dtype, canonical_op, op_family
from kb.scope import ALL_ACCESS
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.search.bench.local import problem_view
from optimizer.search.goal import Goal
from optimizer.search.knowledge import KnowledgeSource
from optimizer.search.loop import Listener
from optimizer.search.portable.skill_trial import PlannedTrial, only_case
from optimizer.search.records import Node
from optimizer.search.runs.knowledge import ServiceKnowledge
from optimizer.search.runs.sessions import draft_candidates
from optimizer.search.store import RunRow
from optimizer.search.synthesizers.llm.settings import ModelOptions
from retrieval.knowledge_base import KnowledgeBase
from skills.trials.verification import WithSkill

INSIDE = 2  # cases of each skill
UNUSABLE = (KernloreError, RuntimeError, ValueError, IndexError, AssertionError, TypeError)


@dataclass(frozen=True)
class TextTrials:
    """Chooses cases for text skills and asks models for their drafts.

    `target` is that of a session, `budget` the drafts of each arm, `at_once` the requests that
    models get concurrently. `own_problems` are those for a skill of a name alone.
    """

    base: KnowledgeBase
    problems: Sequence[Problem]
    own_problems: Callable[[str], Sequence[Problem]]
    target: Mapping[str, Any]
    models: ModelOptions
    budget: int
    listener: Listener
    at_once: int = 8

    def plan(self, skill: SkillRow) -> list[PlannedTrial]:
        """The cases of a skill without drafts: inside its preconditions, and one outside if there
        is any."""
        inside, outside = list[PlannedTrial](), list[PlannedTrial]()
        for problem in self._fitting(skill):
            case = next(
                (c for c in problem.searched if c.timed and c.fits(self.target["device"])), None
            )
            if case is None or (excluded := self._excluded(skill, problem, case)) is None:
                continue
            place = outside if excluded else inside
            if len(place) < (1 if excluded else INSIDE):
                reason = f"its precondition excludes it: {skill.predicate}" if excluded else ""
                place.append(
                    PlannedTrial(
                        skill.name,
                        only_case(problem, case),
                        case,
                        "outside" if excluded else "inside",
                        "another problem",
                        len(place) + (INSIDE if excluded else 0),
                        reason,
                    )
                )
        return [*inside, *outside]

    def _fitting(self, skill: SkillRow) -> list[Problem]:
        """Problems of the skill's own folder, then those of its operators."""
        families = {op_family(op) for op in skill.scopes.ops}
        others = [p for p in self.problems if not families or op_family(p.op) in families]
        return [*self.own_problems(skill.name), *others]

    def _excluded(self, skill: SkillRow, problem: Problem, case: Case) -> bool | None:
        """Whether the precondition excludes a case; unknown terms, such as signals, exclude
        nothing. None for a case that cannot be opened."""
        try:
            view = problem_view(only_case(problem, case), self.target["device"], remote=True)
        except UNUSABLE:  # the reference is foreign code
            return None
        main = view.main
        terms: dict[str, float | str | None] = {
            **main.quantities,
            "op": canonical_op(problem.op),
            "dtype": canonical_dtype(main.dtype) if main.dtype else None,
            "language": self._language(skill),
        }
        known = Bindings(facts=dict(self.target["facts"]), problem=terms)
        predicate = skill.predicate
        return bool(predicate) and compile_predicate(predicate).evaluate(known).value is False

    def _language(self, skill: SkillRow) -> str:
        own = skill.scopes.languages
        offered: Mapping[str, str] = self.target["languages"]
        return next(name for name in offered if not own or name in own)

    # -- drafts

    def drafted(self, planned: Sequence[PlannedTrial], skill: SkillRow) -> list[PlannedTrial]:
        """The trials with the drafts of their arms; those outside are not drafted, and one without
        a draft with or without the skill is left out. Raises Unavailable if no draft is left."""
        chances = [
            (trial, arm, source)
            for trial in planned
            if trial.place != "outside"
            for arm, source in self._arms(skill, trial).items()
            for _ in range(self.budget)
        ]
        with ThreadPoolExecutor(self.at_once) as pool:
            nodes = list(pool.map(lambda chance: self._draft(skill, *chance), chances))
        result, why = list[PlannedTrial](), ""
        for trial in planned:
            drafts: dict[str, list[Node]] = {}
            for (of, arm, _), (node, reason) in zip(chances, nodes, strict=True):
                if of is trial:
                    drafts.setdefault(arm, []).extend([node] if node is not None else [])
                    why = why or reason
            if trial.place == "outside" or (drafts.get("with") and drafts.get("without")):
                result.append(replace(trial, drafts=drafts, model=self.models.models))
        if chances and not any(trial.drafts for trial in result):
            raise Unavailable(
                f"no model wrote kernels for {skill.name}: {why}",
                hint="Check --models and --api-base.",
            )
        return result

    def _arms(self, skill: SkillRow, trial: PlannedTrial) -> dict[str, KnowledgeSource]:
        knowledge = ServiceKnowledge(self.base)
        arms: dict[str, KnowledgeSource] = {
            "with": WithSkill(knowledge, skill, skill.name),
            "without": WithSkill(knowledge, None, skill.name),
        }
        if (placebo := self._placebo(skill, trial.problem)) is not None:
            arms["placebo"] = WithSkill(knowledge, placebo, skill.name)
        return arms

    def _placebo(self, skill: SkillRow, problem: Problem) -> SkillRow | None:
        """The text skill nearest in length that is about other operators, in the same language if
        there is any."""
        families = {op_family(op) for op in (*skill.scopes.ops, problem.op)}
        with self.base.catalog.read() as connection:
            rows = list_skills(connection, states=("active",), access_scope=ALL_ACCESS)
        others = [
            row
            for row in rows
            if row.recipe is None
            and row.scopes.ops
            and families.isdisjoint(op_family(op) for op in row.scopes.ops)
        ]
        language = self._language(skill)
        return min(
            others,
            key=lambda row: (
                language not in row.scopes.languages,
                abs(len(row.body) - len(skill.body)),
                row.name,
            ),
            default=None,
        )

    def _draft(
        self, skill: SkillRow, trial: PlannedTrial, arm: str, source: KnowledgeSource
    ) -> tuple[Node | None, str]:
        run = RunRow(
            id=new_id("run"),
            problem=str(trial.problem.path),
            problem_sha256=trial.problem.sha256,
            hardware=self.target["hardware"],
            goal=Goal(language=self._language(skill), seed=trial.seed, synthesizers=("llm",)),
        )
        try:
            nodes, why = draft_candidates(
                self.base, run, trial.problem, self.target, self.models, 1, self.listener, source
            )
        except KernloreError as error:
            return None, f"{error.message}. {error.hint}"
        return (nodes[-1], "") if len(nodes) > 1 else (None, f"{arm}: {why}")
