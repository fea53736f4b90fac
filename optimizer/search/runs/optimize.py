"""One run from a goal: target, toolchains, proposers, knowledge, store, then the winner's proof."""

from __future__ import annotations

import difflib
import io
import json
import re
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from kb import telemetry
from kb.catalog.knowledge import samples
from kb.catalog.knowledge.samples import StoredRecipe, VerifiedKernel, list_recipes
from kb.catalog.knowledge.symbols import RefusedName
from kb.catalog.runs import Runs
from kb.errors import Conflict, InvalidRequest
from kb.ids import new_id
from kb.plain import from_json
from kb.problem_terms import op_family
from kb.scope import ALL_ACCESS
from optimizer.evaluation.isolation.machine import MIN_SECONDS, other_work, too_busy
from optimizer.evaluation.problem.check import distrust
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import BRIEFLY, EVALUATION_STAGES, Evaluation
from optimizer.search.bench.cluster import ClusterBench, SimulatedOnCluster
from optimizer.search.bench.local import LocalBench, TargetToolchain, problem_view
from optimizer.search.bench.simulated import SimulatedBench, by_commands, clock_of
from optimizer.search.confirm import (
    FIRST_RIGHT,
    RunOutcome,
    best_so_far,
    confirm,
    not_confirmed,
    so_far,
)
from optimizer.search.goal import Goal
from optimizer.search.knowledge import KnowledgeSource, ShownKnowledge
from optimizer.search.loop import (
    INTERRUPTED,
    Listener,
    Search,
    Stages,
    UnusedProposer,
    WorkListener,
    why_untried,
)
from optimizer.search.output.module import write_module
from optimizer.search.output.report import model_costs, write_report
from optimizer.search.output.shipped.table import TABLE
from optimizer.search.propose import SearchTask, compose_context, request_for, roles_of, tree_before
from optimizer.search.records import REFERENCE, Cost, Node, Proposal
from optimizer.search.runs.hardware_view import check_launch, hardware_view_of, refused_names
from optimizer.search.runs.knowledge import ServiceKnowledge, library_recipes
from optimizer.search.runs.models import ModelTools, check_keys, language_models
from optimizer.search.runs.places import ClusterPlaces, bench_for, places_for, target_of
from optimizer.search.runs.run_store import CatalogStore, RunLock, check_same_problem, run_store
from optimizer.search.store import FileStore, RunRow, RunStore
from optimizer.search.synthesizers.base import (
    HardwareView,
    ProblemView,
    ProposalContext,
    ProposalFailed,
    Synthesizer,
)
from optimizer.search.synthesizers.llm.settings import ModelOptions
from optimizer.search.synthesizers.recipe.synthesizer import (
    ManualSample,
    RecipeSynthesizer,
    SampleSynthesizer,
    adapt_winner,
)
from optimizer.search.tree import Tree, rough_gain
from retrieval.compose.target import own_symbols
from retrieval.knowledge_base import KnowledgeBase
from retrieval.layout import load_layout
from retrieval.search.names import names_in, names_unknown_to

INHERITED = 3
CONSIDERED = 60  # stored winners from which those that fit are inherited
CANCELLED_EARLY = "cancelled before the winner was measured again"
INTERRUPTED_EARLY = "interrupted before the winner was measured again"
CONFIRM = "run: confirm"
# Stages in words, by the names of their spans.
STAGES = {
    "node: propose": "choosing a change",
    "node: evaluate": "in the queue of the device",
    **EVALUATION_STAGES,
    CONFIRM: "measuring the best again",
}
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
    work = _Work(store, lock.run_id, listener)
    with (
        lock,
        telemetry.watched(work.enter),
        _bench(base, problem, places, cluster, listener, goal.minutes) as bench,
    ):
        if isinstance(bench, LocalBench) and bench.device == "cpu":
            work.threads = bench.settings.threads
        stages.ended("what compilers and device can do")
        view, hardware_view = _views(problem, bench, places, goal)
        hardware_view = replace(
            hardware_view, refused=refused_names(base, hardware_view.id, places)
        )
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
                finished = _carried_out(search, bench, over, problem, stages, others)
                if cluster is None:
                    remember_refused(base, search.tree, hardware_view, run.id)
                return finished
            finally:
                store_correct_kernels(base, search.tree, view, hardware_view, run.id)


