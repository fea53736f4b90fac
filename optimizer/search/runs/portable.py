"""Runs in and out: sessions packed, their results imported, a stored run exported as files."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kb.catalog import skills as skill_rows
from kb.catalog.evaluations import Evaluations
from kb.errors import Conflict, InvalidRequest, NotFound, Unavailable
from kb.ids import new_id
from kb.scope import ALL_ACCESS
from optimizer.evaluation.catalog_journal import CatalogJournal
from optimizer.evaluation.evaluate import choose_target
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.confirm import Outcome, outcome_from_json, so_far
from optimizer.search.goal import Goal
from optimizer.search.knowledge import Query
from optimizer.search.output.account import model_costs
from optimizer.search.output.module import write_module
from optimizer.search.output.report import write_report
from optimizer.search.output.shipped.table import TABLE
from optimizer.search.portable.packing import write_session
from optimizer.search.portable.snapshot import Snapshot, take_snapshot
from optimizer.search.records import REFERENCE, Node
from optimizer.search.runs.knowledge import ServiceKnowledge, library_recipes
from optimizer.search.runs.optimize import CANCELLED_EARLY, Finished
from optimizer.search.runs.places import LANGUAGES
from optimizer.search.runs.rates import keep_rates
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.recipe.recipe import Recipe
from optimizer.search.tree import Tree
from retrieval.diagnose.signals import load_signals
from retrieval.knowledge_base import KnowledgeBase

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
    knowledge = Snapshot()
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


def _snapshot(base: KnowledgeBase, operators: Sequence[str], hardware: str, goal: Goal) -> Snapshot:
    template = Query((), {}, "", hardware, "", goal.language, None, "", 0, 2_000)
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


def outcome_of(run: RunRow, tree: Tree) -> Outcome:
    """The outcome of a stored run; of one that has not ended, what there is so far."""
    if not run.result:
        return so_far(tree, WHY_NOT.get(run.state, "the run did not end"))
    if run.state == "cancelled" and "best_so_far" not in run.result:  # by an older version
        return so_far(tree, WHY_NOT["cancelled"])
    return outcome_from_json(run.result)


def write_result(finished: Finished, output: Path | None = None) -> dict[str, Any]:
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


def _speedup(outcome: Outcome) -> float:
    return outcome.gain.value if outcome.gain is not None else 1.0


def _held(outcome: Outcome) -> int:
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
