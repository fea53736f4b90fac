"""The exploits that harnesses have fallen for and what stands against each here, as data.

A row of kind `candidate` is about what a kernel does: it has an exploit that wins while its defence
is off (`EvaluationSettings.without`) and is caught with it on. A row of kind `property` is about
problems, figures or the harness, and has a check instead (`properties`). Changes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["candidate", "property"]


@dataclass(frozen=True)
class Defence:
    """defence: what is done; where: the module that does it. without: what the switch re-opens,
    for candidates."""

    number: int
    title: str
    kind: Kind
    defence: str
    where: str
    without: str = ""
    needs_gpu: bool = False


def _candidate(
    number: int, title: str, defence: str, where: str, without: str, needs_gpu: bool = False
) -> Defence:
    return Defence(number, title, "candidate", defence, where, without, needs_gpu)


def _property(number: int, title: str, defence: str, where: str) -> Defence:
    return Defence(number, title, "property", defence, where)


_ROWS = (
    _candidate(
        1,
        "work on a side stream that events miss",
        "the whole device is idle before a call ends on the supervisor's wall; time outside the "
        "timed calls is compared with the reference's",
        "evaluation/timing.py, runner/clocks.py",
        "the two clocks are not compared",
        needs_gpu=True,
    ),
    _candidate(
        2,
        "work in a background thread",
        "outputs are taken at once after the call; threads are counted; the supervisor's wall",
        "runner/serve.py, evaluation/timing.py",
        "outputs are taken once every thread has ended; threads and walls are not looked at",
    ),
    _candidate(
        3,
        "a tensor subclass that computes when it is compared",
        "outputs are exactly torch.Tensor, with memory behind them",
        "runner/outputs.py",
        "any subclass of torch.Tensor is an output, and walls are not looked at",
    ),
    _candidate(
        4,
        "replaced timers and comparison functions",
        "clocks are kept from before the candidate was imported, compared with what stands there "
        "after its calls, and with the supervisor's wall",
        "runner/clocks.py, evaluation/timing.py",
        "the timer is looked up at each call and believed",
    ),
    _candidate(
        5,
        "stale memory that holds the reference's result",
        "the reference runs in another process; what the allocator hands out holds a pattern",
        "evaluation/subject.py, runner/serve.py",
        "the right result lies in memory that was freed just before the call",
    ),
    _candidate(
        6,
        "inputs changed so that the reference agrees",
        "inputs and weights are compared bitwise after the call with the supervisor's own copy",
        "evaluation/correctness.py, evaluation/subject.py",
        "the reference gets the inputs as the candidate leaves them",
    ),
    _candidate(
        7,
        "results kept by address",
        "fresh values in the same buffers before every timed call",
        "runner/fresh.py",
        "every timed call sees the same values",
    ),
    _candidate(
        8,
        "results kept by a fingerprint of the inputs, packed weights",
        "fresh random stretches of inputs and weights before every timed call",
        "runner/fresh.py",
        "every timed call sees the same values",
    ),
    _candidate(
        9,
        "one call in fifteen does the work",
        "blocks of random length; the outputs of the last call are compared",
        "evaluation/timing.py, runner/serve.py",
        "fifteen calls in every block, and the first one's outputs are compared",
    ),
    _candidate(
        10,
        "right during warm-up only",
        "outputs are compared after every timed block too",
        "evaluation/timing.py",
        "correctness is looked at before timing only",
    ),
    _candidate(
        11,
        "the expected output taken from memory",
        "expected outputs are never in the candidate's process; no searching for objects or frames",
        "evaluation/prepared.py, evaluation/source_rules.py",
        "the expected outputs lie in the runner's memory",
    ),
    _candidate(
        12,
        "a forged result",
        "messages carry a nonce, a block answers for exactly the calls it was given, exit handlers "
        "do not run, printed text is no result",
        "runner/wire.py, evaluation/subject.py",
        "a verdict is taken from whoever writes one into the channel",
    ),
    _candidate(
        13,
        "a detour inside the harness's process",
        "processor time by the kernel's account and the supervisor's wall around each block",
        "evaluation/timing.py, isolation",
        "what the runner says of its time is believed",
    ),
    _candidate(
        14,
        "falls back to the library, or inherits the reference",
        "read from the syntax tree",
        "evaluation/source_rules.py",
        "the source is not read",
    ),
    _candidate(
        15,
        "passes the work to a library",
        "where the problem forbids it: the dispatcher's log of what really ran",
        "runner/trace.py, evaluation/correctness.py",
        "nobody looks which operators ran",
    ),
    _candidate(
        16,
        "lower precision inside",
        "the error against a float64 golden beside the reference's own; several distributions",
        "evaluation/bounds.py",
        "one hundredth of the output's size is allowed",
    ),
    _property(
        17,
        "zeros or a constant within the tolerance",
        "bounds relative to the output's size; a case that a control passes is invalid",
        "problem/check.py",
    ),
    _property(
        18,
        "the task collapses",
        "a case with a constant output, or one that ignores an input or weight, is invalid",
        "problem/check.py",
    ),
    _candidate(
        19,
        "one shape hard-coded",
        "every case is checked, odd sizes and held-out ones too, and every element of each output",
        "evaluation/attempt.py",
        "only the first case is checked",
    ),
    _candidate(
        20,
        "NaN that counts as equal",
        "NaN only where the reference has it",
        "evaluation/bounds.py",
        "NaN equals anything",
    ),
    _candidate(
        21,
        "inputs kept in the last-level cache",
        "the cache is overwritten and persisting lines are reset before each call",
        "runner/clocks.py",
        "persisting lines are left as they are",
        needs_gpu=True,
    ),
    _candidate(
        22,
        "a launch that fails and leaves what was there",
        "shared memory is checked against the limit at compile time; memory holds a pattern",
        "toolchains/triton_child.py, evaluation/subject.py",
        "the right result lies in memory that was freed just before the call",
        needs_gpu=True,
    ),
    _property(
        23,
        "tricks with means and missing results",
        "a failed candidate has no figure; times are positive; every mean has its n",
        "evaluation/statistics.py, evaluation/evaluator.py",
    ),
    _candidate(
        24,
        "results of an earlier run read from a file",
        "nothing can be written outside a scratch folder that is deleted; seeds are drawn anew",
        "runner/confine.py, evaluation/evaluator.py",
        "files can be written anywhere, and every run has the same seeds",
    ),
    _property(
        25,
        "shapes too small to time, values that hide errors",
        "a case below the least work is named; shipped problems have several distributions",
        "problem/check.py",
    ),
    _property(
        26,
        "a baseline that moved",
        "the reference is part of every key and is timed again beside every candidate",
        "evaluation/evaluator.py, evaluation/timing.py",
    ),
    _property(
        27,
        "noise sold as gain",
        "blocks alternate, intervals hold what two processes of the same code differ by,"
        " and no gain is claimed inside one",
        "evaluation/timing.py, evaluation/statistics.py",
    ),
    _property(
        28,
        "the best of many on the shapes that were searched",
        "held-out cases and fresh seeds that no search sees",
        "problem/spec.py, evaluation/evaluator.py",
    ),
    _property(
        29,
        "faster than the hardware",
        "times below what bytes and operations need are refused; ten times is shown to a person",
        "evaluation/physics.py",
    ),
    _candidate(
        30,
        "right once, by luck",
        "every value is computed twice; every block is compared",
        "evaluation/correctness.py",
        "one call for each value",
    ),
)
DEFENCES: Mapping[int, Defence] = {row.number: row for row in _ROWS}
CANDIDATES = tuple(row for row in _ROWS if row.kind == "candidate")
PROPERTIES = tuple(row for row in _ROWS if row.kind == "property")
