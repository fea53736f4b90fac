"""A trial of a skill: three searches of one case with equal budget and seed, with the skill,
without it, and with a placebo in its place. Their best kernels are measured again. The candidates
of a recipe are proposed here; those for a skill that is text were drafted by models before.

The placebo proposes what the other proposers would, with a comment that changes nothing, and takes
as many places of the budget as a recipe may. Equal candidates are evaluated once.

The standing of a search after a candidate is its best kernel so far, or the reference before it has
one. The advantage of a search is the geometric mean of the ratios of standings over the candidates
of the budget:

    advantage = product over k = 1..K of (standing with / standing without, after k) ^ (1 / K)

so finding a kernel sooner counts, as finding a better one does. Its logarithm is the normalised
area between the two anytime curves.

Depends on nothing that a packed session lacks.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from kb.errors import KernloreError
from optimizer.evaluation.collectors.probe import identify
from optimizer.evaluation.problem.spec import Case, Problem
from optimizer.evaluation.records import Evaluation, Interval
from optimizer.evaluation.timing.statistics import bounded, combined
from optimizer.search.bench.local import LocalBench, problem_view
from optimizer.search.goal import Goal
from optimizer.search.knowledge import SnapshotKnowledge
from optimizer.search.loop import Search, evaluate_all
from optimizer.search.records import REFERENCE, Node, Proposal, best_of, node_from_json
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import HardwareView, ModelCall, ProposalContext, Synthesizer
from optimizer.search.synthesizers.recipe.recipe import PYTHON, Recipe
from optimizer.search.synthesizers.recipe.synthesizer import NAME, RecipeSynthesizer
from optimizer.search.synthesizers.traced.synthesizer import TracedSynthesizer
from optimizer.search.tree import Tree

ROUNDS = 2  # of fresh processes for each kernel that is measured anew
Place = Literal["inside", "edge", "outside"]
PLACES: tuple[Place, ...] = ("inside", "edge", "outside")


# -- the advantage of a search

REFERENCE_KEY = ""
REFERENCE_FIGURE = Interval(1.0, 1.0, 1.0, 1)  # of the reference over itself


@dataclass(frozen=True)
class Advantage:
    """The advantage of one search over another, over the budget and at its `end` alone. It is
    exactly 1 if the kernels that count are the same, and None if one of them has no figure, as on a
    busy machine."""

    over: Interval | None
    end: Interval | None


def standings(nodes: Sequence[Node], budget: int) -> list[Node | None]:
    """The best node after each candidate of the budget; None for the reference. `nodes` are the
    candidates in order. A search that ended early keeps its last standing."""
    return [best_of(nodes[: count + 1]) for count in range(budget)]


def advantage(
    ours: Sequence[Node | None],
    theirs: Sequence[Node | None],
    figure: Callable[[Node], Interval | None],
) -> Advantage:
    """The advantage of our standings over theirs. `figure` measures the reference over a kernel; it
    is called once for each kernel that counts, and not for one that both had equally long."""
    nodes = {_key(node): node for node in (*ours, *theirs) if node is not None}
    over = _weights(ours, theirs)
    end = _weights(ours[-1:], theirs[-1:])
    figures: dict[str, Interval | None] = {REFERENCE_KEY: REFERENCE_FIGURE}
    for key in (*over, *end):
        if key not in figures:
            figures[key] = figure(nodes[key])
    return Advantage(_product(over, figures), _product(end, figures))


def _weights(ours: Sequence[Node | None], theirs: Sequence[Node | None]) -> dict[str, float]:
    """The weight of each kernel's logarithm, without those that cancel."""
    counts: dict[str, int] = {}
    for side, sign in ((ours, 1), (theirs, -1)):
        for node in side:
            counts[_key(node)] = counts.get(_key(node), 0) + sign
    return {key: count / len(ours) for key, count in counts.items() if count}


def _product(
    weights: Mapping[str, float], figures: Mapping[str, Interval | None]
) -> Interval | None:
    """The product of powers of independent figures. Their errors add as squares on the log scale,
    separately above and below, as in `statistics.independent_ratio`."""
    centre, down, up, counts = 0.0, 0.0, 0.0, list[int]()
    for key, weight in weights.items():
        figure = figures[key]
        if figure is None or not bounded(figure):
            return None
        below, above = math.log(figure.value / figure.low), math.log(figure.high / figure.value)
        if weight < 0:
            below, above = above, below
        centre += weight * math.log(figure.value)
        down, up = math.hypot(down, weight * below), math.hypot(up, weight * above)
        if key != REFERENCE_KEY:
            counts.append(figure.n)
    value, low, high = (math.exp(centre + shift) for shift in (0.0, -down, up))
    return Interval(value, low, high, min(counts, default=1))


