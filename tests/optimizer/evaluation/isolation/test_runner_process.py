"""Runners as real processes: their limits, their end, and unforgeable results."""

from __future__ import annotations

import importlib
import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from optimizer.evaluation.isolation.launch import ForkServer, compiler_cache
from optimizer.evaluation.isolation.levels import Level, can_unshare, command, level_for
from optimizer.evaluation.isolation.machine import DeviceLock
from optimizer.evaluation.isolation.runner_process import (
    RunnerDied,
    RunnerHung,
    RunnerProcess,
    RunnerSettings,
)
from optimizer.evaluation.loaded_kernel import CandidateFailed, CaseValues, LoadedKernel
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.runner import inductor
from optimizer.evaluation.runner.inductor import build_cache
from optimizer.evaluation.runner.wire import Wire, WireForged
from optimizer.evaluation.toolchains.base import Loader
from tests.problem_files import model_text

pytestmark = pytest.mark.slow(seconds=8)

PROBLEM = model_text("x + 1", "torch.randn(8, 8)")
CANDIDATE = """
import torch

class ModelNew:
    def __call__(self, x):
        {work}
        return x + 1
"""
LEVELS: tuple[Level, ...] = ("process", "namespaces") if can_unshare() else ("process",)
LIMITS = {"memory_bytes": 2 << 30, "file_bytes": 1 << 20, "cpu_seconds": 60}
APPLIED: dict[LoadedKernel, list[str]] = {}  # the limits of a kernel's runner


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> OpenCase:
    path = tmp_path_factory.mktemp("p") / "plus_one.py"
    path.write_text(PROBLEM)
    problem = load_problem(path)
    return OpenCase(problem, problem.cases[0])


@pytest.fixture(scope="module", params=LEVELS)
def fork_server(request: pytest.FixtureRequest) -> Iterator[ForkServer]:
    server = ForkServer.for_runners(1, request.param)
    server.level = request.param  # type: ignore[attr-defined]
    yield server
    server.close()


Calls = Callable[[str], tuple[RunnerProcess, LoadedKernel]]


@pytest.fixture
def loaded(fork_server: ForkServer, case: OpenCase, tmp_path: Path) -> Iterator[Calls]:
    made: list[RunnerProcess] = []

    def load(work: str) -> tuple[RunnerProcess, LoadedKernel]:
        level = fork_server.level  # type: ignore[attr-defined]
        runner = RunnerProcess(RunnerSettings("cpu", 1, level), fork_server)
        made.append(runner)
        runner.wait_ready()
        path = tmp_path / "candidate.py"
        path.write_text(CANDIDATE.format(work=work))
        inputs = tuple(case.inputs(1))
        kernel = LoadedKernel(
            runner, case, CaseValues(1, inputs, tuple(case.second_draw(1).inputs))
        )
        loader = Loader("python", path, "ModelNew")
        reply = kernel.load(loader, limits=LIMITS, flush_bytes=0, seconds=30)
        APPLIED[kernel] = reply["confined"]
        return runner, kernel

    yield load
    for runner in made:
        assert runner.end()


def test_call_gives_outputs(loaded: Calls, case: OpenCase) -> None:
    runner, kernel = loaded("pass")
    (output,) = kernel.call(10)
    assert torch.equal(output, case.inputs(1)[0] + 1)
    assert runner.end() and runner.processes() == []


def test_block_replays_to_same_inputs(loaded: Calls) -> None:
    """The mirror computes the inputs of the last call without reading them."""
    _, kernel = loaded("pass")
    kernel.block(seed=5, calls=7, seconds=10)
    assert torch.equal(kernel.outputs[0], kernel.mirror.tensors[0] + 1)
    assert kernel.inputs_changed(10) == []


