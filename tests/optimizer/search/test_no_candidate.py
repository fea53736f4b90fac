"""The message of a search without a candidate: none exists, or the time was over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.evaluation.records import Evaluation
from optimizer.search.confirm import confirm, last_seconds
from optimizer.search.goal import Goal
from optimizer.search.loop import Search, Stages, UnusedProposer, why_untried
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.base import ProposalContext, Synthesizer
from optimizer.search.tree import Tree
from tests.optimizer.search.landscape import EmptyProposer, Steps, TableBench, search


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
