"""Running the command line for its tests: a process, its answer, a directory of documents."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "api.cli.main")
ERROR_KEYS = {"code", "message", "hint", "details"}

MEMORY = """# Memory of the H100

## Memory bandwidth

A memory bound kernel should coalesce its accesses and load 16 bytes at a time. Move whole tiles
with cp.async.bulk so that no thread waits for an address.

## Occupancy

Register spills reduce occupancy; bound the registers with __launch_bounds__.
"""
BARRIERS = """Barriers
========

Every thread of a block must reach a barrier. A divergent barrier hangs the kernel.
"""
TITLE = "Another memory"
DIFFERENCES = f"# {TITLE}\n\nIts HBM3e moves 4.8 TB/s, a memory bound kernel gains most.\n"
WOMBAT = "# Wombat\n\nThe wombat stall has no remedy.\n"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document on the last line of standard output, which holds nothing else."""
        lines = self.out.splitlines()
        assert len(lines) == 1, self.out
        return json.loads(lines[0])


def kernlore(*arguments: str | Path, data: Path | None = None, stdin: str = "") -> Ran:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KERNLORE_")}
    where = ["--data-dir", str(data)] if data is not None else []
    done = subprocess.run(
        [*COMMAND, *map(str, arguments), *where],
        cwd=ROOT,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manuals")
    (folder / "memory.md").write_text(MEMORY)
    (folder / "differences.md").write_text(DIFFERENCES)
    (folder / "wombat.md").write_text(WOMBAT)
    (folder / "sub").mkdir()
    (folder / "sub" / "barriers.rst").write_text(BARRIERS)
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory, files: Path, model_cache: Path) -> Path:
    """A data directory that the command line itself filled, without a service."""
    folder = tmp_path_factory.mktemp("cli") / "data"
    if model_cache.exists():
        shutil.copytree(model_cache, folder / "models")
    sent = kernlore("ingest", files, "--hardware", "h100", "--json", data=folder)
    assert sent.code == 0, sent.err
    assert sent.json["summary"] | {"created": 4, "ready": 4} == sent.json["summary"]
    assert sent.json["coverage"]["h100"]["documents"] == 4
    passage = kernlore("documents", "passages", document_of(folder, TITLE), "--json", data=folder)
    moved = ("documents", "correct", passage.json[0]["id"], "--hardware", "h200")
    assert kernlore(*moved, data=folder).code == 0
    return folder


def document_of(data: Path, title: str) -> str:
    documents = kernlore("documents", "list", "--json", data=data).json
    return str(next(document["id"] for document in documents if document["title"] == title))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
