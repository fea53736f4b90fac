"""External trajectories as rows: results, summaries, and allowed changes of state."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kb.blobs import open_blobs
from kb.catalog import Catalog
from kb.catalog.trajectories import State, StoredTrajectory, Trajectories

GONE = -1.0  # seconds: an expired lease


@pytest.fixture
def store(catalog: Catalog, tmp_path: Path) -> Trajectories:
    return Trajectories(catalog, open_blobs(tmp_path, None))


def added(store: Trajectories, name: str = "trj_1", state: State = "queued") -> StoredTrajectory:
    assert store.add(name, "told", state, {"of": name}, {"steps": 1})
    return store.find(name)


def test_worker_stores_results_at_end(store: Trajectories) -> None:
    row = added(store)
    assert store.take(row.id, "w1", 60) and not store.take(row.id, "w2", 60)
    assert not store.end(row.id, "w2", "failed", error={"code": "x"})
    assert store.end(row.id, "w1", "ready", {"n": 1}, best=2)
    ended = store.find(row.id)
    assert (ended.state, store.results(ended)) == ("ready", {"n": 1})
    assert ended.summary == {"steps": 1, "best": 2}
    assert not store.end(row.id, "w1", "failed", best=3)
    assert store.find(row.id) == ended


def test_change_from_another_state_is_refused(store: Trajectories) -> None:
    row = added(store, state="unverified")
    assert not store.change(row.id, "queued", only_from=("failed",), reason="none")
    assert store.find(row.id) == row
    assert store.change(row.id, "queued", only_from=("unverified",), reason="none")
    found = store.find(row.id)
    assert (found.state, found.summary) == ("queued", {"steps": 1, "reason": "none"})
    assert not store.change("trj_0", "queued", only_from=("unverified",))


def test_infinite_interval_bound_is_stored(store: Trajectories) -> None:
    """A single pair of blocks has the bounds 0 and infinity."""
    row = added(store)
    assert store.take(row.id, "w1", 60)
    assert store.end(row.id, "w1", "failed", verdicts=[{"high": math.inf}])
    assert store.change(row.id, "queued", only_from=("failed",))
    assert store.take(row.id, "w1", GONE) and store.expire() == [row.id]
    assert store.find(row.id).summary["verdicts"] == [{"high": math.inf}]
