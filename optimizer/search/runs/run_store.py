"""The runs of a catalog. Whoever only reads them needs neither torch nor a toolchain."""

from __future__ import annotations

from kb.catalog.search.evaluations import Evaluations
from kb.catalog.search.runs import Runs
from optimizer.search.bench.catalog_store import CatalogStore
from retrieval.knowledge_base import KnowledgeBase


def run_store(base: KnowledgeBase) -> CatalogStore:
    return CatalogStore(Runs(base.catalog), Evaluations(base.catalog), base.blobs)
