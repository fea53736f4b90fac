"""All differences between the SQL of SQLite and of PostgreSQL.

The tables and the migrations are written once. Importing this module gives their types the same
meaning on both: whole numbers have 64 bits, JSON is text as Python writes it (PostgreSQL's own type
refuses the infinite bounds that an evaluation may have), and text is compared byte by byte.
Statements that differ are functions here. Knows no table, except those of the lexical index.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Dialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction

POSTGRESQL = "postgresql"


def is_postgresql(connection: Connection) -> bool:
    """Whether the catalog is on a PostgreSQL server."""
    return connection.dialect.name == POSTGRESQL


# -- types


class _JsonText(sa.types.UserDefinedType[Any]):
    """JSON as text. None is JSON's null, as in SQLite."""

    cache_ok = True

    def get_col_spec(self, **options: Any) -> str:
        return "TEXT"

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], str]:
        return json.dumps

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return lambda text: None if text is None else json.loads(text)


class Json(sa.TypeDecorator[Any]):
    """A structured value. None is stored as JSON's null, a missing value as SQL's."""

    impl = sa.JSON
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        return dialect.type_descriptor(_JsonText() if dialect.name == POSTGRESQL else sa.JSON())


class Integer(sa.TypeDecorator[int]):
    """A whole number of 64 bits."""

    impl = sa.Integer
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> sa.types.TypeEngine[Any]:
        wide = dialect.name == POSTGRESQL
        return dialect.type_descriptor(sa.BigInteger() if wide else sa.Integer())


@compiles(sa.JSON, POSTGRESQL)
def _json(element: Any, compiler: Any, **options: Any) -> str:
    return "TEXT"


@compiles(sa.Integer, POSTGRESQL)
def _integer(element: Any, compiler: Any, **options: Any) -> str:
    return "BIGINT" if _of_column(options) else "INTEGER"


@compiles(sa.String, POSTGRESQL)
def _string(element: Any, compiler: Any, **options: Any) -> str:
    return f"VARCHAR{_collation(options)}"


@compiles(sa.Text, POSTGRESQL)
def _text(element: Any, compiler: Any, **options: Any) -> str:
    return f"TEXT{_collation(options)}"


def _collation(options: dict[str, Any]) -> str:
    """SQLite's order."""
    return ' COLLATE "C"' if _of_column(options) else ""


def _of_column(options: dict[str, Any]) -> bool:
    """Whether it is the type of a column, not of a cast."""
    return isinstance(options.get("type_expression"), sa.Column)


# -- expressions


class json_text(GenericFunction[str]):
    """`json_text(column, name)`: the entry of this name of a JSON object, as text."""

    type = sa.String()
    inherit_cache = True


@compiles(json_text, "sqlite")
def _json_text_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    column, name = (compiler.process(clause, **options) for clause in element.clauses)
    return f"json_extract({column}, '$.' || {name})"


@compiles(json_text, POSTGRESQL)
def _json_text_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    column, name = (compiler.process(clause, **options) for clause in element.clauses)
    return f"(CAST({column} AS JSON) ->> {name})"


def insert_new(connection: Connection, table: sa.Table) -> sa.Insert:
    """An insertion that skips rows whose key exists already."""
    if is_postgresql(connection):
        from sqlalchemy.dialects import postgresql  # 0.1 s, not needed for SQLite

        return postgresql.insert(table).on_conflict_do_nothing()
    return table.insert().prefix_with("OR IGNORE")


def row_order(connection: Connection) -> sa.ColumnElement[int]:
    """A column that orders rows that never change by insertion."""
    return sa.literal_column("ctid" if is_postgresql(connection) else "rowid")


def advance_sequence(connection: Connection, column: sa.Column[Any]) -> None:
    """Number new rows of a table from above the largest number in this column."""
    if is_postgresql(connection):
        table = column.table.name
        connection.exec_driver_sql(
            f"SELECT setval(pg_get_serial_sequence('{table}', '{column.name}'),"
            f" max({column.name})) FROM {table} HAVING max({column.name}) IS NOT NULL"
        )


# -- tables of the former lexical index, for migrations

# Shadow text is [a-z0-9_] tokens (kb.tokens): FTS5's own tokenizer only splits at spaces.
_FTS5 = (
    "CREATE VIRTUAL TABLE {table} USING fts5(scope, heading, body, detail = full,"
    " tokenize = \"unicode61 remove_diacritics 0 tokenchars '_'\")"
)
_PLAIN = (
    "CREATE TABLE {table} (seq BIGINT PRIMARY KEY, scope TEXT NOT NULL, heading TEXT NOT NULL,"
    " body TEXT NOT NULL)"
)
_MARKS = (
    "CREATE TABLE write_marks (name TEXT PRIMARY KEY, writer BIGINT NOT NULL)",
    "CREATE FUNCTION mark_write() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " UPDATE write_marks SET writer = pg_current_xact_id()::text::bigint"
    " WHERE name = TG_TABLE_NAME AND writer <> pg_current_xact_id()::text::bigint;"
    " RETURN NULL; END $$",
)
_MARK = (
    "INSERT INTO write_marks VALUES ('{table}', pg_current_xact_id()::text::bigint)"
    " ON CONFLICT (name) DO UPDATE SET writer = excluded.writer",
    "CREATE TRIGGER {table}_written AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON {table}"
    " FOR EACH STATEMENT EXECUTE FUNCTION mark_write()",
)


def create_word_table(connection: Connection, table: str) -> None:
    """Create a level of the lexical index, empty; its writes are marked."""
    if not is_postgresql(connection):
        connection.exec_driver_sql(_FTS5.format(table=table))
        return
    connection.exec_driver_sql(_PLAIN.format(table=table))
    mark_writes(connection, table)


def create_marks(connection: Connection) -> None:
    """Create the table of each table's last writer; SQLite has its own change counters."""
    if is_postgresql(connection):
        for statement in _MARKS:
            connection.exec_driver_sql(statement)


def mark_writes(connection: Connection, table: str) -> None:
    """Record from now on which transaction wrote to the table last."""
    if is_postgresql(connection):
        for statement in _MARK:
            connection.exec_driver_sql(statement.format(table=table))


def drop_marks(connection: Connection) -> None:
    """Stop recording writers."""
    if is_postgresql(connection):
        connection.exec_driver_sql("DROP FUNCTION mark_write CASCADE")
        connection.exec_driver_sql("DROP TABLE write_marks")
