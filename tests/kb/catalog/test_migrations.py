"""The catalog migrates itself: from nothing to the metadata, once, whoever comes first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from kb.catalog import Catalog, open_catalog
from kb.catalog.tables import metadata
from kb.errors import StoreError

ROOT = Path(__file__).resolve().parents[3]


def _ours(obj: object, name: str | None, kind: str, reflected: bool, other: object) -> bool:
    return not (kind == "table" and (name or "").startswith("lexical_"))


def test_a_new_catalog_equals_the_metadata(catalog: Catalog) -> None:
    with catalog.read() as connection:
        context = MigrationContext.configure(connection, opts={"include_object": _ours})
        assert compare_metadata(context, metadata) == []


def test_opening_again_does_not_load_alembic(catalog: Catalog) -> None:
    script = (
        "import sys; from pathlib import Path; from kb.catalog import open_catalog;"
        "open_catalog(Path(sys.argv[1])); print('alembic' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(catalog.path.parent)],
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
    with pytest.raises(StoreError, match="newer Kernlore") as refused:
        open_catalog(catalog.path.parent)
    assert "Upgrade" in refused.value.hint


def test_a_file_that_is_no_catalog_is_refused(data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "catalog.sqlite").write_bytes(b"not a database " * 500)
    with pytest.raises(StoreError, match="cannot be opened") as refused:
        open_catalog(data_dir)
    assert "restore" in refused.value.hint
