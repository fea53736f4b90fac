"""What stands on a chip in the catalog, and taking the chip out of it.

Its row stays, emptied: what was measured on it, with its devices, keeps naming it. Nothing else
reads such a row, and registering the id again fills it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog import meta
from kb.catalog.knowledge import erasure
from kb.catalog.tables import jobs as job_tables
from kb.catalog.tables import knowledge as t
from kb.catalog.tables import search, skills
from kb.catalog.tables.hardware import facts, hardware
from kb.catalog.tables.keys import api_keys

REMOVED = "removed"  # the origin of an emptied row
_IN_USE = ("active", "suspect")


@dataclass(frozen=True)
class Use:
    """What stands on a chip, by id or name. `documents` are about it alone, `shared` about other
    chips too; `reading` are of either, and in work; `skills` are in use and hold for it alone;
    `keys` are valid and restricted to it; `runs` have not ended.
    """

    children: tuple[str, ...]
    documents: tuple[str, ...]
    shared: tuple[str, ...]
    reading: tuple[str, ...]
    skills: tuple[str, ...]
    keys: tuple[str, ...]
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Removed:
    """How many facts went with a chip, how many of these a person had entered or accepted, and how
    many runs on it stay.
    """

    facts: int
    decided: int
    runs: int


def use_of(connection: Connection, hardware_id: str) -> Use:
    """What stands on this chip."""
    about = _documents(connection, hardware_id)
    children = sa.select(hardware.c.id).where(
        hardware.c.parent_id == hardware_id, hardware.c.origin != REMOVED
    )
    runs = search.runs
    running = sa.select(runs.c.id).where(
        runs.c.hardware_id == hardware_id, runs.c.finished_at.is_(None), runs.c.state == "running"
    )
    return Use(
        tuple(connection.execute(children.order_by(hardware.c.id)).scalars()),
        tuple(sorted(document for document, alone in about.items() if alone)),
        tuple(sorted(document for document, alone in about.items() if not alone)),
        tuple(_in_work(connection, hardware_id, about)),
        tuple(_skills(connection, hardware_id)),
        tuple(_keys(connection, hardware_id)),
        tuple(connection.execute(running.order_by(runs.c.id)).scalars()),
    )


def remove(connection: Connection, hardware_id: str, shared: Sequence[str]) -> Removed:
    """Take the chip out of the catalog with its facts, and out of the scopes of the documents that
    are about other chips too.
    """
    for document_id in shared:
        _leave(connection, document_id, hardware_id)
    mine = facts.c.hardware_id == hardware_id
    # The description's own facts are nobody's decision.
    stated = connection.execute(
        sa.select(facts.c.origin, facts.c.status).where(mine, facts.c.origin != "spec")
    ).all()
    connection.execute(facts.delete().where(mine))
    connection.execute(
        hardware.update()
        .where(hardware.c.id == hardware_id)
        .values(
            name=hardware_id,
            vendor=None,
            parent_id=None,
            summary="",
            aliases=[],
            languages=[],
            signatures=[],
            toolchains={},
            spec="",
            origin=REMOVED,
            updated_at=clock.now(),
        )
    )
    count_change(connection)
    erasure.owe(connection, ())
    runs = connection.execute(
        sa.select(sa.func.count())
        .select_from(search.runs)
        .where(search.runs.c.hardware_id == hardware_id)
    ).scalar_one()
    decided = sum(row.status == "accepted" or row.origin == "person" for row in stated)
    return Removed(len(stated), decided, runs)


def count_change(connection: Connection) -> None:
    """The registered hardware is another now: whoever remembers it reads it again."""
    revision = int(meta.get(connection, "hardware_revision") or 0)
    meta.put(connection, "hardware_revision", revision + 1)
    meta.bump_revision(connection)


def _documents(connection: Connection, hardware_id: str) -> dict[str, bool]:
    """The documents about the chip, also those of which only some version was declared to be;
    whether they are about it alone.
    """
    about: dict[str, set[str]] = {}
    scopes, versions = t.document_scopes, t.document_versions
    for document_id, value in connection.execute(
        sa.select(scopes.c.document_id, scopes.c.value).where(scopes.c.kind == "hardware")
    ):
        about.setdefault(document_id, set()).add(value)
    found = {
        document_id: len(chips) == 1 for document_id, chips in about.items() if hardware_id in chips
    }
    for document_id, declared in connection.execute(
        sa.select(versions.c.document_id, versions.c.declared)
    ):
        if hardware_id in (declared.get("hardware") or ()):
            found.setdefault(document_id, False)
    return found


def _in_work(connection: Connection, hardware_id: str, about: dict[str, bool]) -> list[str]:
    jobs = job_tables.jobs
    unfinished = sa.select(jobs.c.subject_id).where(jobs.c.state.in_(("queued", "running")))
    return sorted(about.keys() & set(connection.execute(unfinished).scalars()))


def _skills(connection: Connection, hardware_id: str) -> list[str]:
    scopes = skills.skill_scopes
    rows = connection.execute(
        sa.select(skills.skills.c.name, scopes.c.value)
        .join(scopes, scopes.c.skill_id == skills.skills.c.id)
        .where(scopes.c.kind == "hardware", skills.skills.c.state.in_(_IN_USE))
    ).all()
    chips = Counter(row.name for row in rows)
    return sorted(row.name for row in rows if row.value == hardware_id and chips[row.name] == 1)


def _keys(connection: Connection, hardware_id: str) -> list[str]:
    now = clock.now()
    rows = connection.execute(
        sa.select(api_keys.c.id, api_keys.c.hardware).where(
            api_keys.c.revoked_at.is_(None),
            sa.or_(api_keys.c.expires_at.is_(None), api_keys.c.expires_at > now),
        )
    )
    return sorted(row.id for row in rows if hardware_id in row.hardware)


def _leave(connection: Connection, document_id: str, hardware_id: str) -> None:
    """The document is no longer about the chip. What is about this chip alone stays so, a passage
    or a version: without a chip it would be about every one.
    """
    scopes, versions = t.document_scopes, t.document_versions
    connection.execute(
        scopes.delete().where(
            scopes.c.document_id == document_id,
            scopes.c.kind == "hardware",
            scopes.c.value == hardware_id,
        )
    )
    for row in connection.execute(
        sa.select(versions.c.id, versions.c.declared).where(versions.c.document_id == document_id)
    ).all():
        chips = [chip for chip in row.declared.get("hardware") or () if chip != hardware_id]
        if chips:
            connection.execute(
                versions.update()
                .where(versions.c.id == row.id)
                .values(declared={**row.declared, "hardware": chips})
            )
    about, other = t.passage_hardware, t.passage_hardware.alias()
    of_document = sa.select(t.passages.c.id).where(t.passages.c.document_id == document_id)
    elsewhere = sa.select(other.c.passage_id).where(other.c.hardware_id != hardware_id)
    connection.execute(
        about.delete().where(
            about.c.hardware_id == hardware_id,
            about.c.passage_id.in_(of_document),
            about.c.passage_id.in_(elsewhere),
        )
    )
