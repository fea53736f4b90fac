"""The tables of the lexical index, as SQLite (FTS5) and PostgreSQL hold them.

FTS5 searches its tables itself. PostgreSQL's own full-text search has no BM25 and no count of a
word's rows, so its answers would be others: there the tables are plain, and what is made of them in
memory searches (`word_index`), with the same scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog import dialect
from kb.catalog.knowledge.word_index import IndexedRow


class WordTables(ABC):
    """One database's way. A table is named, a row has a number `seq` and three columns of text."""

    number: str  # the column of a row's number
    rows: str  # the table that a row is read from whole

    def insert(self, connection: Connection, table: str, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows; their numbers must be new there."""
        statement = (
            f"INSERT INTO {table}({self.number}, scope, heading, body)"
            " VALUES (:seq, :scope, :heading, :body)"
        )
        connection.execute(sa.text(statement), rows)

    def delete(self, connection: Connection, table: str, seqs: Sequence[int]) -> None:
        """Remove rows by number; unknown numbers are no error."""
        statement = sa.text(f"DELETE FROM {table} WHERE {self.number} = :seq")
        connection.execute(statement, [{"seq": seq} for seq in seqs])

    def create(self, connection: Connection, table: str) -> None:
        """The table, empty, in place of what is there of it."""
        connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
        dialect.create_word_table(connection, table)

    def all(self, connection: Connection, table: str) -> Iterator[IndexedRow]:
        """Every row, in the order of the numbers."""
        rows = connection.exec_driver_sql(
            self.rows.format(table=table), execution_options={"stream_results": True}
        )
        return (IndexedRow(*row) for row in rows)

    @abstractmethod
    def merge(self, connection: Connection, table: str) -> None:
        """Leave no words of removed rows in the table's data."""

    @abstractmethod
    def agrees(self, connection: Connection, table: str, count: int) -> bool:
        """Whether the table is there, has so many rows, and agrees with itself."""

    @abstractmethod
    def state(self, connection: Connection, table: str) -> Hashable:
        """Another value after every write to the table."""

    @abstractmethod
    def scores(
        self, connection: Connection, table: str, match: str, heading_weight: float, limit: int
    ) -> dict[int, float] | None:
        """The rows that match, best first: number -> BM25. None where the tables do not search."""


class Fts5(WordTables):
    """SQLite's own."""

    number = "rowid"
    rows = "SELECT id, c0, c1, c2 FROM {table}_content ORDER BY id"

    def merge(self, connection: Connection, table: str) -> None:
        # As one segment. Until then they stand in its data, merely marked as removed.
        connection.execute(sa.text(f"INSERT INTO {table}({table}) VALUES ('optimize')"))

    def agrees(self, connection: Connection, table: str, count: int) -> bool:
        try:
            if _count(connection, table) != count:
                return False
            connection.execute(sa.text(f"INSERT INTO {table}({table}) VALUES ('integrity-check')"))
        except sa.exc.DatabaseError:  # no such table, or its own tables are damaged
            return False
        return True

    def state(self, connection: Connection, table: str) -> Hashable:
        # FTS5's own records of its totals (1) and of its segments (10), which count the writes.
        statement = f"SELECT block FROM {table}_data WHERE id IN (1, 10)"
        return tuple(connection.exec_driver_sql(statement))

    def scores(
        self, connection: Connection, table: str, match: str, heading_weight: float, limit: int
    ) -> dict[int, float] | None:
        rows = connection.exec_driver_sql(
            f"SELECT rowid, -bm25({table}, 0.0, ?, 1.0) AS score FROM {table}"
            f" WHERE {table} MATCH ? ORDER BY score DESC, rowid LIMIT ?",
            (heading_weight, match, limit),
        )
        return {seq: score for seq, score in rows.all()}


class PlainTables(WordTables):
    """On PostgreSQL."""

    number = "seq"
    rows = "SELECT seq, scope, heading, body FROM {table} ORDER BY seq"

    def merge(self, connection: Connection, table: str) -> None:
        return None  # a row and its words are one; when its page is reused is the server's affair

    def agrees(self, connection: Connection, table: str, count: int) -> bool:
        # An error would end the transaction, so it is asked first.
        return sa.inspect(connection).has_table(table) and _count(connection, table) == count

    def state(self, connection: Connection, table: str) -> Hashable:
        return dialect.last_writer(connection, table)

    def scores(
        self, connection: Connection, table: str, match: str, heading_weight: float, limit: int
    ) -> dict[int, float] | None:
        return None


def of(connection: Connection) -> WordTables:
    """Those of the database that this transaction is in."""
    return _PLAIN if dialect.is_postgresql(connection) else _FTS5


def _count(connection: Connection, table: str) -> int:
    return int(connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one())


_FTS5, _PLAIN = Fts5(), PlainTables()
