"""What a proposal was shown, looked up again by its ids: texts as they are now.

Texts of uploaded documents are somebody else's, and so are skills that were imported or learned
here: without leave they are left out, and so are those of unknown ids. The text of a built-in
document or of a shipped skill, with its moves, is this product's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import skills as store
from kb.catalog import tables as t
from kb.catalog.knowledge import passages
from kb.errors import NotFound
from kb.scope import ALL_ACCESS
from optimizer.search.knowledge import Excerpt, Knowledge, Move, ShownSkill
from optimizer.search.records import Shown
from optimizer.search.runs.skill_moves import MARK, remedies_of, skill_of
from retrieval.knowledge_base import KnowledgeBase
from skills.skill_library import SkillLibrary

BUILTIN = "builtin"  # origin of a document
SHIPPED = "shipped"  # origin of a skill
LEFT_OUT = "(text left out)"


@dataclass
class ShownKnowledge:
    """Looks up what proposals were shown. `with_uploads` includes texts of uploaded documents and
    of others' skills."""

    base: KnowledgeBase
    with_uploads: bool
    _own: dict[str, bool] = field(default_factory=dict)  # by id of what was shown

    def of(self, shown: Shown, hardware: str) -> tuple[Knowledge, tuple[str, ...]]:
        """What can be shown again, and the ids whose texts are not in it."""
        facts = self.base.registry.values_if_known(hardware)
        left_out: list[str] = []
        with self.base.catalog.read() as connection:
            excerpts = [self._excerpt(connection, name, left_out) for name in shown.excerpts]
            remedies = [self._remedy(connection, name, facts, left_out) for name in shown.moves]
        skills = [self._skill(name, left_out) for name in shown.skills]
        known = Knowledge(
            shown.retrieval_id,
            tuple(excerpts),
            tuple(move for move in remedies if move is not None),
            tuple(skill for skill in skills if skill is not None),
            facts,
        )
        return known, tuple(left_out)

    def may_show(self, identity: str) -> bool:
        """Whether the text behind an id is this product's own, or uploads are wanted too."""
        if self.with_uploads:
            return True
        if identity not in self._own:
            with self.base.catalog.read() as connection:
                own = self._passage_origin(connection, identity) == BUILTIN
                own = own or self._move_is_own(connection, identity)
            self._own[identity] = own or self._skill_is_own(skill_of(identity))
        return self._own[identity]

    # -- one of each kind

    def _excerpt(self, connection: Connection, name: str, left_out: list[str]) -> Excerpt:
        own = self.with_uploads or self._passage_origin(connection, name) == BUILTIN
        try:
            passage = passages.get(connection, name, ALL_ACCESS) if own else None
        except NotFound:  # of a version that was deleted since
            passage = None
        if passage is None:
            left_out.append(name)
            return Excerpt(name, "", LEFT_OUT)
        title = f"{passage.document_title}: {' > '.join(passage.path)}"
        return Excerpt(name, title, passage.shown)

    def _remedy(
        self, connection: Connection, name: str, facts: dict[str, Any], left_out: list[str]
    ) -> Move | None:
        if MARK in name:
            return self._remedy_of_skill(connection, name, left_out)
        row = connection.execute(sa.select(t.moves).where(t.moves.c.id == name)).one_or_none()
        if row is None:
            left_out.append(name)
            return None
        limit = facts.get(row.limit_fact) if row.limit_fact else None
        remedy = Move(
            row.id,
            row.name,
            dict(row.change),
            float(limit) if isinstance(limit, int | float) else None,
            row.limit_fact,
            row.why,
            True,
        )
        if self.with_uploads or self._move_is_own(connection, name):
            return remedy
        left_out.append(name)
        return replace(remedy, name=name, why=LEFT_OUT)

    def _remedy_of_skill(
        self, connection: Connection, name: str, left_out: list[str]
    ) -> Move | None:
        row = store.find(connection, skill_of(name), ALL_ACCESS)
        moves = remedies_of(row) if row is not None else ()
        remedy = next((move for move in moves if move.id == name), None)
        if remedy is not None and row is not None and (self.with_uploads or row.origin == SHIPPED):
            return remedy
        left_out.append(name)
        return None if remedy is None else replace(remedy, name=name, why=LEFT_OUT, when="")

    def _skill(self, name: str, left_out: list[str]) -> ShownSkill | None:
        try:
            skill = SkillLibrary(self.base.catalog).show(name)
        except NotFound:
            left_out.append(name)
            return None
        if not (self.with_uploads or skill.origin == SHIPPED):
            left_out.append(name)
            return ShownSkill(name, "", LEFT_OUT, 0.0)
        return ShownSkill(name, skill.summary.description, skill.body, 0.0)

    # -- whose it is

    def _passage_origin(self, connection: Connection, name: str) -> str | None:
        query = (
            sa.select(t.documents.c.origin)
            .join(t.passages, t.passages.c.document_id == t.documents.c.id)
            .where(t.passages.c.id == name)
        )
        return connection.execute(query).scalar_one_or_none()

    def _move_is_own(self, connection: Connection, name: str) -> bool:
        """A built-in document's."""
        query = (
            sa.select(t.documents.c.origin)
            .join(t.moves, t.moves.c.document_id == t.documents.c.id)
            .where(t.moves.c.id == name)
        )
        return connection.execute(query).scalar_one_or_none() == BUILTIN

    def _skill_is_own(self, name: str) -> bool:
        try:
            return bool(SkillLibrary(self.base.catalog).show(name).origin == SHIPPED)
        except NotFound:
            return False
