"""The search loop: propose candidates, evaluate them, store the nodes, until the goal ends the run.

All randomness comes from the run's seed and the number of the next node, so equal evaluations give
an equal tree. A bench that measures several candidates at once gets a batch: they are proposed one
after another, each knowing the earlier ones without their verdict, and stored in that order when
all are evaluated, whichever finished first.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from kb import telemetry
from kb.errors import KernloreError
from optimizer.evaluation.records import BRIEFLY, Evaluation
from optimizer.search.confirm import UNTRIED, last_seconds
from optimizer.search.goal import Goal, minutes_are_over, reason_to_stop
from optimizer.search.knowledge import KnowledgeSource, NoKnowledge
from optimizer.search.propose import NOTHING_LEFT, Proposer, SearchTask, without_evaluation
from optimizer.search.records import IN_FLIGHT, REFERENCE, Node, NodeState, Proposal
from optimizer.search.store import RunRow, RunStore
from optimizer.search.synthesizers.base import (
    ExplainsAbsence,
    HardwareView,
    ModelCall,
    ProblemView,
    ProposalContext,
    ProposalFailed,
    Synthesizer,
)
from optimizer.search.tree import Tree

ATTEMPTS = 3  # at one evaluation, where the machine or the infrastructure failed
FAILED_IN_A_ROW = 5  # nodes after which the run ends
SHORTEST = 1.0  # seconds; shorter stages of the preparation are not mentioned
CANCELLED = "it was cancelled"
INTERRUPTED = "it was interrupted; `kernlore runs resume` continues it"
GIVEN_UP = f"{FAILED_IN_A_ROW} evaluations in a row failed for reasons outside the kernels"
Log = Callable[[str], None]


class Bench(Protocol):
    """Measures candidates. `at_once` threads may call it at the same time."""

    @property
    def at_once(self) -> int:
        """Number of evaluations that run side by side without disturbing each other."""
        ...

    def reference(self) -> Evaluation:
        """Evaluate the problem's own reference."""
        ...

    def evaluate(self, proposal: Proposal) -> Evaluation:
        """Evaluate a candidate. Raises KernloreError or OSError if the infrastructure failed."""
        ...


class Listener(Protocol):
    """Follows a run from a single thread. An exception that it raises ends the run."""

    def node(self, node: Node, tree: Tree) -> None:
        """Called after a node was stored and added to the tree."""
        ...

    def asking(self, asking: ModelCall) -> None:
        """Called when a request to a model starts, and about every second until it ends."""
        ...

    def log(self, message: str) -> None:
        """Show a message to the user, for example that a proposer failed."""
        ...


@runtime_checkable
class WorkListener(Protocol):
    """A listener that also follows the stages of a candidate."""

    def working(self, candidate: int | None, stage: str) -> None:
        """Called when a candidate enters a stage, such as `compiling`; 0 is the reference, None the
        best when it is measured again."""
        ...


