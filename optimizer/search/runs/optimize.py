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
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.isolation.machine import too_busy
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import BRIEFLY, Evaluation
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.command import CommandToolchain, argument_names, scalar_values
from optimizer.search.attribution import Attribution, attribution
from optimizer.search.bench.local import LocalBench, TargetToolchain, problem_view
from optimizer.search.bench.on_cluster import ClusterBench, SimulatedOnCluster
from optimizer.search.bench.simulated import SimulatedBench, clock_of
from optimizer.search.confirm import RunOutcome, best_so_far, confirm, not_confirmed
from optimizer.search.goal import Goal
from optimizer.search.knowledge import KnowledgeSource
from optimizer.search.loop import INTERRUPTED, Listener, Search, Stages, UnusedProposer, why_untried
from optimizer.search.propose import SearchTask
from optimizer.search.records import REFERENCE, Cost, Node, Proposal
from optimizer.search.runs.knowledge import ServiceKnowledge, library_recipes
from optimizer.search.runs.machine import machine_here, rates_of
from optimizer.search.runs.models import ModelTools, asked_models, check_keys, language_models
from optimizer.search.runs.places import ClusterPlaces, bench_for, places_for, target_of
from optimizer.search.runs.proposers import builtin, compared_with, left_out
from optimizer.search.runs.run_lock import RunLock
from optimizer.search.runs.run_store import CatalogStore, run_store
from optimizer.search.store import RunRow
from optimizer.search.synthesizers.base import HardwareView, ProblemView, Synthesizer
from optimizer.search.synthesizers.llm.settings import ModelOptions
from optimizer.search.synthesizers.recipe.synthesizer import adapt_winner
from optimizer.search.tree import Tree, rough_gain
from retrieval.knowledge_base import KnowledgeBase
from retrieval.layout import load_layout
from retrieval.symbols import names_in
from retrieval.target_context import own_symbols

INHERITED = 3
LOOKED_AT = 60  # stored winners, of which those that fit are inherited
CANCELLED_EARLY = "cancelled before the winner was measured again"
INTERRUPTED_EARLY = "interrupted before the winner was measured again"


RunBench = LocalBench | SimulatedBench | ClusterBench


