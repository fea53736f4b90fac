"""Validity in the catalog: what documents state, and what checks of tools on a machine have found.

`subject` is the id of a document or a section, or `skill:NAME` or `signature:ID`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import tables as t
from kb.catalog.engine import record_of
from kb.catalog.knowledge.versions import StoredVersion
from kb.catalog.meta import bump_revision
from kb.ids import derived_id
from kb.scope import ALL_ACCESS
from kb.validity import Validity, numbers_of

STATED, CHECK = "stated", "check"
SIGNATURE, SKILL = "signature:", "skill:"  # prefixes of subjects


@dataclass(frozen=True)
class StatedValidity:
    """A validity that a document states about itself, or about one of its sections by index."""

    validity: Validity
    section: int | None = None


@dataclass(frozen=True)
class CheckedValidity:
    """The result of a check: `subject` with its title, `validity` for exactly one version, and the
    tool's message where it does not hold."""

    subject: str
    title: str
    validity: Validity
    detail: str = ""
    document_id: str | None = None


def replace_document_validities(
    connection: Connection, stated: Sequence[tuple[StoredVersion, Sequence[StatedValidity]]]
) -> None:
    """Replace what documents state; results of checks are unchanged."""
    v = t.validities
    rows = {}
    for version, entries in stated:
        document = version.document
        if not version.first:
            own = (v.c.document_id == document.id, v.c.origin == STATED)
            connection.execute(v.delete().where(*own))
        for entry in entries:
            row = _row(
                document.id if entry.section is None else version.sections[entry.section].id,
                entry.validity,
                document_id=document.id,
                origin=STATED,
                access_scope=document.access_scope,
            )
            rows[row["id"]] = row
    if rows:
        connection.execute(v.insert(), list(rows.values()))


def record_checks(connection: Connection, checks: Sequence[CheckedValidity]) -> None:
    """Store results of checks, each in place of an earlier one of the same subject and version."""
    rows = {}
    for check in checks:
        row = _row(
            check.subject,
            check.validity,
            document_id=check.document_id,
            origin=CHECK,
            title=check.title,
            detail=check.detail,
            access_scope=ALL_ACCESS.owner,
        )
        rows[row["id"]] = row
    if not rows:
        return
    v = t.validities
    connection.execute(
        v.delete().where(v.c.id == sa.bindparam("old")), [{"old": identity} for identity in rows]
    )
    connection.execute(v.insert(), list(rows.values()))
    bump_revision(connection)


def _row(subject: str, validity: Validity, **values: object) -> dict[str, object]:
    own = validity
    what = (values["origin"], subject, own.tool, own.min, own.max, own.target)
    stated = (own.checked, own.date, str(own.holds)) if values["origin"] == STATED else ()
    return {
        "id": derived_id("val", *map(str, (*what, *stated))),
        "subject": subject,
        **asdict(validity),
        "created_at": clock.now(),
        **values,
    }


def checks_of(connection: Connection) -> list[CheckedValidity]:
    """All results of checks, by title, the newest version of a tool last."""
    v = t.validities
    rows = connection.execute(sa.select(v).where(v.c.origin == CHECK))
    checks = [record_of(CheckedValidity, row, validity=_validity(row)) for row in rows]
    return sorted(checks, key=lambda c: (c.title, c.subject, c.validity.tool, _place(c.validity)))


def _place(validity: Validity) -> tuple[int, ...]:
    return numbers_of(validity.max)


def _validity(row: sa.Row[object]) -> Validity:
    return record_of(Validity, row)


@dataclass(frozen=True)
class StoredValidities:
    """The validities of a catalog by subject, the results of checks among them, and the version of
    each tool that this installation checked last, by tool."""

    by_subject: Mapping[str, tuple[Validity, ...]] = field(default_factory=dict)
    checked: Mapping[str, tuple[Validity, ...]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def stored_validities(connection: Connection) -> StoredValidities:
    """Everything in the catalog."""
    v = t.validities
    by_subject: dict[str, list[Validity]] = {}
    checked: dict[str, list[Validity]] = {}
    last: dict[str, tuple[str, tuple[int, ...], str]] = {}
    for row in connection.execute(sa.select(v).order_by(v.c.created_at, v.c.id)):
        validity = _validity(row)
        by_subject.setdefault(row.subject, []).append(validity)
        if row.origin == CHECK:
            checked.setdefault(row.subject, []).append(validity)
            new = (row.date, _place(validity), validity.max)
            last[row.tool] = max(last.get(row.tool, new), new)
    return StoredValidities(
        {subject: tuple(own) for subject, own in by_subject.items()},
        {subject: tuple(own) for subject, own in checked.items()},
        {tool: version for tool, (_, _, version) in last.items()},
    )
