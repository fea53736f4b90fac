"""Runs in and out: sessions packed, their results imported, a stored run exported as files."""

from __future__ import annotations

import io
import json
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from kb.catalog import skills as skill_rows
from kb.catalog.evaluations import Evaluations
from kb.errors import Conflict, InvalidRequest, KernloreError, NotFound, Unavailable
from kb.ids import new_id
from kb.scope import ALL_ACCESS
from optimizer.evaluation.abi import Signature
from optimizer.evaluation.catalog_journal import CatalogJournal
from optimizer.evaluation.evaluate import choose_target
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation
from optimizer.search.bench.local import problem_view
from optimizer.search.confirm import RunOutcome, outcome_from_json, so_far
from optimizer.search.goal import Goal
from optimizer.search.knowledge import KnowledgeSnapshot, take_snapshot
from optimizer.search.loop import Listener, Search
from optimizer.search.output.account import model_costs
from optimizer.search.output.module import write_module
from optimizer.search.output.report import write_report
from optimizer.search.output.shipped.table import TABLE
from optimizer.search.portable.packing import Drafted, write_session
from optimizer.search.propose import EXCERPTS
from optimizer.search.records import IN_FLIGHT, REFERENCE, Node, Proposal
from optimizer.search.runs.knowledge import ServiceKnowledge, library_recipes
from optimizer.search.runs.machine import keep_rates, kept_rates
from optimizer.search.runs.models import ModelTools, asked_models, check_keys, language_models
from optimizer.search.runs.optimize import CANCELLED_EARLY, FinishedRun
from optimizer.search.runs.places import LANGUAGES
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.llm.settings import ModelOptions, models_from
from optimizer.search.synthesizers.recipe.recipe import Recipe
from optimizer.search.tree import Tree
from retrieval.diagnose.signals import load_signals
from retrieval.knowledge_base import KnowledgeBase
from retrieval.request import RetrieveRequest

CUDA_VENDORS = ("nvidia", "amd")
WHY_NOT = {"running": "the run has not ended", "cancelled": CANCELLED_EARLY}
WAITING = "waiting"  # state of a run whose candidates are out to be evaluated
PACKED = ("recipe", "traced", "compiler")  # proposers that need nothing but what is packed


def pack_session(
    base: KnowledgeBase, paths: Sequence[Path], hardware: str, goal: Goal, output: Path
) -> Path:
    """Pack a session for a hardware, which need not be in this machine, as the zip file `output`.

    Raises Unavailable where no built-in toolchain runs kernels on that hardware, and what
    `packable` does.
    """
    problems, identity = packable(base, paths, hardware, goal)
    target = session_target(base, identity)
    knowledge = KnowledgeSnapshot()
    if goal.knowledge:
        knowledge = _snapshot(base, [p.op for p in problems], identity, goal)
    recipes = [recipe for recipe in library_recipes(base) if recipe.language in target["languages"]]
    return write_session(
        output,
        session_id=new_id("session"),
        goal=goal.as_json(),
        target=target,
        problems=problems,
        knowledge=knowledge,
        recipes=[_recipe(base, recipe) for recipe in recipes],
    )


def packable(
    base: KnowledgeBase, paths: Sequence[Path], hardware: str, goal: Goal
) -> tuple[list[Problem], str]:
    """The problems of a session and the id of its hardware. Takes no knowledge, so that a mistake
    is reported before any is read.

    Raises InvalidRequest for two problems of one name and for proposers that need what a session
    does not hold, and UnknownHardware.
    """
    missing = [name for name in goal.synthesizers if name not in PACKED]
    if missing:
        raise InvalidRequest(
            f"a packed session has no proposer {missing[0]!r}",
            hint=f"It has {', '.join(PACKED)}. For models: `kernlore runs propose`.",
        )
    problems = [load_problem(path) for path in paths]
    twice = [name for name, n in Counter(p.name for p in problems).items() if n > 1]
    if twice:
        raise InvalidRequest(
            f"two problems are called {twice[0]}", hint="Give one a `name` in its problem.toml."
        )
    return problems, base.registry.resolve(hardware)


