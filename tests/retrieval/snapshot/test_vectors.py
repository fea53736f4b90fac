"""The scan of 8-bit codes finds the same passages as the product with every vector."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from retrieval.snapshot.segment import coded, nearest

ROWS, WIDTH = 900, 48


def columns_of(vectors: NDArray[np.float32], first: int) -> dict[str, NDArray[np.generic]]:
    seqs = np.arange(first, first + len(vectors), dtype=np.int64)
    return {"seqs": seqs, "vectors": vectors, **coded(vectors).columns()}


def unit(values: NDArray[np.float64]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(values, axis=-1, keepdims=True)
    return np.asarray(values / np.maximum(lengths, 1e-12), np.float32)


@pytest.mark.parametrize("spread", [0.001, 0.05, 1.0])  # nearly equal vectors, and unlike ones
@pytest.mark.parametrize("limit", [1, 40, 5_000])
def test_nearest_equal_those_of_all_vectors(spread: float, limit: int) -> None:
    random = np.random.default_rng(7)
    centre = random.normal(size=WIDTH)
    vectors = unit(centre + spread * random.normal(size=(ROWS, WIDTH)))
    query = unit(centre + spread * random.normal(size=WIDTH))
    groups = [
        (columns_of(vectors[:400], 0), [(0, 150), (200, 400)]),
        (columns_of(vectors[400:], 400), [(0, 500)]),
    ]
    searched = np.r_[0:150, 200:900]
    cosines = vectors[searched] @ query
    order = np.argsort(-np.round(cosines.astype(np.float64), 5), kind="stable")[:limit]
    found = nearest(groups, query, limit)
    assert list(found) == searched[order].tolist()
    assert np.allclose(list(found.values()), cosines[order], atol=1e-6)


def test_rows_without_vector_have_codes_of_zero() -> None:
    codes = coded(np.zeros((2, WIDTH), np.float32))
    assert not codes.codes.any() and not codes.errors.any() and codes.steps.tolist() == [1, 1]


def test_no_groups_give_nothing() -> None:
    assert nearest([], np.ones(WIDTH, np.float32), 5) == {}
