"""Arms of a comparison, and one run of an arm: the real search loop over a table of evaluations.

An arm says what a run may know. Its start is knowledge too: a recipe's defaults were chosen by its
author, so an arm without them starts at a point drawn from the seed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from benchmarks.search.replay.spaces import Space, proposal_of
from benchmarks.search.replay.table import Table
from kb.errors import NotFound
from optimizer.evaluation.records import Evaluation
from optimizer.search.goal import Goal, PolicyName
from optimizer.search.knowledge import Knowledge, KnowledgeSource, Query
from optimizer.search.loop import Search
from optimizer.search.records import Node, Proposal
from optimizer.search.store import RunRow
from optimizer.search.synthesizers.base import Asking, Context, HardwareView, Synthesizer
from optimizer.search.synthesizers.recipe.recipe import Recipe, Value
from optimizer.search.synthesizers.recipe.recipe import space as space_of_values
from optimizer.search.synthesizers.recipe.synthesizer import NAME, Fitting, RecipeSynthesizer
from optimizer.search.tree import Tree

Facts = Mapping[str, float | str]


@dataclass(frozen=True)
class Arm:
    """What a run may know. knowledge: the search's own switch; off means no facts, no answers.
    defaults: of the recipes' authors; without them a run starts at a random point. order `random`:
    no search at all, the space in an order drawn from the seed. assumed: signal that is asked about
    where a verdict has none: what a better diagnosis could be worth.
    """

    name: str
    knowledge: bool = True
    defaults: bool = True
    facts: bool = True
    moves: bool = True
    documents: bool = True
    order: Literal["search", "random"] = "search"
    assumed: str = ""


RANDOM = Arm("random order", knowledge=False, defaults=False, order="random")
DESCENT = Arm("coordinate descent", knowledge=False, defaults=False)
DEFAULTS = Arm("defaults known", knowledge=False)
KNOWLEDGE = Arm("knowledge")
UNSTARTED = Arm("knowledge without defaults", defaults=False)
ASSUMING = Arm(
    "knowledge without defaults, assuming latency_bound", defaults=False, assumed="latency_bound"
)
ARMS = (
    RANDOM,
    DESCENT,
    DEFAULTS,
    KNOWLEDGE,
    Arm("knowledge without facts", facts=False),
    Arm("knowledge without moves", moves=False),
    Arm("knowledge without documents", documents=False),
    UNSTARTED,
    ASSUMING,
)


@dataclass(frozen=True)
class Target:
    """Where the table was measured, and how far a run has to come. share: of the best merit.
    most: candidates after which a run is cut off."""

    hardware: HardwareView
    share: float = 0.95
    most: int = 40


@dataclass(frozen=True)
class Replayed:
    """One run. candidates: until the share was reached, or the cut-off where it was not. standings:
    where noted, the best so far over the best in the table, at the beginning and after each."""

    problem: str
    arm: str
    policy: PolicyName
    seed: int
    candidates: int
    reached: bool
    ended: str
    standings: tuple[float, ...] = ()


def assuming(query: Query, signal: str) -> Query:
    """The query with this signal where it has none; no signal leaves it as it is."""
    return replace(query, signals=(signal,)) if signal and not query.signals else query


@dataclass(frozen=True)
class Filtered:
    """A knowledge source with what the arm may not see left out."""

    source: KnowledgeSource
    arm: Arm

    def consult(self, query: Query) -> Knowledge:
        """A limit of a move is a fact: without facts no move has one."""
        arm = self.arm
        answer = self.source.consult(assuming(query, arm.assumed))
        moves = answer.moves if arm.moves else ()
        if not arm.facts:
            moves = tuple(replace(move, limit=None) for move in moves)
        return replace(
            answer,
            moves=moves,
            facts=answer.facts if arm.facts else {},
            excerpts=answer.excerpts if arm.documents else (),
            skills=answer.skills if arm.defaults else (),
        )

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        self.source.report(retrieval_id, used, node)


@dataclass(frozen=True)
class TableBench:
    """Looks evaluations up. at_once: candidates that the search proposes before it hears of any."""

    table: Table
    problem: str
    at_once: int = 1

    def reference(self) -> Evaluation:
        row = self.table.reference(self.problem)
        if row is None:
            raise NotFound(
                f"the table has no reference of {self.problem}", hint="Measure the problem first."
            )
        return row.evaluation

    def evaluate(self, proposal: Proposal) -> Evaluation:
        """Raises NotFound for a point that was not measured."""
        row = self.table.find(self.problem, proposal.recipe or "", proposal.values)
        if row is None:
            raise NotFound(
                f"{proposal.recipe} with {dict(proposal.values)} is not in the table",
                hint="Measure the whole space before a replay.",
            )
        return row.evaluation


@dataclass
class MemoryStore:
    """Rows of one run, for as long as it takes."""

    rows: list[Node] = field(default_factory=list)
    kept: RunRow | None = None

    def begin(self, run: RunRow) -> None:
        self.kept = run

    def run(self, run_id: str) -> RunRow:
        if self.kept is None:
            raise NotFound(f"no run {run_id}", hint="Begin it first.")
        return self.kept

    def add(self, run_id: str, node: Node) -> None:
        self.rows.append(node)

    def nodes(self, run_id: str) -> list[Node]:
        return list(self.rows)

    def update(self, run: RunRow) -> None:
        self.kept = run

    def cancelled(self, run_id: str) -> bool:
        return False


class Strict:
    """A listener for which a point outside the table is an error, not an unlucky evaluation."""

    def node(self, node: Node, tree: Tree) -> None:
        if node.state == "failed":
            raise NotFound(node.problem, hint="Measure the whole space before a replay.")

    def asking(self, asking: Asking) -> None: ...

    def log(self, message: str) -> None:
        """The failed node says it."""


class RandomOrder:
    """Every point of the space in an order drawn from the seed, all of them from the reference."""

    name = NAME

    def __init__(self, space: Space, seed: int) -> None:
        points = space.points()
        random.Random(f"{seed}:{space.problem.name}:order").shuffle(points)
        self._left = points
        self._space = space
        self.first_tries = len(points)

    def propose(self, context: Context) -> Proposal | None:
        if not self._left:
            return None
        fitting, values = self._left.pop()
        return proposal_of(self._space, fitting, values, "The next one in a random order.")


def started_anywhere(fitting: Fitting, seed: int) -> Recipe:
    """The recipe without its author's defaults: they are a point drawn from the seed."""
    recipe = fitting.recipe
    chance = random.Random(f"{seed}:{recipe.name}:start")
    drawn: Mapping[str, Value] = chance.choice(list(space_of_values(recipe, fitting.binding, {})))
    parameters = (replace(p, default=drawn[p.name]) for p in recipe.parameters)
    return replace(recipe, parameters=tuple(parameters))


