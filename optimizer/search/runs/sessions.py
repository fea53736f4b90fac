"""Packed sessions of runs: search on a machine that has only torch and triton, import the results,
and rounds of drafts for a device that the models cannot reach.

In a round, models propose candidates here, a session evaluates them on the device, and importing
its results adds them to the run.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from kb.catalog.evaluations import Evaluations
from kb.catalog.skills.reading import get_skill
from kb.cluster import ROOT, source_files
from kb.data_dir import private_file, private_folder
from kb.errors import Conflict, InvalidRequest, KernloreError, NotFound, Unavailable
from kb.ids import new_id
from kb.scope import ALL_ACCESS
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.catalog_journal import CatalogJournal
from optimizer.evaluation.collectors.ceilings import from_file
from optimizer.evaluation.evaluate import choose_target
from optimizer.evaluation.problem.load import SHIPPED, load_problem, problem_paths
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation
from optimizer.search.bench.local import journal_evaluation, problem_view
from optimizer.search.goal import Goal
from optimizer.search.knowledge import KnowledgeSnapshot, KnowledgeSource, take_snapshot
from optimizer.search.loop import Listener, Search
from optimizer.search.portable.launch import CEILINGS, SESSION
from optimizer.search.portable.skill_trial import PlannedTrial
from optimizer.search.propose import EXCERPTS
from optimizer.search.records import IN_FLIGHT, REFERENCE, Node, Proposal
from optimizer.search.runs.hardware_view import rates_of
from optimizer.search.runs.knowledge import ServiceKnowledge, library_recipes
from optimizer.search.runs.models import ModelTools, check_keys, language_models
from optimizer.search.runs.places import CUDA_VENDORS, LANGUAGES
from optimizer.search.runs.run_store import check_same_problem, run_store
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.llm.settings import ModelOptions, models_from
from optimizer.search.synthesizers.recipe.recipe import Recipe
from retrieval.diagnose.signals import load_signals
from retrieval.knowledge_base import KnowledgeBase
from retrieval.request import RetrieveRequest

# -- packing: one zip with problems, their knowledge, and the parts of this program that the search
# needs. `python session.zip` runs `launch`.

# Packages in a session, and on the nodes of a cluster. Modules of them that need more than torch
# are never imported there.
PACKAGES = ("kb", "retrieval", "optimizer")
_MAIN = '''\
"""Unpacks itself and runs; see --help."""

import sys
import tempfile
import zipfile
from pathlib import Path

with tempfile.TemporaryDirectory(prefix="kernlore-session-") as folder:
    with zipfile.ZipFile(Path(__file__).parent) as packed:
        packed.extractall(folder)
    sys.path[0] = folder
    from {module} import main

    code = main(Path(folder), sys.argv[1:])
raise SystemExit(code)
'''


@dataclass(frozen=True)
class Drafted:
    """A run whose drafts a session evaluates: its row and its nodes, the last ones in flight."""

    problem: Problem
    run: RunRow
    nodes: Sequence[Node]

    def as_json(self) -> dict[str, Any]:
        """The entry of a session, named after the run, since two runs may be of one problem."""
        return {
            "name": self.run.id,
            "path": f"problems/{self.problem.name}",
            "known_as": _known_as(self.problem),
            "run": self.run.as_json(),
            "nodes": [node.as_json() for node in self.nodes],
        }


def write_session(
    path: Path,
    *,
    session_id: str,
    goal: Mapping[str, Any],
    target: Mapping[str, Any],
    problems: Sequence[Problem] = (),
    drafted: Sequence[Drafted] = (),
    trials: Sequence[PlannedTrial] = (),
    knowledge: KnowledgeSnapshot,
    recipes: Sequence[Mapping[str, Any]],
) -> Path:
    """Write the session to `path` atomically. It searches `problems`, evaluates the drafts of
    `drafted` runs, and runs `trials` of recipes.

    `target` is {hardware, lineage, device, arch (by language), languages (to toolchains), facts}.
    Each of `recipes` is {name, recipe, files}.
    """
    session = {
        "id": session_id,
        "goal": dict(goal),
        "target": dict(target),
        "recipes": list(recipes),
        "knowledge": asdict(knowledge),
        "problems": [
            *(
                {"name": p.name, "path": f"problems/{p.name}", "known_as": _known_as(p)}
                for p in problems
            ),
            *(run.as_json() for run in drafted),
            *(
                {"name": t.name, "path": f"problems/{t.problem.name}", "trial": t.as_json()}
                for t in trials
            ),
        ],
    }
    packed_problems = [*problems, *(r.problem for r in drafted), *(t.problem for t in trials)]
    files: dict[str, str | bytes] = {SESSION: json.dumps(session)}
    for problem in packed_problems:
        files |= _problem_files(problem)
    return write_program(path, "optimizer.search.portable.launch", files)


def write_program(path: Path, module: str, files: Mapping[str, str | bytes]) -> Path:
    """Write a zip to `path` atomically that `python` runs on a machine without Kernlore: it unpacks
    `files` and its own sources into a folder, and calls `main(folder, arguments)` of `module`."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("__main__.py", _MAIN.format(module=module))
            for name, text in files.items():
                packed.writestr(name, text)
            for source in source_files(PACKAGES):
                packed.write(source, source.relative_to(ROOT))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _known_as(problem: Problem) -> str:
    """Identifies the problem when the results are imported: a shipped name or a path."""
    shipped = problem.path.is_relative_to(SHIPPED)
    return problem.path.parent.name if shipped else str(problem.path)


