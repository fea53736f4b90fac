"""A store of synthetic passages that grows from size to size: what it holds, how long searches take
and how much memory they want, by words and by vectors, about one chip and about all.

    python -m benchmarks.scale.passages --sizes 100000 300000 1000000
    python -m benchmarks.scale.passages --catalog postgresql+psycopg://USER@/scale --sizes 100000
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from sqlalchemy import Connection

from benchmarks.knowledge.service import memory_of
from benchmarks.report import say, table, write_result
from benchmarks.scale.plans import plan_of
from benchmarks.scale.runs import disk_of
from benchmarks.scale.synthetic import MODEL, PASSAGES, Filler, Size
from kb.catalog import Catalog, open_catalog
from kb.catalog.knowledge import candidates, embeddings, lexical
from kb.index import near
from kb.index.chroma import ChromaIndex
from kb.scope import ScopeFilter
from retrieval.search.ranking import WEIGHTS

TITLE = "Searches of a store that grows"
QUERIES, LIMIT = 20, 200
SHORT, LONG = 6, 30  # words of a question, and of a log
AT_ONCE = 5_000  # passages of a transaction


@dataclass
class Measured:
    """Of one size. Times are medians in milliseconds by what was done, memory and disk in MiB."""

    passages: int
    filled: float = 0.0  # seconds
    disk: float = 0.0
    milliseconds: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--chips", type=int, default=1_000)
    parser.add_argument("--catalog", help="URL of an empty database; default: SQLite")
    parser.add_argument("--in-memory-up-to", type=int, default=1_000_000)
    parser.add_argument("--chroma-up-to", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where to put the store; removed afterwards")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="kernlore-scale-", dir=options.folder) as folder:
        catalog = open_catalog(Path(folder), options.catalog)
        try:
            done = 0
            for passages in options.sizes:
                filler = Filler(Size(passages, options.chips), seed=passages)
                result = _fill(catalog, filler, done, passages, Path(folder))
                _measure(catalog, filler, result, passages <= options.in_memory_up_to)
                results.append(result)
                done = passages
                if passages <= options.chroma_up_to:
                    _chroma(catalog, filler, result, Path(folder) / "chroma")
                # After each size: the next may be more than this machine has.
                shown = _shown(results, options.chips, options.catalog)
                write_result(options.output, TITLE, shown)
        finally:
            catalog.close()


def _fill(catalog: Catalog, filler: Filler, first: int, last: int, folder: Path) -> Measured:
    began = time.monotonic()
    for start in range(first, last, AT_ONCE):
        with catalog.write() as connection:
            filler.add(connection, start, min(start + AT_ONCE, last) // PASSAGES * PASSAGES)
    with catalog.write() as connection:
        lexical.merge(connection)
    result = Measured(last, filled=time.monotonic() - began)
    result.disk = disk_of(catalog, folder)
    return result


def _measure(catalog: Catalog, filler: Filler, result: Measured, in_memory: bool) -> None:
    chip, every = ScopeFilter(hardware=("chip7", "any")), ScopeFilter(hardware=None)
    scopes = (("one chip", chip), ("all chips", every))
    if not catalog.on_server:  # there the tables do not search
        _words(catalog, filler, result, "tables", scopes)
    _counts(catalog, result)
    for name, scope in scopes:
        ask = partial(candidates.sample, model=MODEL, scope=scope, count=500)
        with catalog.read() as connection:
            result.plans[f"sample of {name}"] = plan_of(connection, partial(ask, connection))
        result.milliseconds[f"sample of {name}"] = _once(catalog, ask)
    result.milliseconds["vectors of one chip, from the catalog"] = _once(
        catalog, lambda c: embeddings.of_scope(c, MODEL, "chip7", every.access_scope)
    )
    if in_memory:
        _in_memory(catalog, filler, result, scopes)


def _words(
    catalog: Catalog,
    filler: Filler,
    result: Measured,
    where: str,
    scopes: Sequence[tuple[str, ScopeFilter]],
) -> None:
    for name, scope in scopes:
        for kind, count in (("question", SHORT), ("log", LONG)):
            for level in lexical.TABLES:
                times = []
                for _ in range(QUERIES):
                    words = filler.text.query(count)
                    with catalog.read() as connection:
                        began = time.perf_counter()
                        lexical.search(
                            connection,
                            level,
                            words,
                            scope,
                            heading_weight=WEIGHTS.heading,
                            limit=LIMIT,
                        )
                        times.append(time.perf_counter() - began)
                key = f"words of a {kind}, {level}s of {name}, from {where}"
                result.milliseconds[key] = float(np.median(times)) * 1000


def _counts(catalog: Catalog, result: Measured) -> None:
    """What `/readyz` and the worker ask again and again."""
    for name, ask in (
        ("count of vectors (/readyz)", partial(embeddings.counts, model=MODEL)),
        ("texts without a vector (worker)", partial(embeddings.pending, model=MODEL)),
        ("names of all chips with passages", embeddings.hardware_scopes),
    ):
        result.milliseconds[name] = _once(catalog, ask)
        with catalog.read() as connection:
            result.plans[name] = plan_of(connection, partial(ask, connection))


def _once(catalog: Catalog, ask: Callable[[Connection], object], times: int = 3) -> float:
    taken = []
    for _ in range(times):
        with catalog.read() as connection:
            began = time.perf_counter()
            ask(connection)
            taken.append(time.perf_counter() - began)
    return float(np.median(taken)) * 1000


def _in_memory(
    catalog: Catalog,
    filler: Filler,
    result: Measured,
    scopes: Sequence[tuple[str, ScopeFilter]],
) -> None:
    with _grown(result, "index of words in memory"), catalog.read() as connection:
        lexical.keep_in_memory(connection, WEIGHTS.heading)
    _words(catalog, filler, result, "memory", scopes)
    with _grown(result, "columns and vectors in memory"), catalog.read() as connection:
        candidates.keep_in_memory(connection, MODEL)
        near.keep_in_memory(connection, MODEL)
    for name, wanted in (("one chip", ["chip7"]), ("all chips", None)):
        taken = []
        for vector in filler.vectors.drawn(QUERIES):
            with catalog.read() as connection:
                columns = candidates.in_memory(connection, MODEL)
                assert columns is not None
                rows = near._of(connection, columns)
                assert rows is not None
                began = time.perf_counter()
                rows.nearest(columns, rows.of(wanted, "all"), vector, LIMIT)
                taken.append(time.perf_counter() - began)
        result.milliseconds[f"nearest of {name}, exactly"] = float(np.median(taken)) * 1000


def _chroma(catalog: Catalog, filler: Filler, result: Measured, folder: Path) -> None:
    """A collection for each chip, in this process."""
    chroma = ChromaIndex(catalog, MODEL, folder)
    with _grown(result, "Chroma, filled from the catalog"):
        report = chroma.open_or_rebuild()
    say(f"{report.collections} collections")
    for name, wanted in (("one chip", ["chip7"]), ("all chips", None)):
        taken = []
        for vector in filler.vectors.drawn(QUERIES):
            began = time.perf_counter()
            chroma.query(wanted, vector, LIMIT)
            taken.append(time.perf_counter() - began)
        result.milliseconds[f"nearest of {name}, by Chroma"] = float(np.median(taken)) * 1000


@contextmanager
def _grown(result: Measured, what: str) -> Iterator[None]:
    """Seconds of the block, and by how much this process has grown after it."""
    gc.collect()
    before, began = memory_of(os.getpid()), time.monotonic()
    yield
    gc.collect()
    after = memory_of(os.getpid())
    assert before is not None and after is not None
    result.seconds[what] = time.monotonic() - began
    result.memory[what] = after.now - before.now
    result.memory["peak of the process"] = after.peak


def _shown(results: Sequence[Measured], chips: int, url: str | None) -> list[str]:
    header = ("", *(f"{result.passages:,}" for result in results))

    def rows(of: Callable[[Measured], dict[str, float]], digits: int) -> list[list[str]]:
        names = list(dict.fromkeys(name for result in results for name in of(result)))
        return [
            [name, *(f"{of(r)[name]:,.{digits}f}" if name in of(r) else "-" for r in results)]
            for name in names
        ]

    about = (
        f"Synthetic passages of about 70 words, {chips:,} chips with manuals of their own, vectors"
        f" of 384 numbers, on {'PostgreSQL' if url else 'SQLite'}. `python -m"
        " benchmarks.scale.passages`."
    )
    store = [
        ["seconds to fill, from the size before", *(f"{r.filled:,.0f}" for r in results)],
        ["disk, MiB", *(f"{r.disk:,.0f}" for r in results)],
        *[[f"{row[0]}, s to make", *row[1:]] for row in rows(lambda r: r.seconds, 1)],
        *[[f"{row[0]}, MiB", *row[1:]] for row in rows(lambda r: r.memory, 0)],
    ]
    plans = [
        f"**{name}** at {result.passages:,}:\n\n```text\n{plan}\n```"
        for result in (results[0], *results[1:][-1:])
        for name, plan in result.plans.items()
        if result is results[0] or plan != results[0].plans.get(name)
    ]
    return [
        about,
        table(header, store),
        "Milliseconds, the median of 20 (of 3 for counts and samples):",
        table(header, rows(lambda r: r.milliseconds, 1)),
        "## Query plans\n\nOf the largest store where they are others than of the smallest.",
        *plans,
    ]


if __name__ == "__main__":
    main()
