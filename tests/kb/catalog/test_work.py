"""Leases: each kind of work has one owner at a time, until it ends or the lease expires."""

from __future__ import annotations

import threading
import time

import pytest

from kb.catalog import Catalog
from kb.catalog.jobs import KIND
from kb.catalog.work import ENDED, FOLLOWING, Work, check_transition

GONE = -1.0  # seconds: a lease that has expired
KINDS = (KIND, "evaluation", "trajectory", "run")


@pytest.fixture(params=KINDS)
def work(catalog: Catalog, request: pytest.FixtureRequest) -> Work:
    """Work of one kind, in a catalog where the same owner also holds every other kind."""
    for other in KINDS:
        if other != request.param:
            added(Work(catalog, other), catalog, f"other_{other}")
            assert Work(catalog, other).take("w1", GONE) is not None
    return Work(catalog, request.param)


def added(work: Work, catalog: Catalog, job_id: str = "a") -> str:
    with catalog.write() as connection:
        work.add(connection, job_id, {"of": job_id})
    return job_id


def ended(work: Work, catalog: Catalog, job_id: str, owner: str) -> bool:
    with catalog.write() as connection:
        return work.end(connection, job_id, owner, "ready", {"by": owner})


def expired(work: Work, catalog: Catalog) -> list[str]:
    """The ids of requeued work of dead owners."""
    with catalog.write() as connection:
        ids = [job.id for job in work.abandoned(connection, locked=True)]
        work.requeue(connection, ids)
    return list(ids)


def test_work_has_one_owner_until_it_ends(work: Work, catalog: Catalog) -> None:
    added(work, catalog)
    job = work.take("w1", 60)
    assert job is not None
    assert (job.id, job.state, job.attempts, job.lease_owner) == ("a", "running", 1, "w1")
    assert job.payload == {"of": "a"} and job.started_at is not None
    assert work.take("w2", 60) is None
    assert not work.renew("w2", 60) and not work.renew("w2", 60, "a")
    assert work.give_back("w2") == 0 and not ended(work, catalog, "a", "w2")
    assert ended(work, catalog, "a", "w1")
    done = work.find("a")
    assert done is not None and (done.state, done.result) == ("ready", {"by": "w1"})
    assert (done.lease_owner, done.lease_expires_at) == (None, None)
    assert not ended(work, catalog, "a", "w1") and work.give_back("w1") == 0
    assert not work.renew("w1", 60, "a")


def test_expired_lease_leaves_work_to_next_owner(work: Work, catalog: Catalog) -> None:
    added(work, catalog)
    assert work.take("w1", GONE)
    assert expired(work, catalog) == ["a"] and expired(work, catalog) == []
    again = work.take("w2", 60)
    assert again is not None and (again.lease_owner, again.attempts) == ("w2", 2)
    assert not ended(work, catalog, "a", "w1") and not work.renew("w1", 60, "a")
    assert work.give_back("w1") == 0
    assert expired(work, catalog) == []


def test_renewed_lease_does_not_expire(work: Work, catalog: Catalog) -> None:
    for job_id in ("a", "b"):
        added(work, catalog, job_id)
        assert work.take("w1", GONE)
    assert work.renew("w1", 60, "a")
    assert expired(work, catalog) == ["b"]
    assert work.take("w1", GONE) and work.renew("w1", 60)
    assert expired(work, catalog) == []


def test_work_of_a_live_owner_is_not_expired(work: Work, catalog: Catalog) -> None:
    """Liveness is checked instead of the clock, which may jump."""
    for job_id, seconds in (("a", GONE), ("b", 60.0)):
        added(work, catalog, job_id)
        assert work.take("w1", seconds)
    with catalog.read() as connection:
        assert work.abandoned(connection, lambda owner: True) == []
        assert [job.id for job in work.abandoned(connection, lambda owner: False)] == ["a", "b"]


def test_released_work_can_be_taken_again(work: Work, catalog: Catalog) -> None:
    for job_id in ("a", "b", "c"):
        added(work, catalog, job_id)
        assert work.take("w1", 60)
    assert work.give_back("w1", "a") == 1
    assert work.give_back("w1", but=["c"]) == 1
    found = [work.find(job_id) for job_id in ("a", "b", "c")]
    assert [(job.state, job.attempts) for job in found if job] == [
        *(("queued", 0), ("queued", 0), ("running", 1))
    ]
    again = work.take("w2", 60)
    assert again is not None and (again.id, again.attempts) == ("a", 1)


def test_end_is_part_of_transaction(work: Work, catalog: Catalog) -> None:
    added(work, catalog)
    assert work.take("w1", 60)
    with pytest.raises(RuntimeError), catalog.write() as connection:
        assert work.end(connection, "a", "w1", "ready")
        raise RuntimeError("what it belongs to could not be stored")
    found = work.find("a")
    assert found is not None and found.state == "running"
    with pytest.raises(RuntimeError), catalog.write() as connection:
        work.add(connection, "b", {})
        raise RuntimeError("its subject could not be stored")
    assert work.find("b") is None


def test_each_work_is_taken_by_one_of_many_threads(work: Work, catalog: Catalog) -> None:
    ids = {added(work, catalog, f"n{n:02}") for n in range(12)}
    taken: list[str] = []  # list.append is atomic

    def take_all(owner: str) -> None:
        while len(taken) < len(ids) and (job := work.take(owner, 60)) is not None:
            taken.append(job.id)

    threads = [threading.Thread(target=take_all, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(ids)


def test_lease_expires_with_time(work: Work, catalog: Catalog) -> None:
    added(work, catalog)
    assert work.take("w1", 0.02)
    time.sleep(0.05)
    assert expired(work, catalog) == ["a"]


def test_allowed_transitions_of_work() -> None:
    for state in ENDED:
        assert [before for before, after in FOLLOWING.items() if state in after] == ["running"]
    check_transition("queued", "running")
    with pytest.raises(ValueError, match="partial cannot become queued"):
        check_transition("partial", "queued")
