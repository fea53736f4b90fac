"""Jobs of documents: order, progress, checkpoints and retries; leases are in test_work.py."""

from __future__ import annotations

import threading
import time

import pytest

from kb.catalog import Catalog
from kb.catalog.jobs import FIRST_COME, MANY_ATTEMPTS, Jobs, Turn, checkpoint_of
from kb.data_dir import is_alive, marked_alive, remove_dead_marks
from kb.errors import Conflict, NotFound
from kb.ids import JobId
from kb.scope import AccessScope


@pytest.fixture
def jobs(catalog: Catalog) -> Jobs:
    return Jobs(catalog)


def queued(jobs: Jobs, catalog: Catalog, subject: str = "doc_1", turn: Turn = FIRST_COME) -> JobId:
    with catalog.write() as connection:
        return jobs.enqueue(connection, subject, {"version_id": "ver_1"}, turn)


def taken_in_order(jobs: Jobs, catalog: Catalog, turns: dict[str, Turn]) -> list[str | None]:
    """The subjects of the queue, each claimed and ended before the next."""
    order = []
    for subject, turn in turns.items():
        queued(jobs, catalog, subject, turn)
    while (job := jobs.claim("w", 60)) is not None:
        order.append(job.subject_id)
        with catalog.write() as connection:
            jobs.finish(connection, job.id, "w", "ready")
    return order


def test_job_claimed_by_another_worker_cannot_be_ended(jobs: Jobs, catalog: Catalog) -> None:
    job_id = queued(jobs, catalog)
    assert jobs.claim("w1", 60) is not None and jobs.claim("w2", 60) is None
    with pytest.raises(Conflict), catalog.write() as connection:
        jobs.finish(connection, job_id, "w2", "failed")
    with catalog.write() as connection:
        jobs.finish(connection, job_id, "w1", "ready", result={"passages": 3})
    assert jobs.get(job_id).result == {"passages": 3} and jobs.counts() == {"ready": 1}


def test_shares_alternate_and_late_small_share_is_not_delayed(jobs: Jobs, catalog: Catalog) -> None:
    turns = {f"many{n}": Turn(share="many") for n in range(6)}
    turns |= {f"few{n}": Turn(share="few") for n in range(2)} | {"single": Turn(share="h100")}
    assert taken_in_order(jobs, catalog, turns) == [
        *("many0", "few0", "single", "many1", "few1"),
        *("many2", "many3", "many4", "many5"),
    ]


def test_background_jobs_wait_for_all_others(jobs: Jobs, catalog: Catalog) -> None:
    turns = {f"builtin{n}": Turn(share="builtin", behind=True) for n in range(2)}
    turns |= {f"upload{n}": Turn(share="upload") for n in range(3)}
    order = taken_in_order(jobs, catalog, turns)
    assert order == ["upload0", "upload1", "upload2", "builtin0", "builtin1"]
    queued(jobs, catalog, "builtin2", Turn(share="builtin", behind=True))
    assert jobs.claim("w", 60, none_behind=True) is None
    assert jobs.claim("w", 60) is not None


def test_batch_resubmission_claims_only_unsuccessful_jobs(jobs: Jobs, catalog: Catalog) -> None:
    ended, failed, waits = (queued(jobs, catalog, name, Turn("old")) for name in "efw")
    for job_id, state in ((ended, "ready"), (failed, "failed")):
        claimed = jobs.claim("w", 60)
        assert claimed is not None and claimed.id == job_id
        with catalog.write() as connection:
            jobs.finish(connection, job_id, "w", "ready" if state == "ready" else "failed")
    with catalog.write() as connection:
        for name in "efw":
            jobs.join_group(connection, name, "new")
    groups = [jobs.get(job_id).group_id for job_id in (ended, failed, waits)]
    assert groups == ["old", "new", "new"]


def test_only_owner_counts_passages_and_each_attempt_restarts(jobs: Jobs, catalog: Catalog) -> None:
    job_id = queued(jobs, catalog)
    jobs.claim("w1", 60)
    jobs.heartbeat(job_id, "w1", 60, {"stage": "embedding"}, passages=9)
    for owner, done in (("w1", 4), ("w2", 8)):
        with catalog.write() as connection:
            jobs.report_passages(connection, owner, {job_id: done})
    job = jobs.get(job_id)
    assert (job.passages_done, job.passages) == (4, 9)
    assert jobs.give_back("w1") == 1
    job = jobs.get(job_id)
    assert (job.passages_done, job.passages, job.progress) == (0, None, {})


