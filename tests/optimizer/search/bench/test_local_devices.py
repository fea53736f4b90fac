"""Devices that measure concurrently, with a simulated list of devices."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.isolation.machine import DeviceLock
from optimizer.evaluation.isolation.runner_process import (
    VISIBLE,
    RunnerPool,
    RunnerProcess,
    RunnerSettings,
)
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import Evaluation
from optimizer.evaluation.runner.defences import Defences
from optimizer.evaluation.settings import EvaluationSettings, TimingPolicy
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.cpp import CppToolchain
from optimizer.search.bench.local import (
    LocalBench,
    LocalDevice,
    TargetToolchain,
    devices_here,
    devices_of,
)
from optimizer.search.records import Proposal
from tests.problem_files import kernel_text, model_text

pytestmark = pytest.mark.slow(seconds=8)

PROBLEM = model_text("x * 2", "torch.randn(64, 64)")
SOURCE = kernel_text("x[i] * 2")


def test_devices_are_listed_in_order() -> None:
    assert devices_here("cpu") == (LocalDevice("cpu"),)
    assert devices_of("cuda", 1, "3") == (LocalDevice("cuda"),)
    assert devices_of("cuda", 2, None) == (LocalDevice("cuda", 0, "0"), LocalDevice("cuda", 1, "1"))
    assert devices_of("cuda", 2, "5, GPU-7") == (
        LocalDevice("cuda", 0, "5"),
        LocalDevice("cuda", 1, "GPU-7"),
    )


def test_each_device_has_its_own_lock() -> None:
    first, second = devices_of("cuda", 2, None)
    (alone,) = devices_of("cuda", 1, None)
    assert first.lock._path == alone.lock._path
    assert second.lock._path != first.lock._path


def test_processes_with_different_visible_devices_do_not_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each counts its devices from 0; the lock belongs to the physical device. CUDA is simulated
    here.
    """
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def path_where(uuid: str, number: int = 0) -> Path:
        properties = SimpleNamespace(uuid=uuid)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
        return LocalDevice("cuda", number).lock._path

    assert path_where("a") == path_where("a", number=1)  # another index, the same device
    assert path_where("a") != path_where("b")
    assert LocalDevice("cpu").lock._path == DeviceLock("cpu")._path


def test_runners_see_only_device_of_their_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the pool's own thread: a runner ends with the thread that started it."""
    real, threads = RunnerProcess.__init__, []

    def watched(self: RunnerProcess, *arguments: Any) -> None:
        threads.append(threading.current_thread())
        real(self, *arguments)

    monkeypatch.setattr(RunnerProcess, "__init__", watched)
    pool = RunnerPool(RunnerSettings("cpu", 1, visible="5"), spare=1, fork=False)
    try:
        pool.prepare()
        runner = pool.take()
        try:
            environment = Path(f"/proc/{runner.pid}/environ").read_bytes().split(b"\0")
            assert f"{VISIBLE}=5".encode() in environment
            assert [thread.name for thread in threads] == ["start-runner_0"]
        finally:
            runner.end()
    finally:
        pool.close()


def test_concurrent_evaluations_use_different_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processors act as two devices; only the assignment is tested."""
    (tmp_path / "double.py").write_text(PROBLEM, encoding="utf-8")
    place = TargetToolchain(
        EvaluationTarget("x86-64", ("x86-64",), "native", "cpu"), CppToolchain()
    )
    devices = (LocalDevice("cpu", 0), LocalDevice("cpu", 1))
    problem = load_problem(tmp_path / "double.py")
    together = threading.Barrier(2, timeout=60)
    pools = []

    # Two threads of one process that time calls on two processors delay each other; their clocks
    # are not tested.
    timing = TimingPolicy(block_ms=2.0, min_pairs=2, max_pairs=4)
    defences = Defences(compare_clocks=False, charge_hidden_work=False)
    settings = EvaluationSettings(seeds=1, defences=defences, timing=timing)
    with LocalBench(problem, {"cpp": place}, settings, devices=devices) as bench:
        assert bench.at_once == 2
        real = bench._evaluator

        def watched(language: str, fresh: bool, device: LocalDevice) -> object:
            together.wait()  # both have started, or this never ends
            evaluator = real(language, fresh, device)
            pools.append((device.number, evaluator, evaluator.context.lock._path))
            return evaluator

        monkeypatch.setattr(bench, "_evaluator", watched)
        evaluations: dict[int, Evaluation] = {}

        def measure(number: int) -> None:
            bundle = Bundle(
                {"k.cpp": f"// {number}\n{SOURCE}"}, "k.cpp", "cpp", "kernlore_run", {}, "external"
            )
            evaluations[number] = bench.evaluate(Proposal(bundle, "test"))

        threads = [threading.Thread(target=measure, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [evaluation.reached for evaluation in evaluations.values()] == ["benchmark"] * 2, (
        evaluations
    )
    assert {evaluation.validity for evaluation in evaluations.values()} == {"correct"}, evaluations
    assert {number for number, _, _ in pools} == {0, 1}
    assert len({id(evaluator) for _, evaluator, _ in pools}) == 2
    assert len({path for _, _, path in pools}) == 2
