"""A search over a table of results instead of a device: the loop is replayed on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kb.answers import SignalFinding
from kb.errors import NotFound, Unavailable
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import Evaluation, EvaluationVerdict, Interval
from optimizer.search.goal import Goal
from optimizer.search.knowledge import ShownKnowledge, ShownMove
from optimizer.search.loop import Search
from optimizer.search.records import REFERENCE, Node, Proposal
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import (
    CaseView,
    HardwareView,
    ModelCall,
    ProblemView,
    ProposalContext,
    ProposalFailed,
    Synthesizer,
)
from optimizer.search.tree import Tree
from retrieval.request import RetrieveRequest
from tests.evaluations import RIGHT

VIEW = ProblemView(
    "hill",
    "softmax",
    "",
    "",
    (
        CaseView(
            "main",
            Signature(
                (
                    TensorSpec("x", "input", "float32", (64, 128)),
                    TensorSpec("output0", "output", "float32", (64, 128)),
                )
            ),
            {},
            True,
            "float32",
        ),
    ),
    {},
)
HARDWARE = HardwareView("x86-64", ("x86-64",), "cpu", ("cpp",), {"l1d_size": 32768})


def evaluation(bundle: Bundle | None, value: float | None, validity: str = "correct") -> Evaluation:
    """A result as the harness records it."""
    speedup = None if value is None else Interval(value, value * 0.98, value * 1.02, 12)
    return replace(
        RIGHT,
        key=f"key-{bundle.sha256 if bundle else 'reference'}",
        problem="hill",
        candidate=bundle.sha256 if bundle else "reference",
        validity=validity,  # type: ignore[arg-type]
        timing="measured" if speedup else "none",
        reached="benchmark",
        speedup=speedup,
        verdict=EvaluationVerdict((SignalFinding("memory_bound", "B"),)),
    )


def hill(proposal: Proposal) -> float:
    """Fastest at x = 7: every step towards it is a gain."""
    return 1.0 + 1.0 / (1 + abs(7 - int(proposal.values["x"])))


@dataclass
class TableBench:
    """Answers from a function; counts requests; fails on given ones. delay: seconds of an
    evaluation. most: the largest number of concurrent ones.
    """

    value: Callable[[Proposal], float] = hill
    fail: Callable[[int], bool] = lambda call: False
    requests: list[str] = field(default_factory=list)
    at_once: int = 1
    delay: Callable[[], float] = lambda: 0.0
    most: int = 0
    _running: int = 0
    _counting: threading.Lock = field(default_factory=threading.Lock)  # protects the three above

    def reference(self) -> Evaluation:
        return evaluation(None, None)

    def evaluate(self, proposal: Proposal) -> Evaluation:
        with self._counting:
            self.requests.append(proposal.bundle.sha256)
            call = len(self.requests)
            self._running += 1
            self.most = max(self.most, self._running)
        try:
            time.sleep(self.delay())
            if self.fail(call):
                raise OSError("the device is gone")
            return evaluation(proposal.bundle, self.value(proposal))
        finally:
            with self._counting:
                self._running -= 1


class Steps:
    """Changes x by one, upwards first; None when both neighbours were tried."""

    name = "steps"
    first_tries = 1

    def propose(self, context: ProposalContext) -> Proposal | None:
        parent = context.parent.proposal
        x = int(parent.values["x"]) if parent else 0
        tried = {n.proposal.values["x"] for n in context.tried if n.proposal is not None}
        for value in (x + 1, x - 1):
            if value not in tried:
                return proposal(value, context.parent.number)
        return None


class EmptyProposer:
    """Never proposes anything."""

    name = "nonsense"
    first_tries = 1

    def propose(self, context: ProposalContext) -> Proposal | None:
        raise ProposalFailed("it said nothing of use")


def proposal(x: int, parent: int) -> Proposal:
    bundle = Bundle({"k.cpp": f"// {x}"}, "k.cpp", "cpp", "run", {"x": x}, "recipe")
    return Proposal(bundle, "steps", parent, f"x = {x}", values={"x": x})


class RecordingListener:
    """Records its calls."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.messages: list[str] = []

    def node(self, node: Node, tree: Tree) -> None:
        self.nodes.append(node)

    def asking(self, asking: ModelCall) -> None: ...

    def log(self, message: str) -> None:
        self.messages.append(message)


class Moves:
    """Knowledge with one move; records requests and reports."""

    def __init__(self, *moves: ShownMove) -> None:
        self.moves = moves
        self.requests: list[RetrieveRequest] = []
        self.reported: list[tuple[str, tuple[str, ...]]] = []

    def consult(self, request: RetrieveRequest) -> ShownKnowledge:
        self.requests.append(request)
        return ShownKnowledge(f"ret_{request.node_id}", moves=self.moves)

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Node) -> None:
        self.reported.append((retrieval_id, used))


def search(
    folder: Path,
    goal: Goal,
    bench: TableBench | None = None,
    synthesizers: tuple[Synthesizer, ...] | None = None,
    knowledge: Moves | None = None,
    name: str = "run_1",
) -> Search:
    """Over a file store in this folder; an existing run is resumed."""
    store = FileStore(folder)
    run = RunRow(name, "hill", "0" * 64, "x86-64", goal)
    if (folder / name / "run.json").exists():
        run = store.run(name)
    else:
        store.begin(run)
    return Search(
        run,
        store,
        bench or TableBench(),
        synthesizers or (Steps(),),
        knowledge or Moves(),
        VIEW,
        HARDWARE,
        RecordingListener(),
    )


class ReplayBench:
    """A bench that answers from the stored evaluations of a run instead of a device: with the same
    goal and seed the search gives the same tree.
    """

    at_once: int

    def __init__(self, nodes: Iterable[Node], at_once: int = 1) -> None:
        """`at_once`: the number of candidates that the run's bench evaluated concurrently."""
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
        """The stored evaluation of the same bundle. Raises NotFound for a bundle that the run
        lacks, Unavailable if the run's evaluation failed.
        """
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
