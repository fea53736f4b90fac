"""The loop: diagnose, retrieve, compose, propose, evaluate, remember, until there is enough.

One universal operator makes every candidate; what differs is who proposes. All randomness comes
from the run's seed and the number of the node to come, so the same evaluations give the same tree.
Where the bench measures several at once, as many are proposed one after another, each seeing those
before it without a verdict, and become rows in that order when all are done: which of them was done
first changes nothing.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kb import telemetry
from kb.errors import KernloreError, NotFound, Unavailable
from optimizer.evaluation.records import BRIEFLY, Evaluation
from optimizer.search.confirm import UNTRIED, last_seconds
from optimizer.search.goal import Goal, minutes_are_over, reason_to_stop
from optimizer.search.knowledge import KnowledgeSource, NoKnowledge
from optimizer.search.propose import (
    NOTHING_LEFT,
    SILENT_IN_A_ROW,
    Proposer,
    SearchTask,
    without_evaluation,
)
from optimizer.search.records import IN_FLIGHT, REFERENCE, Node, NodeState, Proposal
from optimizer.search.store import RunRow, RunStore
from optimizer.search.synthesizers.base import (
    Asking,
    HardwareView,
    ProblemView,
    ProposalContext,
    ProposalFailed,
    SaysWhy,
    Synthesizer,
)
from optimizer.search.tree import Tree

FAILED_IN_A_ROW = 5  # nodes after which the infrastructure is given up
CANCELLED = "it was cancelled"
INTERRUPTED = "it was interrupted; `kernlore runs resume` goes on with it"
GIVEN_UP = f"{FAILED_IN_A_ROW} evaluations in a row failed for reasons outside the kernels"

__all__ = ["CANCELLED", "GIVEN_UP", "SILENT_IN_A_ROW", "Bench", "Listener", "Search"]


class Listener(Protocol):
    """Follows a run. One thread calls it; whatever it raises ends the run."""

    def node(self, node: Node, tree: Tree) -> None:
        """A node was stored; it is in the tree already."""
        ...

    def asking(self, asking: Asking) -> None:
        """A model is being asked; called at once and then about every second."""
        ...

    def log(self, message: str) -> None:
        """A message for the user, for example that a proposer failed."""
        ...


@dataclass
class Search:
    """One run: `row` is its stored row and holds its goal. `inherited` are stored winners of
    earlier runs, which are tried first. `clock` is in seconds. `spent` are seconds that
    getting ready took: the minutes of the goal include them. `measured` is the reference's
    evaluation where it is known already."""

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
        """Seconds since the run began, without the time between a crash and its continuation."""
        return self._before + self.clock() - self._began

    def run(self) -> RunRow:
        """Search until the goal is reached or a budget is spent; returns the run's row as it is
        then. A run that was killed continues.

        The state `finished` is not stored here but by the code that confirms the winner: a run that
        is killed before that goes on. One that is interrupted is stored as cancelled. `failed` is
        one whose machine or whose models do not answer; it can be continued.
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
        """The next `count` candidates, to be evaluated elsewhere: in flight, and not stored. Also
        why there are fewer, empty where there are as many.
        """
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
        """Why the run ends; None while it goes on. Nodes in flight count for every budget."""
        if self.store.cancelled(self.row.id):
            return CANCELLED
        # Those of an earlier process do not count: the machine may have been mended since.
        own = tree.nodes[self._known :]
        failed = [node.state == "failed" for node in own[-FAILED_IN_A_ROW:]]
        if len(failed) == FAILED_IN_A_ROW and all(failed):
            return GIVEN_UP
        counted = [node for node in tree if node.state != "failed"]
        reserve = last_seconds(tree) if self.goal.minutes is not None else 0.0
        return reason_to_stop(self.goal, counted, self.seconds + self.spent, reserve)

    def first_context(self) -> ProposalContext:
        """What the next candidate from the reference is made from."""
        return self._proposer.context(self.tree, REFERENCE)

    def left(self) -> float:
        """Seconds that the goal leaves; negative where its minutes are over."""
        minutes = self.goal.minutes
        return math.inf if minutes is None else 60 * minutes - self.seconds - self.spent

    # -- one batch after another

    def _warm_start(self) -> str | None:
        """Stored winners first; those that are in the tree already were before a crash. Once the
        search itself has begun there are none to come: its own winners are stored by then too."""
        done = [node.number for node in self.tree if node.inherited]
        if len(self.tree) > len(done) + 1:
            return None
        waiting = list(self.inherited)
        if done:  # what was measured since may have changed their order
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
        """How many of the last batch a crash cut off."""
        last = self.tree.nodes[-1]
        return last.batch[1] - last.number if last.batch is not None else 0

    def _cut_batch(self) -> str | None:
        """The rest of a batch of which a crash left the first rows: proposed as it was, without
        their verdicts."""
        last = self.tree.nodes[-1]
        if last.inherited or last.batch is None or not self._owed:
            return None
        first = last.batch[0]
        view = Tree([*self.tree.nodes[:first], *map(without_evaluation, self.tree.nodes[first:])])
        return self._filled(view, self._owed, first)

    def _step(self) -> str | None:
        """As many candidates as are evaluated at once; a reason where none can be made any more."""
        return self._filled(Tree(self.tree), self.bench.at_once, len(self.tree))

    def _filled(self, view: Tree, count: int, first: int) -> str | None:
        """Propose and evaluate `count` candidates; returns why the run ends, or None.

        `view` is the tree with the nodes in flight; `first` is the number of the batch's first
        node. A reason is final only where nothing was in flight: a node in flight may open the way,
        or be what the reason is about.
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
        """Rows in the order of their numbers, once all of them are measured."""
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


# -- evaluate: Evaluates candidates, several side by side where the bench can, and tries again wha

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


# -- untried: Why a search tried nothing: no proposer has a candidate, or its time was over before

SHORTEST = 1.0  # seconds: what took less is not mentioned


@dataclass
class Stages:
    """Seconds of each stage of getting ready, in the order in which they ended."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = 0.0

    def __post_init__(self) -> None:
        self._last = self.clock()

    def ended(self, stage: str) -> None:
        """What was done since the last stage ended was this one."""
        now = self.clock()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    @property
    def total(self) -> float:
        """Seconds of all of them."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class UnusedProposer:
    """A proposer that the goal leaves out, and what would bring it in."""

    synthesizer: Synthesizer
    remedy: str


def why_untried(
    search: Search,
    ended: str,
    stages: Mapping[str, float],
    left_out: Callable[[], Sequence[UnusedProposer]] = tuple,
) -> str:
    """The reason to give for a search that ended, for the reason `ended`, without a candidate.

    `stages` are seconds of getting ready. `left_out` is called, and its proposers are asked, only
    where no candidate exists.
    """
    if minutes_are_over(search.goal, ended):
        return f"{UNTRIED}: {_no_time(search, stages)}"
    if ended != NOTHING_LEFT:
        return UNTRIED
    asked = "; ".join(_nothing_of(synthesizer) for synthesizer in search.synthesizers)
    context = search.first_context()
    others = [other for other in left_out() if _has_one(other.synthesizer, context)]
    brings = [f"{o.synthesizer.name}, which was not asked, has one: {o.remedy}" for o in others]
    brings.append(
        "a language model (--models) or a proposer of your own (POST /runs) can write one"
    )
    return f"{UNTRIED}: no candidate exists. Asked: {asked or 'nobody'}. " + "; ".join(brings)


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
    why = synthesizer.nothing_because if isinstance(synthesizer, SaysWhy) else ""
    return f"{synthesizer.name} ({why})" if why else synthesizer.name


def _has_one(synthesizer: Synthesizer, context: ProposalContext) -> bool:
    try:
        return synthesizer.propose(context) is not None
    except ProposalFailed:
        return False