def session_target(base: KnowledgeBase, hardware: str) -> dict[str, Any]:
    """What a session knows of its device: {hardware, lineage, device, arch (by language), languages
    (to toolchains), facts}. Raises Unavailable where no built-in toolchain runs kernels on it.
    """
    languages, arch = {}, {}
    for language in LANGUAGES:
        try:
            chosen = choose_target(base, hardware, language)
        except (InvalidRequest, Unavailable):
            continue
        if chosen.builtin:
            languages[language] = chosen.builtin
            arch[language] = chosen.target.arch
    lineage = base.registry.lineage(hardware)
    gpu = any(vendor in lineage for vendor in CUDA_VENDORS)
    if gpu:
        languages.pop("cpp", None)
    if not languages:
        raise Unavailable(
            f"no built-in toolchain runs kernels on {hardware}",
            hint="Sessions are for hardware that torch, Triton or a C++ compiler can use.",
        )
    return {
        "hardware": hardware,
        "lineage": list(lineage),
        "device": "cuda" if gpu else "cpu",
        "arch": arch,
        "languages": languages,
        "facts": dict(base.registry.values(hardware)),
    }


def _snapshot(
    base: KnowledgeBase, operators: Sequence[str], hardware: str, goal: Goal
) -> KnowledgeSnapshot:
    template = RetrieveRequest(
        hardware=hardware, language=goal.language, node_id="0", k=EXCERPTS, max_tokens=2_000
    )
    signals = [signal.id for signal in load_signals()]
    source = ServiceKnowledge(base)
    return take_snapshot(source.consult, source.remedies, signals, operators, template)


def _recipe(base: KnowledgeBase, recipe: Recipe) -> dict[str, Any]:
    with base.catalog.read() as connection:
        row = skill_rows.get(connection, recipe.name, ALL_ACCESS)
    return {"name": row.name, "recipe": row.recipe, "files": row.metadata.get("files", {})}


def import_results(base: KnowledgeBase, results: Path) -> list[RunRow]:
    """Import the runs of a session with their nodes and evaluations.

    `results` is its results.zip or folder. Raises NotFound, InvalidRequest, and Conflict for a run
    that was imported before.
    """
    if not results.exists():
        raise NotFound(f"{results} is not there", hint="Give results.zip or its folder.")
    if results.is_dir():
        return _import(base, FileStore(results))
    with tempfile.TemporaryDirectory(prefix="kernlore-import-") as folder:
        try:
            with zipfile.ZipFile(results) as packed:
                packed.extractall(folder)
        except zipfile.BadZipFile as error:
            raise InvalidRequest(
                f"{results} is no zip file", hint="Give results.zip of a portable session."
            ) from error
        return _import(base, FileStore(Path(folder)))


def _import(base: KnowledgeBase, source: FileStore) -> list[RunRow]:
    names = sorted(path.parent.name for path in source.folder.glob("*/run.json"))
    if not names:
        raise InvalidRequest(
            f"{source.folder} holds no run", hint="Give the --out folder of a portable session."
        )
    imported = []
    for name in names:
        run = source.run(name)
        run = replace(run, problem=str(load_problem(Path(run.problem)).path))
        known = len(run_store(base).nodes(run.id))
        goes_on = _goes_on(base, run.id, known, len(source.nodes(name)))
        imported.append(merge(base, source, run) if goes_on else adopt(base, source, run))
        keep_rates(base, run.id, source.folder)
        _report(ServiceKnowledge(base), source.nodes(name)[known:])
    return imported


def _goes_on(base: KnowledgeBase, run_id: str, known: int, brought: int) -> bool:
    """Whether the run is here and waits for these results, or they hold more of it: a session that
    was cut off may be imported, continued and imported again.
    """
    try:
        return run_store(base).run(run_id).state == WAITING or brought > known
    except NotFound:
        return False


def merge(base: KnowledgeBase, source: FileStore, run: RunRow) -> RunRow:
    """Add the candidates that a session evaluated to the run that they were proposed for; `run` is
    the session's row of it. Raises Conflict where they were proposed from another state of it.
    """
    store = run_store(base)
    stored, nodes = store.nodes(run.id), source.nodes(run.id)
    if [_identity(n) for n in nodes[: len(stored)]] != [_identity(n) for n in stored]:
        raise Conflict(
            f"{run.id} has other candidates by now than this batch was proposed from",
            hint="Another batch of it was imported; `kernlore runs tree` shows what is there.",
        )
    problem = _same_problem(run)
    new = nodes[len(stored) :]
    _journal_all(base, problem, new)
    for node in new:
        store.add(run.id, node)
    store.update(run)
    return run


def _identity(node: Node) -> str:
    return "" if node.proposal is None else node.proposal.bundle.sha256