@dataclass
class _Work:
    """Notes the stage of a run's work, which the names of its spans tell, in its stored row and to
    its listener. `threads` are those of a kernel on the processors, 0 on another device."""

    store: CatalogStore
    run_id: str
    listener: Listener
    threads: int = 0
    candidate: int | None = 0  # None while the best is measured again
    thread: int = field(default_factory=threading.get_ident)

    def enter(self, span: str, about: Mapping[str, telemetry.Value]) -> None:
        """The watcher of spans. Those of other threads are ignored: a listener has one thread."""
        if threading.get_ident() != self.thread or (stage := STAGES.get(span)) is None:
            return
        if span == CONFIRM:
            self.candidate = None
        elif "kernlore.node" in about:
            self.candidate = int(str(about["kernlore.node"]))
        elif self.candidate is None:
            stage = f"{STAGES[CONFIRM]}: {stage}"
        note: dict[str, Any] = {"candidate": self.candidate, "stage": stage, "since": time.time()}
        if self.threads and span == "evaluate: benchmark":
            note["busy"] = other_work(self.threads, MIN_SECONDS)
        self.store.note(self.run_id, "work", note)
        if isinstance(self.listener, WorkListener):
            self.listener.working(self.candidate, stage)


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
    minutes: float | None,
) -> RunBench:
    if cluster is not None:
        return cluster.bench(base, problem, listener.log)
    bench = bench_for(base, problem, places, minutes)
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
        activity.changed = lambda state: store.note(run_id, "cluster", state)
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
            with telemetry.span(CONFIRM):
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
    run = replace(run, result=asdict(outcome))
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
    base: KnowledgeBase, tree: Tree, problem: ProblemView, hardware: HardwareView, run_id: str
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


def remember_refused(
    base: KnowledgeBase, tree: Tree, hardware: HardwareView, run_id: str
) -> list[RefusedName]:
    """Remember the names of the chip's manuals that its tools did not know in this run's candidates
    and do not know in the chip's own kernels either."""
    from optimizer.evaluation.acceptance.accept import refused_by_tool  # only such runs need it

    refused: list[RefusedName] = []
    for language in hardware.toolchains:
        seen: dict[str, str] = {}
        for node in tree.nodes[1:]:
            found = node.evaluation
            if found is not None and found.language == language and found.reached == "compile":
                place = f"{run_id}, candidate {node.number}"
                seen = {**dict.fromkeys(names_unknown_to(found.log), place), **seen}
        if seen:
            refused += refused_by_tool(base, hardware.id, language, seen)
    return refused


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


# -- the built-in proposers of a run: those that its goal names, or all that can run here

# The built-in synthesizers with their requirements.
REQUIRES = {
    "recipe": "recipes of active skills",
    "sample": "code samples of an uploaded manual",
    "traced": "C++ for the CPU or Triton for a GPU: --language cpp or triton, or no --language",
    "compiler": "--language torch, or no --language",
}
AS_IT_STANDS = "the manual's sample as it stands"
CLOSE_TO_IT = "the manual's sample, as near to it as the limits allow"


def builtin(
    base: KnowledgeBase, goal: Goal, places: dict[str, TargetToolchain]
) -> list[Synthesizer]:
    """The built-in synthesizers, or those of them that the goal names. Raises InvalidRequest for
    one that is unavailable."""
    available = _available(base, goal, places)
    if not goal.synthesizers:
        return available
    chosen = [synthesizer for synthesizer in available if synthesizer.name in goal.synthesizers]
    named = set(goal.synthesizers) & set(REQUIRES)
    absent = sorted(named - {synthesizer.name for synthesizer in chosen})
    if absent:
        names = ", ".join(synthesizer.name for synthesizer in available)
        raise InvalidRequest(
            f"the {absent[0]} synthesizer is unavailable: it requires {REQUIRES[absent[0]]}",
            hint=f"Available here: {names}.",
        )
    return chosen


def _available(
    base: KnowledgeBase, goal: Goal, places: dict[str, TargetToolchain]
) -> list[Synthesizer]:
    wanted = [goal.language] if goal.language else list(places)
    proposers: list[Synthesizer] = []
    # A search without knowledge tries those too that did harm on this chip.
    measured_on = next(iter(places.values())).target.hardware if goal.knowledge else None
    recipes = library_recipes(base, measured_on)
    proposers.append(RecipeSynthesizer(recipes, [name for name in wanted if name in places]))
    samples = manual_samples(base, places) if goal.knowledge else []
    if samples:
        proposers.append(SampleSynthesizer(samples))
    # After recipes, which were written for such problems.
    if any(name in wanted and name in places for name in ("cpp", "triton")):
        from optimizer.search.synthesizers.traced.synthesizer import TracedSynthesizer

        proposers.append(TracedSynthesizer())
    if "torch" in wanted:
        from optimizer.search.synthesizers.compiler.synthesizer import CompilerSynthesizer

        proposers.append(CompilerSynthesizer())
    return proposers