def _key(node: Node | None) -> str:
    """The kernel of a node: equal bundles are one kernel in every search."""
    return REFERENCE_KEY if node is None or node.proposal is None else node.proposal.bundle.sha256


def figure_of(evaluations: Sequence[Evaluation]) -> Interval | None:
    """The reference over a kernel, from several evaluations; None if none has a figure."""
    intervals = [(e.speedup, 1.0) for e in evaluations if e.speedup is not None]
    return combined(intervals) if intervals else None


# -- a trial


@dataclass(frozen=True)
class PlannedTrial:
    """A trial to run. `place` is the position of the case relative to the preconditions of the
    skill, `unseen` why the skill was not made from it. `reason` is set for a case outside, on which
    nothing is searched. `drafts` are the candidates of a `model` by arm, for a skill that is
    text."""

    skill: str
    problem: Problem
    case: Case
    place: Place
    unseen: str
    seed: int = 0
    reason: str = ""
    drafts: Mapping[str, Sequence[Node]] = field(default_factory=dict)
    model: str = ""

    @property
    def name(self) -> str:
        """A name for files, unique among the trials of a skill."""
        return f"{self.skill}.{self.place}.{self.seed}"

    def as_json(self) -> dict[str, Any]:
        """The entry of a packed session; the problem is packed on its own."""
        case: dict[str, Any] = {"name": self.case.name, "constants": dict(self.case.constants)}
        case |= {"dtype": self.case.dtype, "distribution": self.case.distribution}
        return {
            "skill": self.skill,
            "case": case,
            "place": self.place,
            "unseen": self.unseen,
            "seed": self.seed,
            "reason": self.reason,
            "model": self.model,
            "drafts": {arm: [n.as_json() for n in nodes] for arm, nodes in self.drafts.items()},
        }


def planned_from_json(row: Mapping[str, Any], problem: Problem) -> PlannedTrial:
    """Inverse of `PlannedTrial.as_json`, for the problem as the session holds it."""
    case = Case(**row["case"])
    others = {name: row[name] for name in ("skill", "place", "unseen", "seed", "reason", "model")}
    drafts = {arm: list(map(node_from_json, nodes)) for arm, nodes in row["drafts"].items()}
    return PlannedTrial(problem=only_case(problem, case), case=case, drafts=drafts, **others)


def only_case(problem: Problem, case: Case) -> Problem:
    """The problem with this case as the only one that is searched and timed."""
    return replace(problem, cases=(replace(case, timed=True, held_out=False, devices=()),))


@dataclass(frozen=True)
class ArmRecord:
    """One search: its candidates in order, and how many of them are correct."""

    candidates: Sequence[Mapping[str, Any]] = ()

    @property
    def correct(self) -> int:
        return sum(row["validity"] == "correct" for row in self.candidates)


