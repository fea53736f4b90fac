"""One run from a goal: target, toolchains, proposers, knowledge, store, then the winner's proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kb import telemetry
from kb.catalog.knowledge import samples
from kb.catalog.knowledge.samples import VerifiedKernel
from kb.catalog.runs import Runs
from kb.errors import Conflict, InvalidRequest
from kb.ids import new_id
from kb.problem_terms import op_family
from kb.scope import ALL_ACCESS
from optimizer.evaluation.isolation.machine import too_busy
from optimizer.evaluation.problem.check import distrust
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import BRIEFLY, Evaluation
from optimizer.search.attribution import Attribution, attribution
from optimizer.search.bench.cluster import ClusterBench, SimulatedOnCluster
from optimizer.search.bench.local import LocalBench, TargetToolchain, problem_view
from optimizer.search.bench.simulated import SimulatedBench, clock_of
from optimizer.search.confirm import RunOutcome, best_so_far, confirm, not_confirmed
from optimizer.search.goal import Goal
from optimizer.search.knowledge import KnowledgeSource
from optimizer.search.loop import INTERRUPTED, Listener, Search, Stages, UnusedProposer, why_untried
from optimizer.search.propose import SearchTask
from optimizer.search.records import REFERENCE, Cost, Node, Proposal
from optimizer.search.runs.hardware_view import check_launch, hardware_view_of, refused_names
from optimizer.search.runs.knowledge import ServiceKnowledge, library_recipes
from optimizer.search.runs.models import ModelTools, check_keys, language_models
from optimizer.search.runs.places import ClusterPlaces, bench_for, places_for, target_of
from optimizer.search.runs.proposers import builtin, compared_with, left_out
from optimizer.search.runs.run_lock import RunLock
from optimizer.search.runs.run_store import CatalogStore, check_same_problem, run_store
from optimizer.search.store import RunRow, RunStore
from optimizer.search.synthesizers.base import HardwareView, ProblemView, Synthesizer
from optimizer.search.synthesizers.llm.settings import ModelOptions
from optimizer.search.synthesizers.recipe.synthesizer import adapt_winner
from optimizer.search.tree import Tree, rough_gain
from retrieval.compose.target import own_symbols
from retrieval.knowledge_base import KnowledgeBase
from retrieval.layout import load_layout
from retrieval.search.names import names_in

INHERITED = 3
CONSIDERED = 60  # stored winners from which those that fit are inherited
CANCELLED_EARLY = "cancelled before the winner was measured again"
INTERRUPTED_EARLY = "interrupted before the winner was measured again"
RunBench = LocalBench | SimulatedBench | ClusterBench


@dataclass(frozen=True)
class FinishedRun:
    """A run with its tree and its outcome."""

    run: RunRow
    tree: Tree
    outcome: RunOutcome
    problem: Problem


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended a run; `finished` is its stored state."""

    def __init__(self, finished: FinishedRun) -> None:
        super().__init__(finished.run.ended)
        self.finished = finished