def _problem_files(problem: Problem) -> dict[str, str]:
    folder = f"problems/{problem.name}"
    files = {f"{folder}/problem.py": problem.source}
    toml = problem.path.with_name("problem.toml")
    if not toml.is_file():
        toml = problem.path.with_suffix(".toml")
    if problem.declared and toml.is_file():
        files[f"{folder}/problem.toml"] = toml.read_text(encoding="utf-8")
    return files


PACKED = ("recipe", "traced", "compiler")  # proposers that a session can run
WAITING = "waiting"  # state of a run whose drafts are being evaluated by a session
OUT = "its candidates are out to be evaluated; `kernlore runs import` brings the results back"
NOT_RUN = "nothing was run yet: the device is on another machine"
AT_ONCE = 8  # runs whose models are called concurrently

log = structlog.get_logger(__name__)


def pack_session(
    base: KnowledgeBase, paths: Sequence[Path], hardware: str, goal: Goal, output: Path
) -> Path:
    """Pack a session for a hardware, which need not be in this machine, as the zip file `output`.
    Raises the errors of `packable` and `session_target`."""
    problems, identity = packable(base, paths, hardware, goal)
    target = session_target(base, identity)
    knowledge = KnowledgeSnapshot()
    if goal.knowledge:
        knowledge = _snapshot(base, [p.op for p in problems], identity, goal)
    known = library_recipes(base, identity if goal.knowledge else None)
    recipes = [recipe for recipe in known if recipe.language in target["languages"]]
    return write_session(
        output,
        session_id=new_id("session"),
        goal=asdict(goal),
        target=target,
        problems=problems,
        knowledge=knowledge,
        recipes=[_recipe(base, recipe) for recipe in recipes],
    )


def packable(
    base: KnowledgeBase, paths: Sequence[Path], hardware: str, goal: Goal
) -> tuple[list[Problem], str]:
    """The problems of a session and the id of its hardware, before any knowledge is read.

    Raises UnknownHardware, and InvalidRequest for two problems of one name and for proposers that
    a session cannot run.
    """
    missing = [name for name in goal.synthesizers if name not in PACKED]
    if missing:
        raise InvalidRequest(
            f"a packed session has no proposer {missing[0]!r}",
            hint=f"It has {', '.join(PACKED)}. For models: `kernlore runs propose`.",
        )
    problems = [load_problem(path) for path in problem_paths(paths)]
    twice = [name for name, n in Counter(p.name for p in problems).items() if n > 1]
    if twice:
        raise InvalidRequest(
            f"two problems are called {twice[0]}", hint="Give one a `name` in its problem.toml."
        )
    return problems, base.registry.resolve(hardware)


def session_target(base: KnowledgeBase, hardware: str) -> dict[str, Any]:
    """The device of a session: {hardware, lineage, device, arch (by language), languages (to
    toolchains), facts}. Raises Unavailable if no built-in toolchain runs kernels on it."""
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
        row = get_skill(connection, recipe.name, ALL_ACCESS)
    return {"name": row.name, "recipe": row.recipe, "files": row.metadata.get("files", {})}


def import_results(base: KnowledgeBase, results: Path) -> list[RunRow]:
    """Import the runs of a session with their nodes and evaluations from its results.zip or folder.
    Raises NotFound, InvalidRequest, and Conflict for a run that was imported before."""
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
        new = _add(base, run, source.nodes(name))
        _store_rates(base, run.id, source.folder)
        _report(ServiceKnowledge(base), new)
        imported.append(run)
    return imported