@dataclass(frozen=True)
class FinishedRun:
    """A run and what it came to."""

    run: RunRow
    tree: Tree
    outcome: RunOutcome
    problem: Problem


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM ended a run; `finished` is what there is of it by then, stored already."""

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
    proposers: Sequence[Synthesizer] | None = None,
    models: str = "",
    model_options: ModelOptions | None = None,
    knowledge: KnowledgeSource | None = None,
    resume: str | None = None,
    run_id: str | None = None,
    elsewhere: ClusterPlaces | None = None,
) -> FinishedRun:
    """Search until the goal is reached or its budget is spent, then measure the winner again.

    `hardware` is an id, name or alias, or `auto`. `proposers` replace the built-in ones. `models`
    are language models to ask too, as `name=weight,name`; `model_options` say how. `knowledge` is
    shown to proposers in place of this base's. `resume` is the id of a run to continue. The nodes
    of `elsewhere` measure in place of this machine. Raises InvalidRequest, NotFound, Unavailable,
    RunInterrupted, and Conflict for a run that has ended.
    """
    stages, options = Stages(), model_options or ModelOptions()
    problem = load_problem(problem_path)
    store = _store_of(base, resume, problem)
    _check_models(goal, models, options)
    places = _places(base, hardware, goal, elsewhere)
    chosen = list(proposers) if proposers is not None else builtin(base, goal, places)
    lock = _lock(base, store, resume, run_id or new_id("run"))
    with lock, _bench(base, problem, places, elsewhere, listener) as bench:
        stages.ended("what compilers and device can do")
        view, hardware_view = _views(problem, bench, places, goal)
        over = _compared_with(bench, chosen, view, hardware_view, store, resume)
        asked = asked_models(models, options, listener)
        stages.ended("reading the problem")
        run, measured = _begun(base, store, resume, problem, bench, goal, lock.run_id, asked)
        stages.ended("the reference")
        with _ends(store, run.id):
            if models:
                tools = ModelTools(base, hardware_view, view, places)
                chosen.append(language_models(base, models, options, goal, listener, tools))
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
                keep_right_kernels(base, search.tree, view, hardware_view, run.id)


def _views(
    problem: Problem, bench: RunBench, places: dict[str, TargetToolchain], goal: Goal
) -> tuple[ProblemView, HardwareView]:
    """Problem and hardware as proposers see them. Raises InvalidRequest, see `check_launch`."""
    view = problem_view(problem, bench.device, _is_elsewhere(bench))
    here = not isinstance(bench, ClusterBench)
    ceilings = bench.ceilings if isinstance(bench, LocalBench) else None
    hardware = hardware_view_of(target_of(places), places, goal.language, here, ceilings)
    check_launch(view, hardware)
    return view, hardware


def _places(
    base: KnowledgeBase, hardware: str, goal: Goal, elsewhere: ClusterPlaces | None
) -> dict[str, TargetToolchain]:
    if elsewhere is None:
        return places_for(base, hardware, goal.language)
    return dict(elsewhere.places)


def _bench(
    base: KnowledgeBase,
    problem: Problem,
    places: dict[str, TargetToolchain],
    elsewhere: ClusterPlaces | None,
    listener: Listener,
) -> RunBench:
    if elsewhere is None:
        bench = bench_for(base, problem, places)
        on_processors = isinstance(bench, LocalBench) and bench.device == "cpu"
        if bench.settings.brief:
            listener.log(f"Kernels are {BRIEFLY}")
        elif on_processors and (busy := too_busy(bench.settings.threads)):
            listener.log(f"Warning: {busy}")
        return bench
    return elsewhere.bench(base, problem, listener.log)


def _is_elsewhere(bench: RunBench) -> bool:
    """Whether this machine cannot run the reference as the nodes do."""
    if not isinstance(bench, ClusterBench) or bench.device == "cpu":
        return False
    import torch

    return not torch.cuda.is_available()


def _watched(store: CatalogStore, run: RunRow, bench: RunBench) -> RunRow:
    """The row, which shows from now on what the run does on a cluster."""
    if not isinstance(bench, ClusterBench | SimulatedOnCluster):
        return run
    activity = bench.nodes.activity
    run = replace(run, cluster=activity.state)
    activity.changed = lambda state: store.note_cluster(run.id, state)
    store.update(run)
    return run


@contextmanager
def _ends(store: CatalogStore, run_id: str) -> Iterator[None]:
    """A run that an error or a signal ends is not left running, whatever it was doing."""
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
    """Search, then measure the winner again; what came of it is stored. `stages` and `others` serve
    to say why nothing was tried. Raises RunInterrupted."""
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
        outcome = _with_clock(not_confirmed(tree, INTERRUPTED_EARLY, over), bench, over)
        seconds = round(search.seconds, 3)
        ended = replace(search.row, state="cancelled", ended=INTERRUPTED, seconds=seconds)
        ended = replace(ended, result=outcome.as_json())
        store.update(ended)
        if isinstance(interrupt, SystemExit):
            raise
        raise RunInterrupted(FinishedRun(ended, tree, outcome, problem)) from interrupt
    outcome = _with_clock(outcome, bench, over)
    ended = replace(ended, result=outcome.as_json())
    store.update(ended)
    return FinishedRun(ended, tree, outcome, problem)


def _compared_with(
    bench: RunBench,
    proposers: Sequence[Synthesizer],
    problem: ProblemView,
    hardware: HardwareView,
    store: CatalogStore,
    resume: str | None,
) -> str:
    """What the figures of the bench are relative to, in words."""
    if not isinstance(bench, SimulatedBench):
        return "the reference"
    return compared_with(bench, proposers, problem, hardware, store, resume)


def _lock(base: KnowledgeBase, store: CatalogStore, resume: str | None, new: str) -> RunLock:
    """The lock of the run to continue, or of a new one."""
    before = [node.at for node in store.nodes(resume)] if resume is not None else []
    return RunLock(base, resume or new, max(before, default=0.0))


def _resumed(
    base: KnowledgeBase,
    store: CatalogStore,
    run_id: str,
    problem: Problem,
    asked: Mapping[str, Any],
) -> RunRow:
    """The stored run, from now on running again."""
    run = _matching(store, run_id, problem)
    run = replace(run, state="running", ended="", result={}, asked=asked)
    Runs(base.catalog).clear_cancel(run_id)
    store.update(run)
    return run


def _with_clock(outcome: RunOutcome, bench: RunBench, over: str) -> RunOutcome:
    """The outcome with the clock that its figures are by."""
    if not isinstance(bench, SimulatedBench):
        return outcome
    clock = clock_of(next(iter(bench.places.values())).toolchain)
    return replace(outcome, over=over, clock=clock)


def _check_models(goal: Goal, models: str, options: ModelOptions) -> None:
    """Raises InvalidRequest where synthesizers are named and do not go with the models, and where a
    model's key is missing.
    """
    named = "llm" in goal.synthesizers
    if named and not models:
        raise InvalidRequest(
            "the llm synthesizer needs a language model", hint="Give --models NAME."
        )
    if models and goal.synthesizers and not named:
        raise InvalidRequest(
            "--models is given, but --synthesizers leaves llm out",
            hint="Add llm to --synthesizers.",
        )
    check_keys(models, options)


def hardware_view_of(
    target: EvaluationTarget,
    places: Mapping[str, TargetToolchain],
    language: str | None = None,
    here: bool = True,
    ceilings: Ceilings | None = None,
) -> HardwareView:
    """The target as proposers see it.

    `language` is the only one that candidates may be in; torch is then among the places only for
    the reference. `here` is whether this machine measures them, by these `ceilings`.
    """
    ordered = tuple(sorted(places, key=lambda name: name == "torch"))
    offered = (language,) if language is not None and language in places else ordered
    toolchains = {
        name: place.toolchain.template
        for name, place in places.items()
        if isinstance(place.toolchain, CommandToolchain)
    }
    return HardwareView(
        target.hardware,
        target.lineage,
        target.device,
        offered,
        dict(target.facts),
        toolchains,
        machine_here(target.lineage) if here and target.device == "cpu" else None,
        rates_of(ceilings) if here else None,
    )


def check_launch(problem: ProblemView, hardware: HardwareView) -> None:
    """Raises InvalidRequest where a toolchain of the hardware has no name or scalar for a case of
    this problem: each of its candidates would fail by it."""
    for language in hardware.languages:
        if (toolchain := hardware.toolchains.get(language)) is None:
            continue
        for case in problem.cases:
            argument_names(case.signature, toolchain)
            scalar_values(case.signature, toolchain, {**case.traits, **case.constants})


def attributed(base: KnowledgeBase, run_id: str) -> list[Attribution]:
    """Which of the shown knowledge changed each candidate of a run.

    The proposers of the run are asked again, with all that was shown and without each item of it.
    Raises NotFound.
    """
    store = run_store(base)
    row = store.run(run_id)
    problem = load_problem(Path(row.problem))
    places = places_for(base, row.hardware, row.goal.language)
    target = target_of(places)
    view = problem_view(problem, target.device or "cpu")
    task = SearchTask(run_id, row.goal, view, hardware_view_of(target, places, row.goal.language))
    proposers = builtin(base, row.goal, places)
    return attribution(Tree(store.nodes(run_id)), task, proposers, ServiceKnowledge(base))


def _begun(
    base: KnowledgeBase,
    store: CatalogStore,
    resume: str | None,
    problem: Problem,
    bench: RunBench,
    goal: Goal,
    run_id: str,
    asked: Mapping[str, Any],
) -> tuple[RunRow, Evaluation | None]:
    """The run's row, and for a new run the reference's evaluation: it makes the problem's row,
    which the run's row points to."""
    if resume is not None:
        return _watched(store, _resumed(base, store, resume, problem, asked), bench), None
    reference = bench.reference()
    return _watched(store, _begin(store, problem, bench, goal, run_id, asked), bench), reference


