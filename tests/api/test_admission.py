"""Concurrent retrievals are limited: excess requests are refused at once, others succeed."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from api.http.admission import Admission, _refused
from api.http.errors import _known, respond
from kb.errors import Overloaded
from kb.settings import Settings


def admission(at_once: int, waiting: int) -> Admission:
    return Admission(Settings(retrievals_at_once=at_once, retrievals_waiting=waiting))


def test_requests_run_wait_or_are_refused_in_order() -> None:
    async def scene() -> list[str]:
        turns, order = admission(1, 1), ["first"]
        await turns.enter()

        async def second() -> None:
            await turns.enter()
            order.append("second")

        waiting = asyncio.create_task(second())
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="1 retrievals are waiting") as refused:
            await turns.enter()
        assert refused.value.status == 503
        order.append("refused")
        turns.leave()
        await waiting
        turns.leave()
        await turns.enter()  # all slots are free again
        return order

    assert asyncio.run(scene()) == ["first", "refused", "second"]


def test_abandoned_request_takes_no_slot() -> None:
    async def scene() -> None:
        turns = admission(1, 2)
        await turns.enter()
        waiting = asyncio.create_task(turns.enter())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        turns.leave()
        await asyncio.wait_for(turns.enter(), 1)

    asyncio.run(scene())


def test_refusal_has_retry_after() -> None:
    answer = _known(None, _refused("many"))  # type: ignore[arg-type]
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert json.loads(bytes(answer.body))["code"] == "overloaded"
    assert "Retry-After" not in respond(Overloaded("x")).headers


def test_many_concurrent_requests_are_answered(service_url: str) -> None:
    def ask(number: int) -> int:
        query = f"signal=memory_bound&hardware=h100&k={5 + number % 7}"
        with urllib.request.urlopen(f"{service_url}/retrieve?{query}", timeout=60) as answer:
            return int(answer.status)

    with ThreadPoolExecutor(24) as threads:
        assert set(threads.map(ask, range(24))) == {200}