def _add(base: KnowledgeBase, run: RunRow, nodes: Sequence[Node]) -> Sequence[Node]:
    """Store a run of a session, or add its nodes to the stored run that the session continued;
    returns the added nodes.

    Raises Conflict for a run that was imported before or that has other candidates, and
    InvalidRequest if its problem file differs here.
    """
    store = run_store(base)
    stored = store.nodes(run.id)
    try:
        # A session that was cut off may be imported, continued and imported again.
        is_stored = True
        continued = store.run(run.id).state == WAITING or len(nodes) > len(stored)
    except NotFound:
        is_stored = continued = False
    if is_stored and not continued:
        raise Conflict(f"run {run.id} was imported before", hint="Show it with `runs show`.")
    if list(map(_bundle_id, nodes[: len(stored)])) != list(map(_bundle_id, stored)):
        raise Conflict(
            f"{run.id} has other candidates by now than this batch was proposed from",
            hint="Another batch of it was imported; `kernlore runs tree` lists its candidates.",
        )
    problem = load_problem(Path(run.problem))
    if problem.sha256 != run.problem_sha256:
        raise InvalidRequest(
            f"{run.problem} here is not the problem that was searched",
            hint="Import where the same problem file is, or keep the results as files.",
        )
    new = nodes[len(stored) :]
    journal = CatalogJournal(Evaluations(base.catalog), base.blobs)
    for node in new:
        _journal(journal, problem, node)
    if not is_stored:
        store.begin(run)
    for node in new:
        store.add(run.id, node)
    store.update(run)
    return new


def _bundle_id(node: Node) -> str:
    return "" if node.proposal is None else node.proposal.bundle.sha256


def _journal(journal: CatalogJournal, problem: Problem, node: Node) -> None:
    evaluation = node.evaluation
    if evaluation is None or journal.finished(evaluation.key) is not None:
        return
    bundle = Bundle({"reference.py": problem.source}, "reference.py", "torch", "Model")
    if node.proposal is not None:
        bundle = node.proposal.bundle
    checked = {check.case for check in evaluation.checks}
    cases = [case for case in problem.cases if case.name in checked]
    journal_evaluation(journal, problem, bundle, cases, evaluation, remote=True)


def _report(knowledge: ServiceKnowledge, nodes: Sequence[Node]) -> None:
    """Report the outcomes of the answers that were packed with the session."""
    for node in nodes:
        if node.proposal is None or node.state == "duplicate" or not node.shown.retrieval_id:
            continue
        try:
            knowledge.report(node.shown.retrieval_id, node.proposal.attributed, node)
        except NotFound:
            return  # packed from another data directory, which has the answers


def _store_rates(base: KnowledgeBase, run_id: str, results: Path) -> None:
    """Store the ceilings of a results folder with the run, replacing those of an earlier session:
    the prompts of the next round state the device's rates."""
    ceilings = from_file(results / CEILINGS)
    if ceilings is None:
        return
    path = _rates_file(base, run_id)
    private_folder(path.parent)
    private_file(path)
    path.write_text(json.dumps(ceilings.as_json()), encoding="utf-8")


def _rates_file(base: KnowledgeBase, run_id: str) -> Path:
    return base.settings.data_dir.absolute() / "runs" / run_id / CEILINGS


# -- rounds of drafts


@dataclass(frozen=True)
class RunDrafts:
    """Number of a run's drafts in a batch; `problem` is the reason if some are missing."""

    run: str
    name: str
    drafts: int
    problem: str

    def as_json(self) -> dict[str, Any]:
        """The row of an answer."""
        return {"run": self.run, "problem": self.name, "drafts": self.drafts, "note": self.problem}


class _NoBench:
    """The bench of a search whose device is on another machine."""

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
    """New runs, one for each problem, whose drafts a session for `hardware` will evaluate; they are
    not stored yet. Raises NotFound, InvalidRequest and UnknownHardware."""
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
        for problem in map(load_problem, problem_paths(paths))
    ]


def runs_to_continue(base: KnowledgeBase, run_ids: Sequence[str]) -> list[RunRow]:
    """Stored runs. Raises NotFound, and InvalidRequest for one whose problem has changed."""
    runs = [run_store(base).run(run_id) for run_id in run_ids]
    for run in runs:
        check_same_problem(run, load_problem(Path(run.problem)))
    return runs


def propose_round(
    base: KnowledgeBase,
    runs: Sequence[RunRow],
    models: ModelOptions,
    drafts: int,
    listener: Listener,
    output: Path,
) -> list[RunDrafts]:
    """Ask models for `drafts` candidates of each run and pack them as the session `output`, which
    is rewritten whenever a run has its drafts. The runs are stored as waiting, with their models.

    Raises InvalidRequest for runs on different hardware and without models, Unavailable without
    litellm and, with nothing written, if no model had an answer for any run.
    """
    if not models_from(models.models):
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
    check_keys(models)
    models = replace(models, tools=False)  # a draft cannot be compiled here
    asked = models.remembered(listener.log)
    runs = [replace(run, asked=asked) for run in runs]
    target = session_target(base, runs[0].hardware)
    _check_languages(runs, target)

    def propose(run: RunRow) -> tuple[Drafted, str]:
        return _drafts_or_error(base, run, target, models, drafts, listener)

    batch = new_id("batch")
    proposed: dict[str, tuple[Drafted, str]] = {}
    pool = ThreadPoolExecutor(min(AT_ONCE, len(runs)))
    try:
        for answer in as_completed([pool.submit(propose, run) for run in runs]):
            packed, why = answer.result()
            proposed[packed.run.id] = packed, why
            if _in_flight(packed):
                # At once, so that paid answers survive a process that is killed.
                done = [proposed[run.id][0] for run in runs if run.id in proposed]
                _write_batch(output, batch, target, done)
                _store_waiting(base, packed)
    finally:
        pool.shutdown(cancel_futures=True)  # after an interruption no further model is called
    rows = [
        RunDrafts(packed.run.id, packed.problem.name, _in_flight(packed), why)
        for packed, why in (proposed[run.id] for run in runs)
    ]
    if not any(row.drafts for row in rows):
        why = next((row.problem for row in rows if row.problem), "no answer")
        raise Unavailable(
            f"no model proposed a candidate: {why}", hint="Check --models and --api-base."
        )
    return rows


