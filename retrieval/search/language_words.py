"""Text about other machines, recognised by its words, such as warps for a CPU programmer."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path

REMEMBERED = 20_000  # texts with cached words: the same passages occur in many answers
REMEMBERED_CHIPS = 1_000  # cached sets of languages
DATA = Path(__file__).parent.parent / "data" / "language_words.toml"
# Phrases of texts that claim to hold for every kind of machine.
_ANY_MACHINE = re.compile(
    r"\b(?:on|for|of|with) (?:any|every|all) (?:kinds? of )?"
    r"(?:chips?|hardware|platforms?|devices?|processors?|machines?|targets?)\b"
    r"|\b(?:platform|hardware|chip|device)-(?:agnostic|independent)\b"
    r"|\bwhatever the (?:chip|hardware|platform|device|processor|machine)\b"
    r"|\bGPUs? and CPUs?\b|\bCPUs? and GPUs?\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class WordGroup:
    """Words in text about one kind of machine, and the languages of such machines. `heading`
    matches headings that are decisive alone, or None. `common` marks GPUs and CPUs, which general
    text implies if it names no machine. `only` marks a group for chips without other languages,
    `alone` the words of a language that runs on several machines."""

    languages: frozenset[str]
    common: bool
    only: bool
    alone: bool
    words: tuple[str, ...]
    pattern: re.Pattern[str]
    heading: re.Pattern[str] | None

    def is_of(self, languages: Collection[str]) -> bool:
        """Whether a chip with these languages is such a machine."""
        present = set(languages)
        return present <= self.languages if self.only else not self.languages.isdisjoint(present)


@lru_cache(maxsize=1)
def load_groups() -> tuple[WordGroup, ...]:
    """The groups of language_words.toml."""
    rows = tomllib.loads(DATA.read_text(encoding="utf-8"))["groups"]
    return tuple(
        WordGroup(
            frozenset(row["languages"]),
            row.get("common", False),
            row.get("only", False),
            row.get("alone", False),
            tuple(dict.fromkeys(word.casefold() for word in row["words"])),
            _pattern(row["words"]),
            _pattern(row["headings"]) if "headings" in row else None,
        )
        for row in rows
    )


def _pattern(words: Collection[str]) -> re.Pattern[str]:
    either = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(rf"(?<![\w-])(?:{either})(?![\w-])", re.IGNORECASE)


@lru_cache(maxsize=REMEMBERED_CHIPS)
def is_alone(languages: tuple[str, ...]) -> bool:
    """Whether general texts cover none of the languages of a chip."""
    return bool(languages) and not any(group.is_of(languages) for group in load_groups())


@lru_cache(maxsize=REMEMBERED_CHIPS)
def is_common(languages: tuple[str, ...]) -> bool:
    """Whether a chip has a language of the machines that general text implies."""
    return any(group.common and group.is_of(languages) for group in load_groups())


def languages_beside(language: str | None, languages: tuple[str, ...]) -> tuple[str, ...]:
    """Those of a chip's languages whose words are of use to a kernel in `language`; all if None."""
    if language is None:
        return languages
    alone = {name for group in load_groups() if group.alone for name in group.languages}
    return tuple(name for name in languages if name == language or name not in alone)


def foreign_words(texts: Iterable[str], languages: tuple[str, ...]) -> int:
    """The number of different words in the texts about machines that have none of these languages;
    0 if no languages are known."""
    if not languages:
        return 0
    used = 0
    for text in texts:
        used |= _used(text)
    return (used & _foreign(languages)).bit_count()


def native_words(texts: Iterable[str], languages: tuple[str, ...]) -> int:
    """The number of different words in the texts about machines that have one of these languages,
    without words about other machines too."""
    used = 0
    for text in texts:
        used |= _used(text)
    groups = zip(load_groups(), _by_group(), strict=True)
    own = sum(sum(bits.values()) for group, bits in groups if group.is_of(languages))
    return (used & own).bit_count()


@lru_cache(maxsize=REMEMBERED)
def is_for_others(heading: str, text: str, languages: tuple[str, ...]) -> bool:
    """Whether a section is for machines that have none of these languages: by its heading, or
    because it has more words about them than about machines with these languages. False for a
    section that claims to hold for every kind of machine."""
    if not languages or _for_any(heading) or _for_any(text):
        return False
    if is_foreign_heading(heading, languages):
        return True
    return foreign_words((heading, text), languages) > native_words((heading, text), languages)


@lru_cache(maxsize=REMEMBERED)
def _for_any(text: str) -> bool:
    """Whether a text claims to hold for every kind of machine."""
    return _ANY_MACHINE.search(text) is not None


@lru_cache(maxsize=REMEMBERED)
def is_foreign_heading(heading: str, languages: tuple[str, ...]) -> bool:
    """Whether a heading marks its section as for machines that have none of these languages."""
    return bool(languages) and any(
        group.heading is not None
        and not group.is_of(languages)
        and group.heading.search(heading) is not None
        for group in load_groups()
    )


def machine_words(text: str) -> int:
    """The number of different words in the text about machines of any one kind: text without them
    applies to a chip that resembles none of these."""
    used = _used(text)
    return len({word for word, bit in _bits() if used & bit}) if used else 0


# Words as bits of an integer: a ranking joins and counts those of hundreds of texts.


@lru_cache(maxsize=1)
def _bits() -> tuple[tuple[str, int], ...]:
    """Each word of each group with its bit; a word of two groups has two."""
    words = [word for group in load_groups() for word in group.words]
    return tuple((word, 1 << place) for place, word in enumerate(words))


@lru_cache(maxsize=1)
def _by_group() -> tuple[dict[str, int], ...]:
    """The bits of each group by word."""
    bits = iter(_bits())
    return tuple(dict(islice(bits, len(group.words))) for group in load_groups())


@lru_cache(maxsize=REMEMBERED_CHIPS)
def _foreign(languages: tuple[str, ...]) -> int:
    """All words about machines that have none of these languages."""
    groups = zip(load_groups(), _by_group(), strict=True)
    return sum(sum(bits.values()) for group, bits in groups if not group.is_of(languages))


_TOKEN = re.compile(r"[\w-]+")


@lru_cache(maxsize=1)
def _single_words() -> tuple[tuple[frozenset[str], tuple[str, ...]], ...]:
    """The words of each group that are one token, and the others."""
    split = []
    for group in load_groups():
        single = frozenset(word for word in group.words if _TOKEN.fullmatch(word))
        split.append((single, tuple(word for word in group.words if word not in single)))
    return tuple(split)


@lru_cache(maxsize=REMEMBERED)
def _used(text: str) -> int:
    """The words of each group in a text. A token inside of a longer word does not count, for which
    the pattern is needed only where such a word may occur."""
    used, folded = 0, text.casefold()
    tokens = set(_TOKEN.findall(folded))
    parts = zip(load_groups(), _by_group(), _single_words(), strict=True)
    for group, bits, (single, longer) in parts:
        found = tokens & single
        if any(word in folded for word in longer):
            found = {match.casefold() for match in group.pattern.findall(text)}
        for word in found:
            used |= bits[word]
    return used
