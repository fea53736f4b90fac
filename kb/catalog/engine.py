"""Opens the SQL catalog, the authoritative store of everything Kernlore holds.

It is an SQLite file in the data directory, or a database of a PostgreSQL server. Migrations run on
opening, under the write lock, so two processes that start together cannot both migrate. Knows no
table by name.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from kb.catalog.database import NAME, Database, PostgresServer, SqliteFile, damaged, store_fault
from kb.catalog.meta import STORE_ID, get, put
from kb.catalog.schema import SchemaState, check_writable, migrate, state_of
from kb.data_dir import private_folder
from kb.errors import InvalidRequest, StoreError

MOST_CHECKED = 512 << 20  # bytes; 1 s a GB if the file is in memory


class Catalog:
    """A handle on one catalog. Cheap to share between threads; each thread takes a pooled
    connection. `data_dir` holds the catalog's stored files, locks and indexes."""

    def __init__(self, database: Database, engine: Engine, data_dir: Path) -> None:
        self._database = database
        self._engine = engine
        self.data_dir = data_dir

    @property
    def name(self) -> str:
        """Its path or URL, without a password, for messages."""
        return self._database.name

    @property
    def path(self) -> Path:
        """The file of an embedded catalog. Raises StoreError for one on a server."""
        if self._database.file is None:
            raise StoreError(f"the catalog {self.name} is no file", hint="Use its server's tools.")
        return self._database.file

    @property
    def on_server(self) -> bool:
        """Whether it is on a server: services of other machines may use it, and every query is a
        round trip."""
        return self._database.file is None

    @property
    def read_only(self) -> bool:
        """Whether it cannot be written to."""
        return self._database.read_only

    def version(self) -> Hashable:
        """A version that changes with every change by any process, read in microseconds (on a
        server: one query). For caches that are validated at each request."""
        return self._database.version(self._engine)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view; changes made in it are rolled back."""
        with self._engine.connect() as connection:
            self._database.begin_read(connection)
            try:
                yield connection
            finally:
                connection.rollback()

    @contextmanager
    def write(self, *, rows_only: bool = False) -> Iterator[Connection]:
        """One transaction that takes the write lock at its start: all of it is stored, or nothing.

        With `rows_only`, it locks only the rows that it changes, if the database supports row
        locks. Raises Unavailable if a newer Kernlore has migrated the catalog so that this code
        must not write to it.
        """
        with self._writing(rows_only) as connection:
            check_writable(connection, self.name)
            yield connection

    @contextmanager
    def migrating(self) -> Iterator[Connection]:
        """As `write`, for a catalog without tables or with a schema of another revision."""
        with self._writing(rows_only=False) as connection:
            yield connection

    @contextmanager
    def _writing(self, rows_only: bool) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            self._database.begin_write(connection, rows_only)
            committed = False
            try:
                yield connection
                connection.commit()
                committed = True
            finally:
                if not committed:
                    connection.rollback()

    def schema_state(self) -> SchemaState:
        """Whether this code may write: another process may have migrated the schema since."""
        with self.read() as connection:
            return state_of(connection)

    def check(self, most_bytes: int = MOST_CHECKED) -> None:
        """Read every page of an embedded catalog of at most `most_bytes`. Raises StoreError for a
        damaged page, which would otherwise fail single requests."""
        try:
            verdict = self._database.check(self._engine, most_bytes)
        except sa.exc.DatabaseError as error:
            raise store_fault(error) or damaged(str(error.orig)) from error
        if verdict not in ("ok", ""):
            raise damaged(verdict.replace("\n", ": "))

    def verdict(self) -> str:
        """The result of an integrity check: "ok", or the damage."""
        return self._database.check(self._engine, None)

    def store_id(self) -> str:
        """Id of this catalog on servers that hold data of several: twelve hex digits, stored at
        first use."""
        with self.read() as connection:
            known = get(connection, STORE_ID)
        if known is None:
            with self.write() as connection:
                known = get(connection, STORE_ID)  # another process may have made it
                if known is None:
                    known = secrets.token_hex(6)
                    put(connection, STORE_ID, known)
        return str(known)

    def empty_log(self) -> bool:
        """Move the log of writes into the catalog and empty its file, so that no page in it holds
        deleted text. Returns False if a reader still needs it after a second. A server empties its
        log itself."""
        return self._database.empty_log(self._engine)

    def close(self) -> None:
        """Close every connection; the handle can still be used and opens new ones."""
        self._database.close()
        self._engine.dispose()


def open_catalog(data_dir: Path, url: str | None = None) -> Catalog:
    """Open (and create or migrate) the catalog of a data directory: its SQLite file, or the
    database that the URL names."""
    return _opened(_database(data_dir, url), data_dir)


def _database(data_dir: Path, url: str | None) -> Database:
    if url is None:
        return SqliteFile(data_dir / NAME)
    if url.startswith("sqlite"):
        return SqliteFile(_sqlite_path(url))
    private_folder(data_dir)
    return PostgresServer(url)


def open_place(place: str) -> Catalog:
    """The catalog at a URL, a file or a data directory, without the rest of a store."""
    if "://" in place and not place.startswith("sqlite"):
        return _opened(PostgresServer(place), Path())
    path = _sqlite_path(place) if "://" in place else Path(place)
    if path.is_dir() or not path.suffix:
        path = path / NAME
    return _opened(SqliteFile(path), path.parent)


def _opened(database: Database, data_dir: Path) -> Catalog:
    engine = database.engine()
    catalog = Catalog(database, engine, data_dir)
    try:
        database.admit(engine)
        migrate(catalog.name, catalog.read, catalog.migrating)
    except sa.exc.DatabaseError as error:
        engine.dispose()
        raise database.fault(error) from error
    except StoreError:
        engine.dispose()
        raise
    return catalog


def _sqlite_path(url: str) -> Path:
    """The file that a URL such as sqlite:////folder/catalog.sqlite names."""
    database = sa.make_url(url).database
    if not database or database == ":memory:":
        raise InvalidRequest(
            "a catalog in SQLite needs a file", hint="Give sqlite:////FOLDER/catalog.sqlite."
        )
    return Path(database)


