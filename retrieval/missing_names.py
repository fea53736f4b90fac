"""Names that a compiler does not know, held against those that the documents of the chip know.

The commonest mistake of whoever writes from memory is a name that is nearly right. What defines the
name that was meant answers such an error better than any text about compile errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from kb.catalog.knowledge.symbols import Symbol
from retrieval.symbols import UnknownName, close_matches

MOST = 4  # names of a log
NEAREST = 3
LEAST_LIKENESS = 0.75  # of spelling
LONGEST = 80  # characters of a name
READ = 200_000  # characters of a log
LOGS = 16  # whose names are kept, while their requests are answered

_QUOTE = "[\"'`\u2018\u2019]"
_NAME = rf"(?:[\w.]+(?:::|->))?(?P<name>[A-Za-z_][\w.]{{1,{LONGEST}}})"
# Each with words of which a line that it matches has one, in small letters.
_UNKNOWN = tuple(
    (words, re.compile(pattern))
    for words, pattern in (
        (("is undefined",), rf"identifier {_QUOTE}{_NAME}{_QUOTE} is undefined"),
        (("undeclared",), rf"use of undeclared identifier {_QUOTE}{_NAME}{_QUOTE}"),
        (
            ("unknown type", "named"),
            rf"(?:unknown type name|no (?:template|member) named) {_QUOTE}{_NAME}{_QUOTE}",
        ),
        (
            ("declared",),
            rf"{_QUOTE}{_NAME}{_QUOTE} (?:was not declared in this scope|undeclared)",
        ),
        (("not a member",), rf"{_QUOTE}{_NAME}{_QUOTE} is not a member of"),
        (("nameerror",), rf"NameError\W{{1,3}}name {_QUOTE}{_NAME}{_QUOTE} is not defined"),
        (("is not defined",), rf"{_NAME} is not defined$"),
        (
            ("has no attribute",),
            rf"module {_QUOTE}(?!torch|numpy|math|jax{_QUOTE})[\w.]+{_QUOTE} has no attribute"
            rf" {_QUOTE}{_NAME}{_QUOTE}",
        ),
        (("cannot import",), rf"cannot import name {_QUOTE}{_NAME}{_QUOTE}"),
        (
            ("unknown", "unrecognized", "undefined"),
            rf"(?i:unknown|unrecognized|undefined) (?:instruction|opcode|mnemonic|function|name)"
            rf"(?: name)?:? {_QUOTE}?{_NAME}{_QUOTE}?",
        ),
    )
)
_LANGUAGES = {
    "triton.language": "triton",
    "triton.experimental.gluon": "gluon",
    "cutlass.cute": "cute",
    "jax.experimental.pallas": "pallas",
    "neuronxcc.nki": "nki",
}
_MODULE = re.compile(rf"(?:module|from) {_QUOTE}({'|'.join(map(re.escape, _LANGUAGES))})\b")
_CODE = re.compile(r"`([.@%$#]?[A-Za-z_][\w.]{3,80})`")


def missing_names(log: str, cards: Sequence[Symbol]) -> list[UnknownName]:
    """The names that a log calls unknown, each with the nearest that the cards know. A name that a
    card has or mentions is left out: there a header, an import or a target is missing.
    """
    names = _unknown_to(log[:READ])
    if not names:
        return []
    known = vocabulary(cards)
    strange = [name for name in names if name not in known][:MOST]
    return [UnknownName(name, 0, _nearest(name, known)) for name in strange]


@lru_cache(maxsize=LOGS)
def _unknown_to(log: str) -> tuple[str, ...]:
    """The names that a log calls unknown. One request asks for them twice."""
    folded = log.lower()
    patterns = [pattern for words, pattern in _UNKNOWN if any(word in folded for word in words)]
    return tuple(
        dict.fromkeys(
            match["name"]
            for line in (log.splitlines() if patterns else ())
            for pattern in patterns
            for match in pattern.finditer(line)
        )
    )


def vocabulary(cards: Sequence[Symbol]) -> dict[str, Symbol]:
    """Every name that the cards know, with the card to read: their own names, then those that a
    card mentions in code.
    """
    known = {card.name: card for card in cards if card.kind != "error"}
    for card in cards:
        for text in (*card.limits, *card.further, card.meaning):
            for name in _CODE.findall(text):
                known.setdefault(name, card)
    return known


def _nearest(name: str, known: Mapping[str, Symbol]) -> tuple[str, ...]:
    """Names spelled alike: as a whole, or without the module before them."""
    spelled: dict[str, str] = {}
    for other in known:
        spelled.setdefault(other.lower(), other)
    if "." not in name:
        for other in known:
            spelled.setdefault(other.rpartition(".")[2].lower(), other)
    near = close_matches(name.lower(), spelled, NEAREST, LEAST_LIKENESS)
    return tuple(dict.fromkeys(spelled[match] for match in near))


def language_named(log: str) -> str | None:
    """The language whose module a Python error is about; None where it is none of these."""
    module = _MODULE.search(log[:READ])
    return _LANGUAGES.get(module[1]) if module else None


def sections_of(names: Sequence[UnknownName], cards: Sequence[Symbol]) -> dict[str, str]:
    """The sections that tell of the nearest name of each, with that name."""
    near = [entry.nearest[0] for entry in names if entry.nearest]
    known = vocabulary(cards) if near else {}
    return {known[name].section_id: name for name in near}


def hint_of(entry: UnknownName, chip: str) -> str:
    """What to tell of a name that a compiler does not know."""
    begin = f"`{entry.name}` is not a name that the documents about {chip} know"
    if not entry.nearest:
        return f"{begin}, and none is near it: declare it, or write it out of what there is."
    return f"{begin}; near names: {', '.join(entry.nearest)}."
