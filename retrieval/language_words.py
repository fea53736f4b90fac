"""Text that is written for other machines, known by its words: warps, for who programs a CPU."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

REMEMBERED = 20_000  # texts whose words are kept: the same passages stand in many answers
DATA = Path(__file__).with_name("data") / "language_words.toml"


@dataclass(frozen=True)
class WordGroup:
    """Words that text for one kind of machine uses, and the languages of such machines. `heading`
    matches what in a heading alone says so; None where nothing does. `common` marks GPUs and CPUs,
    which general text has in mind where it names no machine. `only` is for a group that a chip with
    other languages besides has not.
    """

    languages: frozenset[str]
    common: bool
    only: bool
    pattern: re.Pattern[str]
    heading: re.Pattern[str] | None

    def is_of(self, languages: Collection[str]) -> bool:
        """Whether a chip with these languages is such a machine."""
        spoken = set(languages)
        return spoken <= self.languages if self.only else not self.languages.isdisjoint(spoken)


@lru_cache(maxsize=1)
def load_groups() -> tuple[WordGroup, ...]:
    """The groups of language_words.toml."""
    rows = tomllib.loads(DATA.read_text(encoding="utf-8"))["groups"]
    return tuple(
        WordGroup(
            frozenset(row["languages"]),
            row.get("common", False),
            row.get("only", False),
            _pattern(row["words"]),
            _pattern(row["headings"]) if "headings" in row else None,
        )
        for row in rows
    )


def _pattern(words: Collection[str]) -> re.Pattern[str]:
    either = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(rf"(?<![\w-])(?:{either})(?![\w-])", re.IGNORECASE)


def is_alone(languages: Collection[str]) -> bool:
    """Whether a chip has languages of its own alone, for which no general text was written."""
    return bool(languages) and not any(group.is_of(languages) for group in load_groups())


def is_common(languages: Collection[str]) -> bool:
    """Whether a chip has a language of the machines that general text has in mind."""
    return any(group.common and group.is_of(languages) for group in load_groups())


def foreign_words(texts: Sequence[str], languages: Collection[str]) -> int:
    """How many different words the texts use together of machines that have none of these
    languages; 0 where no languages are known.
    """
    if not languages:
        return 0
    groups = load_groups()
    used = [_used(text) for text in texts]
    return sum(
        len(frozenset[str]().union(*(words[place] for words in used)))
        for place, group in enumerate(groups)
        if not group.is_of(languages)
    )


def is_foreign_heading(heading: str, languages: Collection[str]) -> bool:
    """Whether a heading says that its section is for machines that have none of these languages."""
    return bool(languages) and any(
        group.heading is not None
        and not group.is_of(languages)
        and group.heading.search(heading) is not None
        for group in load_groups()
    )


def machine_words(text: str) -> int:
    """How many different words the text uses of machines of any one kind: what is left without
    them holds for a chip that is like none of these.
    """
    return len(frozenset[str]().union(*_used(text)))


@lru_cache(maxsize=REMEMBERED)
def _used(text: str) -> tuple[frozenset[str], ...]:
    """The words of each group that a text uses."""
    return tuple(
        frozenset(match.lower() for match in group.pattern.findall(text)) for group in load_groups()
    )
