"""Runs in the catalog: the store of their rows, and views of them as JSON: summaries, candidates,
comparisons, plots. Reading runs needs neither torch nor a toolchain.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from difflib import unified_diff
from pathlib import Path
from typing import Annotated, Any, Literal, Required, cast

import structlog
from typing_extensions import TypedDict

from kb import clock
from kb.blobs import Blobs
from kb.catalog.evaluations import Evaluations, Review, Reviews
from kb.catalog.runs import (
    CANCELLED,
    EVERY_RUN,
    STARTING,
    NodeRow,
    RunProcess,
    RunProcesses,
    Runs,
    RunWhere,
)
from kb.data_dir import is_locked, private_folder, take_lock
from kb.errors import Conflict, InvalidRequest, KernloreError, NotFound
from kb.ids import new_id
from kb.plain import Doc, from_json, plain
from kb.workers import keep_lease
from optimizer.evaluation.catalog_journal import CatalogJournal
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.confirm import UNTRIED
from optimizer.search.goal import Goal
from optimizer.search.output.plots import SHARES, shares_of
from optimizer.search.records import Node, Proposal, node_from_json, time_text
from optimizer.search.store import RunRow
from optimizer.search.tree import BY_COMMANDS, Tree, rough_best, rough_cases, rough_gain, rough_of
from retrieval.knowledge_base import KnowledgeBase

# -- the lock of a run
#
# One process works on a run, on any machine, with a lease in the catalog. Processes of one data
# directory also take a lock file. The operating system releases it (flock) when the process ends,
# so that they need not wait for the lease of a dead process.

FOLDER = "locks"  # of the data directory
STARTING_SECONDS = 120.0  # for the imports of a run and for finding the device
LOST = 75  # exit code of a process that lost its run to another one: EX_TEMPFAIL

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Owner:
    """The process that works on a run, since `since` (Unix time); the run had taken `seconds`
    before. `here`: it belongs to this data directory."""

    pid: int
    since: float
    seconds: float
    place: str
    here: bool

    @property
    def run_seconds(self) -> float:
        """Seconds that the run has taken, without pauses."""
        return self.seconds + max(0.0, time.time() - self.since)

    @property
    def name(self) -> str:
        """Name of the process in messages."""
        return f"process {self.pid}" if self.here else f"process {self.pid} of {self.place}"


class RunLock:
    """Lock of the process that works on a run. Entering raises Conflict if another process does.

    A thread renews the lease. A process that has lost it, for example because its machine slept,
    exits at once: another process may continue the run from the last stored node.
    """

    def __init__(self, base: KnowledgeBase, run_id: str, seconds: float) -> None:
        self._data_dir = base.settings.data_dir
        self._path = _path(self._data_dir, run_id)
        self._rows = RunProcesses(base.catalog)
        self._lease = base.settings.lease_seconds
        self.run_id, self._seconds = run_id, seconds
        self._owner = new_id(f"run{os.getpid()}")
        self._fd = -1
        self._renewing = ExitStack()

    def __enter__(self) -> RunLock:
        private_folder(self._path.parent)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if not take_lock(self._fd):
            os.close(self._fd)
            raise self._conflict(self._rows.process_of(self.run_id))
        until = clock.after(self._lease)
        place = place_of(self._data_dir)
        mine = RunProcess(
            self.run_id, self._owner, place, os.getpid(), time.time(), self._seconds, until
        )
        holder = self._rows.take_run(mine)
        # A process of this directory without the lock is dead, even if its lease lasts.
        if holder is not None and holder.place == place and holder.owner != CANCELLED:
            self._rows.remove(self.run_id, holder.owner)
            holder = self._rows.take_run(mine)
        if holder is not None:
            os.close(self._fd)
            raise self._conflict(holder)
        self._renewing.enter_context(keep_lease(self._renewed, self._lease, self.run_id))
        return self

    def __exit__(self, *_: object) -> None:
        self._renewing.close()
        self._rows.remove(self.run_id, self._owner)
        os.close(self._fd)

    def _renewed(self) -> bool:
        if self._rows.renew(self._owner, self._lease, self.run_id):
            return True
        log.error("this run is another process's now", run=self.run_id)
        # Nothing may be written any more, not even the end of the run.
        os._exit(LOST)

    def _conflict(self, holder: RunProcess | None) -> Conflict:
        if holder is not None and holder.owner == CANCELLED:
            return Conflict(f"run {self.run_id} was cancelled", hint="Start another one.")
        known = holder is not None and holder.owner != STARTING
        process = _owner(holder, self._data_dir).name if known and holder else "another process"
        return Conflict(
            f"run {self.run_id} is being continued by {process}",
            hint=f"Wait for it, or end it with `kernlore runs cancel {self.run_id}`.",
        )


def owner_of(base: KnowledgeBase, run_id: str) -> Owner | None:
    """The process, on any machine, that works on a run now, if any."""
    row, data_dir = RunProcesses(base.catalog).process_of(run_id), base.settings.data_dir
    if row is None or row.owner in (STARTING, CANCELLED):
        return None
    owner = _owner(row, data_dir)
    alive = is_locked(_path(data_dir, run_id)) if owner.here else row.alive
    return owner if alive else None


def start_of(base: KnowledgeBase, run_id: str) -> Literal["starting", "cancelled", "failed"] | None:
    """State of a run that no process has taken yet: `failed` if its process must have ended before
    that. None for an unknown run."""
    row = RunProcesses(base.catalog).process_of(run_id)
    if row is None:
        return None
    if row.owner == CANCELLED:
        return "cancelled"
    return "starting" if row.alive else "failed"


def cancel_start(base: KnowledgeBase, run_id: str) -> bool:
    """Cancel a run that no process has taken yet; returns False if one has."""
    return RunProcesses(base.catalog).cancel_start(run_id)


def announce(base: KnowledgeBase, run_id: str, about: Mapping[str, Any]) -> None:
    """Record for all replicas that a process for the run is being started. `about` has its problem,
    hardware and goal."""
    place, until = place_of(base.settings.data_dir), clock.after(STARTING_SECONDS)
    RunProcesses(base.catalog).take_run(
        RunProcess(run_id, STARTING, place, os.getpid(), time.time(), 0.0, until), about
    )


def place_of(data_dir: Path) -> str:
    """Name of this machine and data directory."""
    return f"{socket.gethostname()}:{data_dir.absolute()}"


def _owner(row: RunProcess, data_dir: Path) -> Owner:
    return Owner(row.pid, row.began, row.seconds, row.place, row.place == place_of(data_dir))


def _path(data_dir: Path, run_id: str) -> Path:
    return data_dir / FOLDER / f"{run_id}.json"


# -- stored runs

Json = dict[str, Any]


class ShownRun(TypedDict, total=False):
    """A search. One that is starting has `id` and `state` alone."""

    id: Required[str]
    state: Required[Annotated[str, Doc("starting, running, finished, cancelled or failed.")]]
    ended: Annotated[str, Doc("Why it ended.")]
    problem: str
    problem_sha256: str
    hardware: str
    goal: Json
    started_at: float
    seconds: float
    environment: dict[str, str]
    asked: Json
    cluster: Annotated[Json, Doc("Where candidates are measured; empty for one machine.")]
    work: Annotated[
        Json, Doc("The present work: `candidate`, `stage`, `since` (a time), `busy` (other work).")
    ]
    result: Json
    note: str


class ListedRuns(TypedDict):
    """Runs, newest first."""

    runs: list[ShownRun]


class ListedNode(TypedDict):
    """A candidate as lists show it; number 0 is the reference."""

    number: int
    parent: int | None
    language: str | None
    plan: str
    state: str
    validity: str | None
    message: str
    speedup: Json | None
    flags: list[Json]
    signals: list[str]
    metrics: Json


class RunTree(TypedDict):
    """Every candidate of a run."""

    nodes: list[ListedNode]


class ShownNode(TypedDict):
    """A candidate with its files, the knowledge shown to its proposer, and its evaluation. `review`
    is the newest decision of a person about the flags of the evaluation, null without one."""

    number: int
    parent: int | None
    state: str
    proposal: Json | None
    evaluation: Json | None
    shown: Json
    review: Json | None


class RunContext(TypedDict):
    """The basis of the next candidate; `context` is null while no candidate is awaited."""

    waiting: bool
    state: str
    context: Json | None


class AcceptedStep(TypedDict):
    """A candidate was handed to its run."""

    run: str
    step: int
    state: Literal["accepted"]


def shown_run(row: RunRow) -> ShownRun:
    """A run as lists show it."""
    return cast(ShownRun, row.as_json())


def run_store(base: KnowledgeBase) -> CatalogStore:
    """The runs and nodes of this catalog."""
    evaluations = Evaluations(base.catalog, base.access)
    return CatalogStore(Runs(base.catalog, base.access), evaluations, base.blobs)


class CatalogStore:
    """A `RunStore` over the catalog: bundles are blobs, evaluations have their own rows."""

    def __init__(self, runs: Runs, evaluations: Evaluations, blobs: Blobs) -> None:
        self._runs = runs
        self._evaluations = evaluations
        self._blobs = blobs

    def begin(self, run: RunRow) -> None:
        """Insert a new run."""
        goal = run.goal
        self._runs.begin(
            run.id, run.problem_sha256, run.hardware, goal.policy, goal.seed, run.as_json()
        )

    def run(self, run_id: str) -> RunRow:
        """The run with this id. Raises NotFound."""
        return from_json(RunRow, self._runs.find(run_id).settings)

    def latest(self, limit: int = 50, offset: int = 0, where: RunWhere = EVERY_RUN) -> list[RunRow]:
        """At most `limit` matching runs, newest first, after the first `offset`."""
        return [from_json(RunRow, row.settings) for row in self._runs.latest(limit, offset, where)]

    def count(self, where: RunWhere = EVERY_RUN) -> int:
        """Number of matching runs."""
        return self._runs.count(where)

    def update(self, run: RunRow) -> None:
        """Store the run's row and the cost of its nodes in USD."""
        spent = sum(
            node.proposal.cost.usd or 0.0
            for node in self.nodes(run.id)
            if node.proposal is not None
        )
        self._runs.update(run.id, run.state, run.as_json(), spent)

    def note(
        self, run_id: str, field: Literal["cluster", "work"], value: Mapping[str, Any]
    ) -> None:
        """Store only this field of a run."""
        self._runs.note(run_id, field, value)

    def add(self, run_id: str, node: Node) -> None:
        """Insert a node; its bundle becomes a blob, its evaluation a reference to its own row."""
        record = node.as_json()
        proposal = node.proposal
        if proposal is not None:
            text = json.dumps(asdict(proposal.bundle)).encode()
            record["proposal"]["bundle"] = {"blob": self._blobs.put(text)}
        evaluation = node.evaluation
        # Evaluations that were not journalled stay in the node's record.
        if evaluation is not None and self._evaluations.find(evaluation.key) is not None:
            record["evaluation"] = {"key": evaluation.key}
        run = self._runs.find(run_id)
        self._runs.add(
            run_id,
            NodeRow(
                number=node.number,
                parent=node.parent,
                island=node.island,
                memory=str((run.settings.get("goal") or {}).get("memory", "")),
                synthesizer=proposal.synthesizer if proposal else "reference",
                state=node.state,
                record=record,
                bundle_sha256=proposal.bundle.sha256 if proposal else None,
                evaluation_key=evaluation.key if evaluation else None,
                retrieval_id=node.shown.retrieval_id,
                usage=asdict(proposal.cost) if proposal else None,
            ),
        )

    def nodes(self, run_id: str) -> list[Node]:
        """The nodes of a run in the order of their numbers, with bundles and evaluations."""
        return [node_from_json(self._whole(record)) for record in self._runs.nodes(run_id)]

    def size(self, run_id: str) -> int:
        """Number of nodes of a run."""
        return self._runs.size(run_id)

    def _whole(self, record: Mapping[str, Any]) -> dict[str, Any]:
        row = dict(record)
        if row.get("proposal"):
            bundle = json.loads(self._blobs.get(row["proposal"]["bundle"]["blob"]))
            row["proposal"] = {**row["proposal"], "bundle": bundle}
        if row.get("evaluation") and set(row["evaluation"]) == {"key"}:
            evaluation = self._evaluations.find(row["evaluation"]["key"])
            row["evaluation"] = evaluation.record if evaluation is not None else None
        return row

    def winners(
        self,
        op_family: str,
        dtype: str | None,
        lineage: tuple[str, ...],
        problem_sha256: str,
        limit: int,
    ) -> Iterator[tuple[Proposal, bool]]:
        """Stored proposals with the highest lower bounds of the speed-up, read one by one, and
        whether each won on this very problem; those come first."""
        for record, same in self._runs.winners(op_family, dtype, lineage, problem_sha256, limit):
            proposal = node_from_json(self._whole(record)).proposal
            if proposal is not None:
                yield proposal, same

    def untimed(self, lineage: tuple[str, ...], problem_sha256: str, limit: int) -> list[Node]:
        """Correct candidates of this very problem without a figure, newest first."""
        records = self._runs.untimed(lineage, problem_sha256, limit)
        return [node_from_json(self._whole(record)) for record in records]

    def cancelled(self, run_id: str) -> bool:
        """Whether cancelling the run was requested."""
        return self._runs.find(run_id).cancel_requested

    def cancel(self, run_id: str) -> None:
        """Request the end of the run. Raises NotFound."""
        self._runs.request_cancel(run_id)


