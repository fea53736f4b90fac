"""The loop on a table of results: budgets, checkpoints, determinism, failures of the machine."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from optimizer.evaluation.records import Evaluation
from optimizer.search.confirm import UNTRIED, confirm, finalists, last_seconds
from optimizer.search.goal import MEMORIES, POLICIES, Goal, reason_to_stop
from optimizer.search.loop import (
    FAILED_IN_A_ROW,
    GIVEN_UP,
    Search,
    Stages,
    UnusedProposer,
    why_untried,
)
from optimizer.search.propose import NEVER_ANSWERED, SILENT_IN_A_ROW
from optimizer.search.records import Node, Proposal, node_from_json
from optimizer.search.store import FileStore
from optimizer.search.synthesizers.base import ProposalContext, Synthesizer, Unreachable
from optimizer.search.tree import MAX_SEEN, Tree, seen
from tests.optimizer.search.landscape import (
    EmptyProposer,
    Moves,
    Steps,
    TableBench,
    evaluation,
    proposal,
    search,
)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_finds_maximum_deterministically(tmp_path: Path, policy: str) -> None:
    trees = []
    for name in ("one", "two"):
        going = search(tmp_path, Goal(candidates=25, policy=policy, seed=3), name=name)  # type: ignore[arg-type]
        ended = going.run()
        assert ended.state == "finished" and ended.ended == "25 candidates were tried"
        trees.append([(n.parent, n.proposal.values["x"]) for n in going.tree if n.proposal])
        best = going.tree.best
        assert best is not None and best.proposal is not None
        assert best.proposal.values["x"] == 7
    assert trees[0] == trees[1]


def test_target_stall_and_exhausted_space_end_run(tmp_path: Path) -> None:
    assert (
        search(tmp_path, Goal(target=1.3), name="a").run().ended == "the target of 1.3 is reached"
    )
    stalled = search(tmp_path, Goal(candidates=100, stall=5), name="b").run()
    assert stalled.ended == "nothing better in 5 candidates"
    flat = TableBench(value=lambda p: 0.5)

    class Repeating(Steps):
        def propose(self, context):  # type: ignore[no-untyped-def]
            return proposal(1, 0) if context.step < 2 else None

    assert (
        search(tmp_path, Goal(), flat, (Repeating(),), name="c").run().ended
        == "nothing is left to try"
    )


def test_interrupted_run_gives_same_tree(tmp_path: Path) -> None:
    """A kill at any moment leaves whole rows and perhaps a partial one."""
    whole = search(tmp_path, Goal(candidates=20, policy="evolutionary", seed=5), name="whole")
    whole.run()
    rows = (tmp_path / "whole" / "nodes.jsonl").read_bytes()
    chance = random.Random(1)
    for number in range(10):
        name = f"cut{number}"
        cut = search(tmp_path, Goal(candidates=20, policy="evolutionary", seed=5), name=name)
        at = chance.randrange(len(rows))
        (tmp_path / name / "nodes.jsonl").write_bytes(rows[:at])
        remaining = rows[:at].count(b"\n")
        bench = TableBench()
        again = search(
            tmp_path, Goal(candidates=20, policy="evolutionary", seed=5), bench, name=name
        )
        again.run()
        del cut
        assert len(bench.requests) == 20 - max(0, remaining - 1)
        same = [(n.parent, n.proposal and n.proposal.values) for n in again.tree]
        assert same == [(n.parent, n.proposal and n.proposal.values) for n in whole.tree]


def test_failing_machine_is_retried_without_blaming_kernel(tmp_path: Path) -> None:
    bench = TableBench(fail=lambda call: call in (2, 3))
    going = search(tmp_path, Goal(candidates=5), bench)
    going.run()
    assert [n.state for n in going.tree] == ["evaluated"] * 6
    assert going.tree[1].attempts == 1 and going.tree[2].attempts == 3

    class Fresh(Steps):
        def propose(self, context):  # type: ignore[no-untyped-def]
            return proposal(context.step, 0)

    dead = TableBench(fail=lambda call: True)
    broken = search(tmp_path, Goal(candidates=30), dead, (Fresh(),), name="b")
    ended = broken.run()
    assert ended.state == "failed" and ended.ended == GIVEN_UP
    failed = broken.tree.nodes[1:]
    assert len(failed) == FAILED_IN_A_ROW
    assert all(n.state == "failed" and n.problem == "the device is gone" for n in failed)
    mended = search(tmp_path, Goal(candidates=3), TableBench(), (Fresh(),), name="b")
    assert mended.run().ended == "30 candidates were tried"


def test_equal_bundles_are_measured_once(tmp_path: Path) -> None:
    class Duplicating(Steps):
        def propose(self, context):  # type: ignore[no-untyped-def]
            return proposal(4, context.parent.number)

    bench = TableBench()
    going = search(tmp_path, Goal(candidates=4), bench, (Duplicating(),))
    going.run()
    assert len(bench.requests) == 1
    assert [n.state for n in going.tree.nodes[2:]] == ["duplicate"] * 3
    assert {n.same_as for n in going.tree.nodes[2:]} == {1}


def test_proposers_without_proposals_end_run_with_reason(tmp_path: Path) -> None:
    going = search(tmp_path, Goal(), synthesizers=(EmptyProposer(),))
    ended = going.run()
    assert ended.ended.startswith(f"{SILENT_IN_A_ROW} proposals in a row came to nothing")
    other = search(tmp_path, Goal(candidates=6), synthesizers=(EmptyProposer(), Steps()), name="b")
    assert other.run().ended == "6 candidates were tried"


def test_run_with_unreachable_proposer_fails_and_can_resume(tmp_path: Path) -> None:
    class UnreachableProposer(Steps):
        asked = 0

        def propose(self, context: ProposalContext) -> Proposal | None:
            UnreachableProposer.asked += 1
            raise Unreachable("no answer from there")

    going = search(tmp_path, Goal(candidates=4), synthesizers=(UnreachableProposer(),))
    ended = going.run()
    assert (ended.state, ended.ended) == ("failed", "no answer from there")
    assert going.listener.messages == ["steps: no answer from there"]  # type: ignore[attr-defined]
    assert UnreachableProposer.asked == NEVER_ANSWERED
    assert search(tmp_path, Goal(candidates=4)).run().state == "finished"


def test_proposer_that_answered_before_has_time_to_recover(tmp_path: Path) -> None:
    class Recovering(Steps):
        asked = 0

        def propose(self, context: ProposalContext) -> Proposal | None:
            Recovering.asked += 1
            if 2 <= Recovering.asked < SILENT_IN_A_ROW:
                raise Unreachable("no answer from there")
            return super().propose(context)

    assert (
        search(tmp_path, Goal(candidates=4), synthesizers=(Recovering(),)).run().state == "finished"
    )


def test_cancelled_run_stops_and_can_resume(tmp_path: Path) -> None:
    going = search(tmp_path, Goal(candidates=4))
    FileStore(tmp_path).cancel("run_1")
    assert going.run().state == "cancelled"
    (tmp_path / "run_1" / "cancel").unlink()
    again = search(tmp_path, Goal(candidates=4))
    assert again.run().ended == "4 candidates were tried"


def test_interrupted_run_is_stored_as_such_and_can_resume(tmp_path: Path) -> None:
    @dataclass
    class Interrupted(TableBench):
        def evaluate(self, requests):  # type: ignore[no-untyped-def]
            if len(self.requests) >= 3:
                raise KeyboardInterrupt
            return super().evaluate(requests)

    going = search(tmp_path, Goal(candidates=6), Interrupted(), name="cut")
    with pytest.raises(KeyboardInterrupt):
        going.run()
    row = FileStore(tmp_path).run("cut")
    assert row.state == "cancelled" and "runs resume" in row.ended
    again = search(tmp_path, Goal(candidates=6), name="cut")
    assert again.run().state == "finished"


def test_outcomes_are_reported_for_shown_knowledge(tmp_path: Path) -> None:
    moves = Moves()
    search(tmp_path, Goal(candidates=3), knowledge=moves).run()
    assert [retrieval for retrieval, _ in moves.reported] == ["ret_0", "ret_1", "ret_2"]
    silent = Moves()
    search(tmp_path, Goal(candidates=3, knowledge=False), knowledge=silent, name="off").run()
    assert silent.requests == [] and silent.reported == []


def test_node_rows_round_trip(tmp_path: Path) -> None:
    going = search(tmp_path, Goal(candidates=3))
    going.run()
    for node in going.tree:
        assert node_from_json(node.as_json()) == node
    assert FileStore(tmp_path).nodes("run_1") == going.tree.nodes


def test_finalists_are_candidates_with_likely_gain(tmp_path: Path) -> None:
    going = search(tmp_path, Goal(candidates=12))
    going.run()
    values = [n.proposal.values["x"] for n in finalists(going.tree) if n.proposal]
    assert values == [7, 6]
    slow = search(tmp_path, Goal(candidates=3), TableBench(value=lambda p: 0.7), name="slow")
    slow.run()
    assert finalists(slow.tree) == []


def test_unmeasured_run_is_not_called_no_gain(tmp_path: Path) -> None:
    class Busy:
        def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
            raise OSError("too busy")

    good = search(tmp_path, Goal(candidates=3))
    good.run()
    again = confirm(good.tree, Busy())
    assert not again.measured and "for node 3, and the last measurement" in again.reason
    assert again.notes and "too busy" in again.notes[0]
    slow = search(tmp_path, Goal(candidates=2), TableBench(value=lambda p: 0.7), name="slow")
    slow.run()
    assert confirm(slow.tree, Busy()).measured  # no candidate was above 1
    untimed = replace(slow.tree[1], evaluation=evaluation(proposal(1, 0).bundle, None))
    only = confirm(Tree([slow.tree[0], untimed]), Busy())
    assert not only.measured and "1 of 1 candidates are right and none could" in only.reason
    nothing = confirm(Tree([slow.tree[0]]), Busy())
    assert not nothing.measured and nothing.reason == UNTRIED


def test_run_is_finished_only_after_its_winner_is_confirmed(tmp_path: Path) -> None:
    """A run killed during the confirmation can still resume."""
    ended = search(tmp_path, Goal(candidates=3)).run()
    stored = FileStore(tmp_path).run("run_1")
    assert ended.state == "finished" and stored.state == "running"
    assert stored.ended == ended.ended == "3 candidates were tried"


@dataclass(eq=False)
class Slow:
    """Proposals that take long to evaluate and give no gain."""

    name: str = "slow"
    first_tries: int = 1

    def propose(self, context: ProposalContext) -> Proposal | None:
        x = 1_000 + len(context.tried)
        return replace(proposal(x, context.parent.number), synthesizer=self.name)


@dataclass
class TimedBench(TableBench):
    """Reports the duration of an evaluation. slow: seconds of those of `Slow`."""

    slow: float = 20.0

    def evaluate(self, proposal: Proposal) -> Evaluation:
        took = self.slow if proposal.synthesizer == "slow" else 1.0
        evaluation = super().evaluate(proposal)
        return replace(evaluation, seconds={"compile": took / 2, "benchmark": took / 2})


@pytest.mark.parametrize(("slow", "turns"), [(1.5, (6, 6)), (20.0, (1, 3))])
def test_proposers_share_evaluation_time(
    tmp_path: Path, slow: float, turns: tuple[int, int]
) -> None:
    """On a flat table, so that gains decide nothing."""
    bench = TimedBench(value=lambda _: 1.0, slow=slow)
    going = search(tmp_path, Goal(candidates=12), bench, (Slow(), RandomProposer()))
    going.run()
    synthesizers = [n.proposal.synthesizer for n in going.tree.nodes[1:] if n.proposal is not None]
    assert turns[0] <= synthesizers.count("slow") <= turns[1], synthesizers
    replayed = search(tmp_path / "again", Goal(candidates=12), bench, (Slow(), RandomProposer()))
    replayed.run()
    assert [n.proposal for n in replayed.tree.nodes] == [n.proposal for n in going.tree.nodes]


@dataclass(eq=False)
class RandomProposer:
    """Proposes a new value from any node."""

    name: str = "steps"
    first_tries: int = 1

    def propose(self, context: ProposalContext) -> Proposal | None:
        return proposal(len(context.tried) + 1, context.parent.number)


def test_minutes_reserve_time_for_last_measurement() -> None:
    goal = Goal(minutes=2)
    assert reason_to_stop(goal, [], 60.0) is None
    assert reason_to_stop(goal, [], 100.0, reserve=15.0) is None
    ended = reason_to_stop(goal, [], 100.0, reserve=25.0)
    assert ended == "2 minutes are over, with 25 seconds for the last measurement"
    assert reason_to_stop(goal, [], 50.0, reserve=500.0) is None  # half for the search


def test_finalist_is_measured_once_after_time_is_over(tmp_path: Path) -> None:
    asked: list[bool] = []

    class Once:
        def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
            asked.append(held_out)
            return going.bench.evaluate(proposal)

    going = search(tmp_path, Goal(candidates=12))
    going.run()
    outcome = confirm(going.tree, Once(), left=lambda: -1.0)
    assert asked == [False]
    assert sum("the time is over" in note for note in outcome.notes) == 3


def test_measurement_that_would_end_late_is_not_started(tmp_path: Path) -> None:
    asked: list[bool] = []
    left = [0.1]

    class Slow:
        def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
            asked.append(held_out)
            time.sleep(0.06)
            left[0] -= 0.06
            return going.bench.evaluate(proposal)

    going = search(tmp_path, Goal(candidates=12))
    going.run()
    confirm(going.tree, Slow(), most=1, left=lambda: left[0])
    assert asked == [False]  # 0.04 s are left, and a round takes longer


# -- the nodes that each memory operator shows


def tree_of(*rows: tuple[int | None, float]) -> Tree:
    """Rows of (parent, speed-up); 0 is a wrong kernel."""
    nodes = []
    for number, (parent, value) in enumerate(rows):
        if parent is None:
            nodes.append(Node(number, None, "evaluated", None, evaluation(None, None)))
            continue
        candidate = proposal(number, parent)
        measured = evaluation(candidate.bundle, value or None, "correct" if value else "incorrect")
        nodes.append(Node(number, parent, "evaluated", candidate, measured))
    return Tree(nodes)


TREE = tree_of((None, 1.0), (0, 1.5), (1, 0.0), (1, 1.8), (1, 0.9), (3, 0.8), (5, 0.7))


def numbers(memory: str, parent: int) -> list[int]:
    return [node.number for node in seen(TREE, parent, memory)]  # type: ignore[arg-type]


def test_each_operator_shows_its_part() -> None:
    assert numbers("none", 1) == []
    assert numbers("parent", 1) == [0] and numbers("parent", 0) == []
    assert numbers("siblings", 1) == [3, 4, 2]  # the correct ones by merit, then failed ones
    assert numbers("both", 1) == [0, 3, 4, 2]
    assert numbers("ancestors", 6) == [5, 3]  # up to the first that beats the reference


def test_every_operator_is_bounded(tmp_path: Path) -> None:
    wide = tree_of((None, 1.0), *[(0, 1.0 + number / 10) for number in range(20)])
    for memory in MEMORIES:
        assert len(seen(wide, 0, memory)) <= MAX_SEEN
    going = search(tmp_path, Goal(candidates=2, memory="none"))
    going.run()
    assert len(going.tree) == 3


# -- the message of a search without a candidate: none exists, or the time was over


class Unable:
    """Proposes nothing, with a reason."""

    name = "nobody"
    first_tries = 1
    nothing_because = "no rule for aten.sort"

    def propose(self, context: ProposalContext) -> Proposal | None:
        return None


class SlowReference(TableBench):
    """Its reference takes 15 seconds, which the clock of the search does not see."""

    def reference(self) -> Evaluation:
        return replace(super().reference(), seconds={"correctness": 5.0, "benchmark": 10.0})


def reason(search: Search, *others: Synthesizer, stages: dict[str, float] | None = None) -> str:
    ended = search.run().ended
    left = [UnusedProposer(other, "leave --language out") for other in others]
    why = why_untried(search, ended, stages or {}, lambda: left)
    bench = search.bench
    outcome = confirm(search.tree, bench, untried=lambda: why)  # type: ignore[arg-type]
    assert outcome.reason == why and not outcome.measured
    return why


def test_no_candidate_names_proposers_tried_and_others_with_one(tmp_path: Path) -> None:
    why = reason(
        search(tmp_path, Goal(minutes=2), synthesizers=(Unable(),)), Steps(), EmptyProposer()
    )
    assert why == (
        "nothing was tried: no candidate exists. Tried: nobody (no rule for aten.sort). steps,"
        " which was not tried, has one: leave --language out; a language model (--models) or a"
        " proposer of your own (POST /runs) can write one"
    )


def test_time_over_names_the_stages(tmp_path: Path) -> None:
    late = search(tmp_path, Goal(minutes=1))
    late.spent = 61.0
    stages = {"finding compilers": 0.2, "the reference": 40.4, "reading the problem": 20.4}
    why = reason(late, stages=stages)
    assert why == (
        "nothing was tried: the time was over before the first candidate; it went to"
        " the reference (40 s), reading the problem (20 s); give more (--minutes)"
    )


def test_first_candidate_is_tried_despite_long_last_measurement(tmp_path: Path) -> None:
    """Of a minute, 45 s are over and the last measurement would take as long."""
    going = search(tmp_path, Goal(minutes=1, candidates=1), SlowReference())
    going.spent = 45.0
    assert going.run().ended == "1 candidates were tried" and len(going.tree) == 2
    assert last_seconds(Tree(going.tree.nodes[:1])) == 0.0
    assert last_seconds(going.tree) == pytest.approx((1 + 3) * 15.0)


def test_known_reference_is_not_measured_again(tmp_path: Path) -> None:
    bench = TableBench()
    going = search(tmp_path, Goal(candidates=1), bench)
    going.measured = SlowReference().reference()
    bench.reference = lambda: pytest.fail("it was measured twice")  # type: ignore[method-assign]
    going.run()
    assert going.tree.root.evaluation == going.measured


def test_stages_take_time_since_previous_one() -> None:
    now = [0.0]
    stages = Stages(clock=lambda: now[0])
    for at, name in ((2.0, "a"), (5.0, "b"), (6.0, "a")):
        now[0] = at
        stages.ended(name)
    assert stages.seconds == {"a": 3.0, "b": 3.0} and stages.total == 6.0