def adopt(base: KnowledgeBase, source: FileStore, run: RunRow) -> RunRow:
    """Store a run that `source` has as files, with its nodes and evaluations; `run` is its row.

    The outcomes of the answers that it was shown are not reported: whoever searched may have done
    that. Raises Conflict for a run that is here already, and InvalidRequest where its problem file
    differs here.
    """
    store = run_store(base)
    try:
        store.run(run.id)
    except NotFound:
        pass
    else:
        raise Conflict(f"run {run.id} was imported before", hint="Show it with `runs show`.")
    problem, nodes = _same_problem(run), source.nodes(run.id)
    _journal_all(base, problem, nodes)
    store.begin(run)
    for node in nodes:
        store.add(run.id, node)
    store.update(run)
    return run


def _same_problem(run: RunRow) -> Problem:
    problem = load_problem(Path(run.problem))
    if problem.sha256 != run.problem_sha256:
        raise InvalidRequest(
            f"{run.problem} here is not the problem that was searched",
            hint="Import where the same problem file is, or keep the results as files.",
        )
    return problem


def _journal_all(base: KnowledgeBase, problem: Problem, nodes: Sequence[Node]) -> None:
    journal = CatalogJournal(Evaluations(base.catalog), base.blobs)
    for node in nodes:
        if node.evaluation is not None:
            bundle = node.proposal.bundle if node.proposal is not None else None
            _journal(journal, problem, node.evaluation, bundle)


def _report(knowledge: ServiceKnowledge, nodes: Sequence[Node]) -> None:
    """Report the outcomes of the answers that the session was packed with."""
    for node in nodes:
        if node.proposal is None or node.state == "duplicate" or not node.shown.retrieval_id:
            continue
        try:
            knowledge.report(node.shown.retrieval_id, node.proposal.attributed, node)
        except NotFound:
            return  # packed over another data directory, which gave the answers


def _journal(journal: CatalogJournal, problem: Problem, evaluation: Any, bundle: Any) -> None:
    if bundle is None:
        from optimizer.evaluation.bundle import Bundle

        bundle = Bundle({"reference.py": problem.source}, "reference.py", "torch", "Model")
    if journal.finished(evaluation.key) is not None:
        return
    checked = {check.case for check in evaluation.checks}
    cases = [case for case in problem.cases if case.name in checked]
    signatures = {case.name: OpenCase(problem, case, shapes_only=True).signature for case in cases}
    journal.begin(evaluation.key, problem, signatures, bundle, evaluation.device)
    journal.finish(evaluation, problem)


def export_run(base: KnowledgeBase, run_id: str, folder: Path) -> dict[str, Any]:
    """Write everything about one run into a folder; the paths, and why the kernel is none that is
    confirmed. A run that has not ended has its best right candidate so far. Raises NotFound, and
    Conflict for a folder that is not empty.
    """
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
    """What `export_run` writes, as a zip file with one folder. Raises NotFound."""
    with tempfile.TemporaryDirectory(prefix="kernlore-export-") as place:
        folder = Path(place) / run_id
        export_run(base, run_id, folder)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                archive.write(path, path.relative_to(place))
        return packed.getvalue()


def outcome_of(run: RunRow, tree: Tree) -> RunOutcome:
    """The outcome of a stored run; of one that has not ended, what there is so far."""
    if not run.result:
        return so_far(tree, WHY_NOT.get(run.state, "the run did not end"))
    if run.state == "cancelled" and "best_so_far" not in run.result:  # by an older version
        return so_far(tree, WHY_NOT["cancelled"])
    return outcome_from_json(run.result)


def write_result(finished: FinishedRun, output: Path | None = None) -> dict[str, Any]:
    """Write the module and the report of a finished run, and describe them.

    `output` is the folder; the default is a new one in the working directory, named after the run.

    `speedup` is over the reference in the final measurement, 1.0 where the reference stays, and
    None where nothing could be measured.
    `correct` is about what the module holds: the winner, else the best right candidate so far, else
    the reference. `kernel` is the path of its source, None where it is the reference. `models` is
    what each language model cost.
    """
    outcome, tree = finished.outcome, finished.tree
    apart = outcome.clock != "wall"  # then the gain is no speed-up over the reference
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
        "outcome": outcome.as_json(),
        "module": str(module),
        "report": str(report),
        "import": _through_tools(kernel, finished.run.hardware)
        if apart
        else f"PYTHONPATH={module.parent} python -c 'from {module.name} import ModelNew'",
    }


def _speedup(outcome: RunOutcome) -> float:
    return outcome.gain.value if outcome.gain is not None else 1.0


