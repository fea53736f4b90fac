"""Proposes a kernel of its own for any problem whose graph can be traced and lowered.

From the reference it proposes the kernel as it is written first; from one of its own, the same with
one choice of the compiler changed. Where a graph cannot be lowered, the log says which operator is
missing, and nothing is proposed. Deterministic in the context and the installed torch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from optimizer.evaluation.abi import Signature
from optimizer.evaluation.bundle import Bundle
from optimizer.search.records import REFERENCE, Node, Proposal, Value
from optimizer.search.synthesizers.base import CaseView, Context, ProblemView
from optimizer.search.synthesizers.traced.cpp import written
from optimizer.search.synthesizers.traced.graph import NotTraced, trace
from optimizer.search.synthesizers.traced.lowering import Lowering, NotLowered
from optimizer.search.synthesizers.traced.operators import OPERATORS
from optimizer.search.synthesizers.traced.program import Program

NAME = "traced"
LANGUAGE = "cpp"
FILE = "kernel.cpp"
ENTRY = "kernlore_run"
# Choices of the C++ toolchain (its VARIANTS) that change how these loops are compiled.
START: Mapping[str, Value] = {"prefer_vector_width": "512", "unroll_loops": False}
OTHERS: Mapping[str, tuple[Value, ...]] = {
    "prefer_vector_width": ("256", "512"),
    "unroll_loops": (True, False),
}
_log = logging.getLogger(__name__)


class TracedSynthesizer:
    """Writes C++ for the CPU."""

    name = NAME
    first_tries = 1

    def __init__(self) -> None:
        self._kernels: dict[str, tuple[str, tuple[str, ...]]] = {}

    def propose(self, context: Context) -> Proposal | None:
        """The next kernel; None where the graph cannot be lowered, a case's dtypes are not known,
        or nothing is left to change."""
        if context.hardware.device != "cpu" or LANGUAGE not in context.hardware.languages:
            return None
        text, cases = self._kernel(context.problem)
        if not text:
            return None
        tried = {_key(n.proposal.values) for n in context.tried if n.proposal and _own(n)}
        for plan, values in _choices(context.parent):
            if _key(values) not in tried:
                bundle = Bundle({FILE: text}, FILE, LANGUAGE, ENTRY, dict(values), "recipe")
                return Proposal(
                    bundle=bundle,
                    synthesizer=NAME,
                    parent=context.parent.number,
                    plan=plan,
                    values=dict(values),
                    cases=cases,
                )
        return None

    def _kernel(self, problem: ProblemView) -> tuple[str, tuple[str, ...]]:
        """The source and the cases that it serves; empty where there is none."""
        if problem.name not in self._kernels:
            programs: list[tuple[Signature, Program]] = []
            served = []
            for case in problem.cases:
                program = lowered(case)
                if isinstance(program, str):
                    _log.info(
                        "no kernel of its own for %s, %s: %s", problem.name, case.name, program
                    )
                    if case is problem.main:
                        break
                    continue
                served.append(case.name)
                if all(signature != case.signature for signature, _ in programs):
                    programs.append((case.signature, program))
            whole = problem.main.name in served
            text = written(programs) if whole else ""
            self._kernels[problem.name] = (text, tuple(served) if whole else ())
        return self._kernels[problem.name]


def lowered(case: CaseView) -> Program | str:
    """The program of a case, or why there is none."""
    traced = trace(case.source, case.dtype)
    if isinstance(traced, NotTraced):
        return f"it was not traced: {traced.reason}"
    try:
        return Lowering(traced.graph, case.signature, OPERATORS).program()
    except NotLowered as problem:
        return f"it is not lowered: {problem}"


def _choices(parent: Node) -> Iterator[tuple[str, Mapping[str, Value]]]:
    if parent.number == REFERENCE:
        yield "Write the traced graph as loops, with rows worked on to the end.", START
    elif _own(parent) and parent.proposal is not None:
        for name, values in OTHERS.items():
            for value in values:
                if parent.proposal.values.get(name) != value:
                    changed = {**parent.proposal.values, name: value}
                    yield f"Compile the same loops with {name} = {value}.", changed


def _own(node: Node) -> bool:
    return node.proposal is not None and node.proposal.synthesizer == NAME


def _key(values: Mapping[str, Value]) -> frozenset[tuple[str, str]]:
    return frozenset((name, str(value)) for name, value in values.items())