@dataclass(frozen=True)
class TrialRecord:
    """The result of a trial. `gain` is the advantage of the search with the recipe over the search
    without it, `end` the same at the last candidate, `placebo` the advantage of the placebo over
    the search without the recipe; all three are None for a case outside, which is not searched.
    `made` counts candidates of the skill, `wrong` those of them that are not correct, for drafts of
    models less the incorrect ones without the skill. `device` is
    the processor's name; `seconds` are those of the whole trial."""

    planned: PlannedTrial
    hardware: str
    device: str = ""
    toolchain: str = ""
    budget: int = 0
    gain: Interval | None = None
    end: Interval | None = None
    placebo: Interval | None = None
    made: int = 0
    wrong: int = 0
    dtype: str = ""
    sizes: Mapping[str, float | str] = field(default_factory=dict)
    seconds: float = 0.0
    note: str = ""
    arms: Mapping[str, ArmRecord] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The row of a result file, with the transcript of its searches."""
        row = {name: getattr(self, name) for name in _PLAIN}
        for name in ("gain", "end", "placebo"):
            figure = getattr(self, name)
            row[name] = asdict(figure) if figure is not None else None
        planned = self.planned
        return {
            "skill": planned.skill,
            "place": planned.place,
            "unseen": planned.unseen,
            "problem": planned.problem.name,
            "problem_sha256": planned.problem.sha256,
            "case": planned.case.name,
            "seed": planned.seed,
            "model": planned.model,
            **row,
            "sizes": dict(self.sizes),
            "arms": {name: list(arm.candidates) for name, arm in self.arms.items()},
        }


_PLAIN = ("hardware", "device", "toolchain", "budget", "made", "wrong", "dtype", "seconds", "note")


@dataclass
class _OnceBench:
    """Evaluates equal candidates once."""

    bench: LocalBench
    known: dict[str, Evaluation] = field(default_factory=dict)

    @property
    def at_once(self) -> int:
        return 1

    def reference(self) -> Evaluation:
        return self._once("", self.bench.reference)

    def evaluate(self, proposal: Proposal) -> Evaluation:
        return self._once(proposal.bundle.sha256, lambda: self.bench.evaluate(proposal))

    def _once(self, key: str, evaluate: Callable[[], Evaluation]) -> Evaluation:
        if key not in self.known:
            self.known[key] = evaluate()
        return self.known[key]


class PlaceboSynthesizer:
    """Proposes the kernels of another proposer with a comment that changes nothing."""

    name = NAME
    first_tries = 3

    def __init__(self, inner: Synthesizer) -> None:
        self._inner = inner

    def propose(self, context: ProposalContext) -> Proposal | None:
        """The inner proposer's next kernel under a comment; None where it has none."""
        proposal = self._inner.propose(context)
        if proposal is None:
            return None
        bundle = proposal.bundle
        mark = "#" if bundle.language in PYTHON else "//"
        text = f"{bundle.files[bundle.main]}\n{mark} Read every input once.\n"
        marked = replace(bundle, files={**bundle.files, bundle.main: text})
        plan = f"Placebo: a comment. {proposal.plan}"
        return replace(proposal, bundle=marked, synthesizer=NAME, plan=plan)


class SilentListener:
    """A listener that prints nothing."""

    def node(self, node: Node, tree: Tree) -> None: ...

    def asking(self, asking: ModelCall) -> None: ...

    def log(self, message: str) -> None: ...