def check_same_problem(run: RunRow, problem: Problem) -> None:
    """Raises InvalidRequest if a stored run was of another version of its problem."""
    if run.problem_sha256 != problem.sha256:
        raise InvalidRequest(
            f"{problem.path} is not the problem of {run.id} any more",
            hint="Start a new run: results of another problem cannot be continued.",
        )


def summary_of(run: RunRow) -> Json:
    return summary_of_shown(shown_run(run))


def summary_of_shown(run: ShownRun) -> Json:
    """The same of a run as the HTTP interface shows it."""
    return {
        "run": run["id"],
        "problem": problem_name(Path(run.get("problem", ""))),
        "hardware": run.get("hardware", ""),
        "state": run["state"],
        "gain": _gain_text(run.get("result", {})),
        "ended": run.get("ended", ""),
    }


def _gain_text(result: Mapping[str, Any]) -> str:
    """The gain of a stored result for the cell of a table, or the reason for its absence; "" before
    the end."""
    if not result:
        return ""
    if gain := result.get("gain"):
        return f"{gain['value']:.2f}x [{gain['low']:.2f}, {gain['high']:.2f}]"
    if result.get("measured", True):
        return "no gain"
    if result.get("best_so_far") is not None:
        return "not confirmed"
    untried = str(result.get("reason", "")).startswith(UNTRIED)
    return "nothing tried" if untried else "not measured"


