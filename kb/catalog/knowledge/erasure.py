"""Text of deleted documents leaves every file of the data directory.

Rows go with the deletion, and SQLite writes zeros over them. What is left then: the stored files,
the words in segments of the lexical index, and pages of the write-ahead log. The deletion notes
that they are owed, in its own transaction, and `erase` removes them; after a crash in between the
next call does.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy import Connection

from kb.blobs import Blobs
from kb.catalog import meta, read_facts
from kb.catalog.engine import Catalog, portions
from kb.catalog.knowledge import lexical
from kb.catalog.tables import knowledge as t
from kb.errors import StoreAway

_OWED = "erasures_owed"  # keys of stored files; None: nothing
_COUNT = "erasures"  # how many times stored files were removed


def owe(connection: Connection, blob_keys: Collection[str]) -> None:
    """Note what the deletion of this transaction leaves to `erase`."""
    owed = meta.get(connection, _OWED) or ()
    meta.put(connection, _OWED, sorted({*owed, *blob_keys}))


def unused(connection: Connection, blob_keys: Collection[str]) -> list[str]:
    """Those of the keys that are the file of no version."""
    used: set[str] = set()
    for part in portions(sorted(blob_keys)):
        column = t.document_versions.c.blob_key
        used |= set(connection.execute(sa.select(column).where(column.in_(part))).scalars())
    return sorted(set(blob_keys) - used)


def in_use(connection: Connection, blob_key: str) -> bool:
    """Whether the key is the file of a version."""
    return not unused(connection, [blob_key])


def count(connection: Connection) -> int:
    """How many times stored files were removed."""
    return int(meta.get(connection, _COUNT) or 0)


def may_have_gone(connection: Connection, blob_key: str, count_before: int) -> bool:
    """Whether a file that was stored when the count was `count_before` may have been removed since.
    Asked in a transaction that writes, it holds until its end.
    """
    return count(connection) != count_before or blob_key in (meta.get(connection, _OWED) or ())


def is_owed(catalog: Catalog) -> bool:
    """Whether a deletion has left something to `erase`."""
    with catalog.read() as connection:
        return meta.get(connection, _OWED) is not None


def forget_facts(catalog: Catalog) -> int:
    """Remove the facts of documents that are gone: accepted ones once stayed, with a quotation.
    `erase` then has them out of the files. How many documents they were of.
    """
    with catalog.read() as connection:
        if not read_facts.left_behind(connection):  # the usual case, which needs no write lock
            return 0
    with catalog.write() as connection:
        gone = read_facts.left_behind(connection)
        for document_id in gone:
            read_facts.withdraw(connection, document_id)
        owe(connection, ())
    return len(gone)


def erase(catalog: Catalog, blobs: Blobs) -> bool:
    """Finish all deletions. False where another process still reads the catalog as it was before:
    the log keeps the text until the next call. Raises StoreAway where the files cannot be removed
    now; the next call does.
    """
    if not is_owed(catalog):
        return True
    away: StoreAway | None = None
    try:
        blobs.check()  # a server that does not answer is waited for before anybody waits for us
    except StoreAway as error:
        away = error
    # Under the write lock: nobody may store the same file again between the look and the removal.
    with catalog.write() as connection:
        owed = meta.get(connection, _OWED) or ()
        try:
            for key in unused(connection, owed) if away is None else ():
                blobs.delete(key)
        except StoreAway as error:
            away = error  # the words go all the same
        meta.put(connection, _COUNT, count(connection) + 1)
        lexical.merge(connection)
    if not catalog.empty_log():
        return False
    if away is not None:
        raise away
    with catalog.write() as connection:
        if meta.get(connection, _OWED) == owed:  # else something was deleted meanwhile
            meta.put(connection, _OWED, None)
    return True
