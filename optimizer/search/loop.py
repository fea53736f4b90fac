"""The loop: diagnose, retrieve, compose, propose, evaluate, remember, until there is enough.

One universal operator makes every candidate; what differs is who proposes. All randomness comes
from the run's seed and the number of the node to come, so the same evaluations give the same tree.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kb.errors import KernloreError
from optimizer.evaluation.records import Evaluation
from optimizer.search.context import Context, HardwareView, ProblemView
from optimizer.search.goal import Goal, reason_to_stop
from optimizer.search.knowledge import Knowledge, KnowledgeSource, NoKnowledge, Query
from optimizer.search.memory import seen
from optimizer.search.policies import POLICY_OF, Policy
from optimizer.search.records import REFERENCE, Node, NodeState, Proposal, Shown
from optimizer.search.store import RunRow, RunStore
from optimizer.search.tree import Tree
from optimizer.synthesizers.base import ProposalFailed, Synthesizer

ATTEMPTS = 3  # of one evaluation, where the machine or the infrastructure failed
FAILED_IN_A_ROW = 5  # nodes after which the infrastructure is given up
SILENT_IN_A_ROW = 8  # proposals that came to nothing, after which the proposers are
CONTEXT_TOKENS = 6_000


class Bench(Protocol):
    """Measures candidates. May be asked by one thread at a time."""

    def reference(self) -> Evaluation:
        """The problem's own reference as a candidate, with its verdict."""
        ...

    def evaluate(self, bundle_of: Proposal) -> Evaluation:
        """Raises KernloreError or OSError where the infrastructure failed."""
        ...


class Listener(Protocol):
    """Is told what happens; whatever it raises ends the run."""

    def node(self, node: Node, tree: Tree) -> None: ...

    def said(self, message: str) -> None: ...


