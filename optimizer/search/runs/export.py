"""A run as files: the module of its winner, the report, and its rows."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from kb.errors import Conflict
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.confirm import RunOutcome, outcome_from_json, so_far
from optimizer.search.output.module import write_module
from optimizer.search.output.report import model_costs, write_report
from optimizer.search.output.shipped.table import TABLE
from optimizer.search.records import REFERENCE
from optimizer.search.runs.optimize import CANCELLED_EARLY, FinishedRun
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import FileStore, RunRow
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase

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
    return outcome_from_json(run.result)


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
