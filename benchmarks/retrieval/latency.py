"""Latency of requests on a loaded store, over HTTP and in process, and the service's memory.

No two requests are equal. Times are the caller's, body read and decoded.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import ended, say, table, write_result
from benchmarks.retrieval.scoring import Request, Scorer, scorer_beside
from benchmarks.service import Service, memory_of, service_at, wait_until_ready
from kb.errors import InvalidRequest, Unavailable
from retrieval.request import RetrieveRequest

CLIENTS = (1, 4)  # at once
WARM_UP = 40  # requests that are not counted: the query model loads with the first
DOCUMENTS = 150  # whose headings are questions
TITLE = "Retrieval latency"

Send = Callable[[Request], object]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of each answer, seconds of all of them, and failed requests."""

    name: str
    milliseconds: Sequence[float]
    seconds: float
    failures: Sequence[str] = ()

    def row(self) -> list[str]:
        if not self.milliseconds:
            return [self.name, "0", str(len(self.failures)), *["-"] * (len(HEADER) - 3)]
        p50, p99 = np.percentile(self.milliseconds, (50, 99))
        return [
            self.name,
            str(len(self.milliseconds)),
            str(len(self.failures)),
            f"{p50:.1f}",
            f"{p99:.1f}",
            f"{max(self.milliseconds):.1f}",
            f"{len(self.milliseconds) / self.seconds:.0f}",
        ]


HEADER = ("requests", "n", "failed", "p50 ms", "p99 ms", "slowest ms", "requests/s")


def measure(name: str, send: Send, bodies: Sequence[Request], clients: int) -> Timing:
    """Every body once, from so many threads; each sends its next when it has its answer."""

    def timed(body: Request) -> float | str:
        started = time.perf_counter()
        try:
            send(body)
        except Unavailable as error:
            return f"{error.message}: {json.dumps(dict(body))}"
        return (time.perf_counter() - started) * 1000

    started = time.perf_counter()
    if clients == 1:
        outcomes = [timed(body) for body in bodies]
    else:
        with ThreadPoolExecutor(clients) as pool:
            outcomes = list(pool.map(timed, bodies))
    seconds = time.perf_counter() - started
    milliseconds = [outcome for outcome in outcomes if isinstance(outcome, float)]
    return Timing(
        name, milliseconds, seconds, [outcome for outcome in outcomes if isinstance(outcome, str)]
    )


def split(bodies: Sequence[Request], parts: int) -> Iterator[Sequence[Request]]:
    """Each measurement gets requests that no other had."""
    size = len(bodies) // parts
    return (bodies[n * size : (n + 1) * size] for n in range(parts))


def headings_of(service: Service) -> list[Heading]:
    """Headings of some documents, taken over the service's own interface."""
    documents = service.call("GET", "/documents")["documents"]
    chosen = random.Random(0).sample(documents, min(DOCUMENTS, len(documents)))
    headings = []
    for document in chosen:
        hardware = document["hardware"][0] if document["hardware"] else None
        sections = service.call("GET", f"/documents/{document['id']}/sections")["sections"]
        headings += [Heading(hardware, s["path"][-1]) for s in sections if s["path"]]
    return [heading for heading in headings if heading.text.strip()]


@contextmanager
def in_process(data_dir: Path) -> Iterator[Send]:
    """Answers from this process over the catalog, as the command line gives them."""
    from api.cli.target import read_settings
    from api.services import open_services

    services = open_services(read_settings(data_dir))
    try:
        yield lambda body: services.retriever.retrieve(request_of(body))
    finally:
        services.close()


def request_of(body: Request) -> RetrieveRequest:
    fields: dict[str, Any] = dict(body)
    if "categories" in fields:
        fields["categories"] = tuple(fields["categories"])
    return RetrieveRequest(**fields)


# -- the run


