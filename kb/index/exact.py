"""Exact nearest passages: numpy over the catalog's own vectors.

Needs no index and no service: 10,000 x 384 take under 10 ms. The matrix of a scope is kept until
the catalog changes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from kb.catalog.engine import Catalog
from kb.catalog.kept import look_up
from kb.catalog.knowledge import embeddings
from kb.catalog.knowledge.embeddings import ScopeVectors, Vector
from kb.scope import ALL_ACCESS, AccessScope

State = tuple[int, int]


class ExactIndex:
    """Answers from the catalog alone; always current."""

    generation = 0  # it never changes apart from the catalog

    def __init__(self, catalog: Catalog, model: str) -> None:
        self._catalog = catalog
        self._model = model
        self._cache: dict[tuple[str, str], tuple[State, ScopeVectors]] = {}
        self._lock = threading.Lock()  # protects _cache

    def query(
        self,
        scopes: Sequence[str] | None,
        vector: Vector,
        limit: int,
        access_scope: AccessScope = ALL_ACCESS,
        transaction: Connection | None = None,
    ) -> dict[int, float]:
        """The nearest passages of the scopes (None: all), best first: seq -> cosine."""
        with self._catalog.within(transaction) as connection:
            state = embeddings.index_state(connection)
            if scopes is None:
                scopes = look_up(
                    connection,
                    "hardware scopes",
                    [access_scope],
                    lambda _: {access_scope: embeddings.hardware_scopes(connection, access_scope)},
                )[access_scope]
            parts = [self._vectors(connection, state, scope, access_scope) for scope in scopes]
        return nearest(((p.numbers, p.matrix @ vector) for p in parts if p.seqs), limit)

    def _vectors(
        self, connection: Connection, state: State, scope: str, access_scope: AccessScope
    ) -> ScopeVectors:
        key = (scope, access_scope.owner)
        with self._lock:
            cached = self._cache.get(key)
        if cached is not None and cached[0] == state:
            return cached[1]
        vectors = embeddings.of_scope(connection, self._model, scope, access_scope)
        with self._lock:
            self._cache[key] = (state, vectors)
        return vectors


def nearest(groups: Iterable[tuple[NDArray[np.int64], Vector]], limit: int) -> dict[int, float]:
    """The `limit` best passages of several groups, each with its numbers and their cosines, best
    first: seq -> cosine. A passage may be in several groups.
    """
    return merged([largest(numbers, cosines, limit) for numbers, cosines in groups], limit)


def merged(best: Sequence[tuple[NDArray[np.int64], Vector]], limit: int) -> dict[int, float]:
    """As `nearest`, of the `largest` of each group."""
    if not best:
        return {}
    seqs, places = np.unique(np.concatenate([numbers for numbers, _ in best]), return_index=True)
    cosines = np.concatenate([of_group for _, of_group in best])[places].astype(np.float64)
    # Equal texts have equal vectors, but not to the last bit of a matrix product.
    order = np.argsort(-np.round(cosines, 5), kind="stable")[:limit]
    return dict(zip(seqs[order].tolist(), cosines[order].tolist(), strict=True))


def largest(
    numbers: NDArray[np.int64], cosines: Vector, limit: int
) -> tuple[NDArray[np.int64], Vector]:
    """Those of a group that may be among the best; of equal ones, which differ in the last bit of a
    product, all.
    """
    if len(cosines) <= limit:
        return numbers, cosines
    near = cosines >= np.partition(cosines, -limit)[-limit] - 1e-5
    return numbers[near], cosines[near]
