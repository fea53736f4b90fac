"""Prose as sentences and lists as items, verbatim."""

from __future__ import annotations

import re
from collections.abc import Iterator

MAX_PROSE = 20_000  # characters of one block that are read

_END = re.compile(r"(?<=[.!?])[\"')\]*]{0,3}\s++(?=[\"'(\[`*:]{0,3}[A-Z0-9`.%_])|\n[ \t]*+\n")
_BULLET = re.compile(r"^[ \t]*+(?:[-*+•]|\d{1,3}[.)])[ \t]++(?=\S)", re.MULTILINE)
_ABBREVIATED = re.compile(r"\b(?:e\.g|i\.e|etc|cf|vs|resp|approx|Fig|Sec|No)\.[\"')\]]{0,2}$")


def sentences_of(text: str) -> Iterator[str]:
    """The sentences of a paragraph or a list, each on one line or as it was broken."""
    for block in items_of(text[:MAX_PROSE]):
        pending = ""
        start = 0
        for match in [*_END.finditer(block), None]:
            end = match.start() if match else len(block)
            piece = pending + block[start:end]
            start = match.end() if match else end
            if match and _ABBREVIATED.search(piece[-12:]):
                pending = piece + " "
                continue
            pending = ""
            if piece.strip():
                yield piece.strip()


def items_of(text: str) -> list[str]:
    """The items of a list without their marks; a text without marks is one item."""
    starts = [match.span() for match in _BULLET.finditer(text)]
    if not starts:
        return [text]
    ends = [begin for begin, _ in starts[1:]] + [len(text)]
    head = [text[: starts[0][0]]] if text[: starts[0][0]].strip() else []
    return head + [text[mark:end].strip() for (_, mark), end in zip(starts, ends, strict=True)]


def opening(text: str, limit: int) -> str:
    """The first two sentences that fit, or the first one cut."""
    kept = ""
    for number, sentence in enumerate(sentences_of(text)):
        joined = f"{kept} {sentence}".strip()
        if number == 2 or (kept and len(joined) > limit):
            break
        kept = joined
    return kept
