"""Runs that are interrupted: their results, and how they resume."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from api.cli.search import status
from benchmarks.search.model_writes.chips import Chip
from kb.errors import Conflict
from optimizer.search.goal import Goal
from optimizer.search.records import Node
from optimizer.search.runs.optimize import (
    FinishedRun,
    RunInterrupted,
    export_run,
    optimize,
    write_result,
)
from optimizer.search.runs.run_store import cancel_run, run_account, run_store
from optimizer.search.synthesizers.base import ModelCall
from optimizer.search.synthesizers.llm.settings import ModelOptions
from optimizer.search.tree import Tree
from tests.api.cli_process import CommandResult, kernlore
from tests.optimizer.search.landscape import RecordingListener
from tests.optimizer.search.synthesizers.llm.llm_servers import Answered, ModelServer
from tests.retrieval.drawn_bases import DrawnBase

pytestmark = [
    pytest.mark.slow(seconds=25),
    pytest.mark.skipif(find_spec("litellm") is None, reason="the extra `llm` is not installed"),
]

MODEL = "openai/scripted"


@dataclass
class Place:
    """A drawn chip, and a model that always writes a correct kernel for it."""

    base: DrawnBase
    chip: Chip
    server: ModelServer
    asked: Callable[[int], None]

    @property
    def good(self) -> str:
        return self.chip.good_kernel("elementwise").read_text(encoding="utf-8")

    def answer(self, number: int) -> Answered:
        self.asked(number)
        head = {"plan": f"plan {number}", "used": [], "language": "novac", "main": "kernel.nv"}
        text = self.good + "\n" * number  # another file, the same kernel
        return Answered(f"{json.dumps(head)}\n\nFile: kernel.nv\n```\n{text}\n```")

    def searched(self, run: str, listener: Any = None, **changes: Any) -> FinishedRun:
        goal = Goal(language="novac", candidates=3, synthesizers=("llm",))
        return optimize(
            self.base.services,
            self.chip.problem("elementwise"),
            replace(goal, **changes),
            self.chip.id,
            listener or RecordingListener(),
            models=ModelOptions(MODEL, self.server.url, tools=False),
            run_id=run,
        )

    def shell(self, *arguments: str | Path) -> CommandResult:
        self.base.local.close()
        return kernlore("runs", *arguments, data=self.base.folder / "data")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Iterator[DrawnBase]:
    base = DrawnBase(tmp_path_factory.mktemp("life"), model_cache)
    yield base
    base.local.close()


@pytest.fixture(scope="module")
def chip(base: DrawnBase) -> Chip:
    return base.add("block", 11)


@pytest.fixture
def place(base: DrawnBase, chip: Chip, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("OPENAI_API_KEY", "local-test-key-0123456789")
    served = Place(base, chip, ModelServer(lambda _, n: served.answer(n)), lambda number: None)
    yield served
    served.server.close()


@pytest.fixture
def cancelled(place: Place) -> FinishedRun:
    """A run cancelled while its second candidate is written."""
    store = run_store(place.base.services)
    place.asked = lambda number: store.cancel("run_cancelled") if number == 1 else None
    if any(run.id == "run_cancelled" for run in store.latest()):
        return stored(place, "run_cancelled")
    return place.searched("run_cancelled")


def stored(place: Place, run: str) -> FinishedRun:
    from optimizer.evaluation.problem.load import load_problem
    from optimizer.search.runs.optimize import outcome_of

    store = run_store(place.base.services)
    row, tree = store.run(run), Tree(store.nodes(run))
    return FinishedRun(row, tree, outcome_of(row, tree), load_problem(Path(row.problem)))


def test_cancelled_run_has_its_best_correct_candidate(
    place: Place, cancelled: FinishedRun, tmp_path: Path
) -> None:
    assert cancelled.run.state == "cancelled" and len(cancelled.tree) == 3
    assert cancelled.outcome.node is None and cancelled.outcome.best_so_far == 1
    assert cancelled.outcome.reason.startswith(
        "cancelled before the winner was measured again; best so far: candidate 1, correct, "
    )
    answer = write_result(cancelled, tmp_path / "out")
    kernel = tmp_path / "out" / "elementwise_kernel" / "kernel.nv"
    assert answer["kernel"] == str(kernel) and answer["correct"]
    assert kernel.read_text(encoding="utf-8").strip() == place.good.strip()
    report = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "**Not confirmed.** cancelled before" in report and "No gain" not in report


def test_interrupted_run_has_its_best_correct_candidate(place: Place, tmp_path: Path) -> None:
    class InterruptingListener(RecordingListener):
        def node(self, node: Node, tree: Tree) -> None:
            if node.number == 1:
                raise KeyboardInterrupt

    with pytest.raises(RunInterrupted) as interrupt:
        place.searched("run_interrupted", InterruptingListener())
    finished = interrupt.value.finished
    assert finished.outcome.reason.startswith("interrupted before the winner")
    assert write_result(finished, tmp_path / "out")["kernel"].endswith("kernel.nv")
    row = run_store(place.base.services).run("run_interrupted")
    assert (row.state, row.result["best_so_far"]) == ("cancelled", 1)


def test_run_with_error_has_failed(place: Place) -> None:
    class Broken(RecordingListener):
        def node(self, node: Node, tree: Tree) -> None:
            raise OSError("the terminal is gone")

    with pytest.raises(OSError, match="terminal"):
        place.searched("run_broken", Broken())
    row = run_store(place.base.services).run("run_broken")
    assert (row.state, row.ended) == ("failed", "OSError: the terminal is gone")


def test_run_terminated_before_first_step_is_cancelled(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise SystemExit(143)  # as SIGTERM ends a run of the service

    monkeypatch.setattr("optimizer.search.runs.optimize._inherited", interrupted)
    with pytest.raises(SystemExit):
        place.searched("run_terminated")
    assert run_store(place.base.services).run("run_terminated").state == "cancelled"


def test_unfinished_run_is_exported_with_its_results(place: Place, tmp_path: Path) -> None:
    services = place.base.services
    exported = []

    class Exporting(RecordingListener):
        def node(self, node: Node, tree: Tree) -> None:
            folder = tmp_path / f"at-{node.number}"
            exported.append(export_run(services, "run_exported", folder))

    place.searched("run_exported", Exporting(), candidates=1)
    assert exported[0]["kernel"] is None
    assert exported[1]["note"].startswith(
        "the run has not ended; best so far: candidate 1, correct"
    )
    source = Path(exported[1]["kernel"]).read_text(encoding="utf-8")
    assert source.strip() == place.good.strip()
    dispatch = Path(exported[1]["module"]) / "dispatch.json"
    assert json.loads(dispatch.read_text())["not_confirmed"]["node"] == 1


def test_only_correct_kernel_of_a_finished_run_is_exported(place: Place, tmp_path: Path) -> None:
    """A first correct candidate without a reference has no speed-up."""
    finished = place.searched("run_of_one", candidates=1)
    assert finished.run.state == "finished" and finished.outcome.node is None
    answer = write_result(finished, tmp_path / "out")
    assert answer["correct"] and answer["kernel"].endswith("kernel.nv")


def test_baseline_is_named_with_its_cycles(
    place: Place, cancelled: FinishedRun, tmp_path: Path
) -> None:
    tree, run = cancelled.tree, cancelled.run
    evaluation = tree[1].evaluation
    assert evaluation is not None
    baseline = f"candidate 1, {evaluation.timings[0].cycles} cycles"
    assert status(Tree(tree.nodes[:2]), run.goal, 60.0).startswith(
        f"baseline: {baseline} | 1 correct"
    )
    assert run_account(place.base.services, run.id)["baseline"] == baseline
    report = write_result(cancelled, tmp_path / "out")["report"]
    assert f"| baseline | {baseline} |" in Path(report).read_text(encoding="utf-8")
    shown = place.shell("tree", run.id).out
    assert f"1 correct baseline, {evaluation.timings[0].cycles} cycles  plan 0" in shown


def test_run_without_measurements_is_exported(place: Place, tmp_path: Path) -> None:
    store = run_store(place.base.services)
    if not any(run.id == "run_cancelled" for run in store.latest()):
        place.searched("run_cancelled", candidates=1)
    store.begin(replace(store.run("run_cancelled"), id="run_begun", state="running", result={}))
    written = export_run(place.base.services, "run_begun", tmp_path / "out")
    assert written["kernel"] is None and written["note"] == "the run has not ended"


def test_resumed_run_uses_its_models(place: Place) -> None:
    store = run_store(place.base.services)
    place.asked = lambda number: store.cancel("run_resumed") if number == 0 else None
    place.searched("run_resumed", candidates=2)
    assert store.run("run_resumed").asked["api_base"] == place.server.url
    place.asked = lambda number: None
    done = place.shell("resume", "run_resumed")
    assert done.code == 0 and len(place.server.requests) == 2, done.err
    assert "state     finished" in done.out and "2 candidates were tried" in done.out
    assert "kernlore runs export run_resumed -o DIR" in done.err
    assert f"asking {MODEL} for candidate 2 (0 s, at most 300 s)" in done.err


def test_new_address_and_time_limit_replace_those_of_run(place: Place) -> None:
    asked = {"models": "a=2", "api_base": "http://x/v1", "context_tokens": 9_000, "tools": None}
    asked["model_seconds"] = 900.0
    same = ModelOptions("a=2", "http://x/v1", 9_000, None, 900.0)
    assert ModelOptions.to_resume(asked) == same
    options = ModelOptions.to_resume(asked, api_base="http://y/v1", model_seconds=5.0)
    assert (options.models, options.api_base, options.timeout_s) == ("a=2", "http://y/v1", 5.0)
    assert ModelOptions.to_resume({}) == ModelOptions()  # a run of an earlier release


@pytest.mark.parametrize("address", ["http://me:pass@host/v1", "http://host/v1?key=abc"])
def test_address_with_secret_is_not_stored(address: str) -> None:
    listener = RecordingListener()
    assert ModelOptions(MODEL, address).remembered(listener.log)["api_base"] is None
    assert "not stored" in listener.messages[0]


def test_run_has_one_process_and_shows_its_stage(place: Place) -> None:
    services = place.base.services
    store = run_store(services)
    place.asked = lambda number: store.cancel("run_live") if number == 0 else None
    row = place.searched("run_live", candidates=2).run
    place.asked = lambda number: None
    seen: list[tuple[str, Any, float, str]] = []

    def again(listener: Any) -> FinishedRun:
        return optimize(
            services,
            Path(row.problem),
            row.goal,
            row.hardware,
            listener,
            models=ModelOptions(MODEL, place.server.url, tools=False),
            resume=row.id,
        )

    stages: list[tuple[int | None, str]] = []

    class Watching(RecordingListener):
        def working(self, candidate: int | None, stage: str) -> None:
            stages.append((candidate, stage))
            stored = store.run(row.id).work
            assert (stored["candidate"], stored["stage"]) == stages[-1]

        def asking(self, asking: ModelCall) -> None:
            shown = run_account(services, row.id)
            with pytest.raises(Conflict) as refused:
                again(RecordingListener())
            seen.append((shown["state"], shown["process"], shown["seconds"], str(refused.value)))

    again(Watching())
    assert {number for number, stage in stages if stage == "choosing a change"} >= {2}
    assert (None, "measuring the best again") in stages and store.run(row.id).work == {}
    state, process, seconds, refused = seen[0]
    assert (state, process) == ("running", os.getpid()) and seconds > store.nodes(row.id)[1].at
    assert f"run {row.id} is being continued by process {os.getpid()}" in refused
    assert "process" not in run_account(services, row.id)
    store.update(replace(store.run(row.id), state="running"))  # as a killed process leaves it
    assert "runs resume" in run_account(services, row.id)["process"]
    assert cancel_run(services, row.id)["cancel"].startswith("done")
    assert store.run(row.id).state == "cancelled"


def test_source_of_a_candidate_by_command(place: Place, cancelled: FinishedRun) -> None:
    run = cancelled.run.id
    assert (
        place.shell("show", run, "--candidate", "1", "--source").out.strip() == place.good.strip()
    )
    row = place.shell("show", run, "--candidate", "2", "--json").json
    assert (row["number"], row["verdict"]) == (2, "correct")
    files = place.shell("show", run, "--candidate", "1", "--source", "--json").json["files"]
    assert list(files) == ["kernel.nv"]
    for wrong in (("--candidate", "0", "--source"), ("--candidate", "9"), ("--source",)):
        assert place.shell("show", run, *wrong).code == 2
