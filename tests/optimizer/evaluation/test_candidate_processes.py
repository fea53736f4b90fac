"""Processes and memory reused for several candidates, as on a GPU; here on the CPU."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kb.errors import Unavailable
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.candidate_processes import Departures
from optimizer.evaluation.evaluator import Evaluator
from optimizer.evaluation.isolation.machine import DeviceLock
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerProcess
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import CaseTiming, Evaluation, Flag
from optimizer.evaluation.settings import EvaluationSettings, TimingPolicy
from optimizer.evaluation.shared_arrays import SharedStore
from optimizer.evaluation.timing import measure as timing
from optimizer.evaluation.timing.measure import TimingResult
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.cpp import CppToolchain
from tests.problem_files import kernel_text, model_text

pytestmark = pytest.mark.slow(seconds=12)

PROBLEM = model_text("x * 2", "torch.randn(300, 1000)")
KERNEL = "// NUMBER\n" + kernel_text("x[i] * 2")
SETTINGS = EvaluationSettings(
    call_seconds=5.0,
    threads=1,
    timing=TimingPolicy(block_ms=1.0, min_pairs=4, max_pairs=4, quiet=1e6, seconds=5.0),
)
CPU = EvaluationTarget("x86-64", ("x86-64",), "native", "cpu")


@pytest.fixture
def evaluator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: RunnerPool
) -> Iterator[Evaluator]:
    monkeypatch.setattr("optimizer.evaluation.evaluator.reuses_processes", lambda device: True)
    (tmp_path / "double.py").write_text(PROBLEM, encoding="utf-8")
    with Evaluator(load_problem(tmp_path / "double.py"), CPU, SETTINGS, pool=pool) as evaluator:
        yield evaluator


def evaluated(evaluator: Evaluator, number: int, old: str = "", new: str = "") -> Evaluation:
    source = KERNEL.replace("NUMBER", str(number)).replace(old, new, 1) if old else KERNEL
    source = source.replace("NUMBER", str(number))
    bundle = Bundle({"k.cpp": source}, "k.cpp", "cpp", "kernlore_run")
    return evaluator.evaluate(bundle, CppToolchain())


def test_goldens_are_computed_during_compilation(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not while another process measures on the device."""
    case = evaluator.case(evaluator.problem.cases[0])
    compute, compile_, events = case._compute, CppToolchain.compile, list[str]()

    def computed(*given: Any) -> Any:
        events.append("computed")
        return compute(*given)

    def compiled(*given: Any) -> Any:
        until = time.monotonic() + (20 if not busy else 0)
        while not busy and not events and time.monotonic() < until:
            time.sleep(0.01)
        result = compile_(*given)
        events.append("compiled")
        return result

    monkeypatch.setattr(case, "_compute", computed)
    monkeypatch.setattr(CppToolchain, "compile", compiled)
    busy = False
    assert evaluated(evaluator, 1).correct
    assert events[:2] == ["computed", "compiled"]
    events.clear()
    case._expected.clear()
    busy = True
    other = DeviceLock(evaluator.device)
    with ThreadPoolExecutor(1) as background:
        other.__enter__()
        coming = background.submit(evaluated, evaluator, 2)
        while not events and not coming.done():
            time.sleep(0.01)
        other.__exit__()
        assert coming.result().correct
    assert events[:2] == ["compiled", "computed"]


def reference_pid(evaluator: Evaluator) -> int:
    (waiting,) = evaluator.context.baselines._waiting.values()
    return waiting.side.runner.pid


def test_reference_process_is_reused_for_all_candidates(evaluator: Evaluator) -> None:
    assert evaluated(evaluator, 1).timing == "measured"
    first = reference_pid(evaluator)
    crashed = evaluated(evaluator, 2, "return 0;", "*(volatile int *)0 = 1; return 0;")
    wrong = evaluated(evaluator, 3, "* 2", "* 2.1f")
    later = evaluated(evaluator, 4)
    assert [one.validity for one in (crashed, wrong, later)] == ["crashed", "incorrect", "correct"]
    assert later.timing == "measured" and later.seconds["calls"] > 0
    assert reference_pid(evaluator) == first


