"""Forks of a process that has the imports already."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from optimizer.evaluation.isolation.launch import PreparedProcess, PreparedProcesses

pytestmark = [
    pytest.mark.slow(seconds=10),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks are for Linux"),
]
SECONDS = 60.0


class Started:
    """Prepared processes whose output can be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.imports = folder / "imports"
        self.prepared = PreparedProcesses("tests.prepared_work:work")

    def start(self, *arguments: str, **variables: str) -> PreparedProcess:
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        environment = {**os.environ, "IMPORTS": str(self.imports), **variables}
        output = (self.out.fileno(), self.err.fileno())
        return self.prepared.start(arguments, environment, self.folder, output)

    def ended(self, *arguments: str, **variables: str) -> tuple[int | None, str, str]:
        code = self.start(*arguments, **variables).wait(SECONDS)
        return code, self.read(), self.read(of_errors=True)

    def read(self, of_errors: bool = False) -> str:
        file = self.err if of_errors else self.out
        file.seek(0)
        return file.read().decode()

    def times_imported(self) -> int:
        return len(self.imports.read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    made = Started(tmp_path_factory.mktemp("prepared"))
    yield made
    made.prepared.close()


def has_ended(pid: int) -> bool:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2]
        except OSError:
            return True
        if state.split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_each_fork_starts_after_imports(started: Started) -> None:
    for word in ("first", "second"):
        code, out, err = started.ended("say", "it", WORD=word)
        assert (code, err) == (0, "complaint\n")
        assert out == f"1 {word} {started.folder} it\n"  # the next fork has no changes
    assert started.times_imported() == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("three",), 3), (("leave", "7"), 7), (("raise",), 1), (("die",), -signal.SIGABRT)],
)
def test_fork_ends_with_status_of_its_work(
    started: Started, arguments: tuple[str, ...], code: int
) -> None:
    assert started.ended(*arguments)[0] == code
    assert ("ValueError: no such thing" in started.read(of_errors=True)) == (code == 1)


def test_forks_use_shared_fork_server(started: Started) -> None:
    assert started.ended("runners")[1] == "True False\n[]\n"  # it has not started another


def test_ended_fork_leaves_nothing(started: Started) -> None:
    process = started.start("stay")
    while not (printed := started.read().strip()):
        assert process.wait(0.05) is None
    process.end()
    assert process.wait(0.0) == -signal.SIGKILL
    assert has_ended(process.pid) and has_ended(int(printed))


def test_killed_waiting_process_is_replaced(started: Started) -> None:
    started.ended("say")
    before = started.times_imported()
    server = int(started.imports.read_text(encoding="utf-8").split()[-1])
    os.kill(server, signal.SIGKILL)
    assert has_ended(server)
    assert started.ended("say")[0] == 0
    assert started.times_imported() == before + 1


def test_unused_processes_are_ended(started: Started) -> None:
    started.ended("say")
    server = int(started.imports.read_text(encoding="utf-8").split()[-1])
    started.prepared.release(600.0)
    assert not ended_at_once(server)
    process = started.start("stay")
    started.prepared.release(0.0)  # not while a fork runs
    assert process.wait(0.2) is None
    process.end()
    started.prepared.release(0.0)
    assert has_ended(server)
    assert started.ended("three")[0] == 3


def ended_at_once(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return False
    return True


def test_forks_end_with_their_starter(tmp_path: Path) -> None:
    own = Started(tmp_path)
    process = own.start("wait")  # a child of the fork would stay until it ends by itself
    own.prepared.close()
    assert has_ended(process.pid)
