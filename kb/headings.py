"""Heading paths as shown next to the title of a document."""

from __future__ import annotations

from collections.abc import Sequence


def below_title(path: Sequence[str], title: str) -> tuple[str, ...]:
    """The headings without those that repeat the title, as the first one of most manuals does."""
    folded = _folded(title)
    return tuple(heading for heading in path if _folded(heading) != folded)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
