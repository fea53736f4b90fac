"""Evaluates candidates, several side by side where the bench can, and tries again what failed for
reasons outside the kernels. A stored run can stand in for the bench.

Only the calling thread talks to the listener; the others measure. They are daemons: a run that is
ended while they measure does not wait for them (leaving the bench ends their processes).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kb import telemetry
from kb.errors import KernloreError, NotFound, Unavailable
from optimizer.evaluation.records import BRIEFLY, Evaluation
from optimizer.search.records import REFERENCE, Node, NodeState, Proposal

ATTEMPTS = 3  # of one evaluation, where the machine or the infrastructure failed
Log = Callable[[str], None]


class Bench(Protocol):
    """Measures candidates. `at_once` threads may call it at the same time."""

    @property
    def at_once(self) -> int:
        """How many evaluations run side by side without disturbing each other: devices of the
        target, or runs of a simulator whose time is not wall time."""
        ...

    def reference(self) -> Evaluation:
        """Evaluate the problem's own reference; its verdict says what bounds it."""
        ...

    def evaluate(self, proposal: Proposal) -> Evaluation:
        """Evaluate a candidate. Raises KernloreError or OSError where the infrastructure failed."""
        ...


def evaluate_with_retries(bench: Bench, node: Node, log: Log, seconds: Callable[[], float]) -> Node:
    """The node with its evaluation, tried up to ATTEMPTS times where the machine was busy (once,
    where it is timed briefly) or the infrastructure broke.

    `log` takes a message for each failure; `seconds` is the clock of the run, in seconds since it
    began.
    """
    assert node.proposal is not None
    about: dict[str, telemetry.Value] = {
        "kernlore.node": node.number,
        "kernlore.proposer": node.proposal.synthesizer,
    }
    with telemetry.span("node: evaluate", about):
        evaluated = _evaluated(bench, node, log, seconds)
        telemetry.describe({"kernlore.verdict": evaluated.verdict})
    return evaluated


def _evaluated(bench: Bench, node: Node, log: Log, seconds: Callable[[], float]) -> Node:
    assert node.proposal is not None
    problem = ""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            evaluation = bench.evaluate(node.proposal)
        except (KernloreError, OSError) as error:
            problem = str(error)
            log(f"node {node.number}: {problem}; trying again")
            continue
        state: NodeState = "evaluated"
        if evaluation.correct and evaluation.timing == "repeat":
            state = "unmeasured"
        last = attempt == ATTEMPTS or BRIEFLY in evaluation.notes
        if state == "evaluated" or last:
            node = replace(node, state=state, evaluation=evaluation, attempts=attempt)
            return replace(node, at=seconds())
    return replace(node, state="failed", attempts=ATTEMPTS, problem=problem, at=seconds())


@dataclass(frozen=True)
class _Raised:
    """An exception that ends the run, from a thread that measured."""

    error: BaseException


def evaluate_all(
    bench: Bench, nodes: Sequence[Node], log: Log, seconds: Callable[[], float]
) -> list[Node]:
    """Evaluate nodes, each in a thread of its own, and return them in their order. A single node
    stays in the calling thread."""
    if len(nodes) < 2:
        return [evaluate_with_retries(bench, node, log, seconds) for node in nodes]
    messages: queue.SimpleQueue[Node | str | _Raised] = queue.SimpleQueue()

    def measure(node: Node) -> None:
        try:
            messages.put(evaluate_with_retries(bench, node, messages.put, seconds))
        except BaseException as error:  # carried over to the thread that waits
            messages.put(_Raised(error))

    for node in nodes:
        name = f"evaluate-{node.number}"
        measuring = telemetry.carried(measure)
        threading.Thread(target=measuring, args=(node,), name=name, daemon=True).start()
    done: dict[int, Node] = {}
    while len(done) < len(nodes):
        message = messages.get()
        if isinstance(message, _Raised):
            raise message.error
        if isinstance(message, str):
            log(message)
        else:
            done[message.number] = message
    return [done[node.number] for node in nodes]


class ReplayBench:
    """A bench that answers from the stored evaluations of a run instead of a device: with the same
    goal and seed the search gives the same tree again."""

    at_once: int

    def __init__(self, nodes: Iterable[Node], at_once: int = 1) -> None:
        """`at_once` is how many candidates the run's bench evaluated side by side."""
        self.at_once = at_once
        self._reference: Evaluation | None = None
        self._nodes: dict[str, Node] = {}
        for node in nodes:
            if node.number == REFERENCE:
                self._reference = node.evaluation
            elif node.proposal is not None and node.state != "duplicate":
                self._nodes[node.proposal.bundle.sha256] = node

    def reference(self) -> Evaluation:
        """The stored evaluation of the reference. Raises NotFound."""
        if self._reference is None:
            raise _absent("its reference")
        return self._reference

    def evaluate(self, proposal: Proposal) -> Evaluation:
        """The stored evaluation of the same bundle. Raises NotFound for a bundle that the run never
        had, Unavailable where the run's own evaluation failed."""
        node = self._nodes.get(proposal.bundle.sha256)
        if node is None:
            raise _absent(f"bundle {proposal.bundle.sha256[:12]}")
        if node.evaluation is None:
            raise Unavailable(node.problem, hint="The run had no result for it either.")
        return node.evaluation


def _absent(what: str) -> NotFound:
    return NotFound(
        f"the run has no evaluation of {what}",
        hint="Replay with the goal, the seed and the proposers of the run itself.",
    )