def starting_runs(base: KnowledgeBase) -> list[ShownRun]:
    """Runs whose process has not stored them yet, newest first; a caller restricted to some
    hardware sees none."""
    if base.access.restricted:
        return []
    rows = RunProcesses(base.catalog).without_row()
    return [
        cast(ShownRun, {**about, "id": process.run_id, "state": "starting"})
        for process, about in rows
        if process.alive
    ]


def list_runs(
    base: KnowledgeBase, limit: int = 50, offset: int = 0, where: RunWhere = EVERY_RUN
) -> list[Json]:
    """Summaries of matching runs, newest first, with the `id` of the HTTP interface. Without
    filters, starting runs come first."""
    listed = run_store(base).latest(limit, offset, where)
    starting = starting_runs(base) if where == EVERY_RUN and not offset else []
    shown = (*starting, *map(shown_run, listed))
    return [{"id": run["id"], **summary_of_shown(run)} for run in shown]


def count_runs(base: KnowledgeBase, where: RunWhere = EVERY_RUN) -> int:
    """Number of matching runs."""
    return run_store(base).count(where)


def run_account(base: KnowledgeBase, run_id: str) -> Json:
    """Goal, result, verdicts, and the contributions of origins and models. Raises NotFound."""
    from optimizer.search.output.report import model_costs

    run, tree = _loaded(base, run_id)
    goal = {name: value for name, value in asdict(run.goal).items() if value not in (None, ())}
    owner = owner_of(base, run_id) if run.state == "running" else None
    return {
        **summary_of(run),
        **({"reason": reason} if (reason := run.result.get("reason")) else {}),
        **_process(run, owner),
        "goal": goal,
        "asked": {name: value for name, value in run.asked.items() if value is not None},
        "candidates": len(tree) - 1,
        "verdicts": dict(Counter(node.verdict for node in tree.nodes[1:])),
        "origins": dict(Counter(n.proposal.origin for n in tree if n.proposal is not None)),
        "models": model_costs(tree),
        "best in the search": _best_text(tree),
        "baseline": tree.baseline_text.removeprefix("baseline: "),
        "seconds": round(_seconds(run, tree, owner), 3),
        **{f"{name} version": version for name, version in run.environment.items()},
    }


