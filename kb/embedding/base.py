"""What the rest of the product knows of an embedding model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """Unit-length float32 vectors. Texts longer than `window` tokens are refused, never cut.

    fingerprint: names the weights; vectors of two fingerprints are never compared.
    """

    @property
    def fingerprint(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    @property
    def window(self) -> int: ...

    def count_tokens(self, text: str) -> int:
        """Tokens of the text as the model would read it, special tokens included."""
        ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, dimension) for n passages."""
        ...

    def encode_query(self, text: str) -> Vectors:
        """(dimension,) for one query; a query over the window is cut to it."""
        ...