def _held(outcome: RunOutcome) -> int:
    """The number of the node that the module holds."""
    numbers = (outcome.node, outcome.best_so_far)
    return next((number for number in numbers if number is not None), REFERENCE)


def _source_in(module: Path) -> Path | None:
    """The main file of the kernel in a written module."""
    main = json.loads((module / TABLE).read_text(encoding="utf-8"))["source"]
    return module / main if main is not None else None


def _through_tools(kernel: Path | None, hardware: str) -> str:
    """How to use a kernel that only the chip's own tools run."""
    if kernel is None:
        return "the module contains no kernel"
    return f"{kernel} runs through the command templates of {hardware}, not from torch"


# -- rounds: Rounds of a run whose models and whose device cannot see each other: candidates are p

log = structlog.get_logger(__name__)

OUT = "its candidates are out to be evaluated; `kernlore runs import` brings the results back"
NOT_RUN = "nothing was run yet: the device is on another machine"
AT_ONCE = 8  # runs whose models are asked side by side


@dataclass(frozen=True)
class RunDrafts:
    """The candidates of one run in a batch. `problem` is why there are fewer than were asked for,
    empty where there are as many.
    """

    run: str
    name: str
    drafts: int
    problem: str

    def as_json(self) -> dict[str, Any]:
        """As a row of an answer."""
        return {"run": self.run, "problem": self.name, "drafts": self.drafts, "note": self.problem}


class _Elsewhere:
    """The bench of a search whose device is on another machine: it evaluates nothing."""

    at_once = 1

    def reference(self) -> Evaluation:
        """Raises Unavailable."""
        raise Unavailable(NOT_RUN, hint="Run the batch where the device is.")

    def evaluate(self, proposal: Proposal) -> Evaluation:
        """Raises Unavailable."""
        return self.reference()


def begin_runs(
    base: KnowledgeBase, paths: Sequence[Path], hardware: str, goal: Goal
) -> list[RunRow]:
    """New runs, one for each problem, whose candidates will be evaluated on `hardware`. Nothing is
    stored yet. Raises NotFound, InvalidRequest and UnknownHardware.
    """
    identity = base.registry.resolve(hardware)
    return [
        RunRow(
            id=new_id("run"),
            problem=str(problem.path),
            problem_sha256=problem.sha256,
            hardware=identity,
            goal=goal,
            state=WAITING,
            started_at=time.time(),
        )
        for problem in map(load_problem, paths)
    ]


def runs_to_continue(base: KnowledgeBase, run_ids: Sequence[str]) -> list[RunRow]:
    """Stored runs. Raises NotFound, and InvalidRequest for one whose problem has changed."""
    runs = [run_store(base).run(run_id) for run_id in run_ids]
    for run in runs:
        if load_problem(Path(run.problem)).sha256 != run.problem_sha256:
            raise InvalidRequest(
                f"{run.problem} is not the problem of {run.id} any more",
                hint="Start a new run: results of another problem cannot be continued.",
            )
    return runs


def propose_round(
    base: KnowledgeBase,
    runs: Sequence[RunRow],
    models: str,
    options: ModelOptions,
    drafts: int,
    listener: Listener,
    output: Path,
) -> list[RunDrafts]:
    """Ask models for `drafts` candidates of each run and pack them as the session `output`; several
    runs are asked side by side, and the session is written anew after each that is answered. The
    runs wait until the results are imported, and remember which models were asked.

    Raises InvalidRequest for runs on different hardware and without models, Unavailable without
    litellm and where no model had an answer for any run; then nothing is written.
    """
    if not models_from(models):
        raise InvalidRequest("no model is named", hint="Give --models.")
    if not output.absolute().parent.is_dir():
        raise InvalidRequest(
            f"no folder {output.parent}", hint="Make it, or give another --output."
        )
    runs = list({run.id: run for run in runs}.values())
    if len({run.hardware for run in runs}) != 1:
        raise InvalidRequest(
            "a batch is for one hardware", hint="Propose for the runs of each hardware apart."
        )
    check_keys(models, options)
    options = replace(options, tools=False)  # a draft cannot be compiled here
    remembered = asked_models(models, options, listener)
    runs = [replace(run, asked=remembered) for run in runs]
    target = session_target(base, runs[0].hardware)
    _check_languages(runs, target)

    def ask(run: RunRow) -> tuple[Drafted, str]:
        return _asked(base, run, target, models, options, drafts, listener)

    batch = new_id("batch")
    asked: dict[str, tuple[Drafted, str]] = {}
    pool = ThreadPoolExecutor(min(AT_ONCE, len(runs)))
    try:
        for answer in as_completed([pool.submit(ask, run) for run in runs]):
            packed, why = answer.result()
            asked[packed.run.id] = packed, why
            if _in_flight(packed):
                # At once: what a model was paid for outlives a process that is killed.
                _write_batch(output, batch, target, [asked[r.id][0] for r in runs if r.id in asked])
                _store_waiting(base, packed)
    finally:
        pool.shutdown(cancel_futures=True)  # after an interruption no further model is asked
    proposed = [
        RunDrafts(packed.run.id, packed.problem.name, _in_flight(packed), why)
        for packed, why in (asked[run.id] for run in runs)
    ]
    if not any(row.drafts for row in proposed):
        why = next((row.problem for row in proposed if row.problem), "no answer")
        raise Unavailable(
            f"no model proposed a candidate: {why}", hint="Check --models and --api-base."
        )
    return proposed