def _best_text(tree: Tree) -> str:
    if tree.best is None:
        return rough_best(tree.nodes[1:]) or "none"
    return "the baseline" if tree.best is tree.baseline else str(tree.best.speedup)


def _process(run: RunRow, owner: Owner | None) -> Json:
    """The process of a run that is stored as running."""
    if run.state != "running":
        return {}
    if owner is None:
        return {"process": f"none; `kernlore runs resume {run.id}` continues it"}
    return {"process": owner.pid if owner.here else owner.name}


def _seconds(run: RunRow, tree: Tree, owner: Owner | None) -> float:
    """Seconds that the run took or has taken so far."""
    if owner is not None:
        return owner.run_seconds
    return run.seconds or max((node.at for node in tree), default=0.0)


def cancel_run(base: KnowledgeBase, run_id: str) -> Json:
    """Request the end of a run; a run without a process is cancelled at once. Raises NotFound."""
    store = run_store(base)
    store.cancel(run_id)
    run = store.run(run_id)
    if run.state != "running" or owner_of(base, run_id) is not None:
        return {"run": run_id, "cancel": "requested"}
    store.update(replace(run, state="cancelled", ended="it was cancelled"))
    return {"run": run_id, "cancel": "done; no process worked on it"}


def candidate_rows(base: KnowledgeBase, run_id: str) -> list[Json]:
    """A row for each candidate of a run, the reference first. Raises NotFound."""
    _, tree = _loaded(base, run_id)
    return [_candidate_row(tree, node) for node in tree]


