"""What came out of the store is not distilled back into it: texts that a step was shown are found
again in what it made, by runs of eight tokens.

Eight words in the same order are rarely chance: shorter runs would take out common phrases.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SHINGLE = 8
# Share of what a change added that a shown text has too before the change counts as its use.
APPLIED = 0.5
_TOKEN = re.compile(r"\w+|[^\w\s]")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Shown:
    """Texts that a step was shown, by id: excerpts of documents and bodies of skills."""

    texts: Mapping[str, str] = field(default_factory=dict)

    def shingles(self) -> frozenset[tuple[str, ...]]:
        return frozenset(s for text in self.texts.values() for s in _shingles(_words(text)))

    def source_of(self, text: str) -> tuple[str, float]:
        """The shown text that has most of this one, and its share; ("", 0.0) where none has any.

        Compared as code, so punctuation counts.
        """
        wanted = set(_shingles(_TOKEN.findall(text)))
        shares = {
            id_: len(wanted & set(_shingles(_TOKEN.findall(other)))) / len(wanted)
            for id_, other in self.texts.items()
            if wanted
        }
        best = max(sorted(shares), key=lambda id_: shares[id_], default="")
        return (best, shares[best]) if best and shares[best] > 0 else ("", 0.0)


@dataclass(frozen=True)
class Stripped:
    """A text without its echo. share: of its words that were taken out."""

    text: str
    share: float


def strip(text: str, shown: Shown) -> Stripped:
    """Drop every span of at least eight words that a shown text has too."""
    known = shown.shingles()
    places = [match.span() for match in _WORD.finditer(text)]
    words = _words(text)
    taken = [False] * len(words)
    for start in range(len(words) - SHINGLE + 1):
        if tuple(words[start : start + SHINGLE]) in known:
            taken[start : start + SHINGLE] = [True] * SHINGLE
    if not any(taken):
        return Stripped(text, 0.0)
    kept, last = [], 0
    for (start, end), gone in zip(places, taken, strict=True):
        if gone:
            kept.append(text[last:start])
            last = end
    kept.append(text[last:])
    return Stripped(" ".join("".join(kept).split()), sum(taken) / len(words))


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _shingles(tokens: list[str]) -> Iterable[tuple[str, ...]]:
    return (tuple(tokens[n : n + SHINGLE]) for n in range(len(tokens) - SHINGLE + 1))