@dataclass
class Search:
    """One run. `row` is its stored row with the goal. `inherited` are stored winners of earlier
    runs, which are tried first. `clock` is in seconds. `spent` are the seconds of the preparation,
    which the goal's minutes include. `measured` is the reference's evaluation, if known."""

    row: RunRow
    store: RunStore
    bench: Bench
    synthesizers: Sequence[Synthesizer]
    knowledge: KnowledgeSource
    problem: ProblemView
    hardware: HardwareView
    listener: Listener
    inherited: Sequence[Proposal] = ()
    clock: Callable[[], float] = time.monotonic
    tree: Tree = field(default_factory=Tree)
    spent: float = 0.0
    measured: Evaluation | None = None

    def __post_init__(self) -> None:
        self.goal: Goal = self.row.goal
        if not self.goal.knowledge:
            self.knowledge = NoKnowledge()
        self.tree = Tree(self.store.nodes(self.row.id))
        task = SearchTask(self.row.id, self.goal, self.problem, self.hardware)
        self._proposer = Proposer(task, self.synthesizers, self.knowledge, self.listener.log)
        self._proposer.recall(self.tree)
        self._known = len(self.tree)
        self._before = max((node.at for node in self.tree), default=0.0)
        self._began = self.clock()

    @property
    def seconds(self) -> float:
        """Seconds since the run began, without interruptions."""
        return self._before + self.clock() - self._began

    def run(self) -> RunRow:
        """Search, or continue a search that was killed, until the goal ends it; returns the row.

        The state `finished` is not stored here but after the winner is confirmed, so that a run
        that is killed before continues. An interrupted run is stored as cancelled. A run is
        `failed` if its machine or its models do not answer; it can be resumed.
        """
        try:
            ended = self._until_it_ends()
        except (KeyboardInterrupt, SystemExit):
            seconds = round(self.seconds, 3)
            row = replace(self.row, state="cancelled", ended=INTERRUPTED, seconds=seconds)
            self.store.update(row)
            raise
        failed = ended == GIVEN_UP or self._proposer.unreachable
        state = "cancelled" if ended == CANCELLED else "failed" if failed else "finished"
        self.row = replace(self.row, state=state, ended=ended, seconds=round(self.seconds, 3))
        stored = replace(self.row, state="running") if state == "finished" else self.row
        self.store.update(stored)
        return self.row

    def drafts(self, count: int) -> tuple[list[Node], str]:
        """Up to `count` candidates that are evaluated on another machine: in flight and not stored.
        Also the reason why there are fewer, or ""."""
        view = Tree(self.tree)
        for _ in range(count):
            node = self._proposer.next(view, lambda: None)
            if isinstance(node, str):
                return view.nodes[len(self.tree) :], node
            view.add(node)
        return view.nodes[len(self.tree) :], ""

    def _until_it_ends(self) -> str:
        if not len(self.tree):
            self._add(self._reference())
        ended = self._warm_start() or self._cut_batch()
        while ended is None:
            ended = self._stop(self.tree) or self._step()
        return ended

    def _reference(self) -> Node:
        with telemetry.span("node: evaluate", {"kernlore.node": REFERENCE}):
            evaluation = self.measured or self.bench.reference()
        return Node(REFERENCE, None, "evaluated", None, evaluation, at=self.seconds)

    def _stop(self, tree: Tree) -> str | None:
        """Reason to end the run, or None. Nodes in flight count for every budget."""
        if self.store.cancelled(self.row.id):
            return CANCELLED
        # Failures of an earlier process do not count: the machine may have been repaired since.
        own = tree.nodes[self._known :]
        failed = [node.state == "failed" for node in own[-FAILED_IN_A_ROW:]]
        if len(failed) == FAILED_IN_A_ROW and all(failed):
            return GIVEN_UP
        counted = [node for node in tree if node.state != "failed"]
        reserve = last_seconds(tree) if self.goal.minutes is not None else 0.0
        return reason_to_stop(self.goal, counted, self.seconds + self.spent, reserve)

    def first_context(self) -> ProposalContext:
        """Context of the next candidate from the reference."""
        return self._proposer.context(self.tree, REFERENCE)

    def left(self) -> float:
        """Seconds until the goal's minutes are over; negative after that."""
        minutes = self.goal.minutes
        return math.inf if minutes is None else 60 * minutes - self.seconds - self.spent

    # -- one batch after another

    def _warm_start(self) -> str | None:
        """Evaluate the inherited winners, except those that a process before a crash evaluated.
        Returns why the run ends, or None."""
        done = [node.number for node in self.tree if node.inherited]
        if len(self.tree) > len(done) + 1:
            return None  # the search itself has begun
        waiting = list(self.inherited)
        if done:  # later runs may have changed the order of the stored winners
            own = {node.proposal.bundle.sha256 for node in self.tree if node.proposal is not None}
            waiting = [p for p in waiting if p.bundle.sha256 not in own][: len(waiting) - len(done)]
        while waiting:
            owed = self._owed
            ended = None if owed else self._stop(self.tree)
            if ended is not None:
                return ended
            view, count = Tree(self.tree), owed or self.bench.at_once
            for proposal in waiting[:count]:
                view.add(self._proposer.create_node(view, proposal, inherited=True))
            self._insert(view.nodes[len(self.tree) :], len(self.tree))
            waiting = waiting[count:]
        return None

    @property
    def _owed(self) -> int:
        """Number of nodes that a crash cut off the last batch."""
        last = self.tree.nodes[-1]
        return last.batch[1] - last.number if last.batch is not None else 0

    def _cut_batch(self) -> str | None:
        """Complete a batch that a crash cut off; proposals do not see its stored verdicts."""
        last = self.tree.nodes[-1]
        if last.inherited or last.batch is None or not self._owed:
            return None
        first = last.batch[0]
        view = Tree([*self.tree.nodes[:first], *map(without_evaluation, self.tree.nodes[first:])])
        return self._batch(view, self._owed, first)

    def _step(self) -> str | None:
        """A batch of as many candidates as the bench evaluates at once."""
        return self._batch(Tree(self.tree), self.bench.at_once, len(self.tree))

    def _batch(self, view: Tree, count: int, first: int) -> str | None:
        """Propose and evaluate `count` candidates; returns why the run ends, or None.

        `view` is the tree with the nodes in flight; `first` is the number of the batch's first
        node. A reason ends the run only if nothing was in flight, since the result of a node in
        flight may remove it.
        """
        proposed: list[Node] = []
        ended = None
        while len(proposed) < count:
            if proposed and (ended := self._stop(view)):
                break
            with telemetry.span("node: propose", {"kernlore.node": len(view)}):
                node = self._proposer.next(view, lambda: self._stop(view))
            if isinstance(node, str):
                ended = node
                break
            proposed.append(node)
            view.add(node)
        if ended == CANCELLED or not proposed:
            return ended
        self._insert(proposed, first)
        return None

    # -- evaluate and remember

    def _insert(self, proposed: Sequence[Node], first: int) -> None:
        """Evaluate the proposed nodes and store them in the order of their numbers."""
        waiting = [node for node in proposed if node.state == IN_FLIGHT]
        evaluated = evaluate_all(self.bench, waiting, self.listener.log, lambda: self.seconds)
        measured = {node.number: node for node in evaluated}
        last = proposed[-1].number
        for node in proposed:
            node = measured.get(node.number) or replace(node, at=self.seconds)
            self._add(replace(node, batch=(first, last) if first < last else None))
            if node.shown.retrieval_id and node.state != "duplicate":
                used = node.proposal.attributed if node.proposal is not None else ()
                self.knowledge.report(node.shown.retrieval_id, used, node)

    def _add(self, node: Node) -> None:
        self.store.add(self.row.id, node)
        self.tree.add(node)
        self.listener.node(node, self.tree)


