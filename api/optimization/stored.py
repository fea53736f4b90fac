"""The runs of a catalog. Whoever only reads them needs neither torch nor a toolchain."""

from __future__ import annotations

from api.services import Services
from kb.catalog.search.evaluations import Evaluations
from kb.catalog.search.runs import Runs
from optimizer.search.bench.catalog_store import CatalogStore


def run_store(services: Services) -> CatalogStore:
    return CatalogStore(Runs(services.catalog), Evaluations(services.catalog), services.blobs)
