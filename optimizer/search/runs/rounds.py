"""Rounds of a run whose models and whose device cannot see each other: candidates are proposed
here, packed, evaluated where the device is, and imported; the next round starts from the results.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog

from kb.catalog.evaluations import Evaluations
from kb.errors import InvalidRequest, KernloreError, NotFound, Unavailable
from kb.ids import new_id
from optimizer.evaluation.abi import Signature
from optimizer.evaluation.catalog_journal import CatalogJournal
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Evaluation
from optimizer.search.bench.local import problem_view
from optimizer.search.goal import Goal
from optimizer.search.loop import Listener, Search
from optimizer.search.portable.packing import Drafted, write_session
from optimizer.search.portable.snapshot import Snapshot
from optimizer.search.records import IN_FLIGHT, REFERENCE, Node, Proposal
from optimizer.search.runs.knowledge import ServiceKnowledge
from optimizer.search.runs.model_tools import ModelTools
from optimizer.search.runs.models import asked_models, check_keys, language_models
from optimizer.search.runs.portable import WAITING, session_target
from optimizer.search.runs.rates import kept_rates
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.llm.settings import ModelOptions, models_from
from retrieval.knowledge_base import KnowledgeBase

log = structlog.get_logger(__name__)

OUT = "its candidates are out to be evaluated; `kernlore runs import` brings the results back"
NOT_RUN = "nothing was run yet: the device is on another machine"
AT_ONCE = 8  # runs whose models are asked side by side


@dataclass(frozen=True)
class Proposed:
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
) -> list[Proposed]:
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
        Proposed(packed.run.id, packed.problem.name, _in_flight(packed), why)
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
        knowledge=Snapshot(),
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
