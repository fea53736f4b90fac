"""The retriever as the search's source of knowledge, and the library's recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kb.catalog import skills as rows
from kb.hardware.table_reader import Problems
from kb.problem_terms import guide_words
from kb.scope import ALL_ACCESS
from optimizer.search.knowledge import (
    Excerpt,
    Knowledge,
    Move,
    Query,
    ShownSkill,
    applicable_moves,
)
from optimizer.search.records import Node, Value
from optimizer.search.runs.skill_moves import remedies_of, skill_of
from optimizer.search.synthesizers.recipe.recipe import Recipe, parse_recipe
from retrieval.answer import Answer
from retrieval.answer import Move as AnsweredMove
from retrieval.knowledge_base import KnowledgeBase
from retrieval.request import RetrieveRequest

EXCERPTS = 8
USABLE = ("active",)


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
    """Knowledge from the retriever of this process. A skill keeps the text that it was first shown
    with, so that a run sees one version of it.
    """

    def __init__(self, base: KnowledgeBase) -> None:
        self._base = base
        self._skills: dict[str, rows.SkillRow] = {}  # by name

    def consult(self, query: Query) -> Knowledge:
        """What is known about a candidate; without a signal or a log, about its operator."""
        return self._knowledge(self._base.retriever.retrieve(_request(query)), query)

    def remedies(self, query: Query) -> Knowledge:
        """Moves, skills and facts without excerpts, in a tenth of the time of `consult`."""
        return self._knowledge(self._base.retriever.moves_and_skills(_request(query)), query)

    def _knowledge(self, answer: Answer, query: Query) -> Knowledge:
        """What was measured here says more than a move that holds in general, and comes first."""
        facts = self._base.registry.values(query.hardware)
        measured, others = list[Move](), list[Move]()
        for skill in answer.skills:
            place = others if skill.evidence is None else measured
            place += applicable_moves(remedies_of(self._skill(skill.name)), query, facts)
        return Knowledge(
            retrieval_id=answer.retrieval_id,
            excerpts=tuple(
                Excerpt(e.id, f"{e.document.title}: {e.section}", e.text, e.citation)
                for e in answer.excerpts
            ),
            moves=(*measured, *(_move(move) for move in answer.moves), *others),
            skills=tuple(
                ShownSkill(
                    skill.name,
                    skill.summary,
                    self._skill(skill.name).body,
                    float(skill.score.get("total", 0.0)),
                )
                for skill in answer.skills
            ),
            facts=dict(facts),
            target=answer.context[: answer.context_stable],
            situation=answer.context[answer.context_stable : answer.context_actions].strip(),
            parts=tuple(part.id for part in answer.parts),
        )

    def _skill(self, name: str) -> rows.SkillRow:
        if name not in self._skills:
            with self._base.catalog.read() as connection:
                self._skills[name] = rows.get(connection, name, ALL_ACCESS)
        return self._skills[name]

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        """Report the outcome of an answer; only ids that it showed count."""
        shown = {*node.shown.excerpts, *node.shown.moves, *node.shown.skills}
        speedup = node.speedup
        # A skill's move is credited to the skill, which is what the answer showed.
        named = (skill_of(name) if skill_of(name) in node.shown.skills else name for name in used)
        kept = list(dict.fromkeys(name for name in named if name in shown))
        self._base.retriever.report_outcome(
            retrieval_id,
            used=kept,
            correct=node.correct if node.evaluation is not None else None,
            speedup=speedup.value if speedup is not None and speedup.value > 0 else None,
        )
        self._base.report_skill_use(kept)


def _request(query: Query) -> RetrieveRequest:
    return RetrieveRequest(
        signals=query.signals,
        log=query.log or None,
        metrics=query.metrics or None,
        query=None if query.signals or query.log or query.task == "write" else _words(query),
        hardware=query.hardware,
        op=query.op or None,
        language=query.language,
        dtype=query.dtype,
        problem=query.problem or None,
        roles=query.roles,
        task=query.task,
        draft=query.draft or None,
        k=EXCERPTS,
        max_tokens=query.max_tokens,
        run_id=query.run_id or None,
        node_id=str(query.node),
        operators=query.operators,
        dtypes=query.dtypes,
        lacks=query.lacks,
    )


def _words(query: Query) -> str:
    """What to look for where nothing is known to be wrong."""
    return " ".join(filter(None, ("faster", guide_words(query.op), query.language, "kernel")))


def _move(move: AnsweredMove) -> Move:
    limit = move.limit or {}
    value = limit.get("value")
    return Move(
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


def library_recipes(base: KnowledgeBase) -> list[Recipe]:
    """The recipes of active skills. Raises InvalidKnowledge for one that cannot be read."""
    recipes = []
    for name, source in library_sources(base).items():
        problems = Problems(f"skill {name}")
        recipe = parse_recipe(name, source.body, source.files, problems)
        problems.raise_if_any()
        if recipe is not None:
            recipes.append(recipe)
    return recipes


def library_sources(base: KnowledgeBase) -> dict[str, RecipeSource]:
    """Recipes of active skills as they are stored, by name."""
    with base.catalog.read() as connection:
        skills = rows.listed(connection, states=USABLE, access_scope=ALL_ACCESS)
    return {
        row.name: RecipeSource(row.recipe, row.metadata.get("files", {}), row.scopes.signals)
        for row in skills
        if row.recipe is not None
    }