# -- rows as records: which columns a record has, its values, and queries for many keys

_MAX_PARAMETERS = 500  # SQLite bounds the parameters of one statement
T = TypeVar("T")


def columns_of(table: sa.Table, record: Any, *but: str) -> list[sa.Column[Any]]:
    """The columns with the names of a dataclass's fields, in their order, except `but`."""
    return [table.c[name] for name in record.__dataclass_fields__ if name not in but]


def record_of(record: type[T], row: Any, **values: Any) -> T:
    """A dataclass from the columns with the names of its fields; a list becomes a tuple. `values`
    are taken in place of a column."""
    stored = row._mapping
    names: Any = record.__dataclass_fields__  # type: ignore[attr-defined]
    return record(
        **{name: values[name] if name in values else _fixed(stored[name]) for name in names}
    )


def _fixed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def portions(values: Sequence[T]) -> list[Sequence[T]]:
    """The values in portions that fit into one statement's IN list."""
    return [values[n : n + _MAX_PARAMETERS] for n in range(0, len(values), _MAX_PARAMETERS)]


def select_in(
    connection: Connection,
    query: sa.Select[Any],
    column: sa.ColumnElement[Any],
    values: Iterable[Any],
) -> Iterator[Any]:
    for part in portions(list(values)):
        yield from connection.execute(query.where(column.in_(part))).all()


def insert_texts(
    connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, str]]
) -> None:
    """Insert rows that have the same columns, all of text, without SQLAlchemy's work for each row,
    which takes longer than SQLite's."""
    statement = table.insert().compile(dialect=connection.dialect, column_keys=list(rows[0]))
    places = statement.positiontup
    values = rows if places is None else [tuple(map(row.__getitem__, places)) for row in rows]
    connection.exec_driver_sql(str(statement), values)
