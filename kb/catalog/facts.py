"""Facts in the catalog: numbers about a chip with their source, and those read from documents.

A decision is a person's, a quotation is the document's. So a new version of a document keeps the
facts that were accepted from the version before, and reports what it states differently
(`outdated_facts`). With a deleted document its facts and every quotation of it go; a value that a
person set stays, without a source. Does not know how facts are read, and which of them are valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import visible
from kb.catalog.engine import columns_of, record_of
from kb.catalog.meta import bump_revision
from kb.catalog.tables import document_scopes, document_versions, documents, facts
from kb.errors import Conflict
from kb.scope import ALL_ACCESS, AccessScope
from kb.validity import Checked, Validity, of_source

FactStatus = Literal["accepted", "proposed", "rejected"]
READ = ("table", "sentence")  # origins of facts that were read from documents
_READ = "read"  # in the cell of a fact that a person has corrected: its value before
_VALUE = ("number", "text", "origin", "status")
# The source of a fact that a person has corrected, once the document is deleted.
_NO_SOURCE: Mapping[str, Any] = {
    "title": "corrected by a person; the document was deleted",
    "publisher": "",
    "locator": "",
    "url": None,
    "date": None,
    "subject": None,
    "document_id": None,
    "version_id": None,
    "page_index": None,
    "page_label": None,
    "cell": None,
}


@dataclass(frozen=True)
class Fact:
    """`number` is in `unit`; `text` is the value as its source writes it. `hardware_id` is the
    owner.

    `subject` names the subject of a value that was read from a document, `subject_kind` whether
    that is the owner itself, a family above it, or not clear; None if it was not determined.
    """

    id: str
    hardware_id: str
    key: str
    number: float | None
    text: str
    unit: str
    kind: str
    status: str
    origin: str
    title: str
    publisher: str
    locator: str
    url: str | None
    date: str | None
    note: str | None
    formula: str | None
    subject: str | None
    document_id: str | None
    version_id: str | None
    page_index: int | None
    page_label: str | None
    cell: Mapping[str, Any] | None
    actor: str | None
    subject_kind: str | None = None

    @property
    def validity(self) -> tuple[Validity, ...]:
        """The versions of tools that its source names, and when it was read or measured."""
        checked: Checked = "ran" if self.kind == "measured" else "read"
        text = f"{self.title}, {self.locator}"
        return of_source(text, checked=checked, date=self.date or "", target=self.hardware_id)

    @property
    def holds_for_owner(self) -> bool:
        """False if the value is about a variant ("PCIe") or its subject is unclear."""
        known = self.subject_kind in ("chip", "family")
        return known or not self.subject or self.origin == "person"

    @property
    def value(self) -> float | str:
        """The number in `unit`, or the text of a fact that has none."""
        return self.number if self.number is not None else self.text


def select_facts(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[Fact]:
    """The facts that meet the conditions, by key."""
    query = sa.select(*columns_of(facts, Fact)).where(*conditions)
    rows = connection.execute(query.order_by(facts.c.key, facts.c.origin, facts.c.id))
    return [record_of(Fact, row) for row in rows]


_ORIGIN_RANK = {"person": 0, "spec": 1, "table": 2, "sentence": 3}
_KIND_RANK = {"datasheet": 0, "measured": 1, "derived": 2}


def accepted_facts(
    connection: Connection, access: AccessScope = ALL_ACCESS
) -> dict[str, list[Fact]]:
    """The accepted facts of each hardware; of one key the valid one comes first."""
    stated: dict[str, list[Fact]] = {}
    found = select_facts(connection, facts.c.status == "accepted", visible.facts(access))
    for fact in sorted(
        found, key=lambda f: (_ORIGIN_RANK.get(f.origin, 9), _KIND_RANK.get(f.kind, 9), f.id)
    ):
        stated.setdefault(fact.hardware_id, []).append(fact)
    return stated


def effective_facts(
    stated: Mapping[str, Sequence[Fact]], lineage: Sequence[str]
) -> dict[str, Fact]:
    """The valid fact for each key of a chip, by key: its own, else that of the nearest family.
    `stated` is as `accepted_facts` returns it."""
    valid: dict[str, Fact] = {}
    for owner in reversed(lineage):
        own: dict[str, Fact] = {}
        for fact in stated.get(owner, ()):
            if fact.holds_for_owner:
                own.setdefault(fact.key, fact)
        valid |= own
    return dict(sorted(valid.items()))


# -- of a version of a document


def add_read_facts(connection: Connection, proposals: Sequence[Fact]) -> int:
    """Add facts read from a version, in its transaction; returns the number of new ones. A person's
    decision stays: a fact that this document has stated before is the same fact, even if it moved
    to another page."""
    added = 0
    rows = [dict(vars(proposal)) for proposal in proposals]
    # Those at their old place first, so that none of them is taken for one that has moved.
    for row in [row for row in rows if not _stays(connection, row)]:
        moved = connection.execute(
            sa.select(facts.c.id, facts.c.actor)
            .where(*_states_the_same(row), facts.c.version_id != row["version_id"])
            .where(facts.c.document_id == row["document_id"])
            .where(facts.c.status == "accepted", facts.c.origin.in_(READ))
            .limit(1)
        ).one_or_none()
        values = {**row, "created_at": clock.now()}
        if moved is not None:
            connection.execute(facts.delete().where(facts.c.id == moved.id))
            values |= {"status": "accepted", "actor": moved.actor}
        connection.execute(facts.insert().values(**values))
        added += moved is None
    return added


def _stays(connection: Connection, row: Mapping[str, Any]) -> bool:
    """Whether a fact is stored already; it is of this version from now on."""
    names = ("title", "locator", "version_id", "cell", "page_index", "page_label")
    values = {name: row[name] for name in names}
    here = facts.c.id == row["id"]
    cell = connection.scalar(sa.select(facts.c.cell).where(here))
    if cell and _READ in cell:
        values["cell"] = {**(row["cell"] or {}), _READ: cell[_READ]}
    return bool(connection.execute(facts.update().where(here).values(**values)).rowcount)


def _states_the_same(row: Mapping[str, Any]) -> list[sa.ColumnElement[bool]]:
    """Facts that state this value of this key of this hardware, about the same subject."""
    value = "text" if row["number"] is None else "number"
    return [*_same_key(row), facts.c[value] == row[value]]


def _same_key(row: Mapping[str, Any]) -> list[sa.ColumnElement[bool]]:
    """Facts about the same key of the same subject. The chip itself has more than one name."""
    same = [facts.c[name] == row[name] for name in ("hardware_id", "key", "unit", "kind")]
    itself = facts.c.subject_kind.in_(("chip", "family"))
    if row["subject_kind"] in ("chip", "family") or not row["subject"]:
        return [*same, sa.or_(itself, sa.func.coalesce(facts.c.subject, "") == "")]
    return [*same, facts.c.subject == row["subject"], sa.not_(sa.func.coalesce(itself, sa.false()))]


def withdraw_proposals(connection: Connection, document_id: str) -> None:
    """Remove a document's undecided proposals, because it is read again."""
    connection.execute(
        facts.delete().where(
            facts.c.document_id == document_id,
            facts.c.origin.in_(READ),
            facts.c.status == "proposed",
        )
    )