# -- evaluation


@dataclass(frozen=True)
class _Raised:
    """An exception of an evaluating thread; it ends the run."""

    error: BaseException


def evaluate_all(
    bench: Bench, nodes: Sequence[Node], log: Log, seconds: Callable[[], float]
) -> list[Node]:
    """Evaluate nodes, each in its own thread, and return them in their order. A single node is
    evaluated in the calling thread.

    `log` gets a message for each failure; `seconds` returns the seconds since the run began.
    """
    if len(nodes) < 2:
        return [_with_evaluation(bench, node, log, seconds) for node in nodes]
    messages: queue.SimpleQueue[Node | str | _Raised] = queue.SimpleQueue()

    def measure(node: Node) -> None:
        try:
            messages.put(_with_evaluation(bench, node, messages.put, seconds))
        except BaseException as error:  # raised again in the waiting thread
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


def _with_evaluation(bench: Bench, node: Node, log: Log, seconds: Callable[[], float]) -> Node:
    assert node.proposal is not None
    about: dict[str, telemetry.Value] = {
        "kernlore.node": node.number,
        "kernlore.proposer": node.proposal.synthesizer,
    }
    with telemetry.span("node: evaluate", about):
        evaluated = _with_retries(bench, node, log, seconds)
        telemetry.describe({"kernlore.verdict": evaluated.verdict})
    return evaluated


def _with_retries(bench: Bench, node: Node, log: Log, seconds: Callable[[], float]) -> Node:
    """The node with its evaluation, tried up to ATTEMPTS times if the infrastructure failed or the
    machine was busy; a briefly timed evaluation is not repeated."""
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


# -- searches without a candidate


@dataclass
class Stages:
    """Seconds of each stage of the preparation, in the order in which they ended."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    def __post_init__(self) -> None:
        self._last = self.clock()

    def ended(self, stage: str) -> None:
        """Add the time since the last stage ended to this one."""
        now = self.clock()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class UnusedProposer:
    """A proposer that the goal leaves out, and how to include it."""

    synthesizer: Synthesizer
    remedy: str


def why_untried(
    search: Search,
    ended: str,
    stages: Mapping[str, float],
    left_out: Callable[[], Sequence[UnusedProposer]] = tuple,
) -> str:
    """Reason, with the settings that the user can change, why a search that ended for `ended` has
    no candidate.

    `stages` are seconds of the preparation. `left_out` is called, and its proposers are tried, only
    if no proposer of the run has a candidate.
    """
    if minutes_are_over(search.goal, ended):
        return f"{UNTRIED}: {_no_time(search, stages)}"
    if ended != NOTHING_LEFT:
        return UNTRIED
    tried = "; ".join(_nothing_of(synthesizer) for synthesizer in search.synthesizers)
    context = search.first_context()
    others = [other for other in left_out() if _has_one(other.synthesizer, context)]
    remedies = [f"{o.synthesizer.name}, which was not tried, has one: {o.remedy}" for o in others]
    remedies.append(
        "a language model (--models) or a proposer of your own (POST /runs) can write one"
    )
    return f"{UNTRIED}: no candidate exists. Tried: {tried or 'none'}. " + "; ".join(remedies)


def _no_time(search: Search, stages: Mapping[str, float]) -> str:
    spent = dict(stages) or {"getting ready": search.spent}
    reference = search.tree.root.at if len(search.tree) else 0.0
    spent["the reference"] = spent.get("the reference", 0.0) + reference
    spent["looking for a candidate"] = search.seconds - reference
    parts = sorted(spent.items(), key=lambda part: -part[1])
    long = [f"{stage} ({seconds:.0f} s)" for stage, seconds in parts if seconds >= SHORTEST]
    went = f"; it went to {', '.join(long)}" if long else ""
    return f"the time was over before the first candidate{went}; give more (--minutes)"


def _nothing_of(synthesizer: Synthesizer) -> str:
    why = synthesizer.nothing_because if isinstance(synthesizer, ExplainsAbsence) else ""
    return f"{synthesizer.name} ({why})" if why else synthesizer.name


def _has_one(synthesizer: Synthesizer, context: ProposalContext) -> bool:
    try:
        return synthesizer.propose(context) is not None
    except ProposalFailed:
        return False