def left_out(
    base: KnowledgeBase,
    goal: Goal,
    places: dict[str, TargetToolchain],
    chosen: Sequence[Synthesizer],
) -> list[UnusedProposer]:
    """Built-in synthesizers that could run here but that the goal leaves out."""
    names = {synthesizer.name for synthesizer in chosen}
    available = _available(base, replace(goal, language=None), places)
    left = []
    for synthesizer in (s for s in available if s.name not in names):
        if goal.synthesizers and synthesizer.name not in goal.synthesizers:
            left.append(UnusedProposer(synthesizer, "add it to --synthesizers"))
        elif goal.language is not None:
            left.append(UnusedProposer(synthesizer, "leave --language out"))
    return left


def manual_samples(
    base: KnowledgeBase, places: Mapping[str, TargetToolchain]
) -> list[ManualSample]:
    """Samples of the chip's own manuals, without rejected ones, in the languages that command
    templates run."""
    languages = {name for name, place in places.items() if by_commands(place.toolchain)}
    if not languages:
        return []
    target = next(iter(places.values())).target
    with base.catalog.read() as connection:
        recipes = list_recipes(connection, target.lineage, statuses=("proposed", "accepted"))
    return [
        ManualSample(recipe.id, recipe.name, recipe.language, _source(recipe), recipe.body)
        for recipe in recipes
        if recipe.language in languages
    ]


def _source(recipe: StoredRecipe) -> str:
    section = f'section "{recipe.section[-1]}" of ' if recipe.section else ""
    return f"{section}{recipe.document_title}"


def compared_with(
    bench: SimulatedBench,
    proposers: Iterable[Synthesizer],
    problem: ProblemView,
    hardware: HardwareView,
    store: RunStore,
    resume: str | None,
) -> str:
    """Set the baseline of the bench and return it in words: the first sample of the manual if that
    is correct, else the first correct candidate, also of the run `resume` that is continued."""
    samples = next((p for p in proposers if isinstance(p, SampleSynthesizer)), None)
    bench.first = samples.first(problem, hardware) if samples is not None else None
    if resume is not None:
        nodes = store.nodes(resume)
        right = next((n.evaluation for n in nodes if n.correct and n.evaluation is not None), None)
        if right is not None:
            bench.compare_with(right)
    if bench.first is None or not bench.reference().correct:
        return FIRST_RIGHT
    return AS_IT_STANDS if bench.first.plan.endswith("as it stands.") else CLOSE_TO_IT


# -- attribution: which shown items made a candidate, by proposing again without one
#
# An item is attributed if the proposer makes another candidate without it. Of two items that ask
# for the same change neither is attributed: without the first, the second still makes it. Only
# deterministic proposers can propose again. The items that a model claims to have used are reported
# as claimed, if a word of the item occurs in a line that the candidate adds.
#
# The parent's request is sent to the knowledge base again. Nothing is attributed if the answer has
# other ids than the node records, or if the proposer makes another bundle with all of it.

CHANGED = "the knowledge has changed since"
NOT_MADE_AGAIN = (
    "the knowledge or the recipes have changed since: shown all of it again, {} differs"
)
ASKED_A_MODEL = "a model's proposal cannot be made again without asking it"
ABSENT = "its proposer is not here"
# Words of a text that look like code: cp.async, __launch_bounds__, float4x, schedule(static
_CODE = re.compile(r"[A-Za-z_#][\w#]*(?:(?:\.|::|_)\w+)+|\b__\w+|\b[a-z]+\d+\w*\b")


@dataclass(frozen=True)
class Attribution:
    """Origins of one node's candidate, as ids of moves, skills and excerpts.

    `shown` are all items that the proposer saw; `claimed` those that it names and whose words occur
    in its change; `attributed` those without which it makes another candidate; `recorded` those
    that it noted when it made the change. `note` says why nothing is attributed.
    """

    node: int
    shown: tuple[str, ...]
    claimed: tuple[str, ...] = ()
    attributed: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    note: str = ""


