"""A wheel is the whole product: code, built-in knowledge, skills and their templates."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(seconds=15)

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kb", "ingestion", "hw_manuals", "retrieval", "skills", "optimizer", "api")


def test_a_wheel_holds_every_file_of_the_product(tmp_path: Path) -> None:
    source = tmp_path / "source"  # building leaves files beside the source
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
