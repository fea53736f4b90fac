"""Runners in containers: the command line, the socket, and real containers if an engine is
installed.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from kb.errors import Unavailable
from optimizer.evaluation.isolation import levels
from optimizer.evaluation.isolation.levels import (
    ENGINE,
    OPTIONS,
    Engine,
    MeetingSocket,
    engine,
    level_for,
    readable_folders,
    run_command,
)
from optimizer.evaluation.isolation.runner_process import RunnerProcess, RunnerSettings
from optimizer.evaluation.loaded_kernel import CandidateFailed, CaseValues, LoadedKernel
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.toolchains.base import Loader
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=8)

PROBLEM = model_text("x + 1", "torch.randn(8, 8)")
CANDIDATE = """
import os, pathlib, socket
import torch

def refused(act):
    try:
        act()
    except OSError:
        return True
    return False

class ModelNew:
    def __call__(self, x):
        (pathlib.Path.cwd() / "mine").write_text("written")
        assert refused(lambda: pathlib.Path("{outside}").write_text("x")), "wrote outside"
        assert refused(lambda: socket.create_connection(("127.0.0.1", 9), 2)), "has a network"
        assert os.getpid() == 1, "shares its processes"
        if os.fork() == 0:
            os.setsid()
            os.execve("/bin/sleep", ["sleep", "600"], {{}})
        return x + 1
"""


def words(command: list[str], option: str) -> list[str]:
    return [value for name, value in pairwise(command) if name == option]


@pytest.mark.parametrize(("name", "user"), [("podman", 0), ("podman", 1000), ("docker", 1000)])
def test_runner_gets_only_the_needed_mounts(
    name: str, user: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: user)
    monkeypatch.setattr(os, "getgid", lambda: user)
    which = Engine((name,), ("--cgroupns", "host"))
    command = run_command(which, ["python", "-I"], {"HOME": "/h"}, tmp_path)
    assert command[:2] == [name, "run"] and command[-2:] == ["python", "-I"]
    assert words(command, "--network") == ["none"] and words(command, "--cap-drop") == ["ALL"]
    assert words(command, "--user") == [f"{user}:{user}"] and words(command, "--env") == ["HOME=/h"]
    assert "--read-only" in command and words(command, "--cgroupns") == ["host"]
    volumes = words(command, "--volume")
    assert volumes[-1] == f"{tmp_path}:{tmp_path}:rw"
    assert all(volume.endswith(":ro") for volume in volumes[:-1])
    assert ("--userns=keep-id" in command) == (name == "podman" and user > 0)
    assert ("--rootfs" in command) == (name == "podman")
    assert ("kernlore-empty" in command) == (name == "docker")


def test_podman_without_subuids_maps_this_user_to_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    command = run_command(Engine(("podman",), keeps_user=False), ["true"], {}, tmp_path)
    assert words(command, "--user") == ["0:0"] and "--userns=keep-id" not in command
    assert words(command, "--cap-drop") == ["ALL"]


def test_runner_can_read_its_python_and_program() -> None:
    folders = readable_folders()
    for needed in (sys.executable, sys.prefix, levels.__file__):
        assert any(Path(needed).resolve().is_relative_to(folder) for folder in folders)
    assert not any(a != b and a.is_relative_to(b) for a in folders for b in folders)
    assert not {Path("/"), Path("/proc"), Path("/dev"), Path("/var"), Path("/run")} & {*folders}


def test_socket_accepts_two_connections(tmp_path: Path) -> None:
    meeting = MeetingSocket(tmp_path)

    def call() -> None:
        for _ in range(2):
            caller = socket.socket(socket.AF_UNIX)
            caller.connect(str(meeting.path))
            caller.sendall(b"x")
            caller.close()

    caller = threading.Thread(target=call)
    caller.start()
    pid, sockets = meeting.accept(10, lambda: False)
    caller.join()
    assert pid == os.getpid() and [sock.recv(1) for sock in sockets] == [b"x", b"x"]
    assert not meeting.path.exists()
    for sock in sockets:
        sock.close()


def test_ended_container_does_not_connect(tmp_path: Path) -> None:
    with pytest.raises(EOFError):
        MeetingSocket(tmp_path).accept(10, lambda: True)


def test_missing_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENGINE, "no-such-engine --runtime x")
    monkeypatch.setenv(OPTIONS, "--cgroupns host")
    with pytest.raises(Unavailable, match="no-such-engine --runtime x: not installed") as refused:
        level_for("container")
    assert ENGINE in refused.value.hint


def test_gpu_in_container_is_refused() -> None:
    with pytest.raises(Unavailable, match="GPU"):
        level_for("container", "cuda")


@pytest.fixture
def runs_containers() -> None:
    try:
        engine()
    except Unavailable as missing:
        pytest.skip(missing.message)


@pytest.mark.usefixtures("runs_containers")
def test_kernel_runs_in_container_which_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "plus_one.py"
    file.write_text(PROBLEM)
    outside = tmp_path / "outside"
    problem = load_problem(file)
    case = OpenCase(problem, problem.cases[0])
    runner = RunnerProcess(RunnerSettings("cpu", 1, "container"))
    try:
        runner.wait_ready()
        candidate = runner.scratch / "candidate.py"  # readable in the container
        candidate.write_text(CANDIDATE.format(outside=outside))
        inputs = tuple(case.inputs(1))
        kernel = LoadedKernel(
            runner, case, CaseValues(1, inputs, tuple(case.second_draw(1).inputs))
        )
        kernel.load(Loader("python", candidate, "ModelNew"), limits={}, flush_bytes=0, seconds=60)
        (output,) = kernel.call(30)
        assert torch.equal(output, inputs[0] + 1) and not outside.exists()
        assert runner.children() != []  # seen from outside
        block = kernel.block(seed=3, calls=4, seconds=30)
        assert len(block.samples) == (4 if runner.readable else 0) or runner.readable
    except CandidateFailed as failed:
        pytest.fail(f"{failed.message}\n{failed.log}")
    finally:
        assert runner.end()
    assert runner.processes() == []
