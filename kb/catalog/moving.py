"""Copies a catalog into an empty one, of either kind of database.

Values are copied as they are stored, JSON as text, and rows in the order in which they were
written, so that answers are the same. Blobs are not part of a catalog and are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import dialect, meta, schema
from kb.catalog.engine import Catalog
from kb.catalog.tables import metadata
from kb.errors import Conflict, StoreError

BATCH = 500  # rows; a vector has 1.5 KB
Progress = Callable[[str], None]


def copy_catalog(
    source: Catalog, target: Catalog, progress: Progress = lambda _: None
) -> dict[str, int]:
    """Copy every row, all of them or none; returns their number by table. `progress` gets a line
    for each table.

    Rows that are written to the source meanwhile are not copied. Raises Conflict if the target
    has any row, StoreError if it has other rows than the source in the end.
    """
    with source.read() as reading, target.write() as writing:
        schema.forget_oldest_code(writing)  # an empty catalog has it too; the source's is copied
        _refuse_rows(writing, target)
        counts: dict[str, int] = {}
        for table in metadata.sorted_tables:
            counts[table.name] = _copy_table(reading, writing, _plain(table))
            _verify(writing, table.name, counts[table.name])
            progress(f"{table.name}: {counts[table.name]:,} rows")
        if meta.revision(writing) != meta.revision(reading):
            raise StoreError(f"{target.name} is not at the revision of {source.name}")
        meta.remove(writing, meta.STORE_ID)
    return counts


def _refuse_rows(connection: Connection, target: Catalog) -> None:
    for name in (table.name for table in metadata.sorted_tables):
        if count := _count(connection, name):
            raise Conflict(
                f"{target.name} is not empty: it has {count:,} rows of {name}",
                hint="Give a new database or a new folder; nothing is added to a catalog that is"
                " in use.",
            )


def _plain(table: sa.Table) -> sa.Table:
    """The table with its JSON columns as text: decoding would lose the difference between no value
    and JSON's null, which are both None in Python."""
    columns = (
        sa.Column(column.name, sa.Text() if isinstance(column.type, dialect.Json) else column.type)
        for column in table.columns
    )
    return sa.Table(table.name, sa.MetaData(), *columns)


def _copy_table(reading: Connection, writing: Connection, table: sa.Table) -> int:
    rows = reading.execute(
        sa.select(table).order_by(dialect.row_order(reading)),
        execution_options={"stream_results": True, "yield_per": BATCH},
    )
    copied = 0
    for batch in _batches(rows.mappings()):
        writing.execute(table.insert(), [dict(row) for row in batch])
        copied += len(batch)
    if "seq" in table.columns:
        dialect.advance_sequence(writing, table.c.seq)
    return copied


def _verify(connection: Connection, name: str, copied: int) -> None:
    count = _count(connection, name)
    if count != copied:
        raise StoreError(
            f"{copied:,} rows of {name} were copied, and {count:,} are there",
            hint="The copy was rolled back. Report this as a defect of Kernlore.",
        )


def _count(connection: Connection, name: str) -> int:
    return int(
        connection.execute(sa.select(sa.func.count()).select_from(sa.table(name))).scalar_one()
    )


def _batches(rows: Iterable[Any]) -> Iterator[list[Any]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, BATCH)):
        yield batch