@telemetry.traced("run", of_environment=True)
def optimize(
    base: KnowledgeBase,
    problem_path: Path,
    goal: Goal,
    hardware: str,
    listener: Listener,
    *,
    models: ModelOptions | None = None,
    cluster: ClusterPlaces | None = None,
    proposers: Sequence[Synthesizer] | None = None,
    knowledge: KnowledgeSource | None = None,
    resume: str | None = None,
    run_id: str | None = None,
) -> FinishedRun:
    """Search until the goal ends the run, then measure the winner again.

    `hardware` is an id, name or alias, or `auto`. The nodes of `cluster` measure instead of this
    machine. `proposers` replace the built-in ones, `knowledge` that of this base. `resume` is the
    id of a run to continue, `run_id` that of a new one. Raises InvalidRequest, NotFound,
    Unavailable, RunInterrupted, and Conflict for a run that has ended.
    """
    stages, models = Stages(), models or ModelOptions()
    problem = load_problem(problem_path)
    store = run_store(base)
    if resume is not None:  # refused before anything is opened
        _resumable(store, resume, problem)
    _check_models(goal, models)
    places = places_for(base, hardware, goal.language) if cluster is None else dict(cluster.places)
    chosen = list(proposers) if proposers is not None else builtin(base, goal, places)
    earlier = [node.at for node in store.nodes(resume)] if resume is not None else []
    lock = RunLock(base, resume or run_id or new_id("run"), max(earlier, default=0.0))
    with lock, _bench(base, problem, places, cluster, listener) as bench:
        stages.ended("what compilers and device can do")
        view, hardware_view = _views(problem, bench, places, goal)
        hardware_view = replace(hardware_view, refused=refused_names(base, hardware_view.id))
        over = "the reference"
        if isinstance(bench, SimulatedBench):
            over = compared_with(bench, chosen, view, hardware_view, store, resume)
        asked = models.remembered(listener.log)
        stages.ended("reading the problem")
        run, measured = _begun(
            base, store, resume, problem, bench, goal, lock.run_id, asked, listener.log
        )
        stages.ended("the reference")
        with _ends(store, run.id):
            if models.models:
                tools = ModelTools(base, hardware_view, view, places)
                chosen.append(language_models(base, models, goal, listener, tools))
            search = Search(
                row=run,
                store=store,
                bench=bench,
                synthesizers=chosen,
                knowledge=knowledge or ServiceKnowledge(base),
                problem=view,
                hardware=hardware_view,
                listener=listener,
                inherited=_inherited(base, store, problem, view, hardware_view, places),
                spent=stages.total,
                measured=measured,
            )
            others = partial(left_out, base, goal, places, chosen)
            try:
                return _carried_out(search, bench, over, problem, stages, others)
            finally:
                store_correct_kernels(base, search.tree, view, hardware_view, run.id)


def _check_models(goal: Goal, models: ModelOptions) -> None:
    """Raises InvalidRequest if models and named synthesizers contradict each other, or if the key
    of a model is missing."""
    named = "llm" in goal.synthesizers
    if named and not models.models:
        raise InvalidRequest(
            "the llm synthesizer needs a language model", hint="Give --models NAME."
        )
    if models.models and goal.synthesizers and not named:
        raise InvalidRequest(
            "--models is given, but --synthesizers leaves llm out",
            hint="Add llm to --synthesizers.",
        )
    check_keys(models)


def _bench(
    base: KnowledgeBase,
    problem: Problem,
    places: dict[str, TargetToolchain],
    cluster: ClusterPlaces | None,
    listener: Listener,
) -> RunBench:
    if cluster is not None:
        return cluster.bench(base, problem, listener.log)
    bench = bench_for(base, problem, places)
    on_processors = isinstance(bench, LocalBench) and bench.device == "cpu"
    if bench.settings.brief:
        listener.log(f"Kernels are {BRIEFLY}")
    if on_processors and (busy := too_busy(bench.settings.threads)):
        listener.log(f"Warning: {busy}")
    return bench


def _views(
    problem: Problem, bench: RunBench, places: dict[str, TargetToolchain], goal: Goal
) -> tuple[ProblemView, HardwareView]:
    """Problem and hardware as proposers see them. Raises InvalidRequest, see `check_launch`."""
    view = problem_view(problem, bench.device, _runs_only_on_nodes(bench))
    here = not isinstance(bench, ClusterBench)
    ceilings = bench.ceilings if isinstance(bench, LocalBench) else None
    hardware = hardware_view_of(target_of(places), places, goal.language, here, ceilings)
    check_launch(view, hardware)
    return view, hardware


def _runs_only_on_nodes(bench: RunBench) -> bool:
    """Whether this machine has no device that can run the reference."""
    if not isinstance(bench, ClusterBench) or bench.device == "cpu":
        return False
    import torch

    return not torch.cuda.is_available()


