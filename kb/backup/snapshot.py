"""A copy of the SQL catalog at one moment, while others write to it.

Works on a catalog of any schema and never migrates it, so that a backup can be made before a new
version touches the data.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kb.blobs import KEY
from kb.errors import StoreError

BUSY_SECONDS = 15.0
# What is counted, and the table that holds it.
_COUNTED = {
    "documents": "documents",
    "passages": "passages WHERE active",
    "facts": "facts",
    "moves": "moves",
    "symbols": "symbols",
    "samples": "samples",
    "skills": "skills",
    "evidence": "evidence",
    "evaluations": "evaluations",
    "runs": "runs",
    "nodes": "nodes",
    "trajectories": "trajectories",
}
# Keys of blobs inside JSON: table, column, place. Columns named blob_key are read of every table.
_KEYS_IN_JSON = (
    ("nodes", "record", "$.proposal.bundle.blob"),
    ("trajectories", "summary", "$.found_blob"),
)


@dataclass(frozen=True)
class Snapshot:
    """What a copied catalog holds. `schema` and `revision` are as in a backup's manifest;
    `blob_keys` are the blobs that its rows refer to.
    """

    schema: str
    revision: int
    counts: Mapping[str, int]
    jobs: Mapping[str, int]
    vectors: Mapping[str, int]
    blob_keys: frozenset[str]


def take_snapshot(source: Path, target: Path) -> Snapshot:
    """Copy the catalog `source` to the new file `target`, as it is at one moment. Raises StoreError
    where it is damaged.

    Whoever writes meanwhile is not held up, and nothing of theirs is in the copy. It is copied in
    one step: copied page by page, it would begin anew with every change.
    """
    with (
        _damage_of(source),
        closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.execute(f"PRAGMA busy_timeout={int(BUSY_SECONDS * 1000)}")
        live.backup(copy)
        # The copy is one file that needs no log beside it.
        copy.execute("PRAGMA journal_mode=DELETE")
        verdict = copy.execute("PRAGMA quick_check").fetchone()[0]
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)
        return _contents(copy)


@contextmanager
def _damage_of(source: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise StoreError(
            f"the catalog {source} cannot be copied: {error}",
            hint="`kernlore doctor` says what is wrong with it; restore an earlier backup.",
        ) from error


def _contents(copy: sqlite3.Connection) -> Snapshot:
    tables = {name for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if not {"alembic_version", "meta", "jobs", "embeddings"} <= tables:
        raise sqlite3.DatabaseError("it is not a catalog of Kernlore")
    counts = {
        name: copy.execute(f"SELECT count(*) FROM {rows}").fetchone()[0]
        for name, rows in _COUNTED.items()
        if rows.split()[0] in tables
    }
    revision = copy.execute("SELECT value FROM meta WHERE key = 'revision'").fetchone()
    models = "SELECT model_fingerprint, count(*) FROM embeddings GROUP BY 1"
    return Snapshot(
        copy.execute("SELECT version_num FROM alembic_version").fetchone()[0],
        int(revision[0]) if revision else 0,
        counts,
        dict(copy.execute("SELECT state, count(*) FROM jobs GROUP BY 1").fetchall()),
        dict(copy.execute(models).fetchall()),
        frozenset(_blob_keys(copy, tables)),
    )


def _blob_keys(copy: sqlite3.Connection, tables: set[str]) -> Iterator[str]:
    selects = [
        f"SELECT json_extract({column}, '{place}') FROM {table}"
        for table, column, place in _KEYS_IN_JSON
        if table in tables
    ]
    for table in tables:
        columns = {row[1] for row in copy.execute(f"PRAGMA table_info({table})")}
        if "blob_key" in columns:
            selects.append(f"SELECT blob_key FROM {table}")
    for select in selects:
        yield from (key for (key,) in copy.execute(select) if key and KEY.fullmatch(key))
