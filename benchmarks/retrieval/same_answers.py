"""Whether answers are the same from the lexical tables and from the lexical index in memory, and
how long each takes, in process over one loaded store.

Every request is asked both ways by retrievers that share nothing but the catalog; what is compared
is the whole answer but for its id: excerpts with their scores, moves, skills, context.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from api.cli.backends import read_settings
from api.services import open_services
from benchmarks.report import ended, say, table, write_result
from benchmarks.retrieval.latency import request_of
from benchmarks.retrieval.requests import compose
from benchmarks.retrieval.scoring import Request, Scorer, scorer_beside
from kb.catalog.knowledge import lexical
from retrieval import ranking
from retrieval.diagnose.signals import load_signals

TITLE = "Answers from the lexical tables and from memory"
SCORE_PLACES = 5  # the two ways add in another order


@dataclass
class Asked:
    """The answers of one way, and its milliseconds: of requests, of the lexical scores in them."""

    answers: list[Any] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)
    words: list[float] = field(default_factory=list)


def ask(data_dir: Path, bodies: Sequence[Request], in_memory: bool) -> tuple[Asked, float]:
    """All requests in order, and the seconds that making the index took."""
    services = open_services(read_settings(data_dir))
    asked, spent, seconds = Asked(), [0.0], 0.0
    scores = ranking.lexical_scores

    def timed(*given: Any, **named: Any) -> Any:
        started = time.perf_counter()
        try:
            return scores(*given, **named)
        finally:
            spent[0] += (time.perf_counter() - started) * 1000

    ranking.lexical_scores = timed
    try:
        services.retriever.warm(services.settings.models_dir)
        if in_memory:
            started = time.perf_counter()
            with services.catalog.read() as connection:
                lexical.keep_in_memory(connection, ranking.WEIGHTS.heading)
            seconds = time.perf_counter() - started
        for body in bodies:
            spent[0], started = 0.0, time.perf_counter()
            answer = services.retriever.retrieve(request_of(body)).as_json()
            asked.requests.append((time.perf_counter() - started) * 1000)
            asked.words.append(spent[0])
            asked.answers.append(_comparable(answer))
    finally:
        ranking.lexical_scores = scores
        services.close()
    return asked, seconds


def _comparable(answer: Any) -> Any:
    """The answer without its id, its floats rounded."""
    if isinstance(answer, Mapping):
        return {k: _comparable(v) for k, v in answer.items() if k != "retrieval_id"}
    if isinstance(answer, (list, tuple)):
        return [_comparable(value) for value in answer]
    return round(answer, SCORE_PLACES) if isinstance(answer, float) else answer


def bodies_of(data_dir: Path, gold: Path, scorer: Path | None, count: int) -> list[Request]:
    """Different requests: gold rows in variations, and bare signals on each chip that is known."""
    services = open_services(read_settings(data_dir))
    known = sorted(services.registry.all())
    services.close()
    rows = Scorer(scorer or scorer_beside(gold), gold).requests()
    usable = {i: row for i, row in rows.items() if row.get("hardware") in {None, *known}}
    bodies: list[Request] = list(compose(usable, [], [], count))
    signals = [signal.id for signal in load_signals()]
    pairs = [(signal, chip) for signal in signals for chip in known]
    step = max(1, len(pairs) // max(1, count // 2))
    return bodies + [{"signal": s, "hardware": chip} for s, chip in pairs[::step]][: count // 2]


def run(given: argparse.Namespace) -> None:
    bodies = bodies_of(given.data_dir, given.gold, given.scorer, given.requests)
    by_tables, _ = ask(given.data_dir, bodies, in_memory=False)
    by_memory, seconds = ask(given.data_dir, bodies, in_memory=True)
    pairs = zip(bodies, by_tables.answers, by_memory.answers, strict=True)
    different = [body for body, one, other in pairs if one != other]
    for body in different[:3]:
        say(f"different: {body}")
    lines = []
    for kind in ("signal", "log", "question"):
        places = [n for n, body in enumerate(bodies) if _kind(body) == kind]
        if not places:
            continue
        for name, way in (("tables", by_tables), ("memory", by_memory)):
            figures = (
                np.percentile([times[n] for n in places], share)
                for times, share in (
                    (way.requests, 50),
                    (way.requests, 99),
                    (way.words, 50),
                    (way.words, 99),
                )
            )
            lines.append([kind, name, str(len(places)), *(f"{value:.1f}" for value in figures)])
    header = ("kind", "words from", "n", "request p50 ms", "p99", "of it words p50 ms", "p99")
    verdict = f"{len(bodies) - len(different)} of {len(bodies)} answers are the same."
    made = f"The index in memory was made in {seconds:.1f} s."
    write_result(given.results, TITLE, [verdict, table(header, lines), made])


def _kind(body: Request) -> str:
    if body.get("log"):
        return "log"
    return "question" if body.get("query") else "signal"


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.same_answers", description=__doc__
    )
    parser.add_argument("--gold", type=Path, required=True, help="Gold rows, JSON lines.")
    parser.add_argument("--data-dir", type=Path, required=True, help="A loaded store.")
    parser.add_argument("--scorer", type=Path, help="Default: score.py beside the gold rows.")
    parser.add_argument("--requests", type=int, default=120, help="Gold rows in variations.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