def attribution(
    tree: Tree, task: SearchTask, synthesizers: Sequence[Synthesizer], knowledge: KnowledgeSource
) -> list[Attribution]:
    """Attributions of the nodes whose proposers were shown knowledge. `synthesizers` must be
    configured as in the run."""
    by_name = {synthesizer.name: synthesizer for synthesizer in synthesizers}
    roles = roles_of(synthesizers, task.problem)
    answers: dict[int, ShownKnowledge] = {}
    attributions = []
    for node in tree:
        if node.proposal is None or node.parent is None or not _shown(node):
            continue
        if node.parent not in answers:
            answers[node.parent] = knowledge.consult(request_for(task, tree[node.parent], roles))
        answer = answers[node.parent]
        item = _attributed(tree, node, task, by_name.get(node.proposal.synthesizer), answer)
        attributions.append(replace(item, recorded=node.proposal.attributed))
    return attributions


def _attributed(
    tree: Tree,
    node: Node,
    task: SearchTask,
    synthesizer: Synthesizer | None,
    answer: ShownKnowledge,
) -> Attribution:
    assert node.proposal is not None and node.parent is not None
    attribution = Attribution(node.number, _shown(node))
    now = answer.shown()
    same = (now.moves, now.skills, now.excerpts) == (
        node.shown.moves,
        node.shown.skills,
        node.shown.excerpts,
    )
    if node.proposal.origin in ("llm", "external"):
        known = [(i, text) for i, text in _items(answer) if i in node.proposal.claimed]
        added = _added(tree, node, task)
        claimed = tuple(i for i, text in known if _occurs_in(i, text, added))
        note = ASKED_A_MODEL if same else f"{ASKED_A_MODEL}; {CHANGED}"
        return replace(attribution, claimed=claimed, note=note)
    if not same:
        return replace(attribution, note=CHANGED)
    if synthesizer is None:
        return replace(attribution, note=ABSENT)
    context = compose_context(task, tree_before(tree, node), node.parent, answer)
    if _bundle(synthesizer, context) != node.proposal.bundle.sha256:
        return replace(attribution, note=NOT_MADE_AGAIN.format(synthesizer.name))
    attributed = tuple(
        item
        for item in attribution.shown
        if _bundle(synthesizer, replace(context, knowledge=without(answer, item)))
        != node.proposal.bundle.sha256
    )
    return replace(attribution, attributed=attributed)


def without(knowledge: ShownKnowledge, item: str) -> ShownKnowledge:
    """The knowledge without the item of this id."""
    return replace(
        knowledge,
        excerpts=tuple(excerpt for excerpt in knowledge.excerpts if excerpt.id != item),
        moves=tuple(move for move in knowledge.moves if move.id != item),
        skills=tuple(skill for skill in knowledge.skills if skill.name != item),
    )


def _shown(node: Node) -> tuple[str, ...]:
    return (*node.shown.moves, *node.shown.skills, *node.shown.excerpts)


def _bundle(synthesizer: Synthesizer, context: ProposalContext) -> str | None:
    """SHA-256 of the proposed bundle, or None without a proposal."""
    try:
        proposal = synthesizer.propose(context)
    except ProposalFailed:
        return None
    return proposal.bundle.sha256 if proposal is not None else None


# -- claims of models


def _items(knowledge: ShownKnowledge) -> Iterator[tuple[str, str]]:
    """Ids, each with the text whose words may occur in code. A move's role names a parameter."""
    for move in knowledge.moves:
        yield move.id, f"{move.name} {move.why} `{move.change.get('role', '')}`"
    for skill in knowledge.skills:
        yield skill.name, skill.text
    for excerpt in knowledge.excerpts:
        yield excerpt.id, excerpt.text


def _added(tree: Tree, node: Node, task: SearchTask) -> str:
    """Lines that the candidate adds to its parent."""
    assert node.proposal is not None and node.parent is not None
    parent = tree[node.parent].proposal
    before = "\n".join(parent.bundle.files.values()) if parent else task.problem.source
    after = "\n".join(node.proposal.bundle.files.values())
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return "\n".join(line[1:] for line in lines if line[:1] == "+" and line[:3] != "+++")


