"""Knowledge of this process for a search: answers of the retriever, and the moves and recipes of
skills. Imports nothing that runs kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kb.answers import Answer
from kb.answers import Excerpt as AnsweredExcerpt
from kb.answers import Move as AnsweredMove
from kb.catalog.skills.evidence import AVOID
from kb.catalog.skills.reading import SkillHead, SkillRow, get_skill, list_skills
from kb.catalog.skills.shipped import effect_of, stored_trials
from kb.hardware.table_reader import Problems
from kb.problem_terms import changes_named
from kb.scope import ALL_ACCESS
from optimizer.search.knowledge import (
    ShownExcerpt,
    ShownKnowledge,
    ShownMove,
    ShownSkill,
    applicable_moves,
)
from optimizer.search.records import Node, Value
from optimizer.search.synthesizers.recipe.recipe import Recipe, parse_recipe
from optimizer.search.synthesizers.recipe.synthesizer import DIRECTIONS, Knob, avoiding
from retrieval.knowledge_base import KnowledgeBase
from retrieval.request import RetrieveRequest

USABLE = ("active",)
MARK = "#"  # between a skill's name and the number of its move


@dataclass(frozen=True)
class RecipeSource:
    """A recipe of the library: its JSON, its template by path, and the signals of its skill."""

    body: Mapping[str, Any]
    files: Mapping[str, str]
    signals: tuple[str, ...] = ()

    @property
    def defaults(self) -> dict[str, Value]:
        return {p["name"]: p.get("default", p["values"][0]) for p in self.body["parameters"]}


class ServiceKnowledge:
    """Knowledge from the retriever of this process. A run sees the version of a skill that it was
    first shown."""

    def __init__(self, base: KnowledgeBase) -> None:
        self._base = base
        self._skills: dict[str, SkillRow] = {}  # by name

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        """The whole answer."""
        return self._knowledge(self._base.retriever.retrieve(request), request)

    def remedies(self, request: RetrieveRequest) -> ShownKnowledge:
        """Moves, skills and facts without excerpts, in a tenth of the time of `consult`."""
        return self._knowledge(self._base.retriever.moves_and_skills(request), request)

    def _knowledge(self, answer: Answer, request: RetrieveRequest) -> ShownKnowledge:
        """The answer as the search reads it. Moves of skills that were measured on this chip come
        before the general moves of the answer, those of other skills after them."""
        assert request.hardware is not None
        known = self._base.registry.effective_facts(request.hardware)
        facts = {key: fact.value for key, fact in known.items()}
        measured, others = list[ShownMove](), list[ShownMove]()
        for skill in answer.skills:
            moves = others if skill.evidence is None else measured
            moves += applicable_moves(remedies_of(self._skill(skill.name)), request, facts)
        return ShownKnowledge(
            retrieval_id=answer.retrieval_id,
            excerpts=tuple(map(excerpt_of, answer.excerpts)),
            moves=(*measured, *map(_move, answer.moves), *others),
            skills=tuple(
                ShownSkill(
                    skill.name,
                    skill.summary,
                    self._skill(skill.name).body,
                    float(skill.score.get("total", 0.0)),
                )
                for skill in answer.skills
            ),
            facts=facts,
            units={key: fact.unit for key, fact in known.items()},
            target=answer.context[: answer.context_stable],
            situation=answer.context[answer.context_stable : answer.context_actions].strip(),
            parts=tuple(part.id for part in answer.parts),
        )

    def _skill(self, name: str) -> SkillRow:
        if name not in self._skills:
            with self._base.catalog.read() as connection:
                self._skills[name] = get_skill(connection, name, ALL_ACCESS)
        return self._skills[name]

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        """Report the outcome of an answer; ids that it did not show are left out."""
        shown = {*node.shown.excerpts, *node.shown.moves, *node.shown.skills}
        speedup = node.speedup
        # A skill's move is credited to the skill, since the answer shows the skill.
        named = (skill_of(name) if skill_of(name) in node.shown.skills else name for name in used)
        credited = list(dict.fromkeys(name for name in named if name in shown))
        self._base.retriever.journal.report(
            retrieval_id,
            used=credited,
            correct=node.correct if node.evaluation is not None else None,
            speedup=speedup.value if speedup is not None and speedup.value > 0 else None,
        )
        self._base.report_skill_use(credited)


def excerpt_of(answered: AnsweredExcerpt) -> ShownExcerpt:
    """An excerpt of an answer as proposers read it."""
    title = f"{answered.document.title}: {answered.section}"
    return ShownExcerpt(answered.id, title, answered.text, answered.citation)


def _move(move: AnsweredMove) -> ShownMove:
    limit = move.limit or {}
    value = limit.get("value")
    return ShownMove(
        move.id,
        move.name,
        dict(move.change),
        float(value) if isinstance(value, int | float) else None,
        limit.get("fact"),
        move.why,
        move.applies,
        move.when,
        limit.get("unit"),
    )


def library_recipes(base: KnowledgeBase, hardware: str | None = None) -> list[Recipe]:
    """The recipes of active skills, without those that did harm in the shipped trials on this
    hardware and helped in none. Raises InvalidKnowledge."""
    sources = library_sources(base, hardware).items()
    return [_parsed(name, source.body, source.files) for name, source in sources]


def _parsed(name: str, body: Mapping[str, Any], files: Mapping[str, str]) -> Recipe:
    problems = Problems(f"skill {name}")
    recipe = parse_recipe(name, body, files, problems)
    problems.raise_if_any()
    assert recipe is not None
    return recipe


def library_sources(base: KnowledgeBase, hardware: str | None = None) -> dict[str, RecipeSource]:
    """Stored recipes of active skills, by name, without those that did harm in the shipped trials
    on this hardware and helped in none."""
    with base.catalog.read() as connection:
        skills = list_skills(connection, states=USABLE, access_scope=ALL_ACCESS)
    return {
        row.name: RecipeSource(row.recipe, row.metadata.get("files", {}), row.scopes.signals)
        for row in skills
        if row.recipe is not None and not (hardware is not None and _harms(row, hardware))
    }


def _harms(skill: SkillRow, hardware: str) -> bool:
    trials = [t for t in stored_trials(skill.metadata) if t.hardware == hardware]
    return effect_of(trials).state == "harms" and not any(trial.helps for trial in trials)


# -- moves of skills


def remedies_of(skill: SkillRow) -> tuple[ShownMove, ...]:
    """The moves of a skill; `skill_of` reads its name from their ids. A skill that warns of a
    transformation has one move, which a proposer puts last."""
    if skill.polarity == AVOID:
        warning = warning_of(skill, f"{skill.name}{MARK}0")
        return () if warning is None else (warning,)
    return tuple(
        ShownMove(
            id=f"{skill.name}{MARK}{number}",
            name=str(move.get("id") or skill.name),
            change=dict(move["change"]),
            limit=None,
            limit_name=None,
            why=str(move.get("why", "")),
            applies=None,
            when=str(move.get("when", "")),
        )
        for number, move in enumerate(skill.moves)
    )


def skill_of(identity: str) -> str:
    """The name of the skill in the id of one of its moves; any other id unchanged."""
    return identity.partition(MARK)[0]


def recipe_of(skill: SkillRow) -> Recipe | None:
    """The recipe of a skill, if it has one. Raises InvalidKnowledge."""
    if skill.recipe is None:
        return None
    return _parsed(skill.name, skill.recipe, skill.metadata.get("files", {}))


def knobs_of(skill: SkillHead) -> tuple[Knob, ...]:
    """The changes that a warning names; empty if the skill does not warn or a change has no
    direction."""
    changes = changes_named(skill.transformation) if skill.polarity == AVOID else ()
    if any(direction not in DIRECTIONS for _, direction in changes):
        return ()
    return tuple(Knob(role, direction) for role, direction in changes)


def warning_of(skill: SkillRow, identity: str) -> ShownMove | None:
    """A skill's warning as a move; None if the skill names no knob."""
    knobs = knobs_of(skill)
    if not knobs:
        return None
    return ShownMove(
        id=identity,
        name=f"avoid-{skill.transformation}",
        change=avoiding(knobs),
        limit=None,
        limit_name=None,
        why=skill.description,
        applies=None,
        when=skill.predicate or "",
    )
