"""Marks text that others wrote as data, so that a model can tell it from its instructions.

A block opens and closes with a line that carries the prompt's random boundary; whatever looks like
such a line inside is broken up, and characters that no reader sees are taken out.
"""

from __future__ import annotations

import re
import secrets
import unicodedata
from dataclasses import dataclass, field

WORD = "KERNLORE-DATA"
_MARKER = re.compile(r"kernlore[\W_]*data", re.IGNORECASE)
_KEPT = "\n\t"
_UNSEEN = ("Cc", "Cf", "Cs")  # control, format (zero width, direction), lone surrogates


@dataclass(frozen=True)
class Fence:
    """boundary: unknown to whoever wrote the documents."""

    boundary: str = field(default_factory=lambda: secrets.token_hex(8))

    def around(self, kind: str, text: str) -> str:
        """kind: a word of ours, never of a document."""
        begin, end = f"--- {WORD} {self.boundary} BEGIN {kind} ---", self.end
        return f"{begin}\n{self._harmless(text).strip()}\n{end}"

    @property
    def end(self) -> str:
        return f"--- {WORD} {self.boundary} END ---"

    def _harmless(self, text: str) -> str:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = "".join(c for c in text if c in _KEPT or unicodedata.category(c) not in _UNSEEN)
        return _MARKER.sub("kernlore (marker removed)", text).replace(self.boundary, "(removed)")
