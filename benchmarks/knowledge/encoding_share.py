"""What ingestion costs beside encoding: the built-in documents into an empty data directory.

The vectors that ship are left out, so every passage is embedded here. First all of it, with the
product's own worker and parser child; then the same distinct texts through the same model alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from api.cli.target import read_settings
from api.services import Services, open_services
from benchmarks.knowledge.ingestion import Counting
from benchmarks.report import ended, table, write_result
from ingestion import worker as worker_module
from ingestion.builtin import load_builtin
from ingestion.elements import ParsedDocument
from ingestion.parse_process import ParserPool
from ingestion.worker import Worker
from kb.catalog import tables as t
from kb.embedding import FEW, embedding_text
from kb.errors import InvalidRequest

TITLE = "What ingestion costs beside encoding"
TARGET = 1.25
READ = "read_document"  # what the worker calls to cut a document and to find what it states


@dataclass
class Clock:
    """Seconds by the name of a part of the work. Parts do not contain each other."""

    seconds: dict[str, float] = field(default_factory=dict)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                spent = time.perf_counter() - started
                self.seconds[name] = self.seconds.get(name, 0.0) + spent

        return measured


class TimedParsers:
    """A parser pool whose time counts as `parsing`."""

    def __init__(self, pool: ParserPool, clock: Clock) -> None:
        self.parse: Callable[[Path, str], ParsedDocument] = clock.timed("parsing", pool.parse)


def whole(services: Services, clock: Clock, counting: Counting) -> float:
    """Submit, read and embed everything that is built in; the seconds that took."""
    started = time.perf_counter()
    submit = clock.timed("submitting", load_builtin)
    settings = services.settings
    submit(settings.knowledge_dir, services.registry, services.uploads, services.documents)
    read = getattr(worker_module, READ)
    setattr(worker_module, READ, clock.timed("cutting and findings", read))
    try:
        with services.parser_pool() as pool:
            timed: Any = TimedParsers(pool, clock)
            worker: Any = services.worker(timed, anew=True)
            _time_steps(worker, clock)
            worker.drain()
    finally:
        setattr(worker_module, READ, read)
    seconds = time.perf_counter() - started
    clock.seconds["encoding"] = counting.seconds
    return seconds


def _time_steps(worker: Any, clock: Clock) -> None:
    assert isinstance(worker, Worker)
    for method, part in (("_store", "storing"), ("_finish_embedded", "ending jobs")):
        setattr(worker, method, clock.timed(part, getattr(worker, method)))


def alone(services: Services, counting: Counting) -> float:
    """The seconds for the distinct texts of all passages, encoded in one call."""
    with services.catalog.read() as connection:
        rows = connection.execute(
            sa.select(t.sections.c.path, t.passages.c.lead, t.passages.c.text).join(
                t.sections, t.sections.c.id == t.passages.c.section_id
            )
        ).all()
    texts = sorted({embedding_text(*row) for row in rows}, key=len)
    counting.seconds = 0.0
    counting.encode(texts)
    return counting.seconds


def report(
    clock: Clock, seconds: float, raw: float, *, documents: int, texts: int, passages: int
) -> list[str]:
    named = sum(clock.seconds.values())
    parts = {**clock.seconds, "the rest": seconds - named}
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    rows = [[name, f"{spent:.1f}", f"{100 * spent / seconds:.1f}"] for name, spent in ordered]
    return [
        f"* {documents} documents, {passages:,} passages, {texts:,} texts encoded",
        f"Everything: {seconds:.1f} s. The same texts through the model alone: {raw:.1f} s."
        f" Ratio {seconds / raw:.2f}, aim {TARGET}.",
        "Over the encoding within it, which had the same load beside it:"
        f" {seconds / clock.seconds['encoding']:.2f}.",
        table(("part", "seconds", "percent"), rows),
    ]


def run(given: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="kernlore-encoding-") as folder:
        services = open_services(read_settings(Path(folder) / "data"))
        try:
            counting = Counting(services.embedder)
            services.__dict__["embedder"] = counting
            # More than few: torch is loaded before the clock starts.
            counting.encode(["warm"] * (FEW + 1))
            counting.texts, counting.seconds = 0, 0.0
            clock = Clock()
            seconds = whole(services, clock, counting)
            documents, texts = len(services.documents.find()), counting.texts
            _, passages = services.vectors()
            if not documents:
                raise InvalidRequest("no built-in documents", hint="Check KERNLORE_KNOWLEDGE_DIR.")
            raw = alone(services, counting)
            counted = {"documents": documents, "texts": texts, "passages": passages}
            parts = report(clock, seconds, raw, **counted)
        finally:
            services.close()
    write_result(given.results, TITLE, parts)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.knowledge.encoding_share", description=__doc__
    )
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
