"""The server whose forks compile Triton candidates, and parallel compilation of cases."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains import python as compiling
from optimizer.evaluation.toolchains.base import CompileCase, Compiled, EvaluationTarget
from optimizer.evaluation.toolchains.processes import members
from optimizer.evaluation.toolchains.python import LIMITS, TritonNvidia
from optimizer.evaluation.toolchains.triton import server

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.slow(seconds=15),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks are Linux's"),
]

HOPPER = EvaluationTarget("h100", ("h100", "hopper", "nvidia"), "90")
KERNEL = """
import ctypes, subprocess, time
import torch
import triton
import triton.language as tl

@triton.jit
def twice(x, y, n, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, 2 * tl.load(x + at, at < n), at < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        {first}
        y = torch.empty_like(x)
        block = 256 if x.shape[0] < 1000 else 1024
        twice[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), block)
        return y
"""
SHAPES = ((512,), (4096,), (513,), (4096,))


def compiled(folder: Path, first: str = "pass", seconds: float = 90.0) -> Compiled:
    folder.mkdir()
    bundle = Bundle({"k.py": KERNEL.format(first=first)}, "k.py", "triton", "ModelNew")
    cases = tuple(
        CompileCase(
            Signature(
                (TensorSpec("x", "input", "float32", s), TensorSpec("y", "output", "float32", s))
            )
        )
        for s in SHAPES
    )
    chain = TritonNvidia(replace(LIMITS, seconds=seconds))
    return chain.compile(bundle, HOPPER, folder, cases)


@pytest.fixture(params=[1, 4], ids=["sequential", "parallel"])
def parallel_cases(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    count: int = request.param
    monkeypatch.setattr(compiling, "cases_at_once", lambda: count)
    return count


def test_equal_kernels_are_reported_in_equal_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for count in (1, 4):
        monkeypatch.setattr(compiling, "cases_at_once", lambda count=count: count)
        found.append(compiled(tmp_path / str(count)))
    alone, together = found
    assert alone.ok, alone.log
    assert together.ok, together.log
    assert list(alone.kernels) == ["twice", "twice#2", "twice#3"]
    assert alone.kernels == together.kernels
    assert alone.metrics == together.metrics
    assert (tmp_path / "4" / "triton" / "003" / "events").is_file(), "no case was forked"


def test_candidate_that_crashes_its_process_is_reported(
    tmp_path: Path, parallel_cases: int
) -> None:
    found = compiled(tmp_path / "a", "ctypes.string_at(0)")
    assert not found.ok
    assert f"the compiler ended with status {-signal.SIGSEGV}" in found.log


def test_one_failing_case_is_a_compile_error(tmp_path: Path, parallel_cases: int) -> None:
    found = compiled(tmp_path / "a", "assert x.shape != (4096,) or twice[(1,)](x)")
    assert not found.ok
    assert "twice" in found.log
    assert "missing" in found.log


def test_processes_of_a_candidate_end_with_its_compilation(
    tmp_path: Path, parallel_cases: int
) -> None:
    begin = "subprocess.Popen(['sleep', '317'], start_new_session=True)"
    assert compiled(tmp_path / "a", begin).ok
    until = time.monotonic() + 60
    while _sleeping() and time.monotonic() < until:
        time.sleep(0.05)
    assert not _sleeping()


def _sleeping() -> list[Path]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if line == b"sleep\x00317\x00":
            found.append(path)
    return found


def test_deadline_ends_forked_cases(tmp_path: Path, parallel_cases: int) -> None:
    began = time.monotonic()
    found = compiled(tmp_path / "a", "print('here', flush=True); time.sleep(60)", 2.0)
    assert time.monotonic() - began < 30
    assert found.ok, "a call that is slow without its device is no compile error"
    assert any("did not end within" in note for note in found.notes)


def test_ended_server_is_restarted(tmp_path: Path) -> None:
    assert compiled(tmp_path / "a").ok
    first = server_process()
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert compiled(tmp_path / "b").ok
    assert server_process().pid != first.pid


def server_process() -> subprocess.Popen[bytes]:
    forks = compiling._server()._server
    assert forks is not None and forks._process is not None
    return forks._process


def test_unused_server_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tmp_path / "server.py"
    text = Path(server.__file__).read_text(encoding="utf-8")
    root = str(Path(server.__file__).resolve().parents[4])
    text = text.replace("IDLE_SECONDS = 600.0", "IDLE_SECONDS = 0.5")
    text = text.replace("str(Path(__file__).resolve().parents[4])", repr(root))
    for prepared in ("    hash_triton()\n", "    child.host_launcher()\n"):  # takes seconds
        assert prepared in text
        text = text.replace(prepared, "")
    text = re.sub(
        r"(?s)\nLAZY_MODULES = \(.*?\n\)\n", "\nLAZY_MODULES: tuple[str, ...] = ()\n", text
    )
    short.write_text(text, encoding="utf-8")
    monkeypatch.setattr(compiling, "SERVER", short)
    compiling._server.cache_clear()
    try:
        assert "SyntaxError" in compiled(tmp_path / "a", "def :").log
        process = server_process()
        process.wait(30)
        assert members(process.pid) == ()
    finally:
        compiling._server.cache_clear()
