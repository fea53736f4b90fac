"""The catalog migrates from an empty file to the metadata, once, also with several processes."""

from __future__ import annotations

import math
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

import kb.catalog.migrations
from kb.blobs import open_blobs
from kb.catalog import Catalog, meta, open_catalog
from kb.catalog import tables as t
from kb.catalog.evaluations import SentEvaluations
from kb.catalog.jobs import Jobs, checkpoint_of
from kb.catalog.runs import CANCELLED, STARTING, RunProcesses
from kb.catalog.schema import OLDEST_CODE
from kb.catalog.tables import metadata, work
from kb.catalog.trajectories import Trajectories
from kb.errors import StoreError

pytestmark = pytest.mark.slow(seconds=6)

ROOT = Path(__file__).resolve().parents[3]
# The tables of the eight migrations that the present first one replaces.
FOUR_TABLES_OF_WORK = Path(__file__).with_name("four_tables_of_work.sql")
BEFORE_FIRST_RELEASE = Path(__file__).with_name("before_first_release.sql")


@pytest.fixture
def first_start(data_dir: Path) -> Iterator[Catalog]:
    """A migrated catalog, not a copied one."""
    assert not data_dir.exists()
    opened = open_catalog(data_dir)
    yield opened
    opened.close()


def schema(catalog: Catalog) -> dict[str, list[str]]:
    """The statement that makes each table and index: its columns in their order, its constraints
    in no order."""
    with catalog.read() as connection:
        rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master").all()
    statements = {name: " ".join((sql or "").removesuffix(")").split()) for name, sql in rows}
    parts = {name: text.split(", CONSTRAINT ") for name, text in statements.items()}
    return {name: [columns, *sorted(rest)] for name, (columns, *rest) in parts.items()}


def older_catalog(data_dir: Path, revision: str) -> None:
    data_dir.mkdir()
    connection = sqlite3.connect(data_dir / "catalog.sqlite")
    connection.executescript(BEFORE_FIRST_RELEASE.read_text(encoding="utf-8"))
    connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    connection.commit()
    connection.close()


@pytest.mark.embedded
def test_new_catalog_equals_metadata(first_start: Catalog) -> None:
    with first_start.read() as connection:
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, metadata) == []


@pytest.mark.embedded
def test_catalog_at_last_prerelease_migration_opens(first_start: Catalog, tmp_path: Path) -> None:
    older_catalog(tmp_path / "older", "0008")
    opened = open_catalog(tmp_path / "older")
    assert schema(opened) == schema(first_start)
    opened.close()


@pytest.mark.parametrize("revision", ["0001", "0007"])
@pytest.mark.embedded
def test_catalog_older_than_first_release_is_refused(data_dir: Path, revision: str) -> None:
    older_catalog(data_dir, revision)
    with pytest.raises(StoreError, match="older than the first release") as refused:
        open_catalog(data_dir)
    assert "new --data-dir" in refused.value.hint and "kernlore ingest" in refused.value.hint
    assert f"revision {revision}" in refused.value.message
    after = sqlite3.connect(data_dir / "catalog.sqlite")
    assert after.execute("SELECT version_num FROM alembic_version").fetchall() == [(revision,)]
    after.close()