def _write_batch(
    output: Path, batch: str, target: Mapping[str, Any], asked: Sequence[Drafted]
) -> None:
    """Pack those that have candidates."""
    drafted = [packed for packed in asked if _in_flight(packed)]
    write_session(
        output,
        session_id=batch,
        goal=drafted[0].run.goal.as_json(),
        target=target,
        drafted=drafted,
        knowledge=KnowledgeSnapshot(),
        recipes=[],
    )


def _check_languages(runs: Sequence[RunRow], target: Mapping[str, Any]) -> None:
    """Raises InvalidRequest before a model is asked for a language that cannot be run there."""
    for run in runs:
        if run.goal.language is not None and run.goal.language not in target["languages"]:
            raise InvalidRequest(
                f"a session for {run.hardware} runs no {run.goal.language}",
                hint=f"Give --language {' or '.join(target['languages'])}.",
            )


def _in_flight(drafted: Drafted) -> int:
    return sum(node.state == IN_FLIGHT for node in drafted.nodes)


def _asked(
    base: KnowledgeBase,
    run: RunRow,
    target: dict[str, Any],
    models: str,
    options: ModelOptions,
    drafts: int,
    listener: Listener,
) -> tuple[Drafted, str]:
    """As `_drafted`; an error is a reason, so that what models answered for other runs is kept."""
    try:
        return _drafted(base, run, target, models, options, drafts, listener)
    except KernloreError as error:
        why = f"{error.message}. {error.hint}"
    except Exception as error:  # whatever a problem file does: it ends this run alone
        log.exception("no candidate was proposed", run=run.id, problem=run.problem)
        why = f"{type(error).__name__}: {error}"
    return Drafted(load_problem(Path(run.problem)), run, ()), why


def _drafted(
    base: KnowledgeBase,
    run: RunRow,
    target: dict[str, Any],
    models: str,
    options: ModelOptions,
    drafts: int,
    listener: Listener,
) -> tuple[Drafted, str]:
    """A run with its next candidates; and why they are fewer than asked for."""
    problem = load_problem(Path(run.problem))
    view = problem_view(problem, target["device"], elsewhere=True)
    offered = (run.goal.language,) if run.goal.language else tuple(target["languages"])
    hardware = HardwareView(
        run.hardware,
        tuple(target["lineage"]),
        target["device"],
        offered,
        target["facts"],
        rates=kept_rates(base, run.id),
    )
    tools = ModelTools(base, hardware, view, {})
    search = Search(
        row=run,
        store=run_store(base),  # it has no node of a run that is about to begin
        bench=_Elsewhere(),
        synthesizers=[language_models(base, models, options, run.goal, listener, tools)],
        knowledge=ServiceKnowledge(base),
        problem=view,
        hardware=hardware,
        listener=listener,
    )
    if not len(search.tree):
        search.tree.add(Node(REFERENCE, None, "evaluated", None, None, problem=NOT_RUN))
    new, why = search.drafts(drafts)
    return Drafted(problem, run, [*search.tree.nodes, *new]), why


def _store_waiting(base: KnowledgeBase, drafted: Drafted) -> None:
    store, run = run_store(base), replace(drafted.run, state=WAITING, ended=OUT)
    try:
        store.run(run.id)
    except NotFound:
        journal = CatalogJournal(Evaluations(base.catalog), base.blobs)
        journal.problem(drafted.problem, _signatures(drafted.problem))
        store.begin(run)
    store.update(run)


def _signatures(problem: Problem) -> Mapping[str, Signature]:
    return {
        case.name: OpenCase(problem, case, shapes_only=True).signature for case in problem.searched
    }