def candidate_row(base: KnowledgeBase, run_id: str, number: int) -> Json:
    """The row of one candidate, as in `candidate_rows`. Raises NotFound."""
    _, tree = _loaded(base, run_id)
    if not 0 <= number < len(tree):
        raise _no_candidate(run_id, number)
    return _candidate_row(tree, tree[number])


def compare_runs(base: KnowledgeBase, *run_ids: str) -> dict[str, dict[str, str]]:
    """Figures to compare, by run. Raises NotFound."""
    return {run_id: _comparison(*_loaded(base, run_id)) for run_id in run_ids}


def show_tree(base: KnowledgeBase, run_id: str) -> RunTree:
    """`parent` is the number of the candidate that it changes; 0 is the reference."""
    from optimizer.search.synthesizers.external import shown_node

    _, tree = _loaded(base, run_id)
    views = [{**shown_node(node, source=False), "parent": node.parent} for node in tree]
    return {"nodes": [plain(view) for view in views]}


def node_record(base: KnowledgeBase, run_id: str, number: str) -> ShownNode:
    """Its files and plan, the knowledge that its proposer was shown, and its measurements."""
    _, tree = _loaded(base, run_id)
    node = _node(tree, run_id, number)
    record: ShownNode = plain({**node.as_json(), "review": _review(base, node)})
    return record


def _review(base: KnowledgeBase, node: Node) -> Review | None:
    if node.evaluation is None:
        return None
    key = node.evaluation.key
    return Reviews(base.catalog, base.access).latest([key]).get(key)


def candidate_view(base: KnowledgeBase, run_id: str, number: str) -> Json:
    """A candidate for a page: `node` as `node_record`, `row` as `candidate_rows`, `diff` (lines of
    a unified diff from its parent), `transcript` (the conversation with its model, or None) and
    `rough` (rough figures by case). Raises NotFound."""
    _, tree = _loaded(base, run_id)
    node = _node(tree, run_id, number)
    return {
        "node": plain({**node.as_json(), "review": _review(base, node)}),
        "row": _candidate_row(tree, node),
        "diff": _diff(tree, node),
        "transcript": _transcript(base, node),
        "rough": rough_cases(node),
    }


def candidate_source(base: KnowledgeBase, run_id: str, number: int) -> Json:
    """The source of a candidate: `files` by name, `main` and `language`. Raises NotFound, also for
    the reference."""
    _, tree = _loaded(base, run_id)
    proposal = tree[number].proposal if 0 <= number < len(tree) else None
    if proposal is None:
        raise _no_candidate(run_id, number)
    bundle = proposal.bundle
    return {
        "run": run_id,
        "candidate": number,
        "language": bundle.language,
        "main": bundle.main,
        "files": dict(bundle.files),
    }


def _node(tree: Tree, run_id: str, number: str) -> Node:
    if not (number.isascii() and number.isdigit() and int(number) < len(tree)):
        raise NotFound(f"{run_id} has no node {number}", hint=f"It has 0 to {len(tree) - 1}.")
    return tree[int(number)]


def _diff(tree: Tree, node: Node) -> list[str]:
    parent = tree[node.parent].proposal if node.parent is not None else None
    if node.proposal is None or parent is None:
        return []
    before, after = parent.bundle.files, node.proposal.bundle.files
    lines: list[str] = []
    for name in sorted({*before, *after}):
        old, new = (files.get(name, "").splitlines() for files in (before, after))
        lines += unified_diff(old, new, f"parent/{name}", f"this/{name}", lineterm="")
    return lines


