"""Confirmation: the best candidates of a search are measured again on values that it never saw.

The best of many is partly the luckiest, so its figure from the search is not reported.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kb import telemetry
from kb.errors import KernloreError
from optimizer.evaluation.problem.spec import HELD_OUT
from optimizer.evaluation.records import BRIEFLY, CaseTiming, Evaluation, Interval
from optimizer.evaluation.timing.statistics import combined
from optimizer.search.records import Node, Proposal, time_text
from optimizer.search.tree import BY_COMMANDS, Tree, rough_best

FINALISTS = 2
UNTRIED = "nothing was tried"  # beginning of the reason of a run without a candidate
FIRST_RIGHT = "the first right candidate"  # baseline of a chip without a reference
RECENT = 4  # evaluations from which the time of the next is estimated
ROUNDS = 2  # fresh processes for each finalist


class Confirming(Protocol):
    """A bench that measures a candidate again on values that the search never saw."""

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        """Measure on the searched timed cases, or on the held-out ones. Raises KernloreError or
        OSError if the infrastructure failed."""
        ...


@dataclass(frozen=True)
class CaseFigure:
    """Final measurement of a case, with the times of a call in microseconds. `held_out` marks a
    case that the search never saw."""

    case: str
    held_out: bool
    speedup: Interval
    candidate_us: float
    baseline_us: float


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run.

    `node` is the number of the winner, and `gain` its speed-up over `over`, the baseline. Both are
    None if nothing certainly beats the baseline; `reason` then gives the cause. `inherited` is the
    gain of the best stored winner that the run started from. `notes` lists missing measurements.
    `measured` is False if the decision rests on no figure: nothing was tried or could be timed.
    `clock` is `wall`, `program` (a chip's own program reports the times), `simulator` (ratios of
    simulated times), or the kind of cost whose ratio it is (`instructions`, `packets`).
    `best_so_far` is the number of the best correct candidate of a run without a winner: it was not
    measured again, or nothing is faster on a chip where the reference does not run. None if the
    reference stays.
    """

    node: int | None
    gain: Interval | None
    reason: str
    inherited: Interval | None = None
    figures: tuple[CaseFigure, ...] = ()
    notes: tuple[str, ...] = field(default=())
    over: str = "the reference"
    clock: str = "wall"
    measured: bool = True
    best_so_far: int | None = None


@telemetry.traced("run: confirm")
def confirm(
    tree: Tree,
    bench: Confirming,
    over: str = "the reference",
    most: int = FINALISTS,
    left: Callable[[], float] = lambda: math.inf,
    untried: Callable[[], str] = lambda: UNTRIED,
) -> RunOutcome:
    """Measure up to `most` finalists again and choose the one that is certainly fastest.

    `over` names the bench's baseline. `left` returns the remaining seconds: the best finalist is
    measured at least once, and measurements that would not end in time are skipped with a note.
    `untried` returns the reason of a run without a candidate.
    """
    notes: list[str] = []
    wrong: list[int] = []
    best: RunOutcome | None = None
    chosen = finalists(tree)[:most]
    took = 0.0  # seconds of the longest round, the estimate for the next
    for node in chosen:
        if node is not chosen[0] and left() <= took:
            notes.append(f"node {node.number} was not measured again: the time is over")
            continue
        measured, took = _measured(node, bench, notes, wrong, left)
        if measured is not None and (best is None or _low(measured) > _low(best)):
            best = measured
    inherited = _inherited(tree)
    right = best_so_far(tree, wrong)
    number = right.number if right is not None else None
    if best is None and (reason := _not_measured(tree, chosen, untried)):
        return RunOutcome(
            None, None, reason, inherited, (), tuple(notes), measured=False, best_so_far=number
        )
    if best is None or _low(best) <= 1.0:
        reason = f"no gain: no candidate is certainly faster than {over}"
        if tree.reference_runs:
            number = None
        elif right is not None:
            reason += f"; best: {candidate_text(tree, right, over)}"
        figures = best.figures if best is not None else ()
        return RunOutcome(None, None, reason, inherited, figures, tuple(notes), best_so_far=number)
    return RunOutcome(best.node, best.gain, "", inherited, best.figures, tuple(notes))


