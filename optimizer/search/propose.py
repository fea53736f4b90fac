"""Proposing the next candidate: choose a parent and a proposer, retrieve knowledge for the parent's
verdict, compose the context, propose.

Depends on the tree, the goal's seed and the exhausted proposers that earlier nodes record, so equal
rows give an equal candidate. Evaluates nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from optimizer.evaluation.records import EvaluationVerdict
from optimizer.search.goal import Goal
from optimizer.search.knowledge import KnowledgeSource, ShownKnowledge, operator_query
from optimizer.search.policies import POLICY_OF, SearchPolicy
from optimizer.search.records import IN_FLIGHT, REFERENCE, Node, Proposal, ShownIds
from optimizer.search.synthesizers.base import (
    HardwareView,
    LimitedToRoles,
    ProblemView,
    ProposalContext,
    ProposalFailed,
    ReadsContext,
    Synthesizer,
    Unreachable,
)
from optimizer.search.tree import Tree, last_failure, seen
from retrieval.request import RetrieveRequest

LEAST_COST = 2.0  # seconds; shorter evaluations count as equal, since times of candidates scatter
STAGES = ("compile", "correctness", "benchmark")
SILENT_IN_A_ROW = 8  # failed proposals that end the run
NEVER_ANSWERED = 2  # the same for models that never answered: each call has its own retries
CONTEXT_TOKENS = 6_000  # for earlier kernels and log, and for knowledge that no proposer reads
EXCERPTS = 8
NOTHING_LEFT = "nothing is left to try"
Pair = tuple[str, int]


@dataclass(frozen=True)
class SearchTask:
    """The part of a context that is equal for every proposal of a run."""

    run_id: str
    goal: Goal
    problem: ProblemView
    hardware: HardwareView


class Proposer:
    """Proposes one candidate after another for a tree that may hold nodes in flight."""

    def __init__(
        self,
        task: SearchTask,
        synthesizers: Sequence[Synthesizer],
        knowledge: KnowledgeSource,
        log: Callable[[str], None],
    ) -> None:
        self._task = task
        self._synthesizers = synthesizers
        self._knowledge = knowledge
        self._roles = roles_of(synthesizers, task.problem)
        self._log = log
        self._policy: SearchPolicy = POLICY_OF[task.goal.policy]()
        self._max_tokens = context_tokens(synthesizers)
        self._reader = reader_of_all(synthesizers)
        # By parent, whether the context is composed for a reader, and the parent's last failure.
        self._known: dict[tuple[int, bool, int], ShownKnowledge] = {}
        self._exhausted: set[Pair] = set()
        self._failed: set[str] = set()
        self._silent = 0  # failures in a row
        self._unreached = 0  # those of them where the proposer could not be reached
        self._answered: set[str] = set()  # proposers that ever had a candidate
        self._last_log = ""

    @property
    def unreachable(self) -> bool:
        """Whether the failures in a row ended the run because no model could be reached."""
        enough = SILENT_IN_A_ROW if self._failed & self._answered else NEVER_ANSWERED
        return self._silent >= enough and self._unreached == self._silent

    def recall(self, nodes: Iterable[Node]) -> None:
        """Restore the exhausted and the failed proposers that these nodes record."""
        for node in nodes:
            self._exhausted.update(node.exhausted)
            self._failed.update(node.silent)
            if node.proposal is not None:
                self._answered.add(node.proposal.synthesizer)

    def create_node(
        self,
        tree: Tree,
        proposal: Proposal,
        shown: ShownIds | None = None,
        *,
        inherited: bool = False,
        exhausted: Sequence[Pair] = (),
        silent: Sequence[str] = (),
    ) -> Node:
        """The proposal as the tree's next node: in flight, or a duplicate of an earlier node."""
        same = tree.same_bundle(proposal.bundle.sha256)
        return Node(
            number=len(tree),
            parent=proposal.parent,
            state=IN_FLIGHT if same is None else "duplicate",
            proposal=proposal,
            evaluation=None,
            shown=shown or ShownIds(),
            same_as=None if same is None else same.number,
            island=self._policy.island_of(tree, proposal.parent),
            inherited=inherited,
            exhausted=tuple(exhausted),
            silent=tuple(silent),
        )

    def next(self, tree: Tree, stop: Callable[[], str | None]) -> Node | str:
        """The next node, or the reason for its absence. `stop` is called after a failed attempt and
        returns why the run ends, or None.

        Exhausted and failed proposers count only with a node that records them, since a run that
        is resumed after a crash knows no others.
        """
        exhausted: list[Pair] = []
        silent: list[str] = []
        result = self._attempt(tree, stop, exhausted, silent)
        if isinstance(result, str):
            self._exhausted.difference_update(exhausted)
            self._failed.difference_update(silent)
            return result
        self._silent = self._unreached = 0
        self._last_log = ""
        proposal, shown = result
        self._answered.add(proposal.synthesizer)
        return self.create_node(tree, proposal, shown, exhausted=exhausted, silent=silent)

    def _attempt(
        self,
        tree: Tree,
        stop: Callable[[], str | None],
        exhausted: list[Pair],
        silent: list[str],
    ) -> tuple[Proposal, ShownIds] | str:
        chance = random.Random(f"{self._task.goal.seed}:{len(tree)}")
        while True:
            parent = self._parent(tree, chance)
            if parent is None:
                return NOTHING_LEFT
            for synthesizer in self._order(tree, parent):
                context = self.context(tree, parent, isinstance(synthesizer, ReadsContext))
                try:
                    proposal = synthesizer.propose(context)
                except ProposalFailed as failed:
                    ended = self._failure(synthesizer, failed, silent, stop)
                    if ended is not None:
                        return ended
                    continue
                if proposal is not None:
                    return proposal, context.knowledge.shown()
                exhausted.append((synthesizer.name, parent))
                self._exhausted.add((synthesizer.name, parent))

    def _failure(
        self,
        synthesizer: Synthesizer,
        failed: ProposalFailed,
        silent: list[str],
        stop: Callable[[], str | None],
    ) -> str | None:
        """Record an attempt without a candidate; returns why to stop, or None."""
        self._silent += 1
        self._unreached += isinstance(failed, Unreachable)
        if synthesizer.name not in self._failed:
            silent.append(synthesizer.name)
            self._failed.add(synthesizer.name)
        message = f"{synthesizer.name}: {failed}"
        if message != self._last_log or not isinstance(failed, Unreachable):
            self._log(message)
        self._last_log = message
        ended = stop()
        if ended is None and self.unreachable:
            return str(failed)
        if ended is None and self._silent >= SILENT_IN_A_ROW:
            ended = f"{SILENT_IN_A_ROW} proposals in a row came to nothing: {failed}"
        return ended

    def _parent(self, tree: Tree, chance: random.Random) -> int | None:
        """The reference while a proposer has first tries left, then the policy's choice."""
        if any(self._tries_left(tree, s) for s in self._synthesizers):
            return REFERENCE
        names = [s.name for s in self._synthesizers]
        parents = {parent for _, parent in self._exhausted}
        closed = {p for p in parents if all((name, p) in self._exhausted for name in names)}
        return self._policy.choose(tree, closed, chance)

    def _tries_left(self, tree: Tree, synthesizer: Synthesizer) -> bool:
        if synthesizer.name in self._failed or (synthesizer.name, REFERENCE) in self._exhausted:
            return False
        own = _nodes_of(synthesizer, tree.children(REFERENCE))
        return len(own) < synthesizer.first_tries

    def _order(self, tree: Tree, parent: int) -> list[Synthesizer]:
        """Proposers in the order in which they are tried: those with first tries left, else those
        first whose candidates took the least evaluation time for each improvement."""
        usable = [s for s in self._synthesizers if (s.name, parent) not in self._exhausted]
        trying = [s for s in usable if parent == REFERENCE and self._tries_left(tree, s)]
        usable = trying or usable

        def cost(synthesizer: Synthesizer) -> float:
            own = _nodes_of(synthesizer, tree)
            gains = sum(node.merit > tree[node.parent or 0].merit for node in own)
            return sum(map(_cost, own)) / (1 + gains)

        return sorted(usable, key=cost)

    def context(self, tree: Tree, parent: int, reader: bool = False) -> ProposalContext:
        """The context of the next proposal from this parent. For a `reader`, the knowledge is about
        the parent's last child if that is incorrect."""
        failed = last_failure(tree, parent) if reader else None
        key = (parent, reader, failed.number if failed is not None else parent)
        if key not in self._known:
            tokens = self._max_tokens if reader else CONTEXT_TOKENS
            node = failed or tree[parent]
            request = request_for(
                self._task, node, self._roles, tokens, self._reader if reader else None
            )
            self._known[key] = self._knowledge.consult(request)
        return compose_context(self._task, tree, parent, self._known[key])


