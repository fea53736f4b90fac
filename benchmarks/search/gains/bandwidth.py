"""How near to the measured copy bandwidth a winner comes, where memory binds it."""

from __future__ import annotations

from dataclasses import dataclass

from kb.problem_terms import op_family
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.collectors.work import READS_A_PART, achieved, work_of
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.problem.tensors import open_case
from optimizer.search.confirm import Outcome


@dataclass(frozen=True)
class Share:
    """A measured case of a winner, in percent.

    copy: compulsory bytes over the time, over the copy bandwidth at the largest footprint. mix: the
    least time at the measured rates of the case's own footprint and mix of reads and writes, over
    the time. bound: whether that least time is longer than the one by arithmetic.
    """

    case: str
    copy: float
    mix: float
    bound: bool


def reads_a_part(problem: Problem) -> bool:
    """Then nobody knows the bytes that are really needed, and there is no share."""
    return op_family(problem.op) in READS_A_PART


def shares_of(problem: Problem, outcome: Outcome, ceilings: Ceilings) -> tuple[Share, ...]:
    """Of the winner's searched cases, the first one first; empty where none can be told: without a
    winner, where a part of the inputs is read, and by ceilings of a busy machine.

    Shapes and operations come from tensors without memory for cases of another device's size.
    """
    if outcome.node is None or reads_a_part(problem) or not ceilings.trusted:
        return ()
    cases = {case.name: case for case in problem.searched}
    shares = []
    for figure in outcome.figures:
        if figure.held_out or figure.case not in cases or not figure.candidate_us:
            continue
        work = work_of(open_case(problem, cases[figure.case]))
        seconds = figure.candidate_us * 1e-6
        rates = achieved(work, seconds, ceilings)
        if rates.bandwidth_pct is None:
            continue
        copy = 100 * work.compulsory_bytes / seconds / ceilings.copy_bandwidth
        shares.append(Share(figure.case, copy, rates.bandwidth_pct, rates.limit == "bytes"))
    return tuple(shares)