@dataclass(frozen=True)
class Withdrawn:
    """Counts of the facts removed with a document: all, accepted ones, and accepted ones that
    remain valid because another document states them."""

    removed: int
    accepted: int
    stated_elsewhere: int


def withdraw_facts(connection: Connection, document_id: str) -> Withdrawn:
    """Remove all facts that were read from a document, decided or not. An accepted value that
    another document proposes is accepted there instead."""
    of_document = facts.c.document_id == document_id
    rows = connection.execute(sa.select(facts).where(of_document)).all()
    read = [row for row in rows if row.origin in READ]
    connection.execute(facts.delete().where(of_document, facts.c.origin.in_(READ)))
    connection.execute(facts.update().where(of_document).values(**_NO_SOURCE))
    accepted = [row for row in read if row.status == "accepted"]
    still_stated = sum(_has_other_source(connection, row._asdict()) for row in accepted)
    if rows:
        bump_revision(connection)
    return Withdrawn(len(read), len(accepted), still_stated)


def _has_other_source(connection: Connection, row: Mapping[str, Any]) -> bool:
    """Whether another fact states an accepted value that has gone; a proposed one is accepted."""
    others = connection.execute(
        sa.select(facts.c.id, facts.c.status)
        .where(*_states_the_same(row), facts.c.status.in_(("accepted", "proposed")))
        .order_by(facts.c.status, facts.c.id)  # accepted before proposed
    ).all()
    if others and others[0].status == "proposed":
        change = facts.update().where(facts.c.id == others[0].id)
        connection.execute(change.values(status="accepted", actor=row["actor"]))
    return bool(others)


def documents_gone(connection: Connection) -> list[str]:
    """The ids of deleted documents that still have facts."""
    gone = ~sa.exists().where(documents.c.id == facts.c.document_id)
    ids = sa.select(facts.c.document_id).distinct()
    return list(connection.scalars(ids.where(facts.c.document_id.is_not(None), gone)))


# -- rows that a person makes facts of


def rows_not_read(
    connection: Connection, hardware_id: str, access: AccessScope = ALL_ACCESS
) -> list[tuple[str, str, str]]:
    """The rows with a number that reading a chip's documents gave no fact of, and no person made
    one of: the id and title of the document, and the row."""
    about = document_scopes.alias()
    found = connection.execute(
        sa.select(documents.c.id, documents.c.title, document_versions.c.report)
        .join(document_versions, document_versions.c.id == documents.c.current_version_id)
        .join(about, about.c.document_id == documents.c.id)
        .where(about.c.kind == "hardware", about.c.value == hardware_id)
        .where(visible.documents(access))
        .order_by(documents.c.title, documents.c.id)
    )
    made = sa.select(facts.c.document_id, facts.c.locator).where(
        facts.c.hardware_id == hardware_id, facts.c.origin == "person"
    )
    known = {(row.document_id, row.locator) for row in connection.execute(made)}
    return [
        (document.id, document.title, row)
        for document in found
        for row in dict.fromkeys(document.report.get("rows_not_read") or ())
        if (document.id, row) not in known
    ]


