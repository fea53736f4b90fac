"""Rows as records: which columns a record has, its values, and queries for many keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog.dialect import driver_sql

_MAX_PARAMETERS = 500  # SQLite bounds the parameters of one statement
T = TypeVar("T")


def columns_of(table: sa.Table, record: Any, *but: str) -> list[sa.Column[Any]]:
    """The columns with the names of a dataclass's fields, in their order, except `but`."""
    return [table.c[name] for name in record.__dataclass_fields__ if name not in but]


def record_of(record: type[T], row: Any, **values: Any) -> T:
    """A dataclass from the columns with the names of its fields; a list becomes a tuple. `values`
    are taken in place of a column.
    """
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
    """The rows of a query whose column has one of the values."""
    for part in portions(list(values)):
        yield from connection.execute(query.where(column.in_(part))).all()


def rows_of(connection: Connection, statement: str, values: Sequence[str]) -> Iterator[Any]:
    """The rows of a statement that ends in `IN`, for these values. As text: a statement that is
    built takes longer, and requests read these rows again and again.
    """
    statement, mark = driver_sql(connection, statement), driver_sql(connection, "?")
    for part in portions(values):
        marks = ",".join([mark] * len(part))
        yield from connection.exec_driver_sql(f"{statement} ({marks})", tuple(part)).all()
