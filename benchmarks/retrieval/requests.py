"""Many different requests of the kinds that a loaded store gets, none equal to another.

Made of gold rows with words left out, of signals, and of headings of documents that are there; so
no cache of whole answers could serve one of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.retrieval.scoring import Request

DEPTHS = (5, 10, 20, 30, 40)


@dataclass(frozen=True)
class Heading:
    """A heading of a stored document, and a hardware its document is about."""

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
