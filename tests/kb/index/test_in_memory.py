"""What a service keeps in memory follows the tables, once they are still."""

from __future__ import annotations

import time
from collections.abc import Callable

from kb.catalog.kept import made
from kb.catalog.knowledge.lexical import LexicalRow, row_scope
from kb.index.in_memory import KeptInMemory
from threadpoolctl import threadpool_info, threadpool_limits

from kb.catalog import Catalog
from kb.catalog.knowledge import lexical
from kb.catalog.meta import bump_revision
from kb.catalog.tables import candidates
from kb.scope import ScopeFilter

MODEL = "test-model"


def add(catalog: Catalog, seq: int, text: str) -> None:
    scope = row_scope((), (), "guidance", "all")
    with catalog.write() as connection:
        lexical.insert(connection, "passage", [LexicalRow(seq, scope, "", text)])
        bump_revision(connection)


def is_current(catalog: Catalog) -> bool:
    with catalog.read() as connection:
        words, columns = made(connection, "word indexes"), made(connection, "candidates")
        seen = lexical.state(connection)
        return (
            words is not None
            and words[0] == seen
            and columns is not None
            and columns[0] == (MODEL, candidates.state(connection))
        )


def ask(catalog: Catalog, word: str) -> list[int]:
    with catalog.read() as connection:
        return list(
            lexical.search(
                connection, "passage", [word], ScopeFilter(None), heading_weight=2.0, limit=10
            )
        )


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_a_product_takes_one_thread(catalog: Catalog) -> None:
    words = KeptInMemory(catalog, 2.0, lambda: MODEL, look_seconds=0.05)
    with threadpool_limits(None, user_api="blas"):  # what was before comes back
        words.start()
        words.stop()
        blas = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        assert blas and all(pool["num_threads"] == 1 for pool in blas)


def test_it_follows_the_tables(catalog: Catalog) -> None:
    add(catalog, 1, "spill")
    words = KeptInMemory(catalog, 2.0, lambda: MODEL, look_seconds=0.05)
    words.start()
    try:
        until(lambda: is_current(catalog))
        add(catalog, 2, "spill")
        assert ask(catalog, "spill") == [1, 2]  # whether or not it has followed
        until(lambda: is_current(catalog))
        assert ask(catalog, "spill") == [1, 2]
    finally:
        words.stop()
    add(catalog, 3, "spill")
    time.sleep(0.2)
    assert not is_current(catalog) and ask(catalog, "spill") == [1, 2, 3]
