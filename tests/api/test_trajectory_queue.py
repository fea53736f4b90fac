"""Leases of external trajectories: one worker at a time, and abandoned work is resumed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from api.operations.bodies import TrajectoryBody
from api.operations.trajectories import accept_body
from api.services import Services, evaluate_processes
from ingestion.builtin import builtin_hardware
from kb.settings import Settings
from optimizer.evaluation.queue import EvaluationQueue
from skills.trajectories.queue import TrajectoryQueue, requeue
from skills.trajectories.reading import trajectory_store
from tests.api.cli_process import kernlore
from tests.api.test_trajectories import body
from tests.waiting import until

pytestmark = pytest.mark.slow(seconds=10)

GONE = -1.0  # seconds: an expired lease
DAMAGED = "trj_damaged"  # fails at once, without any measurement
UNREADABLE, UNRECORDED = "worker failed", "trajectory not recorded"
# As on a full disk: the end of a trajectory cannot be written.
NO_END = """CREATE TRIGGER no_end BEFORE UPDATE ON work
WHEN NEW.state IN ('ready', 'failed') BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    opened = Services(Settings(data_dir=tmp_path / "data", lease_seconds=0.4))
    for spec in builtin_hardware(opened.settings.knowledge_dir):
        opened.registry.put(spec, "builtin")
    yield opened
    opened.close()


@pytest.fixture
def queue(services: Services) -> Iterator[TrajectoryQueue]:
    evaluations = EvaluationQueue(services, evaluate_processes())
    trajectories = TrajectoryQueue(services, evaluations)
    yield trajectories
    trajectories.close()
    evaluations.close()


def sql(services: Services, statement: str) -> None:
    with services.catalog.write() as connection:
        connection.exec_driver_sql(statement)


def add_damaged(services: Services, name: str = DAMAGED) -> None:
    assert trajectory_store(services).add(name, "told", "queued", {}, {"steps": 0})


def failed(services: Services, name: str = DAMAGED) -> bool:
    return trajectory_store(services).find(name).state == "failed"


def test_thread_survives_unreadable_catalog(services: Services, queue: TrajectoryQueue) -> None:
    sql(services, "ALTER TABLE work RENAME TO away")
    with capture_logs() as output:
        queue.wake()
        until(lambda: any(row["event"] == UNREADABLE for row in output))
    sql(services, "ALTER TABLE away RENAME TO work")
    thread = queue._worker._thread
    assert thread is not None and thread.is_alive()
    add_damaged(services)
    queue.wake()
    until(lambda: failed(services))
    assert queue._worker._thread is thread


def test_dead_thread_is_restarted(services: Services, queue: TrajectoryQueue) -> None:
    queue._worker._thread = threading.Thread(target=lambda: None)
    queue._worker._thread.start()
    queue._worker._thread.join()
    add_damaged(services)
    queue.wake()
    until(lambda: failed(services))


@pytest.mark.embedded
def test_failed_write_of_an_end_loses_nothing(services: Services, queue: TrajectoryQueue) -> None:
    """The trajectory is queued again once the lease expires, without a call that wakes the
    thread.
    """
    add_damaged(services)
    sql(services, NO_END)
    store = trajectory_store(services)
    with capture_logs() as output:
        queue.wake()
        until(
            lambda: any((r["event"], r.get("trajectory")) == (UNRECORDED, DAMAGED) for r in output)
        )
    assert not failed(services)
    sql(services, "DROP TRIGGER no_end")
    until(lambda: failed(services))
    assert "lacks" in store.find(DAMAGED).summary["error"]["message"]


def test_work_of_a_killed_worker_is_resumed(services: Services, queue: TrajectoryQueue) -> None:
    """While the service runs, and without a call that wakes it; work with a live owner is left."""
    store = trajectory_store(services)
    add_damaged(services)
    add_damaged(services, "trj_held")
    assert store.take(DAMAGED, "command1", 1.0) and store.take("trj_held", "command2", 600)
    queue.wake()
    assert store.find(DAMAGED).state == "running"
    until(lambda: failed(services))
    assert store.find("trj_held").state == "running"


def test_trajectory_in_progress_is_not_taken(services: Services) -> None:
    """Neither by a second submission nor by `verify`, until the lease expires."""
    reported = TrajectoryBody.model_validate(body(steps=[{"source": "int a;"}]))
    row = accept_body(services, reported)
    store = trajectory_store(services)
    assert row.state == "queued" and store.take(row.id, "service1", 600)
    held = store.find(row.id)
    assert requeue(services, held) == held and accept_body(services, reported) == held
    add_damaged(services)
    assert store.take(DAMAGED, "command1", GONE)
    data = services.settings.data_dir
    ran = kernlore("trajectories", "verify", row.id, "--json", data=data)
    assert (ran.code, ran.json["state"]) == (1, "running") and "another process" in ran.err
    ran = kernlore("trajectories", "verify", DAMAGED, "--json", data=data)
    assert (ran.code, ran.json["state"]) == (1, "failed"), ran.err
    assert store.end(row.id, "service1", "failed")  # it belonged to the service all the time