def not_confirmed(tree: Tree, why: str, over: str = "the reference") -> RunOutcome:
    """The outcome of a run whose winner was not measured again because of `why`: no gain, and the
    best candidate so far."""
    best = best_so_far(tree)
    if best is not None:
        why = f"{why}; best so far: {candidate_text(tree, best, over)}"
    number = best.number if best is not None else None
    inherited = _inherited(tree)
    return RunOutcome(None, None, why, inherited, over=over, measured=False, best_so_far=number)


def so_far(tree: Tree, why: str) -> RunOutcome:
    """The outcome of a stored run without a result, with baseline and clock read from its rows."""
    evaluations = [node.evaluation for node in tree if node.evaluation is not None]
    apart = [e for e in evaluations if e.toolchain.startswith(BY_COMMANDS)]
    if not apart:
        return not_confirmed(tree, why)
    over = "the manual's sample" if tree.root.correct else FIRST_RIGHT
    counted = next((t.counted for e in apart for t in e.timings if t.counted), "")
    simulated = any(e.timing == "simulator" for e in apart)
    clock = counted or ("simulator" if simulated else "program")
    return replace(not_confirmed(tree, why, over), clock=clock)


def best_so_far(tree: Tree, without: Collection[int] = ()) -> Node | None:
    """The best correct candidate by the figures of the search, else the first without a figure.

    None without a correct candidate, or if the reference runs and is as fast. `without` are numbers
    of excluded candidates.
    """
    right = [n for n in tree.nodes[1:] if n.correct and n.number not in without]
    best = max(right, key=lambda n: (n.merit, -n.number), default=None)
    if best is None or not tree.reference_runs or best.speedup is None:
        return best
    return best if best.speedup.value > 1.0 else None


def candidate_text(tree: Tree, node: Node, over: str) -> str:
    """Number of a correct candidate and its figure from the search, in words."""
    name = f"candidate {node.number}, correct"
    if tree.baseline is not None:
        name += f", {time_text(node)}"
    if node.speedup is None:
        return f"{name}, not timed"
    if node is tree.baseline:
        return f"{name}, the first right one"
    return f"{name}, {node.speedup.value:.3f}x over {over}"


def _inherited(tree: Tree) -> Interval | None:
    """The gain of the best stored winner that the run started from."""
    return max(
        (n.speedup for n in tree if n.inherited and n.speedup is not None and n.correct),
        key=lambda interval: interval.low,
        default=None,
    )


def _not_measured(tree: Tree, chosen: Sequence[Node], untried: Callable[[], str]) -> str:
    """Reason for a missing figure, with a remedy; "" if there is a figure."""
    tried = [node for node in tree if node.parent is not None]
    right = [node for node in tried if node.correct]
    if not tried:
        return untried()
    if not right:
        first = next((n.evaluation.message for n in tried if n.evaluation is not None), "")
        return (
            f"not measured: none of {len(tried)} candidates is right"
            f"{f' (the first: {first})' if first else ''}; more candidates, a language model"
            " (--models) or a proposer of your own (POST /runs) may bring one that is"
        )
    if not any(node.speedup is not None for node in right):
        rough = rough_best(right)
        return (
            f"not measured: {len(right)} of {len(tried)} candidates are right and none could be"
            f" timed{f', {rough}' if rough else ''}; search again with more time or"
            " while the machine is idle; with the same data directory that search begins with the"
            " correct candidates"
        )
    if chosen:
        at = chosen[0].speedup
        return (
            f"not measured again: the search measured {at} for node {chosen[0].number}, and the"
            " last measurement gave no figure; search again while the machine is idle; with the"
            " same data directory that search begins with this node"
        )
    return ""