def _begin(
    store: CatalogStore,
    problem: Problem,
    bench: RunBench,
    goal: Goal,
    run_id: str,
    asked: Mapping[str, Any],
) -> RunRow:
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
    return run


def _store_of(base: KnowledgeBase, resume: str | None, problem: Problem) -> CatalogStore:
    """Where runs are. Refuses to resume one that cannot be before anything else is opened."""
    store = run_store(base)
    if resume is not None:
        _matching(store, resume, problem)
    return store


def _matching(store: CatalogStore, run_id: str, problem: Problem) -> RunRow:
    run = store.run(run_id)
    if run.state == "finished":
        raise Conflict(
            f"{run_id} has ended: {run.ended}",
            hint="Start a new run; it begins with the winners that are stored, or with what is"
            " right and has no figure yet.",
        )
    if run.problem_sha256 != problem.sha256:
        raise InvalidRequest(
            f"{problem.path} is not the problem of {run_id} any more",
            hint="Start a new run: results of another problem cannot be continued.",
        )
    return run


def _inherited(
    base: KnowledgeBase,
    store: CatalogStore,
    problem: Problem,
    view: ProblemView,
    hardware: HardwareView,
    places: dict[str, TargetToolchain],
) -> list[Proposal]:
    """The best stored candidates of the same op family, dtype and lineage that fit this problem
    and can be built here. Whether one is right for it is for its evaluation to say. Where none of
    this very problem has a figure, those that no figure could be had for come first."""
    recipes = {recipe.name: recipe for recipe in library_recipes(base)}
    family, dtype = op_family(problem.op), view.main.dtype
    winners = store.winners(family, dtype, hardware.lineage, problem.sha256, LOOKED_AT)
    stored = list(winners)
    if not any(same for _, same in stored):
        untimed = store.untimed(hardware.lineage, problem.sha256, LOOKED_AT)
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
    plan = "A stored candidate of the same family, measured again."
    # The earlier run paid for it.
    return replace(
        stored, synthesizer="inherited", parent=REFERENCE, plan=plan, cost=Cost(), model=None
    )


# -- archive: Right kernels of a run, kept as samples of their chip: the next problem starts from


def keep_right_kernels(
    base: KnowledgeBase,
    tree: Tree,
    problem: ProblemView,
    hardware: HardwareView,
    run_id: str,
) -> list[str]:
    """Store the best right kernel of each of the chip's own languages; returns the samples' ids."""
    known = load_layout().known_languages
    kept = []
    for language in hardware.languages:
        best = _best(tree, language)
        if language not in known and best is not None:
            kept.append(_keep(base, best, problem, hardware, language, run_id))
    return kept


def _best(tree: Tree, language: str) -> Node | None:
    """The fastest right node in a language; of unmeasured ones the first."""
    right = [
        node
        for node in tree.nodes[1:]
        if node.correct and node.proposal is not None and node.proposal.bundle.language == language
    ]
    return max(right, key=lambda node: (node.merit, -node.number), default=None)


def _keep(
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
    cycles = [t.cycles for t in node.evaluation.timings if t.cycles is not None]
    took = f", {cycles[0]} cycles in the simulator" if cycles else ""
    with base.catalog.write() as connection:
        cards = own_symbols(connection, hardware.lineage, language, ALL_ACCESS)
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
