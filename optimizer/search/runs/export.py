"""A stored run as files: the module, the report, the trajectory, and the rows themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kb.errors import Conflict
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.confirm import outcome_from_json
from optimizer.search.output.module import write_module
from optimizer.search.output.report import write_report
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import FileStore
from optimizer.search.tree import Tree
from retrieval.knowledge_base import KnowledgeBase


def export_run(base: KnowledgeBase, run_id: str, folder: Path) -> dict[str, Any]:
    """Everything about one run in one folder. Raises Conflict where the folder has files."""
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty", hint="Give a new folder.")
    store = run_store(base)
    run = store.run(run_id)
    problem = load_problem(Path(run.problem))
    nodes = store.nodes(run_id)
    tree, outcome = Tree(nodes), outcome_from_json(run.result)
    rows = FileStore(folder / "rows")
    rows.begin(run)
    for node in nodes:
        rows.add(run.id, node)
    module = write_module(tree, outcome, problem, folder)
    report = write_report(run, tree, outcome, problem, folder)
    return {"module": str(module), "report": str(report), "rows": str(folder / "rows" / run.id)}
