"""The revision of a catalog's schema: migrating it to the newest, and which code may write to it.

Most migrations add a table, a column with a default, or an index, so that processes of the release
before can go on while they are replaced one by one. A migration that older code cannot work with
names, as `oldest_code`, the oldest revision whose code can. It is stored in the catalog (`meta`)
and checked in every transaction that writes, under the lock of the migration.
"""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog.meta import get, put
from kb.catalog.tables import meta
from kb.errors import StoreError, Unavailable

OLDEST_CODE = "oldest_code"  # of the catalog's named values
CURRENT, NEWER, TOO_NEW = "current", "newer", "too_new"
_MIGRATIONS = Path(__file__).parent / "migrations"

Transaction = Callable[[], AbstractContextManager[Connection]]


@dataclass(frozen=True)
class SchemaState:
    """`state` is `current`, `newer` (this code may still write) or `too_new` (it must not)."""

    state: str
    revision: str | None
    needed: str | None = None


def migrate(name: str, read: Transaction, write: Transaction) -> None:
    """Bring a catalog to the newest revision. `name` is for messages. Raises StoreError for one
    that is too old, or too new for this code."""
    with read() as connection:
        revision = revision_of(connection)
        # Alembic costs 0.3 s to import; a catalog that is at the newest revision never pays it.
        if revision == newest():
            return
        if revision is not None and revision > newest() and _admits(connection):
            return
    with write() as connection:
        revision = revision_of(connection)  # another process may have been first
        if revision == newest():
            return
        check_revision(f"the catalog {name}", revision)
        _upgrade(connection)


def _upgrade(connection: Connection, revision: str = "head") -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
    scripts = ScriptDirectory.from_config(config).walk_revisions()
    stated = [str(getattr(script.module, "oldest_code", "")) for script in scripts]
    put(connection, OLDEST_CODE, max(stated))


@cache
def newest() -> str:
    """The newest revision that this code knows."""
    return revisions()[-1]


def revisions() -> list[str]:
    """The revisions of the schema, oldest first."""
    return sorted(path.stem.split("_")[0] for path in (_MIGRATIONS / "versions").glob("[0-9]*.py"))


def check_revision(subject: str, revision: str | None) -> None:
    """Raise StoreError for a revision that cannot be migrated to the newest. `subject` names the
    catalog in the message; the revision None is that of a new catalog."""
    known = revisions()
    if revision is None:
        return
    if revision > known[-1]:
        raise StoreError(
            f"{subject} was written by a newer Kernlore (revision {revision})",
            hint="Upgrade Kernlore, or start with another --data-dir.",
        )
    if revision < known[0]:
        raise StoreError(
            f"{subject} is older than the first release (revision {revision}) and cannot be"
            " migrated",
            hint="Start with a new --data-dir and ingest your documents again with `kernlore"
            " ingest`. The Kernlore that wrote the catalog can still read it: it exports learned"
            " skills with `kernlore skills export`.",
        )


def revision_of(connection: Connection) -> str | None:
    """The revision of a catalog; None without tables."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return version


def state_of(connection: Connection) -> SchemaState:
    """Whether this code may write to a catalog with tables."""
    revision = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    needed = get(connection, OLDEST_CODE)
    if needed is not None and needed > newest():
        return SchemaState(TOO_NEW, revision, needed)
    return SchemaState(NEWER if str(revision) > newest() else CURRENT, revision, needed)


def forget_oldest_code(connection: Connection) -> None:
    """Before the named values of another catalog are copied into this one."""
    connection.execute(meta.delete().where(meta.c.key == OLDEST_CODE))


def check_writable(connection: Connection, name: str) -> None:
    """Raise Unavailable if a newer Kernlore has migrated the catalog so that this code must not
    write to it."""
    needed = get(connection, OLDEST_CODE)
    if needed is not None and needed > newest():
        raise Unavailable(
            f"the catalog {name} was migrated by a newer Kernlore (code of revision {needed} or"
            f" newer may write; this is {newest()})",
            hint="Stop this process and start the newer Kernlore instead; a load balancer"
            " leaves it out by itself, as /readyz answers 503.",
        )


# -- foreign objects in a catalog of SQLite, which would act when rows change

_INTERNAL = re.compile(r"sqlite_(?:sequence|stat[1-4]|autoindex_.+)")
_OBJECTS = "SELECT type, name, tbl_name, sql FROM sqlite_master"


def foreign_object(catalog: Path, revision: str) -> str:
    """A table, index, trigger or view of an SQLite file that differs from those that the migrations
    up to `revision` create, as words; empty without a difference."""
    with closing(sqlite3.connect(f"{catalog.as_uri()}?mode=ro", uri=True)) as connection:
        found = _objects(connection.execute(_OBJECTS).fetchall())
    with tempfile.TemporaryDirectory(prefix="kernlore-schema-") as folder:
        engine = sa.create_engine(f"sqlite:///{folder}/known.sqlite")
        with engine.begin() as connection:
            _upgrade(connection, revision)
            known = _objects(connection.exec_driver_sql(_OBJECTS).all())
        engine.dispose()
    for kind, name in sorted(found.keys() - known.keys()):
        return f"a {kind} {name[:80]!r} that Kernlore does not create"
    for kind, name in sorted(known.keys() - found.keys()):
        return f"no {kind} {name!r}"
    for kind, name in sorted(known):
        if found[kind, name] != known[kind, name]:
            return f"a {kind} {name!r} that differs from that of Kernlore"
    return ""


def _objects(rows: Iterable[Sequence[str | None]]) -> dict[tuple[str, str], tuple[str, str]]:
    """(table, statement) by kind and name; white space and quotes of names do not count."""
    return {
        (str(kind), str(name)): (str(table), re.sub(r'[\s"`]', "", sql or ""))
        for kind, name, table, sql in rows
        if not (kind in ("table", "index") and _INTERNAL.fullmatch(str(name)))
    }


def _admits(connection: Connection) -> bool:
    """Whether a newer catalog admits this code."""
    needed = get(connection, OLDEST_CODE)
    return needed is not None and needed <= newest()