@dataclass
class Search:
    """One run. inherited: stored winners of earlier runs, tried first."""

    run: RunRow
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
    _closed: set[int] = field(default_factory=set)
    _exhausted: set[tuple[str, int]] = field(default_factory=set)
    _known: dict[int, Knowledge] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)
    _silent: int = 0

    def __post_init__(self) -> None:
        self.goal: Goal = self.run.goal
        self._policy: Policy = POLICY_OF[self.goal.policy]()
        if not self.goal.knowledge:
            self.knowledge = NoKnowledge()
        self.tree = Tree(self.store.nodes(self.run.id))
        self._before = max((node.at for node in self.tree), default=0.0)
        self._began = self.clock()

    @property
    def seconds(self) -> float:
        """Since the run began, without the time between a crash and its continuation."""
        return self._before + self.clock() - self._began

    def go(self) -> RunRow:
        """Until the goal's end; the run's row as it is then. A run that was killed continues."""
        if not len(self.tree):
            self._add(self._reference())
        ended = self._warm_start()
        while ended is None:
            ended = self._stop() or self._step()
        state = "cancelled" if ended == CANCELLED else "failed" if ended == GIVEN_UP else "finished"
        self.run = replace(self.run, state=state, ended=ended, seconds=round(self.seconds, 3))
        self.store.update(self.run)
        return self.run

    def _reference(self) -> Node:
        return Node(REFERENCE, None, "evaluated", None, self.bench.reference(), at=self.seconds)

    def _stop(self) -> str | None:
        if self.store.cancelled(self.run.id):
            return CANCELLED
        failed = [node.state == "failed" for node in self.tree.nodes[-FAILED_IN_A_ROW:]]
        if len(failed) == FAILED_IN_A_ROW and all(failed):
            return GIVEN_UP
        counted = [node for node in self.tree if node.state != "failed"]
        return reason_to_stop(self.goal, counted, self.seconds)

    def _warm_start(self) -> str | None:
        """Stored winners first; those that are in the tree already were before a crash. Once the
        search itself has begun there are none to come: its own winners are stored by then too."""
        done = sum(node.inherited for node in self.tree)
        if len(self.tree) > done + 1:
            return None
        for proposal in self.inherited[done:]:
            ended = self._stop()
            if ended is not None:
                return ended
            self._insert(proposal, Shown(), inherited=True)
        return None

    def _step(self) -> str | None:
        """One candidate; a reason where none can be made any more."""
        made = self._propose()
        if isinstance(made, str):
            return made
        self._insert(*made)
        return None

    # -- propose

    def _propose(self) -> tuple[Proposal, Shown] | str:
        """The next candidate and what it was made from, or why there is none."""
        number = len(self.tree)
        chance = random.Random(f"{self.goal.seed}:{number}")
        while True:
            parent = self._first(chance)
            if parent is None:
                return "nothing is left to try"
            context = self._context(parent)
            for synthesizer in self._order(parent):
                try:
                    proposal = synthesizer.propose(context)
                except ProposalFailed as failed:
                    self._silent += 1
                    self._failed.add(synthesizer.name)
                    self.listener.said(f"{synthesizer.name}: {failed}")
                    ended = self._stop()
                    if ended is None and self._silent >= SILENT_IN_A_ROW:
                        ended = f"{SILENT_IN_A_ROW} proposals in a row came to nothing: {failed}"
                    if ended is not None:
                        return ended
                    continue
                if proposal is not None:
                    self._silent = 0
                    return proposal, context.knowledge.shown()
                self._exhausted.add((synthesizer.name, parent))
            if all((s.name, parent) in self._exhausted for s in self.synthesizers):
                self._closed.add(parent)

    def _first(self, chance: random.Random) -> int | None:
        """The reference while somebody has first tries left, then what the policy chooses."""
        if any(self._tries_left(s) for s in self.synthesizers):
            return REFERENCE
        return self._policy.choose(self.tree, self._closed, chance)

    def _tries_left(self, synthesizer: Synthesizer) -> bool:
        if synthesizer.name in self._failed or (synthesizer.name, REFERENCE) in self._exhausted:
            return False
        made = [
            node
            for node in self.tree.children(REFERENCE)
            if node.proposal is not None and node.proposal.synthesizer == synthesizer.name
        ]
        return len(made) < synthesizer.first_tries

    def _order(self, parent: int) -> list[Synthesizer]:
        """Who is asked first: who has first tries left, then who has proposed least for what
        it brought."""
        usable = [s for s in self.synthesizers if (s.name, parent) not in self._exhausted]
        trying = [s for s in usable if parent == REFERENCE and self._tries_left(s)]
        usable = trying or usable

        def turn(synthesizer: Synthesizer) -> float:
            made = [
                node
                for node in self.tree
                if node.proposal is not None and node.proposal.synthesizer == synthesizer.name
            ]
            gains = sum(node.merit > self.tree[node.parent or 0].merit for node in made)
            return len(made) / (1 + gains)

        return sorted(usable, key=turn)

    def _context(self, parent: int) -> Context:
        node = self.tree[parent]
        if parent not in self._known:
            self._known[parent] = self.knowledge.consult(self._query(node))
        return Context(
            problem=self.problem,
            hardware=self.hardware,
            parent=node,
            seen=seen(self.tree, parent, self.goal.memory),
            best=self.tree.best,
            knowledge=self._known[parent],
            tried=self.tree.nodes[1:],
            step=len(self.tree),
            seed=self.goal.seed,
            run_id=self.run.id,
            max_tokens=CONTEXT_TOKENS,
            with_knowledge=self.goal.knowledge,
        )

    def _query(self, node: Node) -> Query:
        found = node.evaluation
        return Query(
            signals=node.signals,
            metrics=dict(found.metrics) if found else {},
            log=found.log if found and not found.correct else "",
            hardware=self.hardware.id,
            op=self.problem.op,
            language=found.language if found and node.parent is not None else self.goal.language,
            dtype=self.problem.main.dtype,
            run_id=self.run.id,
            node=node.number,
            max_tokens=CONTEXT_TOKENS,
        )

    # -- evaluate and remember

    def _insert(self, proposal: Proposal, shown: Shown, inherited: bool = False) -> None:
        number = len(self.tree)
        island = self._policy.island_of(self.tree, proposal.parent)
        node = Node(
            number, proposal.parent, "failed", proposal, None, shown, None, island, inherited
        )
        same = self.tree.same_bundle(proposal.bundle.sha256)
        if same is not None:
            self._add(replace(node, state="duplicate", same_as=same.number, at=self.seconds))
            return
        self._add(self._evaluated(node))
        if shown.retrieval_id:
            self.knowledge.report(shown.retrieval_id, proposal.attributed, self.tree[number])

    def _evaluated(self, node: Node) -> Node:
        """With its evaluation; tried again where the machine was busy or something broke."""
        assert node.proposal is not None
        problem = ""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                found = self.bench.evaluate(node.proposal)
            except (KernloreError, OSError) as error:
                problem = str(error)
                self.listener.said(f"node {node.number}: {problem}; trying again")
                continue
            state: NodeState = "evaluated"
            if found.correct and found.timing == "repeat":
                state = "unmeasured"
            if state == "evaluated" or attempt == ATTEMPTS:
                node = replace(node, state=state, evaluation=found, attempts=attempt)
                return replace(node, at=self.seconds)
        return replace(node, attempts=ATTEMPTS, problem=problem, at=self.seconds)

    def _add(self, node: Node) -> None:
        self.store.add(self.run.id, node)
        self.tree.add(node)
        self.listener.node(node, self.tree)


CANCELLED = "it was cancelled"
GIVEN_UP = f"{FAILED_IN_A_ROW} evaluations in a row failed for reasons outside the kernels"
