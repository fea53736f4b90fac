"""Code of one release on a catalog migrated by another."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import kb.catalog.migrations
from kb.catalog import Catalog, meta, open_catalog, schema
from kb.catalog.jobs import Jobs
from kb.catalog.schema import CURRENT, NEWER, OLDEST_CODE, TOO_NEW
from kb.errors import Unavailable
from tests.catalogs import fresh_data_dir

ADDING = """
import sqlalchemy as sa
from alembic import op
revision, down_revision, branch_labels, depends_on = "{revision}", "{before}", None, None
oldest_code = "{oldest}"

def upgrade():
    op.add_column("work", sa.Column("added_{revision}", sa.String, nullable=True))
"""


@pytest.fixture
def migrations_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A copy of the migrations folder; a newer release has more files there."""
    folder = tmp_path / "migrations"
    shutil.copytree(next(iter(kb.catalog.migrations.__path__)), folder)
    monkeypatch.setattr(schema, "_MIGRATIONS", folder)
    yield folder / "versions"
    schema.newest.cache_clear()


def newer_release(migrations_folder: Path, data_dir: Path, revision: str, oldest: str) -> None:
    """Migrates the catalog with one more migration, then restores this release."""
    text = ADDING.format(revision=revision, before=schema.newest(), oldest=oldest)
    added = migrations_folder / f"{revision}_added.py"
    added.write_text(text, encoding="utf-8")
    schema.newest.cache_clear()
    open_catalog(data_dir).close()
    added.unlink()
    schema.newest.cache_clear()


def queued(catalog: Catalog) -> str:
    jobs = Jobs(catalog)
    with catalog.write() as connection:
        return jobs.enqueue(connection, "doc_1", {})


def test_older_code_works_after_additive_migration(data_dir: Path, migrations_folder: Path) -> None:
    catalog = open_catalog(fresh_data_dir(data_dir))
    assert catalog.schema_state().state == CURRENT
    newer_release(migrations_folder, data_dir, "9001", schema.newest())
    state = catalog.schema_state()
    assert (state.state, state.revision) == (NEWER, "9001")
    job = queued(catalog)
    assert Jobs(catalog).claim("worker", 60) is not None
    again = open_catalog(data_dir)  # such as a child process or a restart
    assert Jobs(again).get(job).state == "running"
    again.close()
    catalog.close()


def test_older_code_reads_but_does_not_write_after_breaking_migration(
    data_dir: Path, migrations_folder: Path
) -> None:
    catalog = open_catalog(fresh_data_dir(data_dir))
    job = queued(catalog)
    newer_release(migrations_folder, data_dir, "9002", "9002")
    assert catalog.schema_state().state == TOO_NEW
    for rows_only in (False, True):
        with (
            pytest.raises(Unavailable, match="newer Kernlore") as refused,
            catalog.write(rows_only=rows_only),
        ):
            pytest.fail("it may not begin")
        assert "newer Kernlore" in refused.value.hint
    assert Jobs(catalog).get(job).state == "queued"
    catalog.close()


def test_each_migration_declares_oldest_compatible_code(data_dir: Path) -> None:
    """Migrations before the first release with replicas need no declaration."""
    for path in Path(next(iter(kb.catalog.migrations.__path__)), "versions").glob("[0-9]*.py"):
        if path.stem >= "0014":
            assert "\noldest_code = " in path.read_text(encoding="utf-8"), path.name
    catalog = open_catalog(fresh_data_dir(data_dir))
    with catalog.read() as connection:
        assert meta.get(connection, OLDEST_CODE) == "0017"
    catalog.close()
