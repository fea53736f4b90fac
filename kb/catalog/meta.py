"""Small named values of the catalog, first of all its revision: a number that grows with every
change of what a search can return, so that caches and logs can name the catalog they refer to."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog.tables import documents, meta

_SKILLS, _DOCUMENTS, _USES = "skills_revision", "documents_revision", "uses_of_skills"
_DELETED = "deletion_revision"
STORE_ID = "store_id"  # see `Catalog.store_id`


def get(connection: Connection, key: str) -> Any:
    """The value, or None."""
    return connection.execute(sa.select(meta.c.value).where(meta.c.key == key)).scalar()


def put(connection: Connection, key: str, value: Any) -> None:
    """Store a value of JSON under the key."""
    updated = connection.execute(
        meta.update().where(meta.c.key == key).values(value=value, updated_at=clock.now())
    )
    if updated.rowcount == 0:
        connection.execute(meta.insert().values(key=key, value=value, updated_at=clock.now()))


def remove(connection: Connection, key: str) -> None:
    """Forget the value; one that is not there is no error."""
    connection.execute(meta.delete().where(meta.c.key == key))


def revision(connection: Connection) -> int:
    """The catalog's revision; 0 for a new catalog."""
    # As text, because every request reads it.
    row = connection.exec_driver_sql("SELECT value FROM meta WHERE key = 'revision'").first()
    return int(row[0]) if row is not None else 0


def bump_revision(connection: Connection) -> None:
    """Count a change of what a search can return, in the transaction that makes it."""
    put(connection, "revision", revision(connection) + 1)


def bump_documents(connection: Connection, document_ids: Collection[str]) -> None:
    """Count a change of what answers quote of these documents: their text, scopes, cards, kernels
    or vectors.
    """
    bump_revision(connection)
    put(connection, _DOCUMENTS, int(get(connection, _DOCUMENTS) or 0) + 1)
    stamp = revision(connection)
    if document_ids:
        connection.execute(
            documents.update()
            .where(documents.c.id == sa.bindparam("document"))
            .values(stamp=stamp),
            [{"document": document_id} for document_id in sorted(document_ids)],
        )


def bump_deletion(connection: Connection) -> None:
    """Count that a document is gone: no answer may be made from what was known before."""
    bump_documents(connection, ())
    put(connection, _DELETED, revision(connection))


def bump_uses(connection: Connection) -> None:
    """Count a change of the counters of uses of skills, which leaves the catalog's revision."""
    put(connection, _USES, int(get(connection, _USES) or 0) + 1)


class State(NamedTuple):
    """What has changed how often. `deletion` is the revision of the last deletion."""

    revision: int
    documents: int
    skills: int
    uses: int
    deletion: int


def state(connection: Connection) -> State:
    """The counters of the catalog, by one statement."""
    # As text, because every request reads it.
    rows = connection.exec_driver_sql(
        "SELECT key, value FROM meta WHERE key IN"
        f" ('revision', '{_DOCUMENTS}', '{_SKILLS}', '{_USES}', '{_DELETED}')"
    )
    counts = {row[0]: int(row[1]) for row in rows}
    names = ("revision", _DOCUMENTS, _SKILLS, _USES, _DELETED)
    return State(*(counts.get(name, 0) for name in names))


def bump_skills(connection: Connection) -> None:
    """The same for a change of skills, or of what is known about them, alone."""
    bump_revision(connection)
    put(connection, _SKILLS, int(get(connection, _SKILLS) or 0) + 1)


def knowledge_revision(connection: Connection) -> int:
    """Grows with every change of the catalog's revision but those of skills alone. A Kernlore that
    does not know of this counts those too.
    """
    rows = connection.exec_driver_sql(
        f"SELECT key, value FROM meta WHERE key IN ('revision', '{_SKILLS}')"
    )
    counts = {row[0]: int(row[1]) for row in rows}
    return counts.get("revision", 0) - counts.get(_SKILLS, 0)