@pytest.mark.embedded
def test_reopening_does_not_import_alembic(catalog: Catalog) -> None:
    script = (
        "import sys; from pathlib import Path; from kb.catalog import open_catalog;"
        "open_catalog(Path(sys.argv[1])); print('alembic' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(catalog.data_dir)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "False"


def test_two_starting_processes_migrate_once(data_dir: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from kb.catalog import open_catalog;"
        "open_catalog(Path(sys.argv[1])).close()"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", script, str(data_dir)], cwd=ROOT) for _ in range(3)
    ]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    catalog = open_catalog(data_dir)
    with catalog.read() as connection:
        versions = connection.execute(sa.text("SELECT version_num FROM alembic_version")).all()
    catalog.close()
    assert len(versions) == 1


def test_catalog_of_a_newer_kernlore_is_refused(catalog: Catalog) -> None:
    with catalog.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        meta.put(connection, OLDEST_CODE, "9999")
    with pytest.raises(StoreError, match="newer Kernlore") as refused:
        open_catalog(catalog.data_dir)
    assert "Upgrade" in refused.value.hint


@pytest.mark.embedded
def test_file_that_is_not_a_catalog_is_refused(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "catalog.sqlite").write_bytes(b"not a database " * 500)
    with pytest.raises(StoreError, match="cannot be opened") as refused:
        open_catalog(data_dir)
    assert "restore" in refused.value.hint


# -- one table of work (0016)


def _drop_everything(connection: sa.Connection) -> None:
    present = sa.MetaData()
    present.reflect(connection)
    present.drop_all(connection)


@pytest.fixture
def upgraded(catalog: Catalog) -> Catalog:
    """A catalog with work of the previous release, migrated to this one."""
    (folder,) = kb.catalog.migrations.__path__
    config = Config()
    config.set_main_option("script_location", folder)
    with catalog.migrating() as connection:
        _drop_everything(connection)
        config.attributes["connection"] = connection
        command.upgrade(config, "0015")
        for line in FOUR_TABLES_OF_WORK.read_text(encoding="utf-8").splitlines()[1:]:
            connection.execute(sa.text(re.sub(r":(?=[\w\"])", r"\\:", line)))
    with catalog.migrating() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return catalog


def test_work_of_four_tables_moves_to_one(upgraded: Catalog) -> None:
    with upgraded.read() as connection:
        names = set(sa.inspect(connection).get_table_names())
        assert "work" in names and not {"jobs", "submissions", "run_processes"} & names
        columns = {column["name"] for column in sa.inspect(connection).get_columns("trajectories")}
        assert "state" not in columns
        kinds = sa.select(work.c.kind, sa.func.count()).group_by(work.c.kind).order_by(work.c.kind)
        counts = {kind: count for kind, count in connection.execute(kinds)}
    assert counts == {"evaluation": 4, "ingest": 6, "run": 3, "trajectory": 5}


def test_jobs_resume_after_upgrade(upgraded: Catalog) -> None:
    jobs = Jobs(upgraded)
    assert jobs.counts() == {"failed": 1, "queued": 2, "ready": 1, "running": 2}
    (read,) = (job for job in jobs.in_state("running") if job.subject_id == "doc_read")
    assert checkpoint_of(read) == {"passages": 7} and read.payload["version_id"] == "ver_doc_read"
    assert (read.passages, read.passages_done, read.progress) == (7, 4, {"stage": "embedding"})
    assert (read.group_id, read.share, read.behind, read.attempts) == ("grp_2", "s2", False, 1)
    (failed,) = jobs.in_state("failed")
    assert failed.error is not None and failed.error["code"] == "parse_failed"
    (ready,) = jobs.in_state("ready")
    assert ready.result == {"passages": 3} and ready.error is None and ready.finished_at
    assert jobs.give_back(str(read.lease_owner)) == 1
    taken = [jobs.claim("w", 60) for _ in range(3)]
    assert [job.subject_id for job in taken if job] == ["doc_read", "doc_waits", "doc_behind"]


def test_sent_evaluations_resume_after_upgrade(upgraded: Catalog) -> None:
    sent = SentEvaluations(upgraded)
    ready, failed = sent.find("evj_ready"), sent.find("evj_failed")
    assert ready is not None and ready.result == {"validity": "correct", "high": math.inf}
    assert failed is not None and failed.error is not None and failed.result == {}
    assert failed.error["code"] == "unavailable"
    assert [job.id for job in sent.left()] == ["evj_runs", "evj_waits"]  # an hour later
    taken = sent.claim("evaluator1", 60)
    assert taken is not None and (taken.id, taken.attempts) == ("evj_runs", 2)
    assert taken.payload == {"source": "evj_runs", "toml": None}


def test_trajectories_resume_after_upgrade(upgraded: Catalog, tmp_path: Path) -> None:
    store = Trajectories(upgraded, open_blobs(tmp_path, None))
    states = {row.id: row.state for row in store.latest()}
    assert states == {
        "trj_ready": "ready",
        "trj_runs": "running",
        "trj_waits": "queued",
        "trj_absent": "unverified",
        "trj_failed": "failed",
    }
    ready, runs = store.find("trj_ready"), store.find("trj_runs")
    assert ready.results_key is not None and ready.summary["verdicts"] == [{"high": math.inf}]
    assert runs.summary == {"steps": 2, "hardware": "h100"}
    with upgraded.read() as connection:
        stored = sa.select(t.trajectories.c.summary).where(t.trajectories.c.id == "trj_runs")
        assert connection.execute(stored).scalar() == runs.summary
    assert not store.renew("trj_runs", "another", 60) and store.renew("trj_runs", "service1", 60)
    assert store.claim("service2", 60) == replace(store.find("trj_waits"), state="running")


def test_runs_resume_after_upgrade(upgraded: Catalog) -> None:
    processes = RunProcesses(upgraded)
    process = processes.process_of("run_goes_on")
    assert process is not None and process.owner == "run123_a"
    assert (process.place, process.pid, process.began) == ("host:/data", 123, 1700000000.25)
    assert (process.seconds, process.lease_expires_at[:3]) == (12.5, "202")
    found = [processes.process_of(f"run_{name}") for name in ("starts", "cancelled")]
    assert [process.owner for process in found if process] == [STARTING, CANCELLED]
    assert processes.renew("run123_a", 60, "run_goes_on")
    assert processes.cancel_start("run_starts") and not processes.cancel_start("run_goes_on")
