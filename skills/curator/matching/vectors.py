"""An embedder that keeps what it embedded in the catalog, so that a skill's text is embedded once
and not with every distillation.

Only single texts are kept (`encode_query`, which is what skills are compared by). Vectors of two
models never mix: they are kept by the model's fingerprint.
"""

from __future__ import annotations

from collections.abc import Sequence

from kb.catalog.engine import Catalog
from kb.catalog.knowledge import embeddings
from kb.embedding import Embedder, Vectors
from kb.ids import sha256


class KeptVectors:
    """Implements `kb.embedding.Embedder` over another one."""

    def __init__(self, catalog: Catalog, embedder: Embedder) -> None:
        self._catalog = catalog
        self._embedder = embedder

    @property
    def fingerprint(self) -> str:
        return self._embedder.fingerprint

    @property
    def dimension(self) -> int:
        return self._embedder.dimension

    @property
    def window(self) -> int:
        return self._embedder.window

    def count_tokens(self, text: str) -> int:
        return self._embedder.count_tokens(text)

    def encode(self, texts: Sequence[str]) -> Vectors:
        return self._embedder.encode(texts)

    def encode_query(self, text: str) -> Vectors:
        key, model = sha256(text), self.fingerprint
        with self._catalog.read() as connection:
            known = embeddings.of_text(connection, model, key)
        if known is not None:
            return known
        vector = self._embedder.encode_query(text)
        with self._catalog.write() as connection:
            embeddings.put(connection, model, {key: vector})
        return vector