def compose_context(
    task: SearchTask, tree: Tree, parent: int, knowledge: ShownKnowledge
) -> ProposalContext:
    """The context of the tree's next node. Facts of the device override those of its family."""
    if knowledge.facts:
        knowledge = replace(knowledge, facts={**knowledge.facts, **task.hardware.facts})
    return ProposalContext(
        problem=task.problem,
        hardware=task.hardware,
        parent=tree[parent],
        seen=seen(tree, parent, task.goal.memory),
        best=tree.best,
        knowledge=knowledge,
        tried=tree.nodes[1:],
        step=len(tree),
        seed=task.goal.seed,
        run_id=task.run_id,
        max_tokens=CONTEXT_TOKENS,
        with_knowledge=task.goal.knowledge,
        with_memory=task.goal.memory != "none",
        baseline=tree.baseline,
    )


def roles_of(synthesizers: Iterable[Synthesizer], problem: ProblemView) -> tuple[str, ...]:
    """Sorted roles of the parameters that proposers bound to roles can change for this problem."""
    bound = (s.roles(problem) for s in synthesizers if isinstance(s, LimitedToRoles))
    return tuple(sorted({role for roles in bound for role in roles}))


def context_tokens(synthesizers: Iterable[Synthesizer]) -> int:
    """Tokens of the largest context that one of these proposers reads."""
    sizes = [s.context_tokens for s in synthesizers if isinstance(s, ReadsContext)]
    return max(sizes, default=CONTEXT_TOKENS)


