"""The prompt of a candidate, the answer that goes with it, and the knowledge that its proposer was
shown.

A prompt is the one that was sent to a model, if it is stored, or else rendered from the same state.
The answer is the candidate in the form of a model's answer: a JSON object, then every file in a
code block (`optimizer.search.synthesizers.llm.answers.candidate.answer_from` reads it). Knowledge
is looked up by its ids, as its texts are now. The texts of built-in documents and shipped skills
may be shown; those of uploaded documents and of imported or learned skills only with leave.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog.knowledge import passages
from kb.catalog.skills.reading import find_skill
from kb.errors import NotFound
from kb.scope import ALL_ACCESS
from optimizer.evaluation.bundle import Bundle, default_entry
from optimizer.search.knowledge import ShownExcerpt, ShownKnowledge, ShownMove, ShownSkill
from optimizer.search.propose import SearchTask, compose_context, tree_before
from optimizer.search.records import Node, ShownIds
from optimizer.search.runs.knowledge import MARK, remedies_of, skill_of
from optimizer.search.synthesizers.llm.conversation import FolderTranscripts, ModelTranscript
from optimizer.search.synthesizers.llm.prompt import compose
from optimizer.search.synthesizers.llm.settings import Redaction
from optimizer.search.synthesizers.llm.templates import WORD, Fence
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase
from skills.training.samples import SHIPPED_SKILL, TrainingPrompt
from skills.trajectories.reading import stored_transcript

_BLOCK = re.compile(
    rf"(?P<begin>--- {WORD} (?P<boundary>\w+) BEGIN (?P<kind>excerpt|move|skill) ---\n)"
    rf"(?P<text>.*?)\n(?P<end>--- {WORD} (?P=boundary) END ---)",
    re.S,
)
_ID = re.compile(r"id: (\S+)")


class Prompts:
    """The prompts of one run or external trajectory."""

    def __init__(self, base: KnowledgeBase, task: SearchTask, knowledge: KnowledgeLookup) -> None:
        self._task = task
        self._knowledge = knowledge
        self._redact = Redaction()
        self._transcripts = FolderTranscripts(base.settings.data_dir / "transcripts")

    def of(self, tree: Tree, node: Node) -> TrainingPrompt:
        """The prompt of a candidate, without known secrets."""
        stored = self._stored(node)
        prompt = self._sent(stored) if stored is not None else self._rendered(tree, node)
        known = self._redact.known
        return replace(prompt, system=known(prompt.system), user=known(prompt.user))

    def _rendered(self, tree: Tree, node: Node) -> TrainingPrompt:
        known, left_out = self._knowledge.of(node.shown, self._task.hardware.id)
        before = tree_before(tree, node)
        context = compose_context(self._task, before, node.parent or 0, known)
        # The boundary depends on the state alone, so equal states give equal prompts.
        state = f"{self._task.run_id}:{node.parent}"
        fence = Fence(hashlib.sha256(state.encode()).hexdigest()[:16])
        prompt = compose(context, fence, budget=context.max_tokens, tools=False)
        return TrainingPrompt(prompt.system, prompt.user, "rendered", left_out)

    def _stored(self, node: Node) -> ModelTranscript | None:
        """The stored conversation of a node, if it begins with a system and a user message."""
        if node.proposal is None:
            return None
        transcript = stored_transcript(self._transcripts, node.proposal)
        if transcript is None:
            return None
        roles = [message.get("role") for message in transcript.messages[:2]]
        return transcript if roles == ["system", "user"] else None

    def _sent(self, transcript: ModelTranscript) -> TrainingPrompt:
        """Its first two messages; the others led to the answer and are not part of the state."""
        system, user = (str(message["content"]) for message in transcript.messages[:2])
        user, left_out = without_uploads(user, self._knowledge.may_show)
        return TrainingPrompt(system, user, "stored", left_out)


def without_uploads(text: str, may_show: Callable[[str], bool]) -> tuple[str, tuple[str, ...]]:
    """The text with quoted blocks reduced to their ids unless `may_show`, and these ids."""
    left_out: list[str] = []

    def shown(block: re.Match[str]) -> str:
        named = _ID.match(block["text"])
        if named is not None and may_show(named[1]):
            return block[0]
        name = named[1] if named is not None else "unknown"
        left_out.append(name)
        return f"{block['begin']}id: {name}\n{LEFT_OUT}\n{block['end']}"

    return _BLOCK.sub(shown, text), tuple(left_out)


_FENCE = re.compile(r"^[ \t]*(`{3,})", re.M)


def answer_text(bundle: Bundle, plan: str, used: Sequence[str]) -> str:
    """A candidate in the form of a model's answer. `used` holds ids that it was shown. A file that
    does not end in a line break gets one."""
    head: dict[str, Any] = {
        "plan": plan,
        "used": list(used),
        "language": bundle.language,
        "main": bundle.main,
    }
    if bundle.entry != default_entry(bundle.main):
        head["entry"] = bundle.entry
    if bundle.parameters:
        head["parameters"] = dict(bundle.parameters)
    parts = [json.dumps(head, ensure_ascii=False)]
    return "\n\n".join([*parts, *(_block(name, text) for name, text in bundle.files.items())])


def _block(name: str, text: str) -> str:
    """A file in a fence longer than any in it."""
    ticks = "`" * max([3, *(len(fence[1]) + 1 for fence in _FENCE.finditer(text))])
    end = "" if text.endswith("\n") else "\n"
    return f"File: {name}\n{ticks}\n{text}{end}{ticks}"


# -- the shown knowledge

BUILTIN = "builtin"  # origin of a document
LEFT_OUT = "(text left out)"


@dataclass
class KnowledgeLookup:
    """Looks up the knowledge that proposers were shown. `with_uploads` includes the texts of
    uploaded documents and of imported or learned skills."""

    base: KnowledgeBase
    with_uploads: bool
    _may_show: dict[str, bool] = field(default_factory=dict)  # by id

    def of(self, shown: ShownIds, hardware: str) -> tuple[ShownKnowledge, tuple[str, ...]]:
        """The shown knowledge, and the ids whose texts are left out."""
        facts = self.base.registry.values_if_known(hardware)
        left_out: list[str] = []
        with self.base.catalog.read() as connection:
            excerpts = [self._excerpt(connection, name, left_out) for name in shown.excerpts]
            moves = [self._move(connection, name, facts, left_out) for name in shown.moves]
            skills = [self._skill(connection, name, left_out) for name in shown.skills]
        known = ShownKnowledge(
            shown.retrieval_id,
            tuple(excerpts),
            tuple(move for move in moves if move is not None),
            tuple(skill for skill in skills if skill is not None),
            facts,
        )
        return known, tuple(left_out)

    def may_show(self, identity: str) -> bool:
        """Whether the text of an id is a built-in or shipped one, or uploads are included."""
        if self.with_uploads:
            return True
        if identity not in self._may_show:
            with self.base.catalog.read() as connection:
                skill = find_skill(connection, skill_of(identity), ALL_ACCESS)
                self._may_show[identity] = (
                    _document_origin(connection, t.passages, identity) == BUILTIN
                    or _document_origin(connection, t.moves, identity) == BUILTIN
                    or (skill is not None and skill.origin == SHIPPED_SKILL)
                )
        return self._may_show[identity]

    def _excerpt(self, connection: Connection, name: str, left_out: list[str]) -> ShownExcerpt:
        own = self.with_uploads or _document_origin(connection, t.passages, name) == BUILTIN
        try:
            passage = passages.get(connection, name, ALL_ACCESS) if own else None
        except NotFound:  # its document version was deleted
            passage = None
        if passage is None:
            left_out.append(name)
            return ShownExcerpt(name, "", LEFT_OUT)
        title = f"{passage.document_title}: {' > '.join(passage.path)}"
        return ShownExcerpt(name, title, passage.shown)

    def _move(
        self, connection: Connection, name: str, facts: dict[str, Any], left_out: list[str]
    ) -> ShownMove | None:
        if MARK in name:
            return self._move_of_skill(connection, name, left_out)
        row = connection.execute(sa.select(t.moves).where(t.moves.c.id == name)).one_or_none()
        if row is None:
            left_out.append(name)
            return None
        limit = facts.get(row.limit_fact) if row.limit_fact else None
        move = ShownMove(
            row.id,
            row.name,
            dict(row.change),
            float(limit) if isinstance(limit, int | float) else None,
            row.limit_fact,
            row.why,
            True,
        )
        if self.with_uploads or _document_origin(connection, t.moves, name) == BUILTIN:
            return move
        left_out.append(name)
        return replace(move, name=name, why=LEFT_OUT)

    def _move_of_skill(
        self, connection: Connection, name: str, left_out: list[str]
    ) -> ShownMove | None:
        row = find_skill(connection, skill_of(name), ALL_ACCESS)
        moves = remedies_of(row) if row is not None else ()
        move = next((move for move in moves if move.id == name), None)
        shipped = row is not None and row.origin == SHIPPED_SKILL
        if move is not None and (self.with_uploads or shipped):
            return move
        left_out.append(name)
        return None if move is None else replace(move, name=name, why=LEFT_OUT, when="")

    def _skill(self, connection: Connection, name: str, left_out: list[str]) -> ShownSkill | None:
        row = find_skill(connection, name, ALL_ACCESS)
        if row is None:
            left_out.append(name)
            return None
        if not (self.with_uploads or row.origin == SHIPPED_SKILL):
            left_out.append(name)
            return ShownSkill(name, "", LEFT_OUT, 0.0)
        return ShownSkill(name, row.description, row.body, 0.0)


def _document_origin(connection: Connection, table: sa.Table, name: str) -> str | None:
    """The origin of the document that a passage or move is from."""
    query = (
        sa.select(t.documents.c.origin)
        .join(table, table.c.document_id == t.documents.c.id)
        .where(table.c.id == name)
    )
    return connection.execute(query).scalar_one_or_none()