def _begun(
    base: KnowledgeBase,
    store: CatalogStore,
    resume: str | None,
    problem: Problem,
    bench: RunBench,
    goal: Goal,
    run_id: str,
    asked: Mapping[str, Any],
    log: Callable[[str], None],
) -> tuple[RunRow, Evaluation | None]:
    """The run's row, and for a new run the reference's evaluation, which stores the problem's row
    that the run's row refers to."""
    if resume is not None:
        run, reference = _resumable(store, run_id, problem), None
        run = replace(run, state="running", ended="", result={}, asked=asked)
        Runs(base.catalog).clear_cancel(run_id)
        store.update(run)
    else:
        if isinstance(bench, LocalBench):
            for sentence in distrust(problem, bench.device):
                log(sentence)
        reference = bench.reference()
        run = RunRow(
            id=run_id,
            problem=str(problem.path),
            problem_sha256=problem.sha256,
            hardware=target_of(bench.places).hardware,
            goal=goal,
            started_at=time.time(),
            environment={name: place.toolchain.version() for name, place in bench.places.items()},
            asked=asked,
        )
        store.begin(run)
    if isinstance(bench, ClusterBench | SimulatedOnCluster):
        activity = bench.nodes.activity
        run = replace(run, cluster=activity.state)
        activity.changed = lambda state: store.note_cluster(run_id, state)
        store.update(run)
    return run, reference


def _resumable(store: CatalogStore, run_id: str, problem: Problem) -> RunRow:
    """The stored run. Raises Conflict if it has ended, InvalidRequest if its problem differs."""
    run = store.run(run_id)
    if run.state == "finished":
        raise Conflict(
            f"{run_id} has ended: {run.ended}",
            hint="Start a new run; it begins with the stored winners, or with correct candidates"
            " that have no figure yet.",
        )
    check_same_problem(run, problem)
    return run


@contextmanager
def _ends(store: CatalogStore, run_id: str) -> Iterator[None]:
    """Store the end of a run that an error or a signal ends."""
    telemetry.describe({"kernlore.run.id": run_id})
    try:
        yield
    except BaseException as error:
        run = store.run(run_id)
        if run.state == "running":
            stopped = isinstance(error, KeyboardInterrupt | SystemExit)
            ended = INTERRUPTED if stopped else f"{type(error).__name__}: {error}"
            store.update(replace(run, state="cancelled" if stopped else "failed", ended=ended))
        raise


def _carried_out(
    search: Search,
    bench: RunBench,
    over: str,
    problem: Problem,
    stages: Stages,
    others: Callable[[], Sequence[UnusedProposer]],
) -> FinishedRun:
    """Search, then measure the winner again, and store the result. `stages` and `others` explain a
    run without a candidate. Raises RunInterrupted."""
    tree, store = search.tree, search.store
    try:
        ended = search.run()
        if ended.state == "cancelled":
            outcome = not_confirmed(tree, CANCELLED_EARLY, over)
        elif ended.state == "failed" and best_so_far(tree) is None:
            outcome = not_confirmed(tree, ended.ended, over)
        else:
            why = partial(why_untried, search, ended.ended, stages.seconds, others)
            outcome = confirm(tree, bench, over, left=search.left, untried=why)
    except (KeyboardInterrupt, SystemExit) as interrupt:
        outcome = not_confirmed(tree, INTERRUPTED_EARLY, over)
        seconds = round(search.seconds, 3)
        ended = replace(search.row, state="cancelled", ended=INTERRUPTED, seconds=seconds)
        finished = _stored(ended, tree, outcome, problem, bench, over, store)
        if isinstance(interrupt, SystemExit):
            raise
        raise RunInterrupted(finished) from interrupt
    return _stored(ended, tree, outcome, problem, bench, over, store)


def _stored(
    run: RunRow,
    tree: Tree,
    outcome: RunOutcome,
    problem: Problem,
    bench: RunBench,
    over: str,
    store: RunStore,
) -> FinishedRun:
    """The run after its result was stored; figures of a chip's own commands name their clock."""
    if isinstance(bench, SimulatedBench):
        clock = clock_of(next(iter(bench.places.values())).toolchain)
        outcome = replace(outcome, over=over, clock=clock)
    run = replace(run, result=outcome.as_json())
    store.update(run)
    return FinishedRun(run, tree, outcome, problem)


