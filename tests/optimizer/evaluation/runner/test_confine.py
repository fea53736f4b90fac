"""System calls that a candidate's process cannot make."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or platform.machine() != "x86_64",
        reason="the filter knows the numbers of x86-64 alone",
    ),
]
CONFINED = """
import ctypes, errno, os, pathlib, shutil, subprocess, sys
from optimizer.evaluation.runner.confine import forbid_calls
print(*forbid_calls())
os.chmod("kept", 0o777)
os.utime("kept", (1, 1))
shutil.copy2("kept", "copied")
os.utime(os.open("kept", os.O_RDONLY))
pathlib.Path("touched").touch()
pathlib.Path("touched").touch()
subprocess.run(["touch", "by_program", "touched"], check=True)
libc = ctypes.CDLL(None, use_errno=True)
for number in map(int, sys.argv[1:]):
    answer = libc.syscall(number, 0, 0, 0, 0, 0)
    print(number, answer, errno.errorcode.get(ctypes.get_errno()))
"""
REFUSED = (29, 64, 68, 94, 101, 189, 240, 248, 250, 276, 321, 323, 425)


@pytest.fixture
def lines(tmp_path: Path) -> list[str]:
    (tmp_path / "kept").write_text("text")
    (tmp_path / "kept").chmod(0o600)
    command = [sys.executable, "-c", CONFINED, *map(str, REFUSED)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_channels_between_processes_are_refused(lines: list[str]) -> None:
    assert lines[0] == "seccomp metadata"
    assert lines[1:] == [f"{number} -1 EPERM" for number in REFUSED]


def test_files_are_copied_with_metadata(lines: list[str], tmp_path: Path) -> None:
    assert lines and (tmp_path / "copied").read_text() == "text"
    stored = (tmp_path / "kept").stat()
    assert stored.st_mode & 0o777 == 0o600 and stored.st_mtime > 1


def test_touched_files_are_created(lines: list[str], tmp_path: Path) -> None:
    assert lines and (tmp_path / "touched").is_file() and (tmp_path / "by_program").is_file()
