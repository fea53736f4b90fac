"""Small named values of the catalog, above all its revision: a number that grows with every change
that can change a search result, so that caches and logs can refer to a state of the catalog.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog.tables import documents, meta

_STAMP, _AWAITED = "stamp", "awaited_revision"  # see `State`
_SKILLS, _USES = "skills_revision", "uses_of_skills"
_WAITING = "waiting_documents"
STORE_ID = "store_id"  # see `Catalog.store_id`


def get(connection: Connection, key: str) -> Any:
    """The value, or None."""
    return connection.scalar(sa.select(meta.c.value).where(meta.c.key == key))


def put(connection: Connection, key: str, value: Any) -> None:
    """Store a value of JSON under the key."""
    updated = connection.execute(
        meta.update().where(meta.c.key == key).values(value=value, updated_at=clock.now())
    )
    if updated.rowcount == 0:
        connection.execute(meta.insert().values(key=key, value=value, updated_at=clock.now()))


def remove(connection: Connection, key: str) -> None:
    """Remove the value; a missing one is no error."""
    connection.execute(meta.delete().where(meta.c.key == key))


def revision(connection: Connection) -> int:
    """The catalog's revision; 0 for a new catalog."""
    # As text, because every request reads it.
    row = connection.exec_driver_sql("SELECT value FROM meta WHERE key = 'revision'").first()
    return int(row[0]) if row is not None else 0


def bump_revision(connection: Connection, *, at_once: bool = True) -> None:
    """Count a change that can change a search result, in its transaction. The next answer waits
    until the change is published, unless `at_once` is false."""
    new = revision(connection) + 1
    put(connection, "revision", new)
    if at_once:
        put(connection, _AWAITED, new)


def bump_documents(
    connection: Connection, document_ids: Collection[str] = (), *, at_once: bool = True
) -> None:
    """Count a change of these documents that answers can show: their text, scopes, cards or
    kernels; without ids, the deletion of documents. `at_once` as for `bump_revision`."""
    bump_revision(connection, at_once=at_once)
    _stamp(connection, document_ids)


def bump_vectors(connection: Connection, document_ids: Collection[str]) -> None:
    """Count new vectors of passages of these documents; the revision does not change."""
    _stamp(connection, document_ids)


def _stamp(connection: Connection, document_ids: Collection[str]) -> None:
    stamp = int(get(connection, _STAMP) or 0) + 1
    put(connection, _STAMP, stamp)
    if document_ids:
        connection.execute(
            documents.update().where(documents.c.id == sa.bindparam("document")),
            [{"document": document_id, "stamp": stamp} for document_id in sorted(document_ids)],
        )


def bump_uses(connection: Connection) -> None:
    """Count a change of the counters of uses of skills; the revision does not change."""
    put(connection, _USES, int(get(connection, _USES) or 0) + 1)


def bump_waiting(connection: Connection) -> None:
    """Count a change of the documents that wait to be read; the revision does not change."""
    put(connection, _WAITING, int(get(connection, _WAITING) or 0) + 1)


class State(NamedTuple):
    """Counters of changes. `stamp` grows with every change of a document or its vectors; `awaited`
    is the revision of the last change that answers wait for."""

    revision: int
    stamp: int
    awaited: int
    skills: int
    uses: int
    waiting: int = 0


def state(connection: Connection) -> State:
    """The counters of the catalog, by one statement."""
    names = ("revision", _STAMP, _AWAITED, _SKILLS, _USES, _WAITING)
    # As text, because every request reads it.
    rows = connection.exec_driver_sql(
        f"SELECT key, value FROM meta WHERE key IN ({', '.join(map(repr, names))})"
    )
    counts = {row[0]: int(row[1]) for row in rows}
    return State(*(counts.get(name, 0) for name in names))


def bump_skills(connection: Connection) -> None:
    """The same for a change of skills, or of their evidence, alone."""
    bump_revision(connection)
    put(connection, _SKILLS, int(get(connection, _SKILLS) or 0) + 1)
