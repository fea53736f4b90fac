"""A data directory without write access: reading commands answer, others report it. It is mounted
read-only in a separate mount namespace, because root can write despite any mode.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.cli_process import COMMAND, ROOT, free_port
from tests.api.test_full_disk import namespaces

pytestmark = [
    pytest.mark.in_data_dir,
    pytest.mark.embedded,
    pytest.mark.slow(seconds=20),
    pytest.mark.skipif(not namespaces(), reason="mount namespaces are unavailable"),
]

MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    """A copy of the directory filled by the command line."""
    with sqlite3.connect(data / "catalog.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Path(shutil.copytree(data, tmp_path / "data", symlinks=True))


@pytest.fixture
def ran(folder: Path) -> Callable[..., tuple[int, Any, str]]:
    """Runs a command on the read-only directory: exit code, JSON, standard error."""

    def run(*arguments: str) -> tuple[int, Any, str]:
        command = [*COMMAND, *arguments, "--data-dir", str(folder)]
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", MOUNT, str(folder), *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout or "null"), done.stderr

    return run


def test_reading_commands_work(ran: Callable[..., tuple[int, Any, str]]) -> None:
    ask = ("retrieve", "--query", "coalesce the accesses", "--hardware", "h100", "--json")
    code, answer, error = ran(*ask)
    assert code == 0 and answer["excerpts"], error
    code, documents, error = ran("documents", "list", "--json")
    assert code == 0 and len(documents) == 4, error


def test_writing_commands_report_reason(
    ran: Callable[..., tuple[int, Any, str]], tmp_path: Path
) -> None:
    (tmp_path / "new.md").write_text("# New\n\nText.\n")
    code, answer, _ = ran("ingest", str(tmp_path / "new.md"), "--hardware", "h100", "--json")
    assert code != 0 and "ead-only" in json.dumps(answer), answer
    code, _, error = ran("serve", "--port", str(free_port()))
    assert code == 1 and "ead-only" in error


def test_uncheckpointed_wal_is_reported(
    ran: Callable[..., tuple[int, Any, str]], folder: Path
) -> None:
    catalog = folder / "catalog.sqlite"
    connection = sqlite3.connect(catalog)
    connection.execute("UPDATE documents SET title = 'renamed'")
    connection.commit()
    log = Path(f"{catalog}-wal").read_bytes()
    connection.close()
    Path(f"{catalog}-wal").write_bytes(log)  # as a killed process leaves it
    code, answer, _ = ran("documents", "list", "--json")
    assert code == 1 and answer["code"] == "store_error"
    assert "catalog.sqlite-wal" in answer["message"] and "with write access" in answer["hint"]