def run(given: argparse.Namespace) -> None:
    if given.url is None and given.data_dir is None:
        raise InvalidRequest("nothing to measure", hint="Give --url, --data-dir or both.")
    if given.requests <= given.warm_up + sum(given.clients):
        raise InvalidRequest("too few requests to measure", hint="Give --requests 500 or more.")
    kinds = len(given.clients)
    total = given.warm_up + 2 * kinds * (given.requests // kinds)  # over HTTP and in process
    rows = Scorer(given.scorer or scorer_beside(given.gold), given.gold).requests()
    with service_at(given.url, given.data_dir) as service:
        state = wait_until_ready(service)
        bodies = _bodies(service, rows, total)
        warm_up = bodies[: given.warm_up]
        portions = list(split(bodies[given.warm_up :], 2 * kinds))
        timings = _over_http(service, warm_up, dict(zip(given.clients, portions, strict=False)))
        memory = memory_of(service.pid) if service.pid is not None else None
    if given.data_dir is not None:
        here = dict(zip(given.clients, portions[kinds:], strict=True))
        timings += _here(given.data_dir, warm_up, here)
    held = "not known: the service is not on this machine, or --data-dir was not given"
    if memory is not None:
        held = f"{memory.now:.0f} MiB after the requests, {memory.peak:.0f} MiB at the most"
    write_result(
        given.results,
        TITLE,
        [
            f"{state['passages']:,} passages, index: {state['index']}. {len(bodies)} different"
            f" requests, the first {given.warm_up} not counted. In process the index is exact"
            " search.",
            table(HEADER, [timing.row() for timing in timings]),
            *(f"Failed: {failure}" for timing in timings for failure in timing.failures[:3]),
            f"Memory of the service: {held}.",
        ],
    )


def _bodies(service: Service, rows: Mapping[str, Request], total: int) -> list[dict[str, Any]]:
    known = {row["id"] for row in service.call("GET", "/hardware")["hardware"]}
    usable = {i: row for i, row in rows.items() if row.get("hardware", None) in {None, *known}}
    signals = [row["id"] for row in service.call("GET", "/signals")["signals"]]
    bodies = compose(usable, signals, headings_of(service), total)
    if len(bodies) < total:
        raise InvalidRequest(
            f"only {len(bodies)} of {total} different requests could be made",
            hint="Load the corpus first, or give fewer --requests.",
        )
    random.Random(1).shuffle(bodies)
    return bodies


def _over_http(
    service: Service, warm_up: Sequence[Request], portions: Mapping[int, Sequence[Request]]
) -> list[Timing]:
    def send(body: Request) -> object:
        return service.call("POST", "/retrieve", json=dict(body))

    measure("warm-up", send, warm_up, 1)
    timings = []
    for clients, portion in portions.items():
        timings.append(measure(f"HTTP, {_clients(clients)}", send, portion, clients))
        say(" ".join(timings[-1].row()))
    return timings


def _here(
    data_dir: Path, warm_up: Sequence[Request], portions: Mapping[int, Sequence[Request]]
) -> list[Timing]:
    timings = []
    with in_process(data_dir) as send:
        measure("warm-up", send, warm_up, 1)
        for clients, portion in portions.items():
            name = f"in process, {'one thread' if clients == 1 else f'{clients} threads'}"
            timings.append(measure(name, send, portion, clients))
            say(" ".join(timings[-1].row()))
    return timings


def _clients(count: int) -> str:
    return "one client" if count == 1 else f"{count} clients at once"


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.latency", description=__doc__
    )
    parser.add_argument("--gold", type=Path, required=True, help="Gold rows, JSON lines.")
    parser.add_argument("--url", help="A running service with the corpus loaded.")
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="A loaded store: a service is started on it unless one runs; also used in process.",
    )
    parser.add_argument(
        "--scorer", type=Path, help="Default: score.py in the folder of the gold rows."
    )
    parser.add_argument("--requests", type=int, default=600, help="Over HTTP; as many in process.")
    parser.add_argument(
        "--clients", type=int, nargs="+", default=CLIENTS, help="At once; each number its share."
    )
    parser.add_argument("--warm-up", type=int, default=WARM_UP, help="Requests not counted.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


# -- distinct requests of every kind

DEPTHS = (5, 10, 20, 30, 40)


@dataclass(frozen=True)
class Heading:
    """A heading of a stored document and one hardware id of the document."""

    hardware: str | None
    text: str


def compose(
    rows: Mapping[str, Request],
    signals: Sequence[str],
    headings: Sequence[Heading],
    count: int,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """`count` distinct bodies of POST /retrieve, the kinds in turn; the same for the same seed."""
    rng = random.Random(seed)
    bodies: dict[str, dict[str, Any]] = {}
    kinds = _kinds(list(rows.values()), signals, headings, rng)
    for _ in range(50 * count):
        body = next(kinds)
        bodies.setdefault(json.dumps(body, sort_keys=True), body)
        if len(bodies) == count:
            break
    return list(bodies.values())


def _kinds(
    rows: Sequence[Request], signals: Sequence[str], headings: Sequence[Heading], rng: random.Random
) -> Iterator[dict[str, Any]]:
    makers: list[Callable[[], dict[str, Any]]] = []
    if rows:
        makers += [lambda: _varied(rng.choice(rows), rng)] * 2
    if headings:
        makers.append(lambda: _asked(rng.choice(headings), rng))
        if signals:
            makers.append(lambda: _signalled(rng.choice(signals), rng.choice(headings), rng))
    if not makers:
        raise ValueError("neither gold rows nor headings to compose requests from")
    while True:
        yield from (make() for make in makers)


def _varied(row: Request, rng: random.Random) -> dict[str, Any]:
    """A gold request of another depth, with one word of its text left out."""
    body = {**row, "k": rng.choice(DEPTHS)}
    for name in ("query", "log"):
        words = str(body.get(name) or "").split(" ")
        if len(words) > 3:
            del words[rng.randrange(len(words))]
            body[name] = " ".join(words)
    if rng.random() < 0.5:
        body.pop("categories", None)
    return body


def _asked(heading: Heading, rng: random.Random) -> dict[str, Any]:
    body = {"query": heading.text, "k": rng.choice(DEPTHS)}
    return body | ({"hardware": heading.hardware} if heading.hardware else {})


def _signalled(signal: str, heading: Heading, rng: random.Random) -> dict[str, Any]:
    return _asked(heading, rng) | {"signal": signal}


if __name__ == "__main__":
    ended(lambda: run(options_of()))