def _occurs_in(item: str, text: str, added: str) -> bool:
    words = {item, *_CODE.findall(text), *re.findall(r"`([^`\s]{3,})`", text)}
    return any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", added, re.I) for word in words)


# -- a run as files: the module of its winner, the report, and its rows

WHY_NOT = {"running": "the run has not ended", "cancelled": CANCELLED_EARLY}


def export_run(base: KnowledgeBase, run_id: str, folder: Path) -> dict[str, Any]:
    """Write module, report and rows of a run into a folder; returns the paths, and the reason if
    the kernel is not confirmed. A run that has not ended has its best correct candidate so far.
    Raises NotFound, and Conflict for a folder that is not empty."""
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty", hint="Give a new folder.")
    store = run_store(base)
    run = store.run(run_id)
    problem = load_problem(Path(run.problem))
    nodes = store.nodes(run_id)
    tree = Tree(nodes)
    outcome = outcome_of(run, tree)
    rows = FileStore(folder / "rows")
    rows.begin(run)
    for node in nodes:
        rows.add(run.id, node)
    module = write_module(tree, outcome, problem, folder)
    report = write_report(run, tree, outcome, problem, folder)
    kernel = _source_in(module)
    return {
        "module": str(module),
        "kernel": str(kernel) if kernel is not None else None,
        "note": outcome.reason,
        "report": str(report),
        "rows": str(folder / "rows" / run.id),
    }


def exported_zip(base: KnowledgeBase, run_id: str) -> bytes:
    """The files of `export_run` as a zip file with one folder. Raises NotFound."""
    with tempfile.TemporaryDirectory(prefix="kernlore-export-") as scratch:
        folder = Path(scratch) / run_id
        export_run(base, run_id, folder)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(scratch))
        return packed.getvalue()


def outcome_of(run: RunRow, tree: Tree) -> RunOutcome:
    """The outcome of a stored run; for one that has not ended, the best candidate so far."""
    if not run.result:
        return so_far(tree, WHY_NOT.get(run.state, "the run did not end"))
    if run.state == "cancelled" and "best_so_far" not in run.result:  # by an older version
        return so_far(tree, WHY_NOT["cancelled"])
    return from_json(RunOutcome, run.result)


def write_result(finished: FinishedRun, output: Path | None = None) -> dict[str, Any]:
    """Write the module and the report of a run and describe them.

    `output` is the folder, by default a new one in the working directory, named after the run.
    `speedup` is that of the final measurement over the reference: 1.0 if the reference stays, None
    if nothing could be measured. `correct` and `kernel`, the path of the source, are those of the
    module's kernel: the winner, else the best correct candidate so far, else the reference, which
    has no path. `models` are the costs of the language models.
    """
    outcome, tree = finished.outcome, finished.tree
    apart = outcome.clock != "wall"  # the gain is no speed-up over the reference
    folder = (output or Path(f"{finished.problem.name}_{finished.run.id}")).resolve()
    module = write_module(finished.tree, finished.outcome, finished.problem, folder)
    report = write_report(finished.run, finished.tree, finished.outcome, finished.problem, folder)
    kernel = _source_in(module)
    return {
        "run": finished.run.id,
        "state": finished.run.state,
        "ended": finished.run.ended,
        "speedup": None if apart or not outcome.measured else _speedup(outcome),
        "correct": tree[_held(outcome)].correct,
        "kernel": str(kernel) if kernel is not None else None,
        "models": model_costs(tree),
        "outcome": asdict(outcome),
        "module": str(module),
        "report": str(report),
        "import": _through_tools(kernel, finished.run.hardware)
        if apart
        else f"PYTHONPATH={module.parent} python -c 'from {module.name} import ModelNew'",
    }


def _speedup(outcome: RunOutcome) -> float:
    return outcome.gain.value if outcome.gain is not None else 1.0


def _held(outcome: RunOutcome) -> int:
    """The number of the module's node."""
    numbers = (outcome.node, outcome.best_so_far)
    return next((number for number in numbers if number is not None), REFERENCE)


def _source_in(module: Path) -> Path | None:
    """The main file of a module's kernel."""
    main = json.loads((module / TABLE).read_text(encoding="utf-8"))["source"]
    return module / main if main is not None else None


def _through_tools(kernel: Path | None, hardware: str) -> str:
    """Usage of a kernel that only the chip's own tools run."""
    if kernel is None:
        return "the module contains no kernel"
    return f"{kernel} runs through the command templates of {hardware}, not from torch"
