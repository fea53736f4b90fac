"""One search packed here and executed where only torch is installed, shared by all tests of its
results.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from optimizer.evaluation.records import TIMING
from optimizer.search.portable.launch import CEILINGS
from tests.api.cli_process import kernlore
from tests.catalogs import copy_data_dir
from tests.known_device import known_ceilings
from tests.optimizer.search.portable.bare_machine import bare_python
from tests.shared import once, read_builtin_knowledge, small_map_id


@dataclass(frozen=True)
class PackedSession:
    """`home` is the data directory that packed it, `packed` the zip file, `results` the files of
    the other machine, `warnings` the output of packing. Copies, because tests may change them.
    """

    home: Path
    packed: Path
    results: Path
    warnings: str


def packed_session(factory: pytest.TempPathFactory, place: Path) -> PackedSession:
    """A session of one candidate for map_id, below `place`."""
    read = once(factory, "read-builtin", read_builtin_knowledge)
    made = once(factory, "packed-session", lambda folder: _carried_out(folder, read))
    here = shutil.ignore_patterns("home")
    shutil.copytree(made, place, dirs_exist_ok=True, symlinks=True, ignore=here)
    copy_data_dir(made / "home", place / "home")  # with its catalog, also on a server
    warnings = (place / "warnings.txt").read_text(encoding="utf-8")
    return PackedSession(place / "home", place / "session.zip", place / "results", warnings)


def on_bare_machine(
    bare: Path, *arguments: str | Path, cwd: Path, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """In a process that sees only torch, its requirements, and the compilers of this machine."""
    stored = ("PATH", "HOME", TIMING)
    environment = {name: os.environ[name] for name in stored if name in os.environ}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        [bare, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _carried_out(folder: Path, read: Path) -> None:
    home, packed, out = folder / "home", folder / "session.zip", folder / "results"
    copy_data_dir(read, home)
    arguments = ("--hardware", "x86-64", "-o", packed, "--candidates", "1", "--json")
    done = kernlore("runs", "pack", small_map_id(folder), *arguments, data=home)
    assert done.code == 0, done.err
    (folder / "warnings.txt").write_text(done.err, encoding="utf-8")
    out.mkdir()
    (out / CEILINGS).write_text(json.dumps(known_ceilings().as_json()), encoding="utf-8")
    bare = bare_python(folder / "bare")
    there = on_bare_machine(bare, packed, "--out", out, "--finalists", "1", cwd=folder)
    assert there.returncode == 0, there.stdout + there.stderr
    shutil.rmtree(folder / "bare")