def attributed(base: KnowledgeBase, run_id: str) -> list[Attribution]:
    """The shown knowledge that changed each candidate of a run: its proposers propose again, with
    everything that was shown and without each item of it. Raises NotFound."""
    store = run_store(base)
    row = store.run(run_id)
    problem = load_problem(Path(row.problem))
    places = places_for(base, row.hardware, row.goal.language)
    target = target_of(places)
    view = problem_view(problem, target.device or "cpu")
    task = SearchTask(run_id, row.goal, view, hardware_view_of(target, places, row.goal.language))
    proposers = builtin(base, row.goal, places)
    return attribution(Tree(store.nodes(run_id)), task, proposers, ServiceKnowledge(base))


# -- kernels of earlier runs


def _inherited(
    base: KnowledgeBase,
    store: CatalogStore,
    problem: Problem,
    view: ProblemView,
    hardware: HardwareView,
    places: dict[str, TargetToolchain],
) -> list[Proposal]:
    """The best stored candidates of the same op family, dtype and lineage that fit this problem and
    can be built here; their evaluation decides whether they are correct for it. If no stored
    candidate of this problem has a figure, those that could not be timed come first."""
    recipes = {recipe.name: recipe for recipe in library_recipes(base)}
    family, dtype = op_family(problem.op), view.main.dtype
    winners = store.winners(family, dtype, hardware.lineage, problem.sha256, CONSIDERED)
    stored = list(winners)
    if not any(same for _, same in stored):
        untimed = store.untimed(hardware.lineage, problem.sha256, CONSIDERED)
        untimed.sort(key=rough_gain, reverse=True)
        stored = [(node.proposal, True) for node in untimed if node.proposal] + stored
    proposals: dict[str, Proposal] = {}
    for winner, same in stored:
        if len(proposals) == INHERITED:
            break
        if winner.bundle.language in places:
            fitting = adapt_winner(winner, view, recipes, hardware.facts, same_problem=same)
            if fitting is not None:
                proposals.setdefault(fitting.bundle.sha256, _measured_again(fitting))
    return list(proposals.values())


def _measured_again(stored: Proposal) -> Proposal:
    """The proposal without its cost, which the earlier run paid."""
    plan = "A stored candidate of the same family, measured again."
    return replace(
        stored, synthesizer="inherited", parent=REFERENCE, plan=plan, cost=Cost(), model=None
    )


def store_correct_kernels(
    base: KnowledgeBase,
    tree: Tree,
    problem: ProblemView,
    hardware: HardwareView,
    run_id: str,
) -> list[str]:
    """Store the best correct kernel in each of the chip's own languages as a sample, and return the
    ids: for a language that no model has seen it is worth more than any page of a manual."""
    known = load_layout().known_languages
    samples_of_run = []
    for language in hardware.languages:
        best = _best_in(tree, language)
        if language not in known and best is not None:
            samples_of_run.append(_store(base, best, problem, hardware, language, run_id))
    return samples_of_run


def _best_in(tree: Tree, language: str) -> Node | None:
    """The fastest correct node in a language, else the first that was not timed."""
    correct = [
        node
        for node in tree.nodes[1:]
        if node.correct and node.proposal is not None and node.proposal.bundle.language == language
    ]
    return max(correct, key=lambda node: (node.merit, -node.number), default=None)


def _store(
    base: KnowledgeBase,
    node: Node,
    problem: ProblemView,
    hardware: HardwareView,
    language: str,
    run_id: str,
) -> str:
    assert node.proposal is not None and node.evaluation is not None
    source = node.proposal.bundle.source
    case = problem.main
    shapes = tuple(f"{t.name} {t.dtype} {list(t.shape)}" for t in case.signature.tensors)
    costs = [t.simulated_cost for t in node.evaluation.timings if t.simulated_cost]
    took = f", {costs[0]} in the simulator" if costs else ""
    cards = own_symbols(base.snapshots.current(), hardware.lineage, language, ALL_ACCESS)
    with base.catalog.write() as connection:
        return samples.add_verified(
            connection,
            VerifiedKernel(
                title=f"{problem.name}: {problem.summary or problem.op}",
                operator=problem.op,
                language=language,
                hardware=hardware.id,
                shapes=shapes,
                symbols=tuple(names_in(source, {card.name for card in cards})),
                code=source,
                evidence=f"right in every case of {problem.name}{took}",
                run_id=run_id,
            ),
        )
