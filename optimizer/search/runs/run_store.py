"""The runs of a catalog, and what is read of them: summaries, trees, comparisons.

Whoever only reads runs needs neither torch nor a toolchain. Every function below `run_store`
returns what JSON can carry.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path
from typing import Any

from kb.catalog.evaluations import Evaluations
from kb.catalog.runs import EVERY_RUN, Runs, RunWhere
from kb.errors import NotFound
from kb.plain import plain
from optimizer.search.bench.catalog_store import CatalogStore
from optimizer.search.confirm import UNTRIED
from optimizer.search.records import Node, time_text
from optimizer.search.rough import rough_best, rough_cases, rough_of
from optimizer.search.runs.run_lock import Owner, owner_of
from optimizer.search.store import RunRow
from optimizer.search.tree import BY_COMMANDS, Tree
from retrieval.knowledge_base import KnowledgeBase

Json = dict[str, Any]


def run_store(base: KnowledgeBase) -> CatalogStore:
    """The rows of runs and nodes in this data directory."""
    evaluations = Evaluations(base.catalog, base.access)
    return CatalogStore(Runs(base.catalog, base.access), evaluations, base.blobs)


def summary_of(run: RunRow) -> Json:
    """One run in a row of a list; `gain` is two words where there is none."""
    return {
        "run": run.id,
        "problem": _problem_name(Path(run.problem)),
        "hardware": run.hardware,
        "state": run.state,
        "gain": _gain_text(run.result),
        "ended": run.ended,
    }


def _gain_text(result: Mapping[str, Any]) -> str:
    """The gain of a stored result, short enough for the cell of a table; empty while there is
    none."""
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


def list_runs(
    base: KnowledgeBase, limit: int = 50, offset: int = 0, where: RunWhere = EVERY_RUN
) -> list[Json]:
    """Summaries of the runs that are meant, newest first. `id` is the run's, as over HTTP."""
    listed = run_store(base).latest(limit, offset, where)
    return [{"id": run.id, **summary_of(run)} for run in listed]


def count_runs(base: KnowledgeBase, where: RunWhere = EVERY_RUN) -> int:
    """How many runs are meant."""
    return run_store(base).count(where)


def run_account(base: KnowledgeBase, run_id: str) -> Json:
    """Goal, result, verdicts, and what each origin and model contributed. Raises NotFound."""
    from optimizer.search.output.account import model_costs

    run, tree = _loaded(base, run_id)
    goal = {name: value for name, value in run.goal.as_json().items() if value not in (None, ())}
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
    """Who works on a run that is stored as running."""
    if run.state != "running":
        return {}
    if owner is None:
        return {"process": f"none; `kernlore runs resume {run.id}` goes on with it"}
    return {"process": owner.pid if owner.here else owner.name}


def _seconds(run: RunRow, tree: Tree, owner: Owner | None) -> float:
    """How long the run took, or has taken by now."""
    if owner is not None:
        return owner.run_seconds
    return run.seconds or max((node.at for node in tree), default=0.0)


def cancel_run(base: KnowledgeBase, run_id: str) -> Json:
    """Ask for the end of a run; one that no process works on is cancelled at once. Raises
    NotFound.
    """
    store = run_store(base)
    store.cancel(run_id)
    run = store.run(run_id)
    if run.state != "running" or owner_of(base, run_id) is not None:
        return {"run": run_id, "cancel": "requested"}
    store.update(replace(run, state="cancelled", ended="it was cancelled"))
    return {"run": run_id, "cancel": "done; no process worked on it"}


def candidate_rows(base: KnowledgeBase, run_id: str) -> list[Json]:
    """Every candidate of a run in one row, the reference first. Raises NotFound."""
    _, tree = _loaded(base, run_id)
    return [_candidate_row(tree, node) for node in tree]


def candidate_row(base: KnowledgeBase, run_id: str, number: int) -> Json:
    """One candidate of a run, as `candidate_rows` has it. Raises NotFound for a number that is
    none.
    """
    _, tree = _loaded(base, run_id)
    if not 0 <= number < len(tree):
        raise _no_candidate(run_id, number)
    return _candidate_row(tree, tree[number])


def compare_runs(base: KnowledgeBase, *run_ids: str) -> dict[str, dict[str, str]]:
    """What to compare of each run, by its id. Raises NotFound."""
    return {run_id: _comparison(*_loaded(base, run_id)) for run_id in run_ids}


