"""Where a passage stands, as a person reads it beside the title of its document."""

from __future__ import annotations

from collections.abc import Sequence


def below_title(path: Sequence[str], title: str) -> tuple[str, ...]:
    """The headings that do not just repeat the document's title, which is shown beside them: the
    first heading of most manuals is their title.
    """
    said = _folded(title)
    return tuple(heading for heading in path if _folded(heading) != said)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
