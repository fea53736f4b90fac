"""A wheel contains the whole product: code, built-in knowledge, skills and their templates."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(seconds=15)

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kb", "ingestion", "hw_manuals", "retrieval", "skills", "optimizer", "api")


def test_wheel_has_every_file_of_product(tmp_path: Path) -> None:
    source = tmp_path / "source"  # building leaves files next to the source
    copied = subprocess.run(
        ["git", "ls-files", "-z", "pyproject.toml", "README.md", "LICENSE", *PACKAGES],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    files = [name for name in copied.stdout.decode().split("\0") if name and (ROOT / name).exists()]
    for name in files:
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(source)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {name for name in files if name.startswith(tuple(f"{p}/" for p in PACKAGES))}
    assert len(wanted) > 500 and sorted(wanted - held) == []
    _exploits_run_from(wheel, tmp_path / "installed")


def _exploits_run_from(wheel: Path, folder: Path) -> None:
    """One exploit of each kind of row, without a source checkout."""
    zipfile.ZipFile(wheel).extractall(folder)
    rows = ("doctor", "--exploits", "--only", "14", "--only", "29")
    program = "import sys; from api.cli.main import run; sys.exit(run())"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", program, *rows],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "caught 2 of 2"
    assert sum(line.startswith("    shows: ") for line in lines) == 2