def _write_batch(
    output: Path, batch: str, target: Mapping[str, Any], runs: Sequence[Drafted]
) -> None:
    """Pack the runs that have drafts."""
    drafted = [packed for packed in runs if _in_flight(packed)]
    write_session(
        output,
        session_id=batch,
        goal=asdict(drafted[0].run.goal),
        target=target,
        drafted=drafted,
        knowledge=KnowledgeSnapshot(),
        recipes=[],
    )


def _check_languages(runs: Sequence[RunRow], target: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for a run in a language that the session cannot run."""
    for run in runs:
        if run.goal.language is not None and run.goal.language not in target["languages"]:
            raise InvalidRequest(
                f"a session for {run.hardware} runs no {run.goal.language}",
                hint=f"Give --language {' or '.join(target['languages'])}.",
            )


def _in_flight(drafted: Drafted) -> int:
    return sum(node.state == IN_FLIGHT for node in drafted.nodes)


def _drafts_or_error(
    base: KnowledgeBase,
    run: RunRow,
    target: dict[str, Any],
    models: ModelOptions,
    drafts: int,
    listener: Listener,
) -> tuple[Drafted, str]:
    """A run with its next candidates, and the reason if they are fewer than `drafts`. An error
    becomes a reason, so that the drafts of other runs are written."""
    try:
        problem = load_problem(Path(run.problem))
        knowledge = ServiceKnowledge(base)
        nodes, why = draft_candidates(
            base, run, problem, target, models, drafts, listener, knowledge
        )
        return Drafted(problem, run, nodes), why
    except KernloreError as error:
        why = f"{error.message}. {error.hint}"
    except Exception as error:  # of the problem file: it ends this run only
        log.exception("no candidate was proposed", run=run.id, problem=run.problem)
        why = f"{type(error).__name__}: {error}"
    return Drafted(load_problem(Path(run.problem)), run, ()), why


def draft_candidates(
    base: KnowledgeBase,
    run: RunRow,
    problem: Problem,
    target: Mapping[str, Any],
    models: ModelOptions,
    count: int,
    listener: Listener,
    knowledge: KnowledgeSource,
) -> tuple[list[Node], str]:
    """The nodes of a run, which need not be stored, followed by up to `count` new candidates of
    models, in flight; and the reason if they are fewer. `target` is a session's. Raises
    KernloreError."""
    view = problem_view(problem, target["device"], remote=True)
    offered = (run.goal.language,) if run.goal.language else tuple(target["languages"])
    hardware = HardwareView(
        run.hardware,
        tuple(target["lineage"]),
        target["device"],
        offered,
        target["facts"],
        rates=rates_of(from_file(_rates_file(base, run.id))),
    )
    tools = ModelTools(base, hardware, view, {})
    search = Search(
        row=run,
        store=run_store(base),  # it has no nodes of a run that is not stored yet
        bench=_NoBench(),
        synthesizers=[language_models(base, models, run.goal, listener, tools)],
        knowledge=knowledge,
        problem=view,
        hardware=hardware,
        listener=listener,
    )
    if not len(search.tree):
        search.tree.add(Node(REFERENCE, None, "evaluated", None, None, problem=NOT_RUN))
    new, why = search.drafts(count)
    return [*search.tree.nodes, *new], why


def _store_waiting(base: KnowledgeBase, drafted: Drafted) -> None:
    store, run = run_store(base), replace(drafted.run, state=WAITING, ended=OUT)
    try:
        store.run(run.id)
    except NotFound:
        problem = drafted.problem
        cases = {case.name: OpenCase(problem, case, shapes_only=True) for case in problem.searched}
        journal = CatalogJournal(Evaluations(base.catalog), base.blobs)
        journal.problem(problem, {name: case.signature for name, case in cases.items()})
        store.begin(run)
    store.update(run)
