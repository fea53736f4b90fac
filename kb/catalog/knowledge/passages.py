"""Reading passages: the passages of search hits, a document's passages in order, and corrections
by a person.

`load` is the check every hit passes before it leaves: it joins the catalog, so a passage that was
deleted, superseded or scoped to another chip since it was indexed is simply not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import tables as t
from kb.catalog import visible
from kb.catalog.engine import Catalog, portions
from kb.catalog.knowledge import corrections
from kb.catalog.knowledge.versions import check_document, hardware_of_passages
from kb.catalog.meta import bump_documents
from kb.embedding import embedding_text
from kb.errors import InvalidRequest, NotFound
from kb.ids import sha256
from kb.scope import ALL_ACCESS, ANY, AccessScope, ScopeFilter


class Passage(NamedTuple):
    """A passage with all a citation needs. `prose` is the share of function words in per mille. A
    tuple, because a request makes hundreds: that takes a fifth of the time of a frozen dataclass.
    """

    seq: int
    id: str
    document_id: str
    document_title: str
    version: int
    category: str
    section_id: str
    section_seq: int
    path: tuple[str, ...]
    ordinal: int
    kind: str
    lead: str
    text: str
    language: str | None
    page_index: int | None
    page_label: str | None
    boxes: tuple[Mapping[str, Any], ...]
    prose: int
    hardware: tuple[str, ...]
    tags: tuple[tuple[str, str], ...] = ()
    corrected: bool = False

    @property
    def shown(self) -> str:
        """The text under its table header, if it has one."""
        return f"{self.lead}\n{self.text}" if self.lead else self.text

    def seen_by(self, access: AccessScope) -> Passage:
        """The passage without the names of other chips that it is about."""
        if not access.restricted:
            return self
        return self._replace(hardware=access.visible_hardware(self.hardware))


_SELECT = (
    sa.select(
        t.passages,
        t.documents.c.title,
        t.documents.c.category,
        t.document_versions.c.number,
        t.sections.c.path,
        t.sections.c.seq.label("section_seq"),
    )
    .join(t.documents, t.documents.c.id == t.passages.c.document_id)
    .join(t.document_versions, t.document_versions.c.id == t.passages.c.version_id)
    .join(t.sections, t.sections.c.id == t.passages.c.section_id)
)


class About(NamedTuple):
    """The values that a scope is checked against: the owner, the category, and the hardware of a
    passage and its document."""

    owner: str
    category: str
    hardware: tuple[str, ...]
    languages: tuple[str, ...]
    document_hardware: tuple[str, ...]

    def is_within(self, scope: ScopeFilter) -> bool:
        """Whether the scope admits it."""
        access = scope.access_scope
        if self.owner != access.owner or self.category not in scope.categories:
            return False
        if access.restricted and not access.sees(self.document_hardware):
            return False
        if not scope.admits_languages(self.languages):
            return False
        return scope.hardware is None or any(place in scope.hardware for place in self.hardware)


def about(connection: Connection, hardware_id: str, access_scope: AccessScope) -> list[Passage]:
    """The current passages about a chip, in reading order within their documents."""
    scope = t.passage_hardware
    query = _SELECT.where(
        t.passages.c.active.is_(True),
        visible.passages(access_scope),
        sa.select(scope.c.passage_id)
        .where(scope.c.passage_id == t.passages.c.id, scope.c.hardware_id == hardware_id)
        .exists(),
    )
    rows = list(connection.execute(query.order_by(t.passages.c.seq)))
    return [passage.seen_by(access_scope) for passage in _with_tags(connection, rows)]


def of_version(
    connection: Connection,
    version_id: str,
    *,
    offset: int = 0,
    limit: int = 100,
    section_id: str | None = None,
    access_scope: AccessScope = ALL_ACCESS,
) -> list[Passage]:
    """Passages of one version in reading order, current or not, with their tags."""
    query = _SELECT.where(t.passages.c.version_id == version_id, visible.passages(access_scope))
    if section_id is not None:
        query = query.where(t.passages.c.section_id == section_id)
    rows = list(
        connection.execute(query.order_by(t.passages.c.ordinal).offset(offset).limit(limit))
    )
    return [passage.seen_by(access_scope) for passage in _with_tags(connection, rows)]


def get(connection: Connection, passage_id: str, access_scope: AccessScope) -> Passage:
    """The passage with this id, with its tags. Raises NotFound."""
    row = connection.execute(
        _SELECT.where(t.passages.c.id == passage_id, visible.passages(access_scope))
    ).one_or_none()
    if row is None:
        raise NotFound(
            f"no passage {passage_id!r}", hint="GET /documents/{id}/passages lists them."
        )
    return _with_tags(connection, [row])[0].seen_by(access_scope)


def _with_tags(connection: Connection, rows: Sequence[sa.Row[Any]]) -> list[Passage]:
    ids = [row.id for row in rows]
    tags: dict[str, list[tuple[str, str]]] = {}
    for part in portions(ids):
        for tag in connection.execute(
            sa.select(t.passage_tags)
            .where(t.passage_tags.c.passage_id.in_(part))
            .order_by(t.passage_tags.c.kind, t.passage_tags.c.value)
        ):
            tags.setdefault(tag.passage_id, []).append((tag.kind, tag.value))
    hardware = hardware_of_passages(connection, ids)
    return [_passage(row, hardware.get(row.id, ()), tuple(tags.get(row.id, ()))) for row in rows]


def _passage(
    row: sa.Row[Any], hardware: tuple[str, ...], tags: tuple[tuple[str, str], ...] = ()
) -> Passage:
    return Passage(
        seq=row.seq,
        id=row.id,
        document_id=row.document_id,
        document_title=row.title,
        version=row.number,
        category=row.category,
        section_id=row.section_id,
        section_seq=row.section_seq,
        path=tuple(row.path),
        ordinal=row.ordinal,
        kind=row.kind,
        lead=row.lead,
        text=row.text,
        language=row.language,
        page_index=row.page_index,
        page_label=row.page_label,
        boxes=tuple(row.boxes),
        prose=row.prose,
        hardware=hardware,
        tags=tags,
        corrected=row.corrected,
    )


@dataclass(frozen=True)
class Patch:
    """A person's correction of one passage; None leaves a field as it is. Empty hardware means
    `any`."""

    text: str | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    hardware: tuple[str, ...] | None = None


def correct(
    catalog: Catalog,
    passage_id: str,
    patch: Patch,
    actor: str,
    *,
    access_scope: AccessScope = ALL_ACCESS,
) -> Passage:
    """Apply a correction now and to every later revision of the document that has the same text."""
    if patch == Patch():
        raise InvalidRequest("nothing to correct", hint="Give text, tags or hardware.")
    if patch.text is not None and not patch.text.strip():
        raise InvalidRequest("a passage cannot be emptied", hint="Delete or re-scope it instead.")
    with catalog.write() as connection:
        passage = get(connection, passage_id, access_scope)
        about = [
            *hardware_of_passages(connection, [passage_id])[passage_id],
            *(patch.hardware or ()),
        ]
        access_scope.check_change(about, f"the passage {passage_id}")
        check_document(connection, passage.document_id, access_scope)
        row = connection.execute(
            sa.select(t.passages.c.text_sha256, t.passages.c.active).where(
                t.passages.c.id == passage_id
            )
        ).one()
        changes: dict[str, Any] = {"corrected": True}
        if patch.text is not None:
            changes["text"] = patch.text
            changes["embed_sha256"] = sha256(embedding_text(passage.path, passage.lead, patch.text))
        connection.execute(
            t.passages.update().where(t.passages.c.id == passage_id).values(**changes)
        )
        _replace_links(connection, passage_id, patch)
        for field, value in vars(patch).items():
            if value is not None:
                corrections.record(
                    connection, passage.document_id, "passage", row.text_sha256, field, value, actor
                )
        if row.active:
            fields = [name for name, value in vars(patch).items() if value is not None]
            corrections.made_again(connection, passage.document_id, fields, passage.path)
        bump_documents(connection, [passage.document_id])
        return get(connection, passage_id, access_scope)


def _replace_links(connection: Connection, passage_id: str, patch: Patch) -> None:
    if patch.tags is not None:
        connection.execute(t.passage_tags.delete().where(t.passage_tags.c.passage_id == passage_id))
        rows = [
            {"passage_id": passage_id, "kind": kind, "value": value, "origin": "person"}
            for kind, value in dict.fromkeys(patch.tags)
        ]
        if rows:
            connection.execute(t.passage_tags.insert(), rows)
    if patch.hardware is not None:
        connection.execute(
            t.passage_hardware.delete().where(t.passage_hardware.c.passage_id == passage_id)
        )
        connection.execute(
            t.passage_hardware.insert(),
            [{"passage_id": passage_id, "hardware_id": h} for h in patch.hardware or (ANY,)],
        )
