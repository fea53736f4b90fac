"""Proposing the next candidate: choose a parent and a proposer, retrieve knowledge for the parent's
verdict, compose the context, propose.

Depends on the tree, the goal's seed and the exhausted proposers that earlier nodes record, so equal
rows give an equal candidate. Evaluates nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from optimizer.evaluation.records import EvaluationVerdict
from optimizer.search.goal import Goal, PolicyName
from optimizer.search.knowledge import KnowledgeSource, ShownKnowledge, operator_query
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
from optimizer.search.synthesizers.external import ExternalSynthesizer
from optimizer.search.tree import Tree, last_failure, seen
from retrieval.request import RetrieveRequest

LEAST_COST = 2.0  # seconds; shorter evaluations count as equal, since times of candidates scatter
STAGES = ("compile", "correctness", "benchmark")
SILENT_IN_A_ROW = 8  # failed proposals that end the run
NEVER_ANSWERED = 2  # the same for models that never answered: each call has its own retries
CONTEXT_TOKENS = 6_000  # for earlier kernels and log, and for knowledge that no proposer reads
EXCERPTS = 8
NOTHING_LEFT = "nothing is left to try"
CALLER_ENDED = "the caller has no further candidate"
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
        self, tree: Tree, stop: Callable[[], str | None], exhausted: list[Pair], silent: list[str]
    ) -> tuple[Proposal, ShownIds] | str:
        chance = random.Random(f"{self._task.goal.seed}:{len(tree)}")
        while True:
            parent = self._parent(tree, chance)
            if parent is None:
                external = (s for s in self._synthesizers if isinstance(s, ExternalSynthesizer))
                return CALLER_ENDED if any(s.ended for s in external) else NOTHING_LEFT
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
        about=f"{task.problem.name} ; {task.problem.summary}",
        draw=f"{task.goal.seed} {task.problem.name} {task.hardware.id} {language or ''}",
        facts_apart=True,
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


# -- policies that choose the node to change next: best first, tree search, islands
#
# A policy is a function of the tree and a seeded random source, so equal evaluations and seeds give
# equal trees.

FATIGUE = 0.9
ISLANDS = 3
POPULATION = 8
TOURNAMENT = 3
MIGRATE_EVERY = 10  # candidates
EXPLORE = 0.7


class SearchPolicy(Protocol):
    """Chooses the parent of the next candidate."""

    def __init__(self) -> None: ...

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The number of the node to change next; None if every open node is in `closed`, the nodes
        from which nothing more can be proposed. `chance` is the random source."""
        ...

    def island_of(self, tree: Tree, parent: int) -> int:
        """The island that a child of this parent lives on."""
        ...


def open_nodes(tree: Tree, closed: Collection[int]) -> list[int]:
    """Numbers of the nodes that can be changed: the reference and correct nodes, without duplicates
    and closed nodes."""
    return [
        node.number
        for node in tree
        if node.number not in closed
        and node.state != "duplicate"
        and (node.parent is None or node.correct)
    ]


class BestFirst:
    """Chooses the node with the highest lower bound of the speed-up, after fatigue.

    Each child that was no better lowers the value of its parent by a tenth, so that a search leaves
    a local optimum. A child in flight counts as no better: candidates that are evaluated side by
    side spread over parents.
    """

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The open node with the highest value after fatigue, the newest of equals."""
        del chance
        values = {number: self._value(tree, number) for number in open_nodes(tree, closed)}
        return max(values, key=lambda number: (values[number], number), default=None)

    def _value(self, tree: Tree, number: int) -> float:
        node = tree[number]
        # The reference does not tire: first tries of other kinds start from it.
        weak = sum(child.merit <= node.merit for child in tree.children(number))
        fatigue = 1.0 if number == REFERENCE else FATIGUE
        return float(node.merit * fatigue**weak)

    def island_of(self, tree: Tree, parent: int) -> int:
        """All nodes live on one island."""
        return 0


class Evolutionary:
    """Islands: separate populations that choose parents by tournament; from time to time the best
    of one is a parent on the next (Tanese, 1989).

    The population of an island are the correct nodes with its number. Islands take turns by the
    number of the next node.
    """

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The winner of a tournament on the island whose turn it is."""
        usable = open_nodes(tree, closed)
        if not usable:
            return None
        island = len(tree) % ISLANDS
        if len(tree) % MIGRATE_EVERY == 0:
            island = (island + 1) % ISLANDS  # migration from the neighbour
        living = [n for n in usable if n != REFERENCE and tree[n].island == island]
        living = sorted(living, key=lambda n: -tree[n].merit)[:POPULATION]
        if REFERENCE in usable and len(living) < TOURNAMENT:
            return REFERENCE  # seed the population first
        if not living:
            living = usable
        drawn = chance.sample(living, min(TOURNAMENT, len(living)))
        return max(drawn, key=lambda n: (tree[n].merit, -n))

    def island_of(self, tree: Tree, parent: int) -> int:
        return len(tree) % ISLANDS


class TreeSearch:
    """Monte Carlo tree search: descends by UCT to the first node that may be widened.

    The value of a node is the best merit below it, on a logarithmic scale from the reference to the
    best of the run; the bonus is that of UCB1 (Auer and others, 2002; Kocsis and Szepesvari, 2006).
    A node is widened while it has fewer children than the square root of its visits (progressive
    widening, Coulom 2007), because the number of possible changes is not bounded. A node in flight
    is a visit without a result (a virtual loss, Chaslot and others, 2008).
    """

    def choose(self, tree: Tree, closed: Collection[int], chance: random.Random) -> int | None:
        """The first node on the way down that may be widened."""
        usable = set(open_nodes(tree, closed))
        if not usable:
            return None
        at = REFERENCE
        while True:
            children = [
                c.number for c in tree.children(at) if self._reaches(tree, c.number, usable)
            ]
            visits = len(tree.descendants(at)) + 1
            if at in usable and (not children or len(children) < math.sqrt(visits)):
                return at
            if not children:
                return max(usable)  # all usable nodes are on other paths
            at = max(children, key=lambda child: (self._bound(tree, child, visits), -child))

    def _reaches(self, tree: Tree, number: int, usable: Collection[int]) -> bool:
        return number in usable or any(n.number in usable for n in tree.descendants(number))

    def _bound(self, tree: Tree, number: int, visits: int) -> float:
        below = [tree[number], *tree.descendants(number)]
        best = max(math.log(max(node.merit, 0.1)) for node in below)
        most = max(math.log(max(node.merit, 1.0)) for node in tree) or 1.0
        return best / most + EXPLORE * math.sqrt(math.log(visits + 1) / len(below))

    def island_of(self, tree: Tree, parent: int) -> int:
        """All nodes live on one island."""
        return 0


POLICY_OF: Mapping[PolicyName, type[SearchPolicy]] = {
    "best-first": BestFirst,
    "mcts": TreeSearch,
    "evolutionary": Evolutionary,
}