def node_views(base: KnowledgeBase, run_id: str) -> list[Json]:
    """Every node of a run as an external proposer sees it, without sources. Raises NotFound."""
    from optimizer.search.synthesizers.external import shown_node

    _, tree = _loaded(base, run_id)
    return [plain({**shown_node(node, source=False), "parent": node.parent}) for node in tree]


def node_record(base: KnowledgeBase, run_id: str, number: str) -> Json:
    """One node with its proposal and evaluation. Raises NotFound for a number that is none."""
    _, tree = _loaded(base, run_id)
    record: Json = plain(_node(tree, run_id, number).as_json())
    return record


def candidate_view(base: KnowledgeBase, run_id: str, number: str) -> Json:
    """A candidate as a page shows it: `node` as `node_record` has it, `row` as `candidate_rows`,
    `diff`, the lines of a unified diff from the files of its parent, empty where either has none,
    `transcript`, the stored conversation with the model that proposed it or None, and `rough`, what
    is known by case of one that could not be timed. Raises NotFound for a number that is none.
    """
    _, tree = _loaded(base, run_id)
    node = _node(tree, run_id, number)
    return {
        "node": plain(node.as_json()),
        "row": _candidate_row(tree, node),
        "diff": _diff(tree, node),
        "transcript": _transcript(base, node),
        "rough": rough_cases(node),
    }


def candidate_source(base: KnowledgeBase, run_id: str, number: int) -> Json:
    """The source of one candidate: `files` by name, the `main` one, and its `language`. Raises
    NotFound for a number that is none, and for the reference.
    """
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


def run_plots(base: KnowledgeBase, run_id: str) -> dict[str, bytes]:
    """The plots of the report as SVG, by name; those that cannot be drawn are left out. Raises
    NotFound.
    """
    from optimizer.search.output.plots import write_plots

    run, tree = _loaded(base, run_id)
    winner = run.result.get("node")
    with tempfile.TemporaryDirectory(prefix="kernlore-plots-") as folder:
        drawn = write_plots(tree, winner, Path(folder)).drawn
        return {name: path.read_bytes() for name, path in drawn.items()}


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
        f"{run_id} has no candidate {number}",
        hint=f"`kernlore runs tree {run_id}` lists those that there are.",
    )


def _loaded(base: KnowledgeBase, run_id: str) -> tuple[RunRow, Tree]:
    store = run_store(base)
    return store.run(run_id), Tree(store.nodes(run_id))


def _problem_name(path: Path) -> str:
    """As a problem without a name of its own is called: by its folder or its file."""
    return path.parent.name if path.name == "problem.py" else path.stem


def _candidate_row(tree: Tree, node: Node) -> Json:
    """`took` is its time where only the chip's own commands run: there is no other figure of the
    baseline. `message` says what is wrong with a candidate that is not right, `rough` what is
    known of one that could not be timed."""
    proposal, baseline, evaluation = node.proposal, tree.baseline, node.evaluation
    wrong = evaluation is not None and not evaluation.correct
    return {
        "number": node.number,
        "parent": node.parent,
        "verdict": node.verdict,
        "message": evaluation.message if wrong and evaluation is not None else node.problem,
        "speedup": str(node.speedup) if node.speedup is not None else "",
        "rough": rough_of(node),
        "baseline": baseline is not None and node is baseline,
        "took": time_text(node) if baseline is not None else "",
        "signals": list(node.signals),
        "plan": proposal.plan if proposal is not None else _root_plan(node),
        "synthesizer": proposal.synthesizer if proposal is not None else "",
        "attributed": list(proposal.attributed) if proposal is not None else [],
    }


def _root_plan(node: Node) -> str:
    """A chip that only its own commands run has no reference: its root is what the others are
    compared with."""
    evaluation = node.evaluation
    apart = evaluation is not None and evaluation.toolchain.startswith(BY_COMMANDS)
    return "what the others are compared with" if apart else "the reference"


def _comparison(run: RunRow, tree: Tree) -> dict[str, str]:
    best = tree.best
    counts = Counter(node.verdict for node in tree.nodes[1:])
    return {
        "problem": run.problem,
        "hardware": run.hardware,
        "policy": run.goal.policy,
        "knowledge": "on" if run.goal.knowledge else "off",
        "gain": summary_of(run)["gain"],
        "candidates": str(max(0, len(tree) - 1)),
        "candidates to the best": str(best.number) if best is not None else "",
        "verdicts": json.dumps(dict(counts)),
        "seconds": f"{run.seconds:.0f}",
    }
