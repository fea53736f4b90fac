"""The lexical index: SQLite FTS5 over text that our own tokenizer wrote.

Two levels, because a question's words are rarely all in one sentence: the passage and its whole
section. Each row carries its scope as tokens, so hardware, category, language and access are part
of the match and nothing foreign is ever scored. Rows exist exactly for active passages.

Knows nothing about ranking across levels; scores are FTS5's BM25 with its sign turned (larger is
better)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.scope import ScopeFilter, scope_token

Level = Literal["passage", "section"]
LEVELS: tuple[Level, ...] = ("passage", "section")
_TABLES: dict[Level, str] = {
    "passage": "lexical_passages",
    "section": "lexical_sections",
}


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
    """The scope column of a row."""
    tokens = [scope_token("hw", value) for value in hardware]
    tokens += [scope_token("lang", value) for value in languages or ("any",)]
    tokens += [scope_token("cat", category), scope_token("as", access_scope)]
    return " ".join(tokens)


def insert(connection: Connection, level: Level, rows: Sequence[LexicalRow]) -> None:
    if rows:
        connection.execute(
            sa.text(
                f"INSERT INTO {_TABLES[level]}(rowid, scope, heading, body)"
                " VALUES (:seq, :scope, :heading, :body)"
            ),
            [vars(row) for row in rows],
        )


def delete(connection: Connection, level: Level, seqs: Sequence[int]) -> None:
    if seqs:
        connection.execute(
            sa.text(f"DELETE FROM {_TABLES[level]} WHERE rowid = :seq"), [{"seq": s} for s in seqs]
        )


def clear(connection: Connection) -> None:
    """Empty both levels, also when their own data are damaged."""
    for table in _TABLES.values():
        connection.execute(sa.text(f"DELETE FROM {table}"))


def count(connection: Connection, level: Level) -> int:
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
    table = _TABLES[level]
    rows = connection.exec_driver_sql(
        f"SELECT rowid, -bm25({table}, 0.0, ?, 1.0) AS score FROM {table}"
        f" WHERE {table} MATCH ? ORDER BY score DESC, rowid LIMIT ?",
        (heading_weight, _match(tokens, scope), limit),
    )
    return {seq: score for seq, score in rows}


def _match(tokens: Sequence[str], scope: ScopeFilter) -> str:
    clauses = [f"({_any_of('as', [scope.access_scope])})", f"({_any_of('cat', scope.categories)})"]
    if scope.hardware is not None:
        clauses.append(f"({_any_of('hw', scope.hardware)})")
    if scope.language is not None:
        clauses.append(f"({_any_of('lang', [scope.language, 'any'])})")
    words = " OR ".join('"' + token.replace('"', "") + '"' for token in tokens)
    return f"{{scope}} : ({' AND '.join(clauses)}) AND {{heading body}} : ({words})"


def _any_of(kind: str, values: Sequence[str]) -> str:
    return " OR ".join(f'"{scope_token(kind, value)}"' for value in values)
