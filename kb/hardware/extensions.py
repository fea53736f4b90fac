"""Parts of an instruction set that one processor of a family has and another lacks, and whether a
text, a name or a fact is about one that a machine lacks.

Reads `extensions.toml`. Knows nothing about how a machine is asked for its flags.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DATA = Path(__file__).with_name("extensions.toml")
LEAST = 2  # mentions of what is lacking that make a text one about it


@dataclass(frozen=True)
class Extension:
    """One optional part. `flags` are the operating system's words for it; `words` match how texts
    call it, `names` the names that code calls; `facts` are keys of facts about it, where a `*` ends
    a beginning; `within` is the extension that it extends, or empty."""

    id: str
    family: str
    flags: frozenset[str]
    words: re.Pattern[str]
    names: re.Pattern[str] | None
    facts: tuple[str, ...] = ()
    macro: str = ""
    within: str = ""

    def mentions(self, text: str) -> int:
        """How often a text speaks of it or calls one of its names."""
        named = self.names.findall(text) if self.names is not None else ()
        return len(self.words.findall(text)) + len(named)

    def has_fact(self, key: str) -> bool:
        """Whether a fact is about it."""
        return any(
            key.startswith(f.removesuffix("*")) if f.endswith("*") else f == key for f in self.facts
        )


@cache
def load_extensions() -> tuple[Extension, ...]:
    """The extensions of extensions.toml, in its order."""
    rows = tomllib.loads(DATA.read_text(encoding="utf-8"))["extensions"]
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


def _names(beginnings: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, beginnings))})\w*")


def extensions_of(lineage: Collection[str], flags: Collection[str]) -> tuple[str, ...]:
    """Ids of the extensions that a processor with these flags has; none where no flag is known."""
    return tuple(e.id for e in _of(lineage) if not e.flags.isdisjoint(flags))


def lacking(lineage: Collection[str], flags: Collection[str]) -> tuple[str, ...]:
    """Ids of the extensions of its family that a processor with these flags lacks; none where no
    flag is known."""
    if not flags:
        return ()
    return tuple(e.id for e in _of(lineage) if e.flags.isdisjoint(flags))


def in_words(lacks: Sequence[str]) -> list[str]:
    """What is lacking, without what only extends something that is lacking too."""
    return [e.id for e in _named(lacks) if e.within not in lacks]


def macros(lineage: Collection[str], lacks: Collection[str] = ()) -> list[str]:
    """The macros by which code asks whether it may use an extension, without those `lacks`."""
    return [e.macro for e in _of(lineage) if e.macro and e.id not in lacks]


def is_lacking_fact(key: str, lacks: Collection[str]) -> bool:
    """Whether a fact is about an extension that is lacking."""
    return any(e.has_fact(key) for e in _named(lacks))


def is_lacking_name(name: str, limits: Iterable[str], lacks: Collection[str]) -> bool:
    """Whether what code calls by this name needs an extension that is lacking. `limits` are the
    sentences of its card; where they name several extensions, one that is there is enough."""
    if not lacks:
        return False
    absent = _named(lacks)
    if any(e.names is not None and e.names.match(name) for e in absent):
        return True
    said = " ".join(limits)
    needed = any(e.words.search(said) for e in absent)
    return needed and not any(e.words.search(said) for e in _others(absent))


def is_about_lacking(title: str, text: str, lacks: Collection[str]) -> bool:
    """Whether a section is about extensions that are lacking: by its title, or because it speaks of
    them at least LEAST times and more than of others of the same family."""
    if not lacks:
        return False
    absent = _named(lacks)
    others = _others(absent)
    if any(e.mentions(title) for e in absent):
        return not any(e.mentions(title) for e in others)
    spoken = sum(e.mentions(text) for e in absent)
    return spoken >= LEAST and spoken > sum(e.mentions(text) for e in others)


def _of(lineage: Collection[str]) -> list[Extension]:
    return [e for e in load_extensions() if e.family in lineage]


def _named(ids: Collection[str]) -> list[Extension]:
    return [e for e in load_extensions() if e.id in ids]


def _others(absent: Sequence[Extension]) -> list[Extension]:
    """The other extensions of the same families."""
    families = {e.family for e in absent}
    return [e for e in load_extensions() if e.family in families and e not in absent]
