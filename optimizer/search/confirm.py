"""Whether the winner wins: measured again on values that the search never saw.

The best of many is partly the luckiest: its figure from the search is not the one that is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from kb.errors import KernloreError
from optimizer.evaluation.records import CaseTiming, Evaluation, Interval
from optimizer.evaluation.timing.statistics import combined
from optimizer.search.records import Node, Proposal
from optimizer.search.tree import Tree

FINALISTS = 2
ROUNDS = 2  # of fresh processes for each finalist


class Confirming(Protocol):
    """A bench that measures a candidate again on values that the search never saw."""

    def confirm(self, proposal: Proposal, held_out: bool) -> Evaluation:
        """Measure on the searched timed cases, or on the held-out ones.

        Raises KernloreError or OSError where the infrastructure failed.
        """
        ...


@dataclass(frozen=True)
class Figure:
    """A case of the final measurement: its speed-up and the times of a call in microseconds.
    `held_out` is set where the search never saw the case."""

    case: str
    held_out: bool
    speedup: Interval
    candidate_us: float
    baseline_us: float


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    `node` is the number of the winner; it is None where nothing beats the reference for certain,
    then `gain` is None and `reason` says why. `inherited` is the gain of the best stored winner
    that the run started from. `notes` lists what could not be measured. `over` names the baseline
    of the gain. `measured` is False where there is no figure to say so by: nothing was tried, or
    nothing could be timed. `clock` is `wall`, `program` where a chip's own program reports the
    times, or `simulator` where the figures are ratios of simulated times.
    """

    node: int | None
    gain: Interval | None
    reason: str
    inherited: Interval | None = None
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = field(default=())
    over: str = "the reference"
    clock: str = "wall"
    measured: bool = True

    def as_json(self) -> dict[str, Any]:
        """The `result` of a stored run."""
        return asdict(self)


def confirm(
    tree: Tree, bench: Confirming, over: str = "the reference", most: int = FINALISTS
) -> Outcome:
    """The finalists measured anew; the one that is certainly fastest. over: what the bench compares
    with. most: finalists."""
    notes: list[str] = []
    best: Outcome | None = None
    chosen = finalists(tree)[:most]
    for node in chosen:
        measured = _measured(node, bench, notes)
        if measured is not None and (best is None or _low(measured) > _low(best)):
            best = measured
    inherited = max(
        (n.speedup for n in tree if n.inherited and n.speedup is not None and n.correct),
        key=lambda interval: interval.low,
        default=None,
    )
    if best is None and (reason := _not_measured(tree, chosen)):
        return Outcome(None, None, reason, inherited, (), tuple(notes), measured=False)
    if best is None or _low(best) <= 1.0:
        reason = f"no gain: no candidate is certainly faster than {over}"
        figures = best.figures if best is not None else ()
        return Outcome(None, None, reason, inherited, figures, tuple(notes))
    return Outcome(best.node, best.gain, "", inherited, best.figures, tuple(notes))


def _not_measured(tree: Tree, chosen: Sequence[Node]) -> str:
    """Why there is no figure, with what would help; empty where there is one."""
    tried = [node for node in tree if node.parent is not None]
    right = [node for node in tried if node.correct]
    if not tried:
        return (
            "nothing was tried: no recipe, skill or proposer had a candidate for this problem;"
            " a language model (--models) or a proposer of your own (POST /runs) can bring some"
        )
    if right and not any(node.speedup is not None for node in right):
        return (
            f"not measured: {len(right)} of {len(tried)} candidates are right and none could be"
            " timed; repeat it with more time (--minutes) or while the machine is idle"
        )
    if chosen:
        at = chosen[0].speedup
        return (
            f"not measured again: node {chosen[0].number} stood at {at} in the search, and the"
            " last measurement gave no figure; resume the run while the machine is idle"
        )
    return ""


def finalists(tree: Tree) -> list[Node]:
    """The FINALISTS nodes whose speed-ups in the search promise a gain, best first."""
    good = [n for n in tree if n.parent is not None and n.correct and n.speedup is not None]
    good = [n for n in good if n.speedup is not None and n.speedup.value > 1.0]
    return sorted(good, key=lambda n: (-n.merit, n.number))[:FINALISTS]


def _low(outcome: Outcome) -> float:
    return outcome.gain.low if outcome.gain is not None else 0.0


def _measured(node: Node, bench: Confirming, notes: list[str]) -> Outcome | None:
    """The searched cases in ROUNDS of fresh processes, the held-out ones once."""
    assert node.proposal is not None
    rounds: list[Sequence[CaseTiming]] = []
    figures: list[Figure] = []
    for held_out in (*[False] * ROUNDS, True):
        try:
            evaluation = bench.confirm(node.proposal, held_out)
        except (KernloreError, OSError) as problem:
            notes.append(f"node {node.number}: {problem}")
            return None
        if not evaluation.correct and held_out:
            # Instances of recipes hold numbers of the searched cases (a stride, a limit); the
            # module lets the kernel have only what was measured and right.
            notes.append(f"node {node.number} is for the searched cases only: {evaluation.message}")
            continue
        if not evaluation.correct:
            notes.append(f"node {node.number} fails on fresh values: {evaluation.message}")
            return None
        timed = [t for t in evaluation.timings if t.speedup is not None]
        if held_out:
            figures += [_figure(timing, True) for timing in timed]
        else:
            rounds.append(timed)
    by_case: dict[str, list[CaseTiming]] = {}
    for timing in (timing for timings in rounds for timing in timings):
        by_case.setdefault(timing.case, []).append(timing)
    if not by_case:
        notes.append(f"node {node.number}: the machine was too busy to measure it again")
        return None
    searched = [_joined(timings) for timings in by_case.values()]
    gain = combined([(figure.speedup, 1.0) for figure in searched])
    return Outcome(node.number, gain, "", figures=(*searched, *figures))


def _joined(timings: Sequence[CaseTiming]) -> Figure:
    """Several measurements of one case, in processes of their own."""
    intervals = [(t.speedup, 1.0) for t in timings if t.speedup is not None]
    last = timings[-1]
    return Figure(
        last.case, False, combined(intervals), last.candidate_us or 0.0, last.baseline_us or 0.0
    )


def _figure(timing: CaseTiming, held_out: bool) -> Figure:
    assert timing.speedup is not None
    return Figure(
        timing.case,
        held_out,
        timing.speedup,
        timing.candidate_us or 0.0,
        timing.baseline_us or 0.0,
    )


def outcome_from_json(result: Any) -> Outcome:
    """Read the outcome that `Outcome.as_json` wrote; an unfinished run has no winner."""
    if not result:
        return Outcome(None, None, "the run did not end")
    figures = tuple(
        Figure(**{**figure, "speedup": Interval(**figure["speedup"])})
        for figure in result["figures"]
    )
    return Outcome(
        result["node"],
        Interval(**result["gain"]) if result["gain"] else None,
        result["reason"],
        Interval(**result["inherited"]) if result["inherited"] else None,
        figures,
        tuple(result["notes"]),
        **{name: result[name] for name in ("over", "clock", "measured") if name in result},
    )
