"""A run that fails before its first row: kept as a failed one, so that lists show it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from kb.catalog.evaluations import Evaluations
from kb.errors import KernloreError, NotFound
from optimizer.evaluation.catalog_journal import CatalogJournal
from optimizer.evaluation.problem.load import load_problem
from optimizer.search.goal import Goal
from optimizer.search.runs.run_store import run_store
from optimizer.search.store import RunRow
from retrieval.knowledge_base import KnowledgeBase


def keep_failed(
    base: KnowledgeBase, run_id: str, problem: Path, goal: Goal, hardware: str, reason: str
) -> None:
    """Store a failed run that ended for `reason`, where it has no row yet. Nothing where its
    problem cannot be read: a row points to its problem.
    """
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