# -- a person's correction of a value


def note_value_read(connection: Connection, fact_id: str) -> dict[str, Any]:
    """The change of a fact's `cell` that allows the correction of its value to be withdrawn."""
    row = connection.execute(sa.select(facts).where(facts.c.id == fact_id)).one_or_none()
    if row is None or row.origin == "person":  # an earlier correction has noted it
        return {}
    return {"cell": {**(row.cell or {}), _READ: {name: getattr(row, name) for name in _VALUE}}}


def value_read(connection: Connection, fact_id: str) -> dict[str, Any]:
    """The changes that withdraw the correction of a fact. Raises Conflict without a correction."""
    row = connection.execute(sa.select(facts).where(facts.c.id == fact_id)).one_or_none()
    cell = dict(row.cell or {}) if row is not None else {}
    read = cell.pop(_READ, None)
    if row is None or read is None:
        raise Conflict(
            f"the value of {fact_id} is not a correction that can be withdrawn",
            hint="Only a value that was read, or described, and then corrected has one to go back"
            " to. Reject it, or set another value.",
        )
    return {**read, "cell": cell or None}


# -- facts of replaced versions


def replace_outdated(connection: Connection, fact_ids: Sequence[str]) -> None:
    """A fact was accepted: reject accepted facts that an earlier version of its document stated
    differently."""
    for fact_id in fact_ids:
        new = connection.execute(sa.select(facts).where(facts.c.id == fact_id)).one_or_none()
        if new is None or new.document_id is None or new.version_id is None:
            continue
        current = sa.select(documents.c.current_version_id).where(documents.c.id == new.document_id)
        if connection.scalar(current) != new.version_id:
            continue
        connection.execute(
            facts.update()
            .where(
                facts.c.document_id == new.document_id,
                facts.c.version_id != new.version_id,
                facts.c.status == "accepted",
                facts.c.id != fact_id,
                *_same_key(new._asdict()),
            )
            .values(status="rejected", actor=new.actor)
        )


@dataclass(frozen=True)
class Stated:
    """A value of a fact: `number` in the fact's unit, or `text`."""

    fact_id: str
    number: float | None
    text: str
    status: str

    @property
    def value(self) -> float | str:
        """The number, or the text of a fact that has none."""
        return self.number if self.number is not None else self.text


@dataclass(frozen=True)
class Outdated:
    """An accepted fact of a version that another one has replaced. `now` are the values that the
    current version states of the same key, if any. `subject` is None for the hardware itself,
    `title` that of the earlier version."""

    hardware_id: str
    key: str
    unit: str
    subject: str | None
    document_id: str
    title: str
    accepted: Stated
    version: int
    current_version: int
    now: tuple[Stated, ...]


def outdated_facts(
    connection: Connection,
    *,
    hardware_id: str | None = None,
    document_id: str | None = None,
    access: AccessScope = ALL_ACCESS,
) -> list[Outdated]:
    """The accepted facts, of one hardware or document or of all, of a replaced version of their
    document, that the current one does not state too; by hardware and key."""
    of, current = document_versions.alias("of"), document_versions.alias("current")
    query = (
        sa.select(facts, of.c.number.label("version"), current.c.number.label("current_version"))
        .add_columns(current.c.id.label("current_id"))
        .join(of, of.c.id == facts.c.version_id)
        .join(documents, documents.c.id == facts.c.document_id)
        .join(current, current.c.id == documents.c.current_version_id)
        .where(facts.c.status == "accepted", of.c.number < current.c.number, visible.facts(access))
        .order_by(facts.c.hardware_id, facts.c.key, facts.c.id)
    )
    if hardware_id is not None:
        query = query.where(facts.c.hardware_id == hardware_id)
    if document_id is not None:
        query = query.where(facts.c.document_id == document_id)
    entries = (_outdated(connection, row) for row in connection.execute(query).all())
    return [e for e in entries if all(now.value != e.accepted.value for now in e.now)]


def _outdated(connection: Connection, row: sa.Row[Any]) -> Outdated:
    now = connection.execute(
        sa.select(facts.c.id, facts.c.number, facts.c.text, facts.c.status)
        .where(
            facts.c.document_id == row.document_id,
            facts.c.version_id == row.current_id,
            facts.c.status != "rejected",
            *_same_key(row._asdict()),
        )
        .order_by(facts.c.id)
    )
    return record_of(
        Outdated,
        row,
        subject=None if row.subject_kind in ("chip", "family") else row.subject,
        accepted=Stated(row.id, row.number, row.text, row.status),
        now=tuple(Stated(*other) for other in now),
    )
