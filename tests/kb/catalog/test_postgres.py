"""The catalog on a real PostgreSQL server. `make test-postgres` runs the tests of all catalogs
there; these cover the differences from SQLite.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from kb.catalog import Catalog, meta, open_catalog
from kb.catalog import tables as t
from kb.catalog.database import store_fault
from kb.catalog.dialect import Json, json_text
from kb.catalog.engine import open_place
from kb.catalog.jobs import Jobs, Turn
from kb.catalog.knowledge.documents import Documents
from kb.catalog.meta import bump_revision
from kb.catalog.moving import copy_catalog
from kb.catalog.skills.evidence import known_skills
from kb.catalog.tables import metadata, work
from kb.errors import Conflict, InvalidRequest, KernloreError, StoreError, Unavailable
from retrieval.snapshot.store import SnapshotStore
from tests.catalogs import fresh_data_dir
from tests.fixtures import Store
from tests.postgresql import Server
from tests.retrieval.snapshot.test_store import contents

pytestmark = pytest.mark.slow(seconds=12)
ROOT = Path(__file__).resolve().parents[3]
CLAIM_ALL = """
import sys
from pathlib import Path
from kb.catalog import open_catalog
from kb.catalog.jobs import Jobs
jobs = Jobs(open_catalog(Path(sys.argv[1]), sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
while (job := jobs.claim(sys.argv[3], 60)) is not None:
    print(job.subject_id)
"""
MIGRATE = """
import sys
from pathlib import Path
from kb.catalog import open_catalog
open_catalog(Path(sys.argv[1]), sys.argv[2]).close()
"""
MANUAL = "# Manual\n\n## Loads\n\nThe load unit has cp.async.bulk.\n\n## Stores\n\nStores wait.\n"


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    """The URL of a new database with an empty catalog."""
    name = f"t{uuid4().hex}"
    yield postgres.create(name)
    postgres.drop(name)


@pytest.fixture
def served(url: str, tmp_path: Path) -> Iterator[Catalog]:
    opened = open_catalog(tmp_path / "served", url)
    yield opened
    opened.close()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Catalog]:
    opened = open_place(str(fresh_data_dir(tmp_path / "embedded") / "catalog.sqlite"))
    yield opened
    opened.close()


def shape(catalog: Catalog) -> dict[str, Any]:
    """The columns, keys and indexes of each table. Types depend on the database."""
    with catalog.read() as connection:
        seen = sa.inspect(connection)
        return {
            table.name: (
                [(c["name"], c["nullable"]) for c in seen.get_columns(table.name)],
                seen.get_pk_constraint(table.name)["constrained_columns"],
                sorted((i["name"], tuple(i["column_names"])) for i in seen.get_indexes(table.name)
                       if not i.get("duplicates_constraint")),
                sorted(tuple(u["column_names"]) for u in seen.get_unique_constraints(table.name)),
                sorted((f["constrained_columns"][0], f["referred_table"], f["options"]["ondelete"])
                       for f in seen.get_foreign_keys(table.name)),
            )
            for table in metadata.sorted_tables
        }  # fmt: skip


def test_migrations_make_same_tables_as_sqlite(served: Catalog, embedded: Catalog) -> None:
    assert shape(served) == shape(embedded)


def test_two_starting_processes_migrate_once(postgres: Server, tmp_path: Path) -> None:
    name = f"t{uuid4().hex}"
    postgres.execute(f"CREATE DATABASE {name}")
    arguments = [sys.executable, "-c", MIGRATE, str(tmp_path), postgres.url_of(name)]
    started = [subprocess.Popen(arguments, cwd=ROOT) for _ in range(2)]
    assert [process.wait(timeout=60) for process in started] == [0, 0]
    postgres.drop(name)


def test_texts_sort_and_compare_as_in_sqlite(served: Catalog, embedded: Catalog) -> None:
    """The server's default collation differs: `a` before `B`."""
    words = ["b", "B", "a", "_", "Z", "é", "z-1", "z 1", "10", "9"]

    def stored(catalog: Catalog) -> tuple[list[str], ...]:
        empty = dict.fromkeys(("language", "status", "origin", "created_at"), "")
        with catalog.write() as connection:
            connection.execute(t.recipes.insert(), [{"id": w, "name": w, **empty} for w in words])
        with catalog.read() as connection:
            names = sa.select(t.recipes.c.name)
            above = names.where(t.recipes.c.name > "B").order_by(t.recipes.c.name)
            holding = names.where(t.recipes.c.name.icontains("B")).order_by(t.recipes.c.name)
            return tuple(list(connection.execute(q).scalars()) for q in (above, holding))

    due = (["Z", "_", "a", "b", "z 1", "z-1", "é"], ["B", "b"])
    assert stored(served) == stored(embedded) == due


def test_values_round_trip_as_in_sqlite(served: Catalog, embedded: Catalog) -> None:
    """Numbers of 64 bits, infinite bounds, SQL NULL and JSON null, sums."""

    def stored(catalog: Catalog) -> list[Any]:
        device = {
            "id": "dev",
            "hardware_id": "h",
            "uuid": "u",
            "name": "n",
            "created_at": "",
            "memory_bytes": 80 << 30,
            "matmul_peak": {"float32": float("inf"), "Ü": [1, None]},
        }
        spec = {"id": "h", "name": "H", "kind": "family", "summary": "", "spec": "", "origin": "",
                "created_at": "", "updated_at": ""}  # fmt: skip
        table = t.devices
        with catalog.write() as connection:
            connection.execute(t.hardware.insert().values(spec))
            connection.execute(table.insert().values(device))
            job = {"id": "j1", "kind": "k", "state": "queued", "created_at": ""}
            connection.execute(work.insert().values(job | {"error": None}))
            connection.execute(work.insert().values(job | {"id": "j2"}))
        with catalog.read() as connection:
            total = connection.execute(sa.select(sa.func.sum(table.c.memory_bytes))).scalar()
            peak = connection.execute(sa.select(table.c.matmul_peak, table.c.memory_bytes)).one()
            nulls = connection.execute(
                sa.select(sa.type_coerce(work.c.error, sa.Text)).order_by(work.c.id)
            ).scalars()
            return [total, type(total), tuple(peak), list(nulls)]

    assert stored(served) == stored(embedded)


def test_json_entries_are_queried_in_sql(served: Catalog, embedded: Catalog) -> None:
    for catalog in (served, embedded):
        with catalog.write() as connection:
            meta.put(connection, "run", {"problem": "a/b.py"})
        table = metadata.tables["meta"]
        with catalog.read() as connection:
            place = json_text(table.c.value, sa.literal_column("'problem'"))
            chosen = sa.select(place).where(table.c.key == "run")
            assert connection.execute(chosen).scalar() == "a/b.py"
            assert known_skills(connection) == []


def test_nul_is_removed_from_text(served: Catalog) -> None:
    with served.write() as connection:
        meta.put(connection, "a\0b", {"text": "c\0d"})
    with served.read() as connection:
        assert meta.get(connection, "a\ufffdb") == {"text": "c\0d"}  # JSON has an escape for it


def test_catalog_version_changes_with_every_write(
    served: Catalog, url: str, tmp_path: Path
) -> None:
    before = served.version()
    assert served.version() == before
    other = open_catalog(tmp_path / "other", url)
    with other.write() as connection:
        meta.put(connection, "seen", 1)
    assert served.version() != before
    other.close()


# -- leases


def queue(catalog: Catalog, count: int) -> set[str]:
    subjects = [f"doc_{n}" for n in range(count)]
    with catalog.write() as connection:
        for n, subject in enumerate(subjects):
            Jobs(catalog).enqueue(connection, subject, {}, Turn(share=f"s{n % 5}"))
    return set(subjects)


def test_two_processes_never_take_same_job(served: Catalog, url: str, tmp_path: Path) -> None:
    subjects = queue(served, 200)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM_ALL, str(tmp_path / name), url, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("w1", "w2")
    ]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    taken = []
    for worker in workers:  # both begin now
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    for worker in workers:
        taken.append(worker.communicate(timeout=60)[0].split())
    assert sorted(taken[0] + taken[1]) == sorted(subjects)
    assert all(taken), "one of them had no turn"


def test_job_is_claimed_while_another_process_writes(served: Catalog) -> None:
    queue(served, 1)
    with served.write() as connection:
        meta.put(connection, "long", "work")
        taken = served_claim(served, "w1")
    assert taken == "doc_0"


def served_claim(catalog: Catalog, owner: str) -> str | None:
    found: list[str | None] = []

    def claim() -> None:
        job = Jobs(catalog).claim(owner, 60)
        found.append(job.subject_id if job else None)

    thread = threading.Thread(target=claim)
    thread.start()
    thread.join(timeout=10)
    assert found, "it waits"
    return found[0]


def test_locked_rows_are_skipped_by_claim(served: Catalog) -> None:
    queue(served, 2)
    with served.write(rows_only=True) as connection:
        held = sa.select(work.c.id).where(work.c.subject_id == "doc_0")
        connection.execute(held.with_for_update())
        assert served_claim(served, "w1") == "doc_1"
        assert served_claim(served, "w1") is None
    assert served_claim(served, "w1") == "doc_0"


def test_writer_that_waits_too_long_gets_unavailable(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kb.catalog.database.LOCK_TIMEOUT_MS", 50)
    catalog = open_catalog(tmp_path, url)
    refusals: list[KernloreError | None] = []

    def write() -> None:
        try:
            with catalog.write():
                pass
        except sa.exc.OperationalError as error:
            refusals.append(store_fault(error))

    with catalog.write():
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    catalog.close()
    assert isinstance(refusals[0], Unavailable) and "busy" in refusals[0].message


# -- faults


def test_killed_server_gives_503_until_it_restarts(postgres: Server, served: Catalog) -> None:
    with served.read() as connection:
        assert meta.revision(connection) == 0
        postgres.stop()
        with pytest.raises(sa.exc.DBAPIError) as lost:
            meta.revision(connection)
    faults = [store_fault(lost.value)]
    for begin in (served.read, served.write):
        with pytest.raises(sa.exc.DBAPIError) as refused, begin():
            pass
        faults.append(store_fault(refused.value))
    with pytest.raises(sa.exc.DBAPIError) as unseen:
        served.version()
    faults.append(store_fault(unseen.value))
    assert [type(fault) for fault in faults] == [Unavailable] * 4
    postgres.start()
    with served.write() as connection:
        bump_revision(connection)
    with served.read() as connection:
        assert meta.revision(connection) == 1


BAD_URLS = {
    "nonsense:secret": "cannot be read",
    "postgresql+psycopg://u:secret@host:port/db": "cannot be read",
    "mysql://u:secret@host/db": "'mysql'",
    "postgresql+psycopg2://u:secret@host/db": "'postgresql+psycopg2'",
    "postgresql+psycopg://u:secret@host": "names no database",
    "sqlite://": "needs a file",
}


@pytest.mark.parametrize("bad", BAD_URLS)
def test_invalid_catalog_url_is_refused(bad: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as refused:
        open_catalog(tmp_path, bad)
    assert BAD_URLS[bad] in refused.value.message
    assert "secret" not in refused.value.message + refused.value.hint


def test_unreachable_server_is_named_without_password(tmp_path: Path) -> None:
    nowhere = f"postgresql+psycopg://u:secret@/db?host={tmp_path}&password=secret2"
    with pytest.raises(Unavailable) as refused:
        open_catalog(tmp_path, nowhere)
    assert f"u:***@/db?host={tmp_path}" in refused.value.message.replace("%2F", "/")
    assert "KERNLORE_CATALOG" in refused.value.hint
    assert "secret" not in refused.value.message + refused.value.hint
    assert not (tmp_path / "catalog.sqlite").exists()


def test_missing_driver_error_names_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Unavailable) as refused:
        open_catalog(tmp_path, "postgresql+psycopg://u:secret@host/db")
    assert "pip install 'kernlore[postgres]'" in refused.value.hint
    assert "secret" not in refused.value.message


def test_database_of_another_encoding_is_refused(postgres: Server, tmp_path: Path) -> None:
    name = f"t{uuid4().hex}"
    postgres.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII'")
    with pytest.raises(StoreError, match="SQL_ASCII"):
        open_catalog(tmp_path, postgres.url_of(name))
    postgres.drop(name)


def test_role_without_create_privilege_is_refused(postgres: Server, tmp_path: Path) -> None:
    name = f"t{uuid4().hex}"
    postgres.execute(f"CREATE DATABASE {name}")
    postgres.execute("CREATE ROLE guest LOGIN")
    with pytest.raises(StoreError) as refused:
        open_catalog(tmp_path, postgres.url_of(name).replace("kernlore@", "guest@"))
    assert "permission denied" in refused.value.message and "own" in refused.value.hint
    postgres.drop(name)
    postgres.execute("DROP ROLE guest")


# -- moving


def as_stored(column: sa.Column[Any], value: Any) -> Any:
    """A bare JSON number is a number in SQLite and text on PostgreSQL."""
    return str(value) if isinstance(column.type, Json) else value


def rows_of(catalog: Catalog) -> dict[str, list[tuple[Any, ...]]]:
    """Every row, with JSON as stored."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    with catalog.read() as connection:
        for table in metadata.sorted_tables:
            columns = list(table.columns)
            names = ", ".join(column.name for column in columns)
            rows[table.name] = sorted(
                (
                    tuple(map(as_stored, columns, row))
                    for row in connection.exec_driver_sql(f"SELECT {names} FROM {table.name}")
                ),
                key=repr,
            )
    return rows


def test_store_moved_to_postgresql_and_back_is_equal(
    make_store: Callable[[Path], Store], served: Catalog, embedded: Catalog, tmp_path: Path
) -> None:
    store = make_store(tmp_path / "data")
    store.ingest("manual.md", MANUAL, hardware=("h100",))
    store.ingest("manual.md", f"{MANUAL}\n## More\n\nMore words.\n", hardware=("h100",))
    counts = copy_catalog(store.catalog, served)
    assert counts["passages"] == store.rows("passages") > 3
    copy_catalog(served, embedded)
    assert rows_of(embedded) == rows_of(store.catalog)
    with served.write() as connection:  # sequences continue above the copied numbers
        highest = connection.execute(sa.select(sa.func.max(t.sections.c.seq))).scalar_one()
        row = connection.execute(sa.select(t.sections).limit(1)).one()._mapping
        fresh = {**{n: v for n, v in row.items() if n != "seq"}, "id": "sec_new"}
        connection.execute(t.sections.insert().values(fresh))
        numbered = sa.select(t.sections.c.seq).where(t.sections.c.id == "sec_new")
        assert connection.execute(numbered).scalar() == highest + 1


def test_snapshots_on_postgresql_equal_those_on_sqlite(store: Store, served: Catalog) -> None:
    documents = [
        store.ingest(f"{chip}.md", f"{MANUAL}\nFor {chip}.\n", hardware=(chip,)).document_id
        for chip in ("h100", "mi300x")
    ]
    copy_catalog(store.catalog, served)
    snapshots = SnapshotStore(served, store.embedder.fingerprint)
    assert contents(snapshots.current()) == contents(store.snapshots.current())
    for catalog in (store.catalog, served):
        Documents(catalog).delete(documents[0])
    assert documents[0] not in snapshots.current().documents
    assert contents(snapshots.current()) == contents(store.snapshots.current())


def test_copy_into_catalog_in_use_is_refused(served: Catalog, embedded: Catalog) -> None:
    for catalog in (served, embedded):
        with catalog.write() as connection:
            bump_revision(connection)
    for source, target in ((embedded, served), (served, embedded)):
        before = rows_of(target)
        with pytest.raises(Conflict, match="is not empty: it has 2 rows of meta"):
            copy_catalog(source, target)
        assert rows_of(target) == before


def test_failed_copy_leaves_no_rows(served: Catalog, embedded: Catalog) -> None:
    with embedded.write() as connection:
        bump_revision(connection)

    def failing(message: str) -> None:
        if message.startswith("meta"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_catalog(embedded, served, failing)
    left = rows_of(served)
    assert [row[0] for row in left.pop("meta")] == ["oldest_code"]  # as in an empty catalog
    assert not any(left.values())
