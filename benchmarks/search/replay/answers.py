"""What the knowledge base said about the points of a table, kept so that a replay asks nobody.

An answer is kept under everything of the question that it depends on: signals, metrics, log,
operator, language, dtype, quantities of the problem, roles and hardware. Texts of excerpts and
skills are not kept: no proposer that is replayed reads them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.search.replay.spaces import Space
from benchmarks.search.replay.table import REFERENCE, Row
from kb.errors import NotFound
from optimizer.evaluation.problem.spec import SIZES
from optimizer.search.knowledge import Knowledge, KnowledgeSource, Query, knowledge_from_json
from optimizer.search.propose import roles_of
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer

TOKENS = 6_000


def question_of(query: Query) -> str:
    """Equal for queries that get the same answer."""
    parts: list[Any] = [
        query.signals,
        dict(query.metrics),
        query.log,
        query.op,
        query.language,
        query.dtype,
    ]
    # Sizes of the case are the same for all points of a table.
    quantities = {name: value for name, value in query.problem.items() if name not in SIZES}
    parts += [query.hardware, quantities, query.roles]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def query_of(space: Space, row: Row) -> Query:
    """What the search asks when it starts from this point."""
    evaluation = row.evaluation
    derived = evaluation.verdict.metrics
    language = space.ground.language
    return Query(
        signals=evaluation.verdict.signal_ids,
        metrics={**evaluation.metrics, **derived},
        log="" if evaluation.correct else evaluation.log,
        hardware=evaluation.hardware,
        op=space.view.op,
        language=language if row.recipe == REFERENCE else evaluation.language,
        dtype=space.view.main.dtype,
        run_id="",
        node=0,
        max_tokens=TOKENS,
        problem={**space.view.main.quantities, **evaluation.verdict.problem},
        roles=roles_of([RecipeSynthesizer(space.recipes, [language])], space.view),
    )


@dataclass
class Answers:
    """A knowledge source of what was answered once. Outcomes are not reported: they would change
    the next ranking."""

    by_question: dict[str, Knowledge] = field(default_factory=dict)

    def consult(self, query: Query) -> Knowledge:
        """Raises NotFound for a question that was not asked when the answers were recorded."""
        text = self.by_question.get(question_of(query))
        if text is None:
            raise NotFound(
                f"nothing is recorded for signals {', '.join(query.signals) or 'none'}"
                f" of {query.op}",
                hint="Record the answers for the table's points again.",
            )
        return text

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Nobody to tell."""

    def record(self, source: KnowledgeSource, query: Query) -> bool:
        """Ask what is not known yet; whether that was needed."""
        question = question_of(query)
        if question in self.by_question:
            return False
        self.by_question[question] = _without_texts(source.consult(query))
        return True


def _without_texts(knowledge: Knowledge) -> Knowledge:
    return replace(
        knowledge,
        retrieval_id="",
        excerpts=tuple(replace(excerpt, text="") for excerpt in knowledge.excerpts),
        skills=tuple(replace(skill, text="") for skill in knowledge.skills),
    )


def load_answers(path: Path) -> Answers:
    """Nothing where the file is not there."""
    if not path.is_file():
        return Answers()
    content: Mapping[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    distinct = [knowledge_from_json(row) for row in content["answers"]]
    return Answers({question: distinct[n] for question, n in content["questions"].items()})


def save_answers(path: Path, answers: Answers) -> None:
    """Each distinct answer once, packed."""
    places: dict[str, int] = {}
    questions = {}
    for question, knowledge in answers.by_question.items():
        text = json.dumps(knowledge.as_json(), sort_keys=True)
        questions[question] = places.setdefault(text, len(places))
    content = {"answers": [json.loads(text) for text in places], "questions": questions}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))
