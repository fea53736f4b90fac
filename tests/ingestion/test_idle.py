"""A worker with nothing to do leaves the catalog alone until somebody changes it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from ingestion.worker import Worker

pytestmark = pytest.mark.slow(seconds=5)

if TYPE_CHECKING:
    from tests.fixtures import Store


def test_an_idle_worker_asks_nothing_until_something_changes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ingest("manual.md", "# M\n\nText.\n")
    looks: list[float] = []
    step = Worker._step

    def counted(self: Worker) -> bool:
        looks.append(time.monotonic())
        return step(self)

    monkeypatch.setattr(Worker, "_step", counted)
    stop = threading.Event()
    thread = threading.Thread(target=store.worker().run, args=(stop, 0.01))
    thread.start()
    try:
        time.sleep(1.0)
        assert len(looks) <= 5  # of the hundred that it woke up for: its lease was written too
        second = store.submit("other.md", "# N\n\nMore text.\n")
        deadline = time.monotonic() + 20
        while store.job(second).state != "ready":
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert store.job(second).attempts == 1
    finally:
        stop.set()
        thread.join()
