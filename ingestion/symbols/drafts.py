"""What one place of a document says about a name, before all places are put together.

A draft is as verbatim as a card: nothing here rewrites the source, texts are only cut at a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kb.catalog.knowledge.symbols import CardKind

MAX_NAME = 80  # characters
MAX_SIGNATURE = 500
MAX_MEANING = 400
MAX_LIMIT = 300
MAX_LIMITS = 10  # of one card
MAX_OPERANDS = 24
MAX_OPERAND = 200
MAX_FURTHER = 8


@dataclass(frozen=True)
class Draft:
    """A definition of `name` in section `section`. `kind` is None where the place does not say.
    `sure` is False where the name alone could be something else: such a draft only counts when
    the document's code uses the name."""

    name: str
    section: int
    kind: CardKind | None = None
    signature: str = ""
    operands: tuple[tuple[str, str], ...] = ()
    meaning: str = ""
    limits: tuple[str, ...] = ()
    language: str = ""
    further: tuple[str, ...] = ()
    sure: bool = True

    @property
    def richness(self) -> int:
        """How much of a card it fills: a definition beats a mention."""
        fields = (self.signature, self.operands, self.limits, self.further)
        return 2 * bool(self.meaning) + sum(map(bool, fields))


def cut(text: str, limit: int) -> str:
    """The text within a bound, cut between words; white space at its ends goes."""
    text = text.strip()
    if len(text) <= limit:
        return text
    kept = text[:limit]
    return kept[: max(kept.rfind(" "), kept.rfind("\n"), limit // 2)].rstrip()


def bounded(texts: Iterable[str], count: int, limit: int) -> tuple[str, ...]:
    """The first `count` different texts, each within `limit` characters."""
    kept: dict[str, None] = {}
    for text in texts:
        if len(kept) == count:
            break
        short = cut(text, limit)
        if short:
            kept[short] = None
    return tuple(kept)


def message_and(message: str, explanation: str) -> str:
    """The message of an error with what is said about it."""
    if not explanation or not message or message in explanation:
        return explanation or message
    return f"{message.rstrip('.')}. {explanation}"


def word_set(words: str) -> frozenset[str]:
    """A set of words, written as a line of them."""
    return frozenset(words.split())
