"""The catalog migrates itself: from nothing to the metadata, once, whoever comes first."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext

import kb.catalog.migrations
from kb.catalog import Catalog, meta, open_catalog
from kb.catalog.schema import OLDEST_CODE
from kb.catalog.tables import metadata
from kb.errors import StoreError

pytestmark = pytest.mark.slow(seconds=6)

ROOT = Path(__file__).resolve().parents[3]
# What the eight migrations made that the first one replaces.
BEFORE_FIRST_RELEASE = Path(__file__).with_name("before_first_release.sql")


def _ours(obj: object, name: str | None, kind: str, reflected: bool, other: object) -> bool:
    return not (kind == "table" and (name or "").startswith("lexical_"))


@pytest.fixture
def first_start(data_dir: Path) -> Iterator[Catalog]:
    """A catalog that was migrated, not copied."""
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
def test_a_new_catalog_equals_the_metadata(first_start: Catalog) -> None:
    with first_start.read() as connection:
        context = MigrationContext.configure(connection, opts={"include_object": _ours})
        assert compare_metadata(context, metadata) == []


@pytest.mark.embedded
def test_a_catalog_of_the_last_migration_before_the_first_release_is_up_to_date(
    first_start: Catalog, tmp_path: Path
) -> None:
    older_catalog(tmp_path / "older", "0008")
    opened = open_catalog(tmp_path / "older")
    assert "lexical_passages" in schema(opened)
    assert schema(opened) == schema(first_start)
    opened.close()


@pytest.mark.parametrize("revision", ["0001", "0007"])
@pytest.mark.embedded
def test_a_catalog_older_than_the_first_release_is_refused(data_dir: Path, revision: str) -> None:
    older_catalog(data_dir, revision)
    with pytest.raises(StoreError, match="older than the first release") as refused:
        open_catalog(data_dir)
    assert "new --data-dir" in refused.value.hint and "kernlore ingest" in refused.value.hint
    assert f"revision {revision}" in refused.value.message
    after = sqlite3.connect(data_dir / "catalog.sqlite")
    assert after.execute("SELECT version_num FROM alembic_version").fetchall() == [(revision,)]
    after.close()


@pytest.mark.embedded
def test_the_first_migration_goes_back_and_forth(first_start: Catalog) -> None:
    before = schema(first_start)
    (folder,) = kb.catalog.migrations.__path__
    config = Config()
    config.set_main_option("script_location", folder)
    with first_start.migrating() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert set(schema(first_start)) == {"alembic_version", "sqlite_autoindex_alembic_version_1"}
    with first_start.migrating() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    assert schema(first_start) == before


@pytest.mark.embedded
def test_opening_again_does_not_load_alembic(catalog: Catalog) -> None:
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


def test_two_processes_that_start_together_migrate_once(data_dir: Path) -> None:
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


def test_a_catalog_of_a_newer_kernlore_is_refused(catalog: Catalog) -> None:
    with catalog.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        meta.put(connection, OLDEST_CODE, "9999")
    with pytest.raises(StoreError, match="newer Kernlore") as refused:
        open_catalog(catalog.data_dir)
    assert "Upgrade" in refused.value.hint


@pytest.mark.embedded
def test_a_file_that_is_no_catalog_is_refused(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "catalog.sqlite").write_bytes(b"not a database " * 500)
    with pytest.raises(StoreError, match="cannot be opened") as refused:
        open_catalog(data_dir)
    assert "restore" in refused.value.hint
