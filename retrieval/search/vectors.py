"""What retrieval needs of a vector index; `kb.index.exact` and `kb.index.chroma` both are one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kb.embedding import Vectors


class VectorIndex(Protocol):
    def query(
        self, scopes: Sequence[str] | None, vector: Vectors, limit: int, access_scope: str = "all"
    ) -> dict[int, float]:
        """The nearest passages of the scopes (None: all), best first: number -> cosine."""
        ...