def test_expired_lease_requeues_job(jobs: Jobs, catalog: Catalog) -> None:
    job_id = queued(jobs, catalog)
    for attempt in range(1, 12):
        job = jobs.claim("w1", 0.0)
        assert job is not None and (job.attempts, job.error) == (attempt, None)
        with pytest.raises(Conflict):
            jobs.retry(job_id)
        time.sleep(0.005)
        assert jobs.requeue_abandoned() == [job_id]
        assert jobs.get(job_id).state == "queued"
    with pytest.raises(Conflict):  # its worker resumes too late
        jobs.heartbeat(job_id, "w1", 60)


def test_failed_job_is_retried(jobs: Jobs, catalog: Catalog) -> None:
    job_id = queued(jobs, catalog)
    jobs.claim("w1", 60)
    with catalog.write() as connection:
        jobs.finish(connection, job_id, "w1", "failed", error={"code": "parse_failed"})
    jobs.retry(job_id)
    again = jobs.claim("w2", 60)
    assert again is not None and (again.attempts, again.error) == (2, None)


def test_job_whose_workers_die_waits_for_others_of_its_share(jobs: Jobs, catalog: Catalog) -> None:
    """The job may be the reason why its workers die."""
    suspect = queued(jobs, catalog, "suspect")
    for _ in range(MANY_ATTEMPTS):
        assert jobs.claim("dead", 60) is not None
        assert jobs.requeue_abandoned(lambda owner: False) == [suspect]
    others = [queued(jobs, catalog, f"doc_{n}") for n in range(3)]
    taken = [jobs.claim("w", 60) for _ in range(4)]
    assert [job.id for job in taken if job] == [*others, suspect]


def test_heartbeat_renews_lease_and_stores_progress(jobs: Jobs, catalog: Catalog) -> None:
    job_id = queued(jobs, catalog)
    jobs.claim("w1", 0.02)
    jobs.heartbeat(job_id, "w1", 60, {"stage": "embedding"})
    time.sleep(0.03)
    assert jobs.requeue_abandoned() == []
    assert jobs.get(job_id).progress == {"stage": "embedding"}
    jobs.renew("someone else", 0.0)
    assert jobs.requeue_abandoned() == []


@pytest.mark.parametrize("hours", [1, -1], ids=["back", "forward"])
def test_clock_jump_does_not_expire_jobs_of_live_workers(
    jobs: Jobs, catalog: Catalog, hours: int
) -> None:
    """Without a check of the worker, a jump forward would expire its lease at once."""
    data_dir = catalog.data_dir
    living_job, dead_job = queued(jobs, catalog, "doc_1"), queued(jobs, catalog, "doc_2")
    with marked_alive(data_dir, "w1"):
        for owner in ("w1", "w2"):
            assert jobs.claim(owner, hours * 3600.0) is not None
        dead = data_dir / "locks" / "w2.worker"
        dead.touch()  # without its lock, as after a kill
        assert jobs.requeue_abandoned(lambda owner: is_alive(data_dir, owner)) == [dead_job]
        assert jobs.get(living_job).state == "running"
        remove_dead_marks(data_dir)
        assert not dead.exists() and is_alive(data_dir, "w1")
    assert is_alive(data_dir, "w1") is None
    assert list((data_dir / "locks").iterdir()) == []


def test_job_resumes_from_checkpoint_of_dead_worker(jobs: Jobs, catalog: Catalog) -> None:
    job_id = queued(jobs, catalog)
    job = jobs.claim("w1", 60)
    assert job is not None and checkpoint_of(job) is None
    with pytest.raises(RuntimeError), catalog.write() as connection:
        jobs.store_checkpoint(connection, job, "w1", {"passages": 2})
        raise RuntimeError("what it belongs to could not be stored")
    with pytest.raises(Conflict), catalog.write() as connection:
        jobs.store_checkpoint(connection, job, "w2", {"passages": 2})
    with catalog.write() as connection:
        jobs.store_checkpoint(connection, job, "w1", {"passages": 3})
    assert jobs.requeue_abandoned(lambda owner: False) == [job_id]
    again = jobs.claim("w2", 60)
    assert again is not None and (again.id, again.attempts) == (job_id, 2)
    assert checkpoint_of(again) == {"passages": 3} and again.payload["version_id"] == "ver_1"


def test_each_job_is_claimed_by_one_of_many_workers(jobs: Jobs, catalog: Catalog) -> None:
    ids = {queued(jobs, catalog, f"doc_{n}") for n in range(20)}
    taken: list[JobId] = []  # list.append is atomic

    def work(owner: str) -> None:
        while (job := jobs.claim(owner, 60)) is not None:
            taken.append(job.id)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(ids)


def test_unknown_or_foreign_job_is_not_found(jobs: Jobs, catalog: Catalog) -> None:
    job_id = queued(jobs, catalog)
    with pytest.raises(NotFound):
        jobs.get("job_unknown")
    with pytest.raises(NotFound):
        jobs.get(job_id, access_scope=AccessScope("team"))