def finalists(tree: Tree) -> list[Node]:
    """The FINALISTS nodes whose speed-ups in the search promise a gain, best first."""
    good = [n for n in tree if n.parent is not None and n.correct and n.speedup is not None]
    good = [n for n in good if n.speedup is not None and n.speedup.value > 1.0]
    return sorted(good, key=lambda n: (-n.merit, n.number))[:FINALISTS]


def last_seconds(tree: Tree) -> float:
    """Estimate of the seconds of the next candidate and the last measurement.

    0 before the first candidate, which is tried as long as any time is left. Without a finalist,
    the next candidate may become one and is measured again once.
    """
    if all(node.parent is None for node in tree):
        return 0.0
    took = [sum(n.evaluation.seconds.values()) for n in tree if n.evaluation is not None]
    again = (ROUNDS + 1) * min(FINALISTS, len(finalists(tree))) or 1
    return (1 + again) * max(took[-RECENT:], default=0.0)


def _low(outcome: RunOutcome) -> float:
    return outcome.gain.low if outcome.gain is not None else 0.0


def _measured(
    node: Node, bench: Confirming, notes: list[str], wrong: list[int], left: Callable[[], float]
) -> tuple[RunOutcome | None, float]:
    """Measure the searched cases in ROUNDS fresh processes and the held-out ones once; also returns
    the seconds of the longest round. `wrong` gets the number of a node that fails on fresh values.
    """
    assert node.proposal is not None
    rounds: list[Sequence[CaseTiming]] = []
    figures: list[CaseFigure] = []
    took = 0.0
    for held_out in (*[False] * ROUNDS, True):
        if rounds and left() <= took:
            what = "on held-out cases" if held_out else "another time"
            notes.append(f"node {node.number} was not measured {what}: the time is over")
            continue
        began = time.monotonic()
        try:
            evaluation = bench.confirm(node.proposal, held_out)
        except (KernloreError, OSError) as problem:
            notes.append(f"node {node.number}: {problem}")
            return None, took
        took = max(took, time.monotonic() - began)
        kept = [n for n in evaluation.notes if n.startswith(HELD_OUT) or n == BRIEFLY]
        notes += [n for n in kept if n not in notes]
        if not evaluation.correct and held_out:
            # Instances of recipes hold numbers of the searched cases (a stride, a limit). The
            # written module calls the kernel only for measured, correct cases.
            notes.append(f"node {node.number} is for the searched cases only: {evaluation.message}")
            continue
        if not evaluation.correct:
            notes.append(f"node {node.number} fails on fresh values: {evaluation.message}")
            wrong.append(node.number)
            return None, took
        timed = [t for t in evaluation.timings if t.speedup is not None]
        if held_out:
            figures += [_figure([timing], True) for timing in timed]
        else:
            rounds.append(timed)
    by_case: dict[str, list[CaseTiming]] = {}
    for timing in (timing for timings in rounds for timing in timings):
        by_case.setdefault(timing.case, []).append(timing)
    if not by_case:
        notes.append(f"node {node.number}: the machine was too busy to measure it again")
        return None, took
    searched = [_figure(timings, False) for timings in by_case.values()]
    gain = combined([(figure.speedup, 1.0) for figure in searched])
    return RunOutcome(node.number, gain, "", figures=(*searched, *figures)), took


def _figure(timings: Sequence[CaseTiming], held_out: bool) -> CaseFigure:
    """Figure of one case from its measurements, each in a separate process; held-out cases have
    one."""
    intervals = [(t.speedup, 1.0) for t in timings if t.speedup is not None]
    last = timings[-1]
    speedup = intervals[0][0] if held_out else combined(intervals)
    return CaseFigure(
        last.case, held_out, speedup, last.candidate_us or 0.0, last.baseline_us or 0.0
    )