def test_candidate_on_cpu_sees_no_gpu(
    loaded: Calls, case: OpenCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise torch's compiler reads the random state of a GPU, which fails in a fork."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    work = "import os; x = x + (os.environ['CUDA_VISIBLE_DEVICES'] != '')"
    _, kernel = loaded(work)
    assert torch.equal(kernel.call(10)[0], case.inputs(1)[0] + 1)


def test_processes_end_with_their_runner(loaded: Calls) -> None:
    """A detached process in another session is ended too."""
    work = "import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True)"
    runner, kernel = loaded(work)
    kernel.call(10)
    until = time.monotonic() + 60
    while len(runner.processes()) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(runner.processes()) >= 2
    assert runner.end()
    assert runner.processes() == []


def test_hang_ends_at_its_deadline(loaded: Calls) -> None:
    runner, kernel = loaded("import time; time.sleep(300)")
    began = time.monotonic()
    with pytest.raises(RunnerHung):
        kernel.call(1)
    assert time.monotonic() - began < 60  # the call would sleep for 300
    assert runner.processes() == []


def test_crash_names_its_signal(loaded: Calls) -> None:
    _, kernel = loaded("import ctypes; ctypes.string_at(0)")
    with pytest.raises(RunnerDied, match="SIGSEGV"):
        kernel.call(10)


def test_memory_is_limited(loaded: Calls) -> None:
    _, kernel = loaded("torch.empty(8 << 30, dtype=torch.uint8).fill_(1)")
    with pytest.raises(CandidateFailed) as failed:
        kernel.call(20)
    assert "memory" in failed.value.message.lower() or "allocate" in failed.value.message.lower()


def test_files_outside_scratch_folder_cannot_be_written(loaded: Calls, tmp_path: Path) -> None:
    target = tmp_path / "outside"
    _, kernel = loaded(f"open({str(target)!r}, 'w').write('x')")
    confined = _landlock()
    if not confined:
        pytest.skip("this kernel has no Landlock")
    with pytest.raises(CandidateFailed, match="Permission"):
        kernel.call(10)
    assert not target.exists()


WRITES_INTO = """
        import contextlib, fcntl, os
        from pathlib import Path
        library = Path({library!r})
        folder, done = library.parent, []
        def mounts():
            import ctypes
            if ctypes.CDLL(None).mount(os.getcwd().encode(), bytes(folder), None, 4096, None):
                raise OSError
        tries = dict(
            write=lambda: library.write_bytes(b"prepared"),
            append=lambda: library.open("ab"),
            truncate=lambda: os.truncate(library, 0),
            through_proc=lambda: Path(f"/proc/self/root{{library}}").write_bytes(b"prepared"),
            reopen=lambda: open(f"/proc/self/fd/{{os.open(library, os.O_RDONLY)}}", "wb"),
            plant=lambda: (folder / "planted.so").touch(),
            replace=lambda: (Path("own").touch(), os.replace("own", library)),
            link_in=lambda: (Path("other").touch(), os.link("other", folder / "linked.so")),
            link_out=lambda: (os.link(library, "out"), Path("out").write_bytes(b"prepared")),
            remove=lambda: library.unlink(),
            move=lambda: library.rename(folder / "moved.so"),
            move_folder=lambda: folder.parent.rename(folder.parent.with_name("moved")),
            symbolic=lambda: os.symlink(library, folder / "symbolic.so"),
            make=lambda: (folder / "made").mkdir(),
            mount=mounts,
        )
        for name, attempt in tries.items():
            with contextlib.suppress(OSError):
                attempt()
                done.append(name)
        raise RuntimeError(f"read {{library.read_text()}}, did {{done}} of {{len(tries)}}")
"""


def test_compiler_cache_is_read_only_for_candidates(
    loaded: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a candidate could prepare the library or header of the next."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if not compiler_cache():
        pytest.skip("there is no cache: this kernel cannot forbid writing")
    with build_cache(Path(compiler_cache()), "a compiler") as folder:
        assert folder is not None
        library = folder / "avx2.so"
        library.write_text("library")
    before = {path: path.stat().st_mode for path in tmp_path.rglob("*")}
    runner, kernel = loaded(WRITES_INTO.format(library=str(library)))
    assert "landlock" in APPLIED[kernel]
    with pytest.raises(CandidateFailed, match=r"read library, did \[\] of 15"):
        kernel.call(10)
    assert runner.end()
    assert before.items() <= {p: p.stat().st_mode for p in tmp_path.rglob("*")}.items()
    with build_cache(Path(compiler_cache()), "a compiler") as folder:
        assert library.read_text() == "library"


def test_scratch_folder_is_writable(loaded: Calls) -> None:
    _, kernel = loaded("open('note', 'w').write('x')")
    kernel.call(10)


def test_namespaces_have_no_network(loaded: Calls, fork_server: ForkServer) -> None:
    if fork_server.level != "namespaces":  # type: ignore[attr-defined]
        pytest.skip("level process has the network, which the evaluation reports")
    work = "import socket; socket.create_connection(('127.0.0.1', 9), 2)"
    _, kernel = loaded(work)
    with pytest.raises(CandidateFailed, match=r"unreachable|refused|Cannot assign"):
        kernel.call(10)


def test_printed_result_is_not_a_result(loaded: Calls) -> None:
    runner, kernel = loaded('print(\'{"ok": true, "ns": 1}\', flush=True)')
    kernel.call(10)
    assert '"ns": 1' in runner.log


def test_unavailable_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from kb.errors import Unavailable
    from optimizer.evaluation.isolation import levels

    monkeypatch.setattr(levels, "can_unshare", lambda: False)
    assert level_for("auto") == "process"
    with pytest.raises(Unavailable, match="namespaces"):
        level_for("namespaces")
    assert command("process", ["true"]) == ["true"]


def test_device_lock_is_freed_with_its_process(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with DeviceLock("cpu", tmp_path):
            os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    with DeviceLock("cpu", tmp_path):
        pass


def _landlock() -> bool:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(444, None, 0, 1) > 0)


FORKS = """
        import os, time
        made = 0
        try:
            while made < 400:
                if os.fork() == 0:
                    time.sleep(60)
                    os._exit(0)
                made += 1
        except OSError:
            pass
        raise RuntimeError(f"made {made}")
"""
READS_SHADOW = """
        raise RuntimeError(f"read {len(open('/etc/shadow').read())}")
"""
NAMES_IPC = """
        import os
        raise RuntimeError(os.readlink("/proc/thread-self/ns/ipc"))
"""


def test_fork_bomb_is_bounded_and_ended(loaded: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "processes", 40)
    runner, kernel = loaded(FORKS)
    if "processes" not in APPLIED[kernel]:
        pytest.skip("no limit binds root on this system")
    with pytest.raises(CandidateFailed, match="made") as failed:
        kernel.call(30)
    # Fewer than the limit: the system reserves some process numbers.
    assert 0 < int(failed.value.message.split("made ")[1].rstrip("')")) < 400
    assert runner.end() and runner.processes() == []


def test_passwords_are_not_readable(loaded: Calls) -> None:
    _, kernel = loaded(READS_SHADOW)
    if "secrets" not in APPLIED[kernel]:
        pytest.skip("runners share the files of this system")
    with pytest.raises(CandidateFailed, match=r"read 0|Permission denied|No such file"):
        kernel.call(5)


def test_runners_share_no_ipc(loaded: Calls, fork_server: ForkServer) -> None:
    if fork_server.level != "namespaces":  # type: ignore[attr-defined]
        pytest.skip("level process shares the IPC namespace")
    seen = set()
    for _ in range(2):
        with pytest.raises(CandidateFailed) as failed:
            loaded(NAMES_IPC)[1].call(5)
        seen.add(failed.value.message)
    assert len(seen) == 2 and all("ipc:[" in message for message in seen)


def test_process_has_one_fork_server_and_replaces_ended_one() -> None:
    threads = 3  # unused by other tests
    first = ForkServer.shared(threads, "process")
    assert ForkServer.shared(threads, "process") is first
    first.close()
    again = ForkServer.shared(threads, "process")
    assert again is not first
    again.close()


def test_messages_are_bounded_and_use_no_replaceable_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = (Wire(end, "nonce") for end in socket.socketpair())
    send = theirs.sender()
    monkeypatch.setattr(Wire, "send", None)
    monkeypatch.setattr("json.dumps", None)
    send({"times": [1, 2.5], "ok": True, "none": None})
    assert ours.receive() == ({"times": [1, 2.5], "ok": True, "none": None}, [])
    deep = b"[" * 200_000
    theirs._sock.sendall(struct.pack("!I", len(deep)) + deep)
    with pytest.raises(WireForged, match="nested"):
        ours.receive()


def test_prepared_compilers_build_no_headers_in_read_only_folders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyTorch 2.11 has no environment variable for it."""
    settings: Any = importlib.import_module("torch._inductor.config")
    monkeypatch.setattr(settings, "cpp_cache_precompile_headers", True)
    # Importing the compiler itself takes five seconds.
    monkeypatch.setattr(inductor, "OFTEN_NEEDED", ("torch._inductor.config",))
    inductor.import_often_needed()
    assert settings.cpp_cache_precompile_headers is False


def test_code_built_for_instruction_set_is_not_built_for_weaker_one() -> None:
    built = []

    def build(kind: str, code: str) -> bool:
        built.append((kind, code))
        return (kind, code) != ("avx512 amx", "tiles")

    check = inductor._checked_until_built(build)
    assert [check("avx512 amx", text) for text in ("exp", "tiles")] == [True, False]
    assert [check("avx512", text) for text in ("exp", "tiles")] == [True, True]
    assert check("avx2", "exp") and check("avx2", "tiles")
    assert built == [("avx512 amx", "exp"), ("avx512 amx", "tiles"), ("avx512", "tiles")]
