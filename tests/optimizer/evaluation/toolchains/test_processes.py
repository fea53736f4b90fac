"""Commands end at their deadline with all their processes, within their limits."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from optimizer.evaluation.toolchains.processes import CommandLimits, clean_env, members, run

pytestmark = pytest.mark.slow(seconds=3)


def test_output_and_status(tmp_path: Path) -> None:
    done = run(["sh", "-c", "echo out; echo bad >&2; exit 3"], cwd=tmp_path, limits=CommandLimits())
    assert (done.code, done.stdout, done.stderr, done.ok) == (3, "out\n", "bad\n", False)
    assert done.log == "bad\nout"


def test_missing_program_is_a_result(tmp_path: Path) -> None:
    done = run(["no-such-compiler"], cwd=tmp_path, limits=CommandLimits())
    assert not done.ok
    assert "no-such-compiler" in done.stderr


def test_deadline_ends_whole_group(tmp_path: Path) -> None:
    script = "sleep 60 & (sleep 60 & echo $! > grandchild; sleep 60) & echo started; wait"
    done = run(["sh", "-c", script], cwd=tmp_path, limits=CommandLimits(seconds=3))
    assert done.timed_out
    assert done.stdout == "started\n"
    assert done.survivors == ()
    assert done.seconds < 40  # the processes would sleep for 60
    assert not _lives(int((tmp_path / "grandchild").read_text()))


def test_processes_left_by_command_are_ended(tmp_path: Path) -> None:
    script = "sleep 60 & echo $! > left"
    done = run(["sh", "-c", script], cwd=tmp_path, limits=CommandLimits(seconds=50))
    assert done.ok
    assert done.seconds < 40  # though the left-over process still holds the pipes open
    assert not _lives(int((tmp_path / "left").read_text()))


def test_limits_apply(tmp_path: Path) -> None:
    memory = CommandLimits(memory_bytes=512 << 20)
    greedy = run([sys.executable, "-S", "-c", "b'x' * (1 << 30)"], cwd=tmp_path, limits=memory)
    assert "MemoryError" in greedy.stderr
    files = CommandLimits(file_bytes=1 << 20)
    code = "open('big', 'wb').write(b'x' * (4 << 20))"
    large = run([sys.executable, "-S", "-c", code], cwd=tmp_path, limits=files)
    assert not large.ok
    assert (tmp_path / "big").stat().st_size <= 1 << 20
    spin = run(
        [sys.executable, "-S", "-c", "while True: pass"],
        cwd=tmp_path,
        limits=CommandLimits(seconds=60, cpu_seconds=1),
    )
    assert spin.timed_out
    assert spin.seconds < 50


def test_output_is_capped_without_blocking_writer(tmp_path: Path) -> None:
    code = "import sys; sys.stdout.write('first ' + 'x' * (8 << 20)); sys.stderr.write('end')"
    done = run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path, limits=CommandLimits(output_bytes=1_000)
    )
    assert done.ok
    assert done.truncated
    assert len(done.stdout) == 1_000
    assert done.stdout.startswith("first ")
    assert done.stderr == "end"


def test_runs_from_thread(tmp_path: Path) -> None:
    found: list[str] = []

    def work() -> None:
        found.append(run(["echo", "hello"], cwd=tmp_path, limits=CommandLimits()).stdout)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["hello\n"] * 4


def test_environment_has_no_keys(tmp_path: Path) -> None:
    os.environ["KERNLORE_TEST_KEY"] = "secret"
    try:
        env = clean_env(tmp_path, EXTRA="1")
    finally:
        del os.environ["KERNLORE_TEST_KEY"]
    assert "KERNLORE_TEST_KEY" not in env
    assert (env["EXTRA"], env["HOME"]) == ("1", str(tmp_path))


def test_members_includes_this_group() -> None:
    assert os.getpid() in members(os.getpgrp())


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