def reader_of_all(synthesizers: Iterable[Synthesizer]) -> str | None:
    """The class of all proposers that read the composed context, None where they differ."""
    classes = {s.reader for s in synthesizers if isinstance(s, ReadsContext)}
    return classes.pop() if len(classes) == 1 else None


def request_for(
    task: SearchTask,
    node: Node,
    roles: tuple[str, ...] = (),
    max_tokens: int = CONTEXT_TOKENS,
    reader: str | None = None,
) -> RetrieveRequest:
    """The request to the knowledge base for a change of this node: to repair it if it failed, to
    write a first kernel if it is the reference, or to make it faster. `reader` is the class of the
    model that reads it."""
    evaluation = node.evaluation
    verdict = evaluation.verdict if evaluation is not None else EvaluationVerdict()
    metrics = {**evaluation.metrics, **verdict.metrics} if evaluation else {}
    log = evaluation.log if evaluation and not evaluation.correct else ""
    op = task.problem.mostly or task.problem.op
    language = task.goal.language
    if evaluation is not None and node.parent is not None:
        language = evaluation.language
    # Before the first kernel the reference has no verdict, or, on a chip that only its own
    # commands run, one about another processor.
    foreign = task.hardware.device is None or not node.signals
    to_write = node.proposal is None and foreign
    narrowed = node.signals or log or to_write
    return RetrieveRequest(
        signals=node.signals,
        metrics=metrics or None,
        log=log or None,
        query=None if narrowed else operator_query(op, language),
        hardware=task.hardware.id,
        op=op or None,
        language=language,
        dtype=task.problem.main.dtype,
        run_id=task.run_id or None,
        node_id=str(node.number),
        k=EXCERPTS,
        max_tokens=max_tokens,
        problem={**task.problem.main.quantities, **verdict.problem} or None,
        roles=roles,
        task="write" if to_write else None,
        draft=_failed_source(node) or None,
        operators=operators_of(task.problem),
        dtypes=dtypes_of(task.problem),
        lacks=task.hardware.lacks,
        reader=reader,
    )


def operators_of(problem: ProblemView) -> tuple[str, ...]:
    """Operators of the reference whose arguments are known, by torch's names."""
    named = (trait for trait in problem.main.traits if "." in trait)
    names = (trait.partition(".")[0].partition("#")[0] for trait in named)
    return tuple(dict.fromkeys(names))


def dtypes_of(problem: ProblemView) -> tuple[str, ...]:
    """The element types of all tensors of the cases."""
    return tuple(dict.fromkeys(t.dtype for case in problem.cases for t in case.signature.tensors))


def _failed_source(node: Node) -> str:
    evaluation = node.evaluation
    if node.proposal is None or evaluation is None or evaluation.correct:
        return ""
    return node.proposal.bundle.source


def without_evaluation(node: Node) -> Node:
    """The node before its evaluation; a duplicate keeps its state."""
    if node.state == "duplicate":
        return node
    return replace(node, state=IN_FLIGHT, evaluation=None, attempts=1, problem="")


def tree_before(tree: Tree, node: Node) -> Tree:
    """The tree that the node was proposed for, in which its batch is in flight."""
    first = node.batch[0] if node.batch is not None else node.number
    return Tree([*tree.nodes[:first], *map(without_evaluation, tree.nodes[first : node.number])])


def _cost(node: Node) -> float:
    """Seconds of its evaluation. A node in flight counts as a short one, in a replay too."""
    took = node.evaluation.seconds if node.evaluation is not None else {}
    return max(LEAST_COST, sum(took.get(stage, 0.0) for stage in STAGES))


def _nodes_of(synthesizer: Synthesizer, nodes: Iterable[Node]) -> list[Node]:
    return [
        n for n in nodes if n.proposal is not None and n.proposal.synthesizer == synthesizer.name
    ]