def _transcript(base: KnowledgeBase, node: Node) -> Json | None:
    from optimizer.search.synthesizers.llm.conversation import FolderTranscripts

    if node.proposal is None or not node.proposal.transcript:
        return None
    run, _, place = str(node.proposal.transcript).rpartition("/")
    step, _, attempt = place.partition("-")
    stored = FolderTranscripts(base.settings.data_dir / "transcripts")
    transcript = stored.read(run, int(step), int(attempt))
    return None if transcript is None else transcript.as_json()


def _no_candidate(run_id: str, number: int) -> NotFound:
    return NotFound(
        f"{run_id} has no candidate {number}", hint=f"`kernlore runs tree {run_id}` lists them."
    )


def _loaded(base: KnowledgeBase, run_id: str) -> tuple[RunRow, Tree]:
    store = run_store(base)
    return store.run(run_id), Tree(store.nodes(run_id))


def problem_name(path: Path) -> str:
    """Name of a problem without a declared name: its folder or its file."""
    return path.parent.name if path.name == "problem.py" else path.stem


def _candidate_row(tree: Tree, node: Node) -> Json:
    """The row of a candidate. `took` is its time on a chip that only its own commands run.
    `message` is the error of an incorrect candidate, `rough` the rough figure of one that was not
    timed, `rough_gain` its number, `interval` the measured speed-up {value, low, high}, `flags` the
    number of integrity findings, and `shares` the percent of the measured ceilings {compute,
    memory}."""
    proposal, baseline, evaluation = node.proposal, tree.baseline, node.evaluation
    wrong = evaluation is not None and not evaluation.correct
    return {
        "number": node.number,
        "parent": node.parent,
        "verdict": node.verdict,
        "message": evaluation.message if wrong and evaluation is not None else node.problem,
        "speedup": str(node.speedup) if node.speedup is not None else "",
        "rough": rough_of(node),
        "interval": plain(node.speedup) if node.speedup is not None and node.correct else None,
        "rough_gain": rough_gain(node) if rough_of(node) else None,
        "baseline": baseline is not None and node is baseline,
        "took": time_text(node) if baseline is not None else "",
        "flags": len(evaluation.flags) if evaluation is not None else 0,
        "signals": list(node.signals),
        "plan": proposal.plan if proposal is not None else _root_plan(node),
        "synthesizer": proposal.synthesizer if proposal is not None else "",
        "attributed": list(proposal.attributed) if proposal is not None else [],
        "shares": _shares(node),
    }


def _shares(node: Node) -> Json:
    """Percent of the measured ceilings of a measured candidate: {compute, memory}, or {}."""
    known = shares_of(node)
    return {"compute": known[SHARES[0]], "memory": known[SHARES[1]]} if len(known) == 2 else {}


def _root_plan(node: Node) -> str:
    """The plan of the root: on a chip that only its own commands run, the reference is no root."""
    evaluation = node.evaluation
    baseline = evaluation is not None and evaluation.toolchain.startswith(BY_COMMANDS)
    return "the baseline of the others" if baseline else "the reference"


def _comparison(run: RunRow, tree: Tree) -> dict[str, str]:
    best = tree.best
    counts = Counter(node.verdict for node in tree.nodes[1:])
    return {
        "problem": problem_name(Path(run.problem)),
        "hardware": run.hardware,
        "policy": run.goal.policy,
        "knowledge": "on" if run.goal.knowledge else "off",
        "gain": summary_of(run)["gain"],
        "candidates": str(max(0, len(tree) - 1)),
        "candidates to the best": str(best.number) if best is not None else "",
        "verdicts": ", ".join(f"{count} {name}" for name, count in counts.most_common()),
        "seconds": f"{run.seconds or max((node.at for node in tree), default=0.0):.0f}",
    }


def store_failed(
    base: KnowledgeBase, run_id: str, problem: Path, goal: Goal, hardware: str, reason: str
) -> None:
    """Store a run that failed before its first row, so that lists show it. Does nothing if it has a
    row, or if its problem, which the row refers to, cannot be read."""
    store = run_store(base)
    with suppress(NotFound):
        store.run(run_id)
        return
    with suppress(KernloreError):
        loaded = load_problem(problem)
        CatalogJournal(Evaluations(base.catalog, base.access), base.blobs).problem(loaded, {})
        store.begin(
            RunRow(
                id=run_id,
                problem=str(loaded.path),
                problem_sha256=loaded.sha256,
                hardware=hardware,
                goal=goal,
                state="failed",
                ended=reason,
                started_at=time.time(),
            )
        )
