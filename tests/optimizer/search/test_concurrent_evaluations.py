"""Concurrent evaluations: the same tree in any order of completion, also after a crash."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.search.goal import POLICIES, Goal
from optimizer.search.records import IN_FLIGHT, Cost, Proposal
from optimizer.search.synthesizers.base import ProposalContext
from optimizer.search.tree import Tree, seen
from tests.optimizer.search.landscape import ReplayBench, Steps, TableBench, hill, proposal, search

pytestmark = pytest.mark.slow(seconds=5)

ROOT = Path(__file__).parents[3]
Shape = list[tuple[int, int | None, str, str | None, int | None]]


def shape(tree: Tree) -> Shape:
    """The identity of a tree."""
    return [
        (n.number, n.parent, n.state, n.proposal.bundle.sha256 if n.proposal else None, n.same_as)
        for n in tree
    ]


class RandomSteps(Steps):
    """Steps of one to three in both directions; sometimes exhausted or repeating."""

    name = "hops"

    def propose(self, context: ProposalContext) -> Proposal | None:
        parent = context.parent.proposal
        x = int(parent.values["x"]) if parent else 0
        tried = [n.proposal.values["x"] for n in context.tried if n.proposal is not None]
        for by in (1, -1, 2, -2, 3, -3):
            if tried.count(x + by) < 1 + (x + by == 3):
                return replace(proposal(x + by, context.parent.number), synthesizer=self.name)
        return None


def bench(at_once: int, seed: int = 0) -> TableBench:
    chance = random.Random(seed)
    return TableBench(at_once=at_once, delay=lambda: chance.random() / 300)


@pytest.mark.parametrize("at_once", [1, 2, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_tree_does_not_depend_on_order_of_completion(
    tmp_path: Path, policy: str, at_once: int
) -> None:
    goal = Goal(candidates=22, policy=policy, seed=4)  # type: ignore[arg-type]
    shapes = []
    for order in range(3):
        measured = bench(at_once, order)
        going = search(tmp_path, goal, measured, (RandomSteps(),), name=f"run{order}")
        assert going.run().ended == "22 candidates were tried"
        assert measured.most <= at_once
        assert len(measured.requests) == len(set(measured.requests))
        shapes.append(shape(going.tree))
    assert shapes[0] == shapes[1] == shapes[2]
    replayed = search(
        tmp_path,
        goal,
        ReplayBench(going.tree, at_once),  # type: ignore[arg-type]
        (RandomSteps(),),
        name="replayed",
    )
    replayed.run()
    assert shape(replayed.tree) == shapes[0]


def test_as_many_evaluations_run_as_the_bench_allows(tmp_path: Path) -> None:
    """Each waits for three others: sequential ones would never end."""
    together = threading.Barrier(4, timeout=20)

    def value(proposal: Proposal) -> float:
        together.wait()
        return hill(proposal)

    class Fresh(Steps):
        def propose(self, context: ProposalContext) -> Proposal | None:
            return proposal(context.step, 0)

    going = search(tmp_path, Goal(candidates=8), TableBench(value, at_once=4), (Fresh(),))
    going.run()
    assert [node.batch for node in going.tree] == [None, *[(1, 4)] * 4, *[(5, 8)] * 4]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("at_once", [1, 4])
def test_interrupted_run_resumes_to_same_tree(tmp_path: Path, policy: str, at_once: int) -> None:
    """Also between the rows of one batch; only candidates without a row are measured again."""
    goal = Goal(candidates=16, policy=policy, seed=8)  # type: ignore[arg-type]
    whole = search(tmp_path, goal, bench(at_once), (RandomSteps(),), name="whole")
    whole.run()
    rows = (tmp_path / "whole" / "nodes.jsonl").read_bytes().splitlines(keepends=True)
    wanted = len({node.proposal.bundle.sha256 for node in whole.tree if node.proposal})
    for stored in range(1, len(rows)):
        name = f"cut{stored}"
        search(tmp_path, goal, name=name)  # starts the run
        (tmp_path / name / "nodes.jsonl").write_bytes(b"".join(rows[:stored]) + rows[stored][:40])
        again_on = bench(at_once)
        again = search(tmp_path, goal, again_on, (RandomSteps(),), name=name)
        before = {node.proposal.bundle.sha256 for node in again.tree if node.proposal}
        again.run()
        assert shape(again.tree) == shape(whole.tree)
        assert before.isdisjoint(again_on.requests)
        assert len(before) + len(again_on.requests) == wanted


def test_interrupted_warm_start_resumes_to_same_tree(tmp_path: Path) -> None:
    inherited = [proposal(x, 0) for x in (5, 9, 2)]
    goal = Goal(candidates=4, target=1.4)

    def run(name: str, winners: list[Proposal]) -> Shape:
        going = search(tmp_path, goal, bench(2), name=name)
        going.inherited = winners
        going.run()
        return shape(going.tree)

    whole = run("whole", inherited)
    rows = (tmp_path / "whole" / "nodes.jsonl").read_bytes().splitlines(keepends=True)
    for stored in range(1, len(rows)):
        search(tmp_path, goal, name=f"cut{stored}")
        (tmp_path / f"cut{stored}" / "nodes.jsonl").write_bytes(b"".join(rows[:stored]))
        assert run(f"cut{stored}", inherited) == whole
    # Measurements before the crash may have changed the order of the winners.
    search(tmp_path, goal, name="other")
    (tmp_path / "other" / "nodes.jsonl").write_bytes(b"".join(rows[:2]))
    again = run("other", [inherited[2], inherited[0], inherited[1]])
    assert {row[3] for row in again[:4]} == {row[3] for row in whole[:4]}


def test_budgets_count_running_evaluations(tmp_path: Path) -> None:
    measured = bench(4)
    search(tmp_path, Goal(candidates=7), measured, (RandomSteps(),), name="seven").run()
    assert len(measured.requests) == 7

    class Expensive(RandomSteps):
        def propose(self, context: ProposalContext) -> Proposal | None:
            proposal = super().propose(context)
            return proposal and replace(proposal, cost=Cost(usd=0.4))

    paid = search(tmp_path, Goal(usd=1.0), bench(4), (Expensive(),), name="paid")
    assert paid.run().ended == "1.20 USD were spent"
    assert len(paid.tree) == 4


def test_failed_candidate_is_retried_without_its_neighbours(tmp_path: Path) -> None:
    """The machine fails twice for two candidates of the first four."""
    left = {2: 2, -1: 2}
    guard = threading.Lock()

    def value(proposal: Proposal) -> float:
        with guard:
            x = int(proposal.values["x"])
            if left.get(x):
                left[x] -= 1
                raise OSError("the device is gone")
        return hill(proposal)

    measured = TableBench(value, at_once=4)
    going = search(tmp_path, Goal(candidates=8), measured, (RandomSteps(),))
    going.run()
    attempts = {n.proposal.values["x"]: n.attempts for n in going.tree if n.proposal}
    assert {x for x, n in attempts.items() if n == 3} == {2, -1}
    assert all(node.state != "failed" for node in going.tree)
    assert len(going.listener.messages) == 4  # type: ignore[attr-defined]


def test_internal_error_in_evaluation_ends_run(tmp_path: Path) -> None:
    def value(proposal: Proposal) -> float:
        if proposal.values["x"] == 2:
            raise ZeroDivisionError("a defect of the bench")
        return hill(proposal)

    going = search(tmp_path, Goal(candidates=8), TableBench(value, at_once=4), (RandomSteps(),))
    with pytest.raises(ZeroDivisionError):
        going.run()
    assert all(node.state != IN_FLIGHT for node in going.store.nodes("run_1"))


def test_running_candidate_is_not_proposed_or_shown(tmp_path: Path) -> None:
    seen_by_step: list[tuple[int, int, int]] = []

    class Watching(RandomSteps):
        def propose(self, context: ProposalContext) -> Proposal | None:
            flying = [n for n in context.tried if n.state == IN_FLIGHT]
            shown = [n for n in context.seen if n.state == IN_FLIGHT]
            seen_by_step.append((len(context.tried), len(flying), len(shown)))
            return super().propose(context)

    going = search(tmp_path, Goal(candidates=9), bench(4), (Watching(),))
    going.run()
    assert {flying for _, flying, _ in seen_by_step} == {0, 1, 2, 3}
    assert {shown for _, _, shown in seen_by_step} == {0}
    assert all(seen(going.tree, 0, "siblings"))


ENDLESS = """
import sys
from pathlib import Path
from optimizer.search.goal import Goal
from tests.optimizer.search.landscape import TableBench, search
import signal
def leave(number, frame):
    raise SystemExit(128 + number)
signal.signal(signal.SIGTERM, leave)
def value(made):
    import os, time
    os.write(1, b"measuring\\n")  # a print's lock may be held when the interpreter ends
    time.sleep(600)
search(Path(sys.argv[1]), Goal(), TableBench(value, at_once=int(sys.argv[2]))).run()
"""


@pytest.mark.parametrize("at_once", [1, 4])
def test_terminated_run_does_not_wait_for_measurements(tmp_path: Path, at_once: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path), str(at_once)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == b"measuring\n"
        child.send_signal(signal.SIGTERM)
        assert child.wait(5) == 128 + signal.SIGTERM
    finally:
        child.kill()
        child.communicate()
