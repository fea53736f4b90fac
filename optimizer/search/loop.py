"""The loop: diagnose, retrieve, compose, propose, evaluate, remember, until there is enough.

One universal operator makes every candidate; what differs is who proposes. All randomness comes
from the run's seed and the number of the node to come, so the same evaluations give the same tree.
Where the bench measures several at once, as many are proposed one after another, each seeing those
before it without a verdict, and become rows in that order when all are done: which of them was done
first changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kb import telemetry
from optimizer.evaluation.records import Evaluation
from optimizer.search.confirm import last_seconds
from optimizer.search.evaluate import Bench, evaluate_all
from optimizer.search.goal import Goal, reason_to_stop
from optimizer.search.knowledge import KnowledgeSource, NoKnowledge
from optimizer.search.propose import SILENT_IN_A_ROW, Proposer, Task, without_evaluation
from optimizer.search.records import IN_FLIGHT, REFERENCE, Node, Proposal
from optimizer.search.store import RunRow, RunStore
from optimizer.search.synthesizers.base import (
    Asking,
    Context,
    HardwareView,
    ProblemView,
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
        task = Task(self.row.id, self.goal, self.problem, self.hardware)
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

    def first_context(self) -> Context:
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