def test_lost_reference_process_is_replaced_without_verdict(evaluator: Evaluator) -> None:
    evaluated(evaluator, 1)
    os.kill(reference_pid(evaluator), signal.SIGKILL)
    evaluation = evaluated(evaluator, 2)
    assert (evaluation.validity, evaluation.timing) == ("correct", "repeat")
    assert "reference's process failed" in evaluation.timings[0].reason
    assert evaluated(evaluator, 3).timing == "measured"


def test_uses_of_a_process_are_bounded(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.evaluation.candidate_processes.MAX_USES", 2)
    evaluated(evaluator, 1)
    first = reference_pid(evaluator)
    evaluated(evaluator, 2)
    assert not evaluator.context.baselines._waiting
    evaluated(evaluator, 3)
    assert reference_pid(evaluator) != first


def test_reused_memory_holds_nothing_of_previous_candidate(evaluator: Evaluator) -> None:
    evaluated(evaluator, 1)
    evaluator.context.departures.settle()
    held = {shared.fd for shared in evaluator.context.store._free}
    assert held  # of the candidate, whose process has ended
    idle = evaluated(evaluator, 2, "y[i] = x[i] * 2", "if (i < 0) y[i] = x[i] * 2")
    assert idle.validity == "incorrect"
    evaluator.context.departures.settle()
    assert {shared.fd for shared in evaluator.context.store._free} == held
    assert all(shared.used for shared in evaluator.context.store._free)


@pytest.fixture
def killing(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No runner is killed before this is set, because ending a process on a GPU takes a while."""
    if not evaluator.context.pool.ends_surely:
        pytest.skip("without namespaces an evaluation waits for its processes")
    event, end = threading.Event(), RunnerProcess.end

    def late(runner: RunnerProcess) -> bool:
        event.wait(60)
        return end(runner)

    monkeypatch.setattr(RunnerProcess, "end", late)
    yield event
    event.set()


def test_timing_waits_for_ending_processes_but_verdicts_do_not(
    evaluator: Evaluator, killing: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    alive: list[list[bool]] = []

    def watched(case: str, **given: Any) -> TimingResult:
        alive.append([Path(f"/proc/{pid}").exists() for pid in pids])
        pids.append(given["candidate"].runner.pid)
        return timing.measure(case, **given)

    monkeypatch.setattr("optimizer.evaluation.evaluator.measure", watched)
    assert evaluated(evaluator, 1).timing == "measured"
    assert Path(f"/proc/{pids[0]}").exists()
    wrong = evaluated(evaluator, 2, "* 2", "* 2.1f")  # not timed, so it does not wait
    assert wrong.validity == "incorrect" and Path(f"/proc/{pids[0]}").exists()
    threading.Timer(1.0, killing.set).start()
    assert evaluated(evaluator, 3).timing == "measured"
    assert alive == [[], [False]]
    assert evaluator.context.store._free  # of the ended processes


def test_other_supervisors_wait_for_ending_processes(
    evaluator: Evaluator, killing: threading.Event
) -> None:
    evaluated(evaluator, 1)
    code = (
        "from optimizer.evaluation.isolation.machine import DeviceLock\n"
        "with DeviceLock('cpu') as lock:\n"
        "    print('locked', flush=True)\n"
        "    lock.alone()\n"
        "    print('alone', flush=True)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        assert not select.select([other.stdout], [], [], 0.5)[0]
        killing.set()
        assert other.stdout.readline() == "alone\n"


def test_unkillable_process_fails_next_timing() -> None:
    departures, stuck = Departures(), Future[bool]()
    departures.add([stuck], [])
    stuck.set_result(False)
    with pytest.raises(Unavailable, match="could not be ended"):
        departures.settle()
    departures.settle()


def test_mark_ends_with_its_process(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        lock = DeviceLock("cpu", tmp_path)
        lock.departing()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    mark = DeviceLock("cpu", tmp_path).departing()
    other = DeviceLock("cpu", tmp_path)
    with ThreadPoolExecutor(1) as nearby:
        waiting = nearby.submit(other.alone)
        with pytest.raises(TimeoutError):
            waiting.result(0.2)
        mark.close()
        waiting.result(10)


KILLED = """
import os, signal, sys, time
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.isolation.runner_process import RunnerPool, RunnerProcess, RunnerSettings
RunnerProcess.end = lambda runner: time.sleep(60)
pool = RunnerPool(RunnerSettings(level=level_for("auto")), spare=1)
runner = pool.take()
pool.end(runner)
print(runner.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_ending_runners_end_with_killed_supervisor() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, check=False
    )
    pid = int(done.stdout)
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_gaps_between_arrays_are_cleared_before_reuse() -> None:
    store = SharedStore(reuses=True)
    specs = [("float32", (4, 5)), ("int8", (3,))]
    first = store.take(specs)
    first.arrays._map[:] = b"x" * first.size
    store.give(first, reusable=True)
    again = store.take(specs)
    assert again.used
    assert bytes(again.arrays._map).count(b"x") == sum(array.bytes for array in again.placements)
    store.close()
    store.give(again, reusable=True)


def test_memory_that_process_may_map_is_not_reused() -> None:
    store = SharedStore(reuses=True)
    specs = [("float32", (4, 5))]
    first = store.take(specs)
    store.give(first, reusable=False)
    second = store.take(specs)
    assert not second.used
    second.arrays.tensors[0].fill_(3.0)
    store.give(second, reusable=True)
    other = store.take([("float32", (5, 4))])  # another layout
    third = store.take(specs)
    assert (other.used, third.used) == (False, True)
    assert torch.equal(third.arrays.tensors[0], torch.full((4, 5), 3.0))
    store.close()
    store.give(third, reusable=True)
    assert not store._free


@pytest.mark.parametrize("times", [1, 2])
def test_clock_findings_must_occur_twice(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A delay of the machine is in one measurement, hidden work in each."""
    real: Any = timing.measure
    measured: list[TimingResult] = []

    def delayed(*arguments: object, **options: object) -> Any:
        found = real(*arguments, **options)
        measured.append(found)
        late = Flag(13, "reject", "9.0 ms of a block are missing from its own clock")
        return replace(found, flags=(late,)) if len(measured) <= times else found

    monkeypatch.setattr("optimizer.evaluation.evaluator.measure", delayed)
    found = evaluated(evaluator, 1)
    assert len(measured) == 2
    assert found.validity == ("correct" if times == 1 else "rejected")
    assert any("timed twice" in note for note in found.notes)


def test_other_findings_are_not_measured_again() -> None:
    def doubtful(*rows: int) -> bool:
        flags = tuple(Flag(row, "reject", "") for row in rows)
        return TimingResult(CaseTiming("case", "measured"), flags).doubtful

    assert doubtful(13) and doubtful(1, 13) and doubtful(2)
    assert not doubtful() and not doubtful(4) and not doubtful(4, 13)


def test_timed_cases_share_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: RunnerPool
) -> None:
    monkeypatch.setattr("optimizer.evaluation.evaluator.reuses_processes", lambda device: True)
    (tmp_path / "double.py").write_text(PROBLEM, encoding="utf-8")
    problem = load_problem(tmp_path / "double.py")
    (case,) = problem.searched
    cases = [case, replace(case, name="again")]
    with Evaluator(problem, CPU, SETTINGS, pool=pool) as evaluator:
        bundle = Bundle({"k.cpp": KERNEL}, "k.cpp", "cpp", "kernlore_run")
        evaluation = evaluator.evaluate(bundle, CppToolchain(), cases)
        assert sorted(evaluator.context.baselines._waiting) == ["again", case.name]
    assert evaluation.validity == "correct", evaluation
    assert [timing.state for timing in evaluation.timings] == ["measured"] * 2
