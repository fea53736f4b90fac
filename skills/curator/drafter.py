"""The drafting model: the prompt about one change, and the strict checks of its answer, one typed
delta of the library. Code, conditions, figures and sources of a skill are never a model's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, cast

from kb.catalog.skills.reading import EvidenceRow, SkillRow
from kb.errors import Unavailable
from optimizer.search.synthesizers.llm.client import (
    CallFailed,
    ContextOverflow,
    LitellmClient,
    RateLimit,
    load,
)
from optimizer.search.synthesizers.llm.settings import LlmSettings, Redaction, models_from
from skills.curator.draft import FIELDS, DraftedSkill, SkillSentences
from skills.curator.records import OPERATIONS, UNNAMED, KernelChange, Operation
from skills.format.lint import sentences

MOST_ITEMS, MOST_CHARS = 8, 600
MOST_ANSWER = 20_000  # characters
OUTPUT_TOKENS = 4_000
NEEDS_SKILL: frozenset[str] = frozenset({"ADD_EVIDENCE", "REFINE", "CONTRADICT", "DEPRECATE"})
NEEDS_TEXT: frozenset[str] = frozenset({"ADD", "REFINE"})
_LISTS = ("when", "when_not", "steps", "check", "failure_signs")
_ITEMS = {
    "type": "array",
    "minItems": 1,
    "maxItems": MOST_ITEMS,
    "items": {"type": "string", "minLength": 1, "maxLength": MOST_CHARS},
}
# JSON Schema (2020-12) of an answer, as the model is sent it; `parse_delta` checks the same.
DELTA_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["operation"],
    "properties": {
        "operation": {"enum": list(OPERATIONS)},
        "skill": {"type": "string", "maxLength": 64},
        "reason": {"type": "string", "maxLength": MOST_CHARS},
        "transformation": {
            "type": "string",
            "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$",
            "maxLength": 40,
        },
        "description": {"type": "string", "minLength": 1, "maxLength": MOST_CHARS},
        **{name: _ITEMS for name in _LISTS},
    },
}


@dataclass(frozen=True)
class ModelDelta:
    """A checked answer. `skill` names the skill that it is about; ADD and REFINE have `words`."""

    operation: Operation
    skill: str = ""
    reason: str = ""
    transformation: str = ""
    words: SkillSentences | None = None


@dataclass(frozen=True)
class DraftTask:
    """The prompt of one change. `problem` is the reason why the answer `refused` was refused, empty
    at first."""

    change: KernelChange
    draft: DraftedSkill
    nearest: tuple[SkillRow, ...]
    problem: str = ""
    refused: str = ""

    @property
    def system(self) -> str:
        return _instructions()

    @property
    def message(self) -> str:
        """The change as data between marks, in a fixed order."""
        task = json.dumps(_task_data(self), indent=1, ensure_ascii=False, sort_keys=True)
        parts = [f"<data>\n{task.replace('</data', '< /data')}\n</data>"]
        if self.problem:
            # The reason quotes the refused answer, so it is between the marks too.
            refused = {"why": self.problem, "answer": self.refused[:MOST_ANSWER]}
            quoted = json.dumps(refused, indent=1, ensure_ascii=False).replace("</data", "< /data")
            parts.append(f"Your answer was refused:\n<data>\n{quoted}\n</data>")
        return "\n\n".join(parts)


class Drafter(Protocol):
    """Writes the sentences of skills: a language model, or its recorded answers. Answers are
    untrusted text."""

    @property
    def name(self) -> str: ...

    def propose(self, task: DraftTask) -> str: ...


class BadDelta(ValueError):
    """An answer that is not a valid delta; the message explains the fault, for the repair."""


@lru_cache(maxsize=1)
def _instructions() -> str:
    return (Path(__file__).parent / "prompts" / "draft.md").read_text(encoding="utf-8")


def _task_data(task: DraftTask) -> dict[str, Any]:
    change, draft = task.change, task.draft
    return {
        "transformation": change.transformation or "to be named by you",
        "polarity": change.polarity,
        "op": list(draft.scopes.ops),
        "language": draft.language,
        "hardware": list(draft.scopes.hardware),
        "dtype": list(draft.scopes.dtypes),
        "signals_before": list(change.before),
        "signals_after": list(change.after),
        "parameters": [vars(parameter) for parameter in change.parameters],
        "lines": list(change.pattern),
        "evidence_rows": [
            {"row": n, "case": row.case_id, "child_was": effect(row)}
            for n, row in enumerate(draft.evidence, 1)
        ],
        "fields_of_each_row": list(FIELDS),
        "said_by_the_proposer": list(
            sentences("\n".join([change.step.proposal.plan, *change.step.texts]))
        ),
        "nearest_skills": [
            {"name": row.name, "tier": row.tier, "polarity": row.polarity, "about": row.description}
            for row in task.nearest
        ],
        "schema": DELTA_SCHEMA,
    }


def effect(row: EvidenceRow) -> str:
    """The effect on one case, which may differ from that on all cases together."""
    if row.speedup_low is not None and row.speedup_low > 1:
        return "faster than its parent"
    if row.speedup_high is not None and row.speedup_high < 1:
        return "slower than its parent"
    return "not certainly faster or slower"


def parse_delta(answer: str, change: KernelChange, nearest: Sequence[SkillRow]) -> ModelDelta:
    """The delta of an answer. Raises BadDelta."""
    raw = _object(answer)
    unknown = sorted(raw.keys() - DELTA_SCHEMA["properties"].keys())
    if unknown:
        raise BadDelta(f"unknown key {unknown[0]!r}")
    operation = raw.get("operation")
    if operation not in OPERATIONS:
        raise BadDelta(f"operation is {operation!r}; one of {', '.join(OPERATIONS)}")
    skill = _line(raw, "skill", needed=operation in NEEDS_SKILL)
    if skill and skill not in {row.name for row in nearest}:
        raise BadDelta(f"{skill[:64]!r} is none of the nearest skills")
    unnamed = operation == "ADD" and change.transformation == UNNAMED
    transformation = _line(raw, "transformation", needed=unnamed)
    if transformation and not _is_slug(transformation):
        raise BadDelta("transformation is lower-case words with hyphens, at most 40 characters")
    return ModelDelta(
        cast(Operation, operation),
        skill,
        _line(raw, "reason", needed=operation == "DEPRECATE"),
        transformation,
        _words(raw) if operation in NEEDS_TEXT else None,
    )


def _is_slug(text: str) -> bool:
    parts = text.split("-")
    return len(text) <= 40 and all(p.isascii() and p.isalnum() and p == p.lower() for p in parts)


def _object(answer: str) -> Mapping[str, Any]:
    if len(answer) > MOST_ANSWER:
        raise BadDelta(f"the answer has {len(answer)} characters, at most {MOST_ANSWER}")
    try:
        raw = json.loads(answer)
    except ValueError as problem:
        raise BadDelta(f"the answer is no JSON: {problem}") from problem
    if not isinstance(raw, dict):
        raise BadDelta("the answer is no JSON object")
    return raw


def _line(raw: Mapping[str, Any], key: str, *, needed: bool) -> str:
    value = raw.get(key, "")
    if not isinstance(value, str) or len(value) > MOST_CHARS:
        raise BadDelta(f"{key} is no text of at most {MOST_CHARS} characters")
    if needed and not value.strip():
        raise BadDelta(f"{key} is missing")
    return " ".join(value.split())


def _words(raw: Mapping[str, Any]) -> SkillSentences:
    return SkillSentences(
        description=_line(raw, "description", needed=True),
        **{name: _items(raw, name) for name in _LISTS},
    )


def _items(raw: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = raw.get(key)
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_ITEMS:
        raise BadDelta(f"{key} is no list of 1 to {MOST_ITEMS} sentences")
    for item in value:
        if not isinstance(item, str) or not item.strip() or len(item) > MOST_CHARS:
            raise BadDelta(f"{key} holds something that is no text of 1 to {MOST_CHARS} characters")
        if "```" in item or item.lstrip().startswith("#"):
            raise BadDelta(f"{key} holds a code block or a heading")
    return tuple(" ".join(item.split()) for item in value)


# -- models


@dataclass(frozen=True)
class ModelDrafter:
    """A language model as drafter. `name` is its litellm name."""

    name: str
    asker: LitellmClient

    def propose(self, task: DraftTask) -> str:
        """The model's answer. Raises Unavailable if the model cannot be called."""
        messages = [
            {"role": "system", "content": task.system},
            {"role": "user", "content": task.message},
        ]
        try:
            return _bare(self.asker.ask(messages, ()).content)
        except (CallFailed, ContextOverflow) as problem:
            raise Unavailable(
                f"the drafting model could not be called: {problem}",
                hint="Check the model's name and key, or leave --model out: drafting needs none.",
            ) from problem


def model_drafter(name: str) -> ModelDrafter:
    """The drafter of a litellm model name. Raises Unavailable without litellm."""
    load()
    settings = LlmSettings(models_from(name), temperature=0.0, max_output_tokens=OUTPUT_TOKENS)
    chosen = settings.models[0].name
    limit = RateLimit(settings.requests_per_minute)
    return ModelDrafter(
        chosen, LitellmClient(chosen, settings, limit, Redaction(), random.Random(0))
    )


def _bare(text: str) -> str:
    lines = text.strip().splitlines()
    if len(lines) > 2 and lines[0].startswith("```") and lines[-1].strip() == "```":
        return "\n".join(lines[1:-1])
    return text.strip()


@dataclass
class ReplayedDrafter:
    """A drafter that repeats recorded answers: by node the first one, and the repair."""

    name: str
    answers: Mapping[str, tuple[str, ...]]

    def propose(self, task: DraftTask) -> str:
        """The recorded answer to a task."""
        answers = self.answers[str(task.change.node)]
        return answers[1 if task.problem else 0]
