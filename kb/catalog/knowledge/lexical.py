"""The lexical index: SQLite FTS5 over text that our own tokenizer wrote.

Two levels, because a question's words are rarely all in one sentence: the passage and its whole
section. Each row carries its scope as tokens, so hardware, category, language and access are part
of the match and nothing foreign is ever scored. Rows exist exactly for active passages.

A process that answers many requests keeps the levels in memory (`keep_in_memory`); what it then
finds, and in which order, is the same.

Knows nothing about ranking across levels; scores are FTS5's BM25 with its sign turned (larger is
better)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog.kept import look_up, made, put_made, seen_by
from kb.catalog.knowledge.word_index import IndexedRow, WordIndex, build
from kb.scope import ANY, ScopeFilter, scope_token

Level = Literal["passage", "section"]
_TABLES: dict[Level, str] = {
    "passage": "lexical_passages",
    "section": "lexical_sections",
}

# Shadow text is [a-z0-9_] tokens (kb.tokens): the engine's own tokenizer only splits at spaces.
_CREATE = (
    "CREATE VIRTUAL TABLE {table} USING fts5(scope, heading, body, detail = full,"
    " tokenize = \"unicode61 remove_diacritics 0 tokenchars '_'\")"
)
MOST_SEARCHES = 1_000  # that are kept, of 30 KB each


@dataclass(frozen=True)
class LexicalRow:
    """One row to index. `scope` as from `row_scope`; `heading` and `body` are shadow text
    (kb.tokens).
    """

    seq: int
    scope: str
    heading: str
    body: str


def row_scope(
    hardware: Sequence[str], languages: Sequence[str], category: str, access_scope: str
) -> str:
    """The scope column of a row.

    Access, category and hardware are one token: BM25 counts every row of each token of a query,
    and a token that all rows share would make each search walk the whole store.
    """
    tokens = [_place(access_scope, category, value) for value in hardware]
    tokens.append(_shelf(access_scope, category))
    tokens += [scope_token("lang", value) for value in languages or ("any",)]
    return " ".join(tokens)


def _place(access_scope: str, category: str, hardware: str) -> str:
    return scope_token("place", f"{access_scope}/{category}/{hardware}")


def _shelf(access_scope: str, category: str) -> str:
    """For the question about any chip."""
    return scope_token("shelf", f"{access_scope}/{category}")


def insert(connection: Connection, level: Level, rows: Sequence[LexicalRow]) -> None:
    """Add rows to one level; their numbers must be new there."""
    if rows:
        connection.execute(
            sa.text(
                f"INSERT INTO {_TABLES[level]}(rowid, scope, heading, body)"
                " VALUES (:seq, :scope, :heading, :body)"
            ),
            [vars(row) for row in rows],
        )


def delete(connection: Connection, level: Level, seqs: Sequence[int]) -> None:
    """Remove rows by number; unknown numbers are no error."""
    if seqs:
        connection.execute(
            sa.text(f"DELETE FROM {_TABLES[level]} WHERE rowid = :seq"), [{"seq": s} for s in seqs]
        )


def merge(connection: Connection) -> None:
    """Write each level as one segment. Until then the words of removed rows stand in its data,
    merely marked as removed.
    """
    for table in _TABLES.values():
        connection.execute(sa.text(f"INSERT INTO {table}({table}) VALUES ('optimize')"))


def create(connection: Connection) -> None:
    """Both levels, empty, in place of what is there of them."""
    for table in _TABLES.values():
        connection.execute(sa.text(f"DROP TABLE IF EXISTS {table}"))
        connection.execute(sa.text(_CREATE.format(table=table)))


def is_whole(connection: Connection, rows: Mapping[Level, int]) -> bool:
    """Whether each level is there, has so many rows, and agrees with itself."""
    for level, table in _TABLES.items():
        try:
            if count(connection, level) != rows[level]:
                return False
            connection.execute(sa.text(f"INSERT INTO {table}({table}) VALUES ('integrity-check')"))
        except sa.exc.DatabaseError:  # no such table, or its own tables are damaged
            return False
    return True


def count(connection: Connection, level: Level) -> int:
    """Rows of one level."""
    return int(connection.execute(sa.text(f"SELECT count(*) FROM {_TABLES[level]}")).scalar_one())


def search(
    connection: Connection,
    level: Level,
    tokens: Sequence[str],
    scope: ScopeFilter,
    *,
    heading_weight: float,
    limit: int,
) -> dict[int, float]:
    """Rows that hold any of the tokens within the scope, best first: seq -> BM25 (> 0)."""
    if not tokens or not scope.categories or scope.hardware == ():
        return {}
    held = _in_memory(connection, level)
    if held is not None and held.heading_weight == heading_weight:
        parts = _scope_tokens(scope)

        def admits(row: frozenset[str]) -> bool:
            return all(not row.isdisjoint(part) for part in parts)

        return held.search(tokens, scope.key, admits, limit)
    table, match = _TABLES[level], _match(tokens, scope)

    def read(keys: Sequence[object]) -> dict[object, dict[int, float]]:
        rows = connection.exec_driver_sql(
            f"SELECT rowid, -bm25({table}, 0.0, ?, 1.0) AS score FROM {table}"
            f" WHERE {table} MATCH ? ORDER BY score DESC, rowid LIMIT ?",
            (heading_weight, match, limit),
        )
        scores: dict[int, float] = {seq: score for seq, score in rows.all()}
        return {keys[0]: scores}

    # The words of a signal are searched for on the same chip again and again.
    key: object = (level, match, heading_weight, limit)
    return look_up(connection, "searches", [key], read, most=MOST_SEARCHES)[key]


def _scope_tokens(scope: ScopeFilter) -> list[list[str]]:
    """Groups of scope tokens; a row is admitted that has one of each group."""
    if scope.hardware is None:
        places = [_shelf(scope.access_scope.owner, category) for category in scope.categories]
    else:
        places = [
            _place(scope.access_scope.owner, category, hardware)
            for category in scope.categories
            for hardware in scope.hardware
        ]
    if scope.languages is None:
        return [places]
    return [places, [scope_token("lang", value) for value in (*scope.languages, ANY)]]


def _match(tokens: Sequence[str], scope: ScopeFilter) -> str:
    clauses = [f"({_any_of(group)})" for group in _scope_tokens(scope)]
    words = _any_of(token.replace('"', "") for token in tokens)
    return f"{{scope}} : ({' AND '.join(clauses)}) AND {{heading body}} : ({words})"


def _any_of(tokens: Iterable[str]) -> str:
    return " OR ".join(f'"{token}"' for token in tokens)


# -- in memory


def keep_in_memory(connection: Connection, heading_weight: float) -> bool:
    """Make the levels anew in memory where they are not those that this transaction sees; whether
    they were made. For a transaction that only reads.
    """
    seen, last = state(connection), made(connection, _KEPT_AS)
    if last is not None and last[0] == seen:
        return False
    levels = {level: build(_rows(connection, table), heading_weight) for level, table in _LEVELS}
    put_made(connection, _KEPT_AS, seen, levels)
    return True


def _in_memory(connection: Connection, level: Level) -> WordIndex | None:
    """The level in memory, where it is what this transaction sees."""
    last = made(connection, _KEPT_AS)
    if last is None:
        return None
    seen = state(connection)
    index: WordIndex | None = last[1][level] if seen == last[0] else None
    return index


def state(connection: Connection) -> Hashable:
    """Differs after every write to a level: FTS5's own records of its totals (1) and of its
    segments (10), which count what was written. A transaction reads it once.
    """

    def read() -> Hashable:
        return tuple(
            tuple(connection.exec_driver_sql(f"SELECT block FROM {table}_data WHERE id IN (1, 10)"))
            for table in _TABLES.values()
        )

    return seen_by(connection, "lexical state", read)


def _rows(connection: Connection, table: str) -> Iterator[IndexedRow]:
    rows = connection.exec_driver_sql(
        f"SELECT id, c0, c1, c2 FROM {table}_content ORDER BY id",
        execution_options={"stream_results": True},
    )
    return (IndexedRow(*row) for row in rows)


_KEPT_AS = "word indexes"
_LEVELS = tuple(_TABLES.items())