def proposer_of(space: Space, arm: Arm, seed: int) -> Synthesizer:
    if arm.order == "random":
        return RandomOrder(space, seed)
    recipes: Sequence[Recipe] = space.recipes
    if not arm.defaults:
        recipes = [started_anywhere(fitting, seed) for fitting in space.fittings]
    return RecipeSynthesizer(recipes, [space.ground.language])


def search_of(
    space: Space,
    table: Table,
    arm: Arm,
    policy: PolicyName,
    seed: int,
    source: KnowledgeSource,
    target: Target,
    proposer: Synthesizer | None = None,
) -> Search:
    """The search of one run, not begun. proposer: instead of the arm's own."""
    name = space.problem.name
    most = min(target.most, len(space.points()))
    goal = Goal(
        language=space.ground.language,
        target=target.share * table.best(name),
        candidates=most,
        knowledge=arm.knowledge,
        policy=policy,
        seed=seed,
    )
    hardware = target.hardware
    if not (arm.knowledge and arm.facts):
        hardware = replace(hardware, facts={})
    run = RunRow("run_replay", name, space.problem.sha256, hardware.id, goal)
    return Search(
        row=run,
        store=MemoryStore(),
        bench=TableBench(table, name),
        synthesizers=[proposer or proposer_of(space, arm, seed)],
        knowledge=Filtered(source, arm),
        problem=space.view,
        hardware=hardware,
        listener=Strict(),
    )


def replay(
    space: Space,
    table: Table,
    arm: Arm,
    policy: PolicyName,
    seed: int,
    source: KnowledgeSource,
    target: Target,
) -> Replayed:
    """One run until the share is reached, nothing is left to try, or it is cut off."""
    search = search_of(space, table, arm, policy, seed, source, target)
    ended = search.run()
    wanted = search.goal.target or 0.0
    best = search.tree.best
    reached = best is not None and best.merit >= wanted
    candidates = len(search.tree) - 1 if reached else search.goal.candidates
    return Replayed(space.problem.name, arm.name, policy, seed, candidates, reached, ended.ended)
