"""Small named values of the catalog, above all its revision: a number that grows with every change
that can change a search result, so that caches and logs can refer to a state of the catalog.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb import clock
from kb.catalog.tables import meta

_SKILLS = "skills_revision"
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


def bump_revision(connection: Connection) -> None:
    """Count a change that can change a search result, in its transaction."""
    put(connection, "revision", revision(connection) + 1)


def bump_skills(connection: Connection) -> None:
    """The same for a change of skills, or of their evidence, alone."""
    bump_revision(connection)
    put(connection, _SKILLS, int(get(connection, _SKILLS) or 0) + 1)


def knowledge_revision(connection: Connection) -> int:
    """Grows with every change of the catalog's revision, except those of skills alone. Processes of
    the first release count those too.
    """
    rows = connection.exec_driver_sql(
        f"SELECT key, value FROM meta WHERE key IN ('revision', '{_SKILLS}')"
    )
    counts = {row[0]: int(row[1]) for row in rows}
    return counts.get("revision", 0) - counts.get(_SKILLS, 0)
