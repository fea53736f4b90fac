"""Latency is measured with requests that no cache has seen."""

from __future__ import annotations

import json

from benchmarks.retrieval.latency import HEADER, Heading, Timing, compose, measure, split
from kb.errors import Unavailable

ROWS = {
    f"r{n}": {"query": f"how many registers has lane {n} of the chip", "hardware": "zeta-1"}
    for n in range(30)
} | {"s": {"signal": "memory_bound", "hardware": "zeta-1", "categories": ["hardware"]}}
HEADINGS = [Heading("zeta-1", f"Section {n}") for n in range(30)] + [Heading(None, "Anywhere")]


def test_all_requests_differ() -> None:
    bodies = compose(ROWS, ["memory_bound", "compute_bound"], HEADINGS, 600)
    assert len({json.dumps(body, sort_keys=True) for body in bodies}) == 600
    assert bodies == compose(ROWS, ["memory_bound", "compute_bound"], HEADINGS, 600)
    assert any("signal" in body and "query" in body for body in bodies)


def test_fewer_requests_from_small_vocabulary() -> None:
    assert len(compose({}, [], [Heading(None, "Only this")], 100)) == 5  # one per depth


def test_measurements_share_no_request() -> None:
    bodies = compose(ROWS, ["memory_bound"], HEADINGS, 240)
    portions = list(split(bodies, 4))
    assert [len(portion) for portion in portions] == [60] * 4
    seen = [json.dumps(body) for portion in portions for body in portion]
    assert len(set(seen)) == len(seen)


def test_failed_requests_are_counted() -> None:
    def send(body: object) -> None:
        if body == {"k": 1}:
            raise Unavailable("no answer", hint="Look.")

    for clients in (1, 4):
        timing = measure("x", send, [{"k": n} for n in range(8)], clients)
        assert len(timing.milliseconds) == 7
        assert timing.failures == ['no answer: {"k": 1}']
        assert len(timing.row()) == len(HEADER)
    assert Timing("x", [], 1.0, ["all"]).row()[:3] == ["x", "0", "1"]
