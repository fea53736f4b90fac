"""Optional extensions of instruction sets, read from `extensions.toml`, and whether a text, a name
or a fact is about one that a machine lacks.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MIN_MENTIONS = 2  # of lacking extensions in a text that is about them


@dataclass(frozen=True)
class Extension:
    """An optional extension. `flags` are its flags in the operating system, `words` match its names
    in texts, `names` its names in code; `facts` are keys of facts about it, `*` ending a prefix;
    `macro` tests for it in C; `within` is the extension that it extends, or "".
    """

    id: str
    family: str
    flags: frozenset[str]
    words: re.Pattern[str]
    names: re.Pattern[str] | None
    facts: tuple[str, ...] = ()
    macro: str = ""
    within: str = ""

    def mentions(self, text: str) -> int:
        """Number of mentions in a text, by its words or names."""
        named = self.names.findall(text) if self.names is not None else ()
        return len(self.words.findall(text)) + len(named)

    def has_fact(self, key: str) -> bool:
        """Whether a fact with this key is about it."""
        return any(
            key.startswith(f.removesuffix("*")) if f.endswith("*") else f == key for f in self.facts
        )


@cache
def load_extensions() -> tuple[Extension, ...]:
    """The extensions, in the order of `extensions.toml`."""
    rows = tomllib.loads(Path(__file__).with_name("extensions.toml").read_text(encoding="utf-8"))[
        "extensions"
    ]
    return tuple(
        Extension(
            row["id"],
            row["family"],
            frozenset(row["flags"]),
            _words(row["words"]),
            _names(row["names"]) if "names" in row else None,
            tuple(row.get("facts", ())),
            row.get("macro", ""),
            row.get("with", ""),
        )
        for row in rows
    )


def _words(words: Sequence[str]) -> re.Pattern[str]:
    either = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    return re.compile(rf"(?<![\w-])(?:{either})(?![\w-])")


def _names(prefixes: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, prefixes))})\w*")


def extensions_of(lineage: Collection[str], flags: Collection[str]) -> tuple[str, ...]:
    """Ids of the extensions of a processor with these flags."""
    return tuple(e.id for e in _of(lineage) if not e.flags.isdisjoint(flags))


def lacking(lineage: Collection[str], flags: Collection[str]) -> tuple[str, ...]:
    """Ids of the extensions of its family that a processor with these flags lacks; none if the
    flags are unknown.
    """
    if not flags:
        return ()
    return tuple(e.id for e in _of(lineage) if e.flags.isdisjoint(flags))


def in_words(lacks: Sequence[str]) -> list[str]:
    """The lacking extensions without those that extend another lacking one."""
    return [e.id for e in _named(lacks) if e.within not in lacks]


def macros(lineage: Collection[str], lacks: Collection[str] = ()) -> list[str]:
    """The macros that test for extensions, without those of lacking ones."""
    return [e.macro for e in _of(lineage) if e.macro and e.id not in lacks]


def is_lacking_fact(key: str, lacks: Collection[str]) -> bool:
    """Whether a fact is about a lacking extension."""
    return any(e.has_fact(key) for e in _named(lacks))


def is_lacking_name(name: str, limits: Iterable[str], lacks: Collection[str]) -> bool:
    """Whether a function of this name needs a lacking extension. `limits` are the sentences of its
    card; if they name several extensions, one that is present suffices.
    """
    if not lacks:
        return False
    absent = _named(lacks)
    if any(e.names is not None and e.names.match(name) for e in absent):
        return True
    text = " ".join(limits)
    needed = any(e.words.search(text) for e in absent)
    return needed and not any(e.words.search(text) for e in _others(absent))


def is_about_lacking(title: str, text: str, lacks: Collection[str]) -> bool:
    """Whether a section is about lacking extensions: its title names one, or its text mentions them
    at least `MIN_MENTIONS` times and more often than others of the family.
    """
    if not lacks:
        return False
    absent = _named(lacks)
    others = _others(absent)
    if any(e.mentions(title) for e in absent):
        return not any(e.mentions(title) for e in others)
    mentions = sum(e.mentions(text) for e in absent)
    return mentions >= MIN_MENTIONS and mentions > sum(e.mentions(text) for e in others)


def _of(lineage: Collection[str]) -> list[Extension]:
    return [e for e in load_extensions() if e.family in lineage]


def _named(ids: Collection[str]) -> list[Extension]:
    return [e for e in load_extensions() if e.id in ids]


def _others(absent: Sequence[Extension]) -> list[Extension]:
    """The other extensions of the same families."""
    families = {e.family for e in absent}
    return [e for e in load_extensions() if e.family in families and e not in absent]