@dataclass
class RecipeTrials:
    """Runs trials of recipes on one device. `recipes` are those of the library; the tried one is
    left out of the other two searches. `budget` counts the candidates of each search."""

    recipes: Sequence[Recipe]
    hardware: HardwareView
    budget: int
    rounds: int = ROUNDS
    say: Callable[[str], None] = lambda message: None

    def run(self, planned: PlannedTrial, bench: LocalBench) -> TrialRecord:
        """The result of a trial, whose problem the bench has. Raises KernloreError if the machine
        or the problem fails."""
        began = time.monotonic()
        view = problem_view(planned.problem, bench.device)
        once = _OnceBench(bench)
        if planned.drafts:
            trees = {arm: self._evaluated(once, nodes) for arm, nodes in planned.drafts.items()}
            made, beside = trees["with"].nodes[1:], _wrong(trees["without"].nodes[1:])
        else:
            trees, made = self._searched(planned, view, once)
            beside = 0
        reference = once.reference()
        record = TrialRecord(
            planned,
            self.hardware.id,
            identify("cuda" if bench.device == "cuda" else "cpu").name,
            next((n.evaluation.toolchain for n in made if n.evaluation), reference.toolchain),
            self.budget,
            made=len(made),
            wrong=max(0, _wrong(made) - beside),
            dtype=view.main.dtype or "",
            sizes=dict(view.main.quantities),
            arms={name: _arm(tree) for name, tree in trees.items()},
        )
        record = self._measured(record, trees, bench)
        return replace(record, seconds=round(time.monotonic() - began, 1))

    def _searched(
        self, planned: PlannedTrial, view: Any, once: _OnceBench
    ) -> tuple[dict[str, Tree], list[Node]]:
        """The searches of a recipe by arm, and the candidates of the recipe."""
        own = next(recipe for recipe in self.recipes if recipe.name == planned.skill)
        others = [recipe for recipe in self.recipes if recipe.name != planned.skill]
        languages = self.hardware.languages

        def search(*first: Synthesizer) -> Tree:
            return self._search(planned, view, once, [*first, TracedSynthesizer(self.say)])

        trees = {
            "with": search(RecipeSynthesizer([own, *others], languages)),
            "without": search(RecipeSynthesizer(others, languages)),
            "placebo": search(PlaceboSynthesizer(TracedSynthesizer(self.say))),
        }
        return trees, [n for n in trees["with"] if n.proposal and n.proposal.recipe == own.name]

    def _evaluated(self, once: _OnceBench, drafts: Sequence[Node]) -> Tree:
        """The drafts of one arm as a search that proposed them in their order."""
        root = Node(REFERENCE, None, "evaluated", None, once.reference())
        numbered = [replace(draft, number=place) for place, draft in enumerate(drafts, start=1)]
        return Tree([root, *evaluate_all(once, numbered, self.say, lambda: 0.0)])

    def _search(
        self,
        planned: PlannedTrial,
        view: Any,
        bench: _OnceBench,
        synthesizers: Sequence[Synthesizer],
    ) -> Tree:
        with tempfile.TemporaryDirectory(prefix="kernlore-trial-") as folder:
            row = RunRow(
                id="arm",
                problem=str(planned.problem.path),
                problem_sha256=planned.problem.sha256,
                hardware=self.hardware.id,
                goal=Goal(candidates=self.budget, seed=planned.seed),
            )
            store = FileStore(Path(folder))
            store.begin(row)
            search = Search(
                row=row,
                store=store,
                bench=bench,
                synthesizers=synthesizers,
                knowledge=SnapshotKnowledge({}, view.op, self.hardware.facts),
                problem=view,
                hardware=self.hardware,
                listener=SilentListener(),
            )
            search.run()
            return search.tree

    def _measured(
        self, record: TrialRecord, trees: Mapping[str, Tree], bench: LocalBench
    ) -> TrialRecord:
        """The record with the figures of the three searches; without any where a candidate has no
        verdict, since it might have been the best."""
        unknown = [n for tree in trees.values() for n in tree.nodes[1:] if _unknown(n)]
        if unknown:
            return replace(record, note=f"{len(unknown)} candidates could not be timed or run")
        standing = {name: standings(tree.nodes[1:], self.budget) for name, tree in trees.items()}
        counted: dict[str, Node] = {}
        compared = [name for name in ("with", "placebo") if name in trees]
        for name in compared:
            weights = {
                **_weights(standing[name], standing["without"]),
                **_weights(standing[name][-1:], standing["without"][-1:]),
            }
            nodes = [n for n in (*standing[name], *standing["without"]) if n is not None]
            counted |= {_key(node): node for node in nodes if _key(node) in weights}
        try:
            figures = self._figures(counted, bench)
        except (KernloreError, OSError) as problem:
            return replace(record, note=f"not measured again: {problem}")
        measured = {
            name: advantage(standing[name], standing["without"], lambda n: figures[_key(n)])
            for name in compared
        }
        gain = measured["with"]
        note = "the machine was too busy to measure the best kernels again"
        return replace(
            record,
            gain=gain.over,
            end=gain.end,
            placebo=measured["placebo"].over if "placebo" in measured else None,
            note=record.note or (note if gain.over is None else ""),
        )

    def _figures(self, nodes: Mapping[str, Node], bench: LocalBench) -> dict[str, Interval | None]:
        """Each kernel's figure from rounds of fresh processes. The kernels take turns, in the other
        order in every second round, so that a slow drift of the machine hits all of them."""
        evaluations: dict[str, list[Evaluation]] = {key: [] for key in nodes}
        for number in range(self.rounds):
            for key in sorted(nodes, reverse=number % 2 == 1):
                proposal = nodes[key].proposal
                assert proposal is not None
                evaluations[key].append(bench.confirm(proposal, held_out=False))
        return {key: figure_of(measured) for key, measured in evaluations.items()}


def _wrong(nodes: Sequence[Node]) -> int:
    return sum(node.evaluation is not None and not node.correct for node in nodes)


def _unknown(node: Node) -> bool:
    if node.state == "duplicate":
        return False
    return node.state != "evaluated" or (node.correct and node.speedup is None)


def _arm(tree: Tree) -> ArmRecord:
    rows = []
    for node in tree.nodes[1:]:
        proposal, evaluation = node.proposal, node.evaluation
        assert proposal is not None
        speedup = node.speedup
        rows.append(
            {
                "parent": node.parent,
                "synthesizer": proposal.synthesizer,
                "language": proposal.bundle.language,
                "recipe": proposal.recipe,
                "values": dict(proposal.values),
                "plan": proposal.plan,
                "kernel": proposal.bundle.sha256[:16],
                "validity": evaluation.validity if evaluation is not None else node.state,
                "speedup": asdict(speedup) if speedup is not None else None,
                "why": "" if node.correct or evaluation is None else evaluation.message[:300],
            }
        )
    return ArmRecord(tuple(rows))
