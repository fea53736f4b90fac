"""The lexical index: SQLite FTS5 over text that our own tokenizer wrote, or on PostgreSQL plain
tables of that text, from which a process makes its index in memory.

Two levels, because a question's words are rarely all in one sentence: the passage and its whole
section. Each row carries its scope as tokens, so hardware, category, language and access are part
of the match and nothing foreign is ever scored. Rows exist exactly for active passages.

A process that answers many requests keeps the levels in memory (`keep_in_memory`); what it then
finds, and in which order, is the same.

Knows nothing about ranking across levels; scores are FTS5's BM25 with its sign turned (larger is
better)."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.catalog.kept import keeps, look_up, made, put_made, seen_by
from kb.catalog.knowledge import word_tables
from kb.catalog.knowledge.word_index import WordIndex, build
from kb.scope import ANY, ScopeFilter, scope_token

Level = Literal["passage", "section"]
TABLES: dict[Level, str] = {
    "passage": "lexical_passages",
    "section": "lexical_sections",
}
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
        word_tables.of(connection).insert(connection, TABLES[level], [vars(row) for row in rows])


def delete(connection: Connection, level: Level, seqs: Sequence[int]) -> None:
    """Remove rows by number; unknown numbers are no error."""
    if seqs:
        word_tables.of(connection).delete(connection, TABLES[level], seqs)


def merge(connection: Connection) -> None:
    """Write each level anew where the words of removed rows stand in its data until then, merely
    marked as removed.
    """
    for table in TABLES.values():
        word_tables.of(connection).merge(connection, table)


def create(connection: Connection) -> None:
    """Both levels, empty, in place of what is there of them."""
    for table in TABLES.values():
        word_tables.of(connection).create(connection, table)


def is_whole(connection: Connection, rows: Mapping[Level, int]) -> bool:
    """Whether each level is there, has so many rows, and agrees with itself."""
    tables = word_tables.of(connection)
    return all(tables.agrees(connection, table, rows[level]) for level, table in _LEVELS)


def count(connection: Connection, level: Level) -> int:
    """Rows of one level."""
    return int(connection.execute(sa.text(f"SELECT count(*) FROM {TABLES[level]}")).scalar_one())


def rows(connection: Connection, level: Level) -> Iterator[LexicalRow]:
    """Every row of one level, in the order of the numbers."""
    for row in word_tables.of(connection).all(connection, TABLES[level]):
        yield LexicalRow(row.seq, row.scope, row.heading, row.body)


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
        return _found(held, tokens, scope, limit)
    match = _match(tokens, scope)

    def read(keys: Sequence[object]) -> dict[object, dict[int, float]]:
        table, tables = TABLES[level], word_tables.of(connection)
        scores = tables.scores(connection, table, match, heading_weight, limit)
        if scores is None:
            made_now = _made_now(connection, level, heading_weight)
            scores = _found(made_now, tokens, scope, limit)
        return {keys[0]: scores}

    # The words of a signal are searched for on the same chip again and again.
    key: object = (level, match, heading_weight, limit)
    return look_up(connection, "searches", [key], read, most=MOST_SEARCHES)[key]


def _found(
    index: WordIndex, tokens: Sequence[str], scope: ScopeFilter, limit: int
) -> dict[int, float]:
    parts: list[frozenset[str]] = []

    def admits(row: frozenset[str]) -> bool:
        if not parts:  # of most scopes the index knows the rows already
            parts.extend(map(frozenset, _scope_tokens(scope)))
        return all(map(row.__and__, parts))  # a store has hundreds of scopes

    return index.search(tokens, scope.key, admits, limit)


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
    with _MAKING:
        seen, last = state(connection), made(connection, _KEPT_AS)
        if last is not None and last[0] == seen:
            return False
        put_made(connection, _KEPT_AS, seen, _made(connection, heading_weight))
    return True


def _made(connection: Connection, heading_weight: float) -> dict[Level, WordIndex]:
    tables = word_tables.of(connection)
    return {level: build(tables.all(connection, name), heading_weight) for level, name in _LEVELS}


def _made_now(connection: Connection, level: Level, heading_weight: float) -> WordIndex:
    """The level for a search that no table can do: made by the first who needs it, and kept, unless
    this transaction sees what nobody else does.
    """
    if not keeps(connection):
        return _made(connection, heading_weight)[level]
    keep_in_memory(connection, heading_weight)
    held = _in_memory(connection, level)
    if held is None or held.heading_weight != heading_weight:  # kept for other searches
        return _made(connection, heading_weight)[level]
    return held


def _in_memory(connection: Connection, level: Level) -> WordIndex | None:
    """The level in memory, where it is what this transaction sees."""
    last = made(connection, _KEPT_AS)
    if last is None:
        return None
    seen = state(connection)
    index: WordIndex | None = last[1][level] if seen == last[0] else None
    return index


def state(connection: Connection) -> Hashable:
    """Differs after every write to a level. A transaction reads it once."""
    tables = word_tables.of(connection)
    return seen_by(
        connection,
        "lexical state",
        lambda: tuple(tables.state(connection, table) for table in TABLES.values()),
    )


_KEPT_AS = "word indexes"
_LEVELS = tuple(TABLES.items())
_MAKING = threading.Lock()  # one thread makes the levels, others wait and have them
