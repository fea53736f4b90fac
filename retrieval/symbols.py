"""Names of a chip's languages: looked up, found in texts, and the unknown ones of a draft.

A draft is read without knowing its language. A word is held to be the name of an instruction where
it stands as the cards' own names stand in samples: at the start of a statement or before an opening
parenthesis. A name that the draft itself declares is none.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from kb.catalog.knowledge.symbols import Symbol
from kb.embedding import Vectors
from kb.tokens import STOP_WORDS, tokenize

NEAREST = 3
MAX_DRAFT = 200_000  # characters that are read
MAX_UNKNOWN = 12
LEAST_CARDS = 8  # fewer do not make a vocabulary that a draft can be held against
LEAST_LIKENESS = 0.6  # of spelling
LEAST_MEANING = 0.35  # cosine
MOST_SETS = 500  # of names, that are kept without their marks: of 0.2 MB for a chip, else tiny

# A name with the marks that languages put before or into one: .tile, %r3, tl.load, vadd.f32.
WORD = re.compile(r"[.@%$#]?[A-Za-z_][\w.]*")
_HYPHENED = re.compile(rf"{WORD.pattern}(?:-\w+)*")
_MARKS = ".@%$#"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*[;#][^\n]*|[ \t];[^\n]*", re.S | re.M)
_STATEMENT = re.compile(r"[;{}\n]")
_STRING = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'")

Embed = Callable[[str], Vectors]


@dataclass(frozen=True)
class UnknownName:
    """A name of a draft that no card has. `line` counts from 1; `nearest` are names of cards, by
    spelling, then by meaning.
    """

    name: str
    line: int
    nearest: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The form in an answer of /retrieve."""
        return asdict(self)


def names_in(text: str, symbols: Collection[str]) -> list[str]:
    """The symbols that occur in a text as whole names, in the order of their first occurrence.

    A name counts without its mark too (`in` for `.in`), but not where it is a word of any sentence.
    """
    known = frozenset(symbols)
    plain = _without_marks(known)
    names: dict[str, None] = {}
    for match in _HYPHENED.finditer(text[:MAX_DRAFT]):
        if match[0] in known:  # an error code such as VB-271
            names.setdefault(match[0])
            continue
        for part in WORD.finditer(match[0]):
            word = part[0].rstrip(".")
            if word in known:
                names.setdefault(word)
            elif (bare := word.lstrip(_MARKS)) in known or bare in plain:
                names.setdefault(bare if bare in known else plain[bare])
    return list(names)


@lru_cache(maxsize=MOST_SETS)
def _without_marks(names: frozenset[str]) -> dict[str, str]:
    """The names by what is left without their marks, but for words of any sentence. The names of a
    chip are looked for in each text about it.
    """
    plain = {name.lstrip(_MARKS): name for name in names}
    return {bare: name for bare, name in plain.items() if bare.lower() not in STOP_WORDS}


def search_symbols(
    query: str, symbols: Sequence[Symbol], embed: Embed | None, limit: int
) -> list[Symbol]:
    """The symbols that a query means, best first: the name itself, names that contain or resemble
    it, then cards that speak of it. What a query means is asked only where it is in no name.
    """
    wanted = query.strip()
    folded = wanted.lower()
    tokens = set(tokenize(wanted))
    if any(folded in symbol.name.lower() for symbol in symbols):
        embed = None
    meaning = dict(_by_meaning(wanted, symbols, embed)) if embed is not None else {}

    def score(symbol: Symbol) -> float:
        name = symbol.name.lower()
        if symbol.name == wanted:
            return 10.0
        if name == folded:
            return 9.0
        value = 4.0 if folded and (folded in name or name in folded.split()) else 0.0
        value += 2.0 * difflib.SequenceMatcher(None, folded, name).ratio() if folded else 0.0
        words = set(tokenize(f"{symbol.name} {symbol.signature} {symbol.meaning}"))
        value += 3.0 * len(tokens & words) / max(1, len(tokens))
        return value + 2.0 * max(0.0, meaning.get(symbol.id, 0.0))

    scored = [(score(symbol), symbol) for symbol in symbols]
    ranked = sorted(scored, key=lambda pair: (-pair[0], pair[1].name))
    return [symbol for value, symbol in ranked[:limit] if value >= 1.5]


def nearest_names(
    name: str, symbols: Sequence[Symbol], embed: Embed | None, limit: int = NEAREST
) -> tuple[str, ...]:
    """Names of cards near an unknown name: by spelling, then by what the name seems to mean."""
    by_fold = {symbol.name.lower(): symbol.name for symbol in symbols}
    near = close_matches(name.lower(), by_fold, limit, LEAST_LIKENESS)
    names = dict.fromkeys(by_fold[match] for match in near)
    if embed is not None:
        by_id = {symbol.id: symbol.name for symbol in symbols}
        words = re.sub(r"[\W_]+|(?<=[a-z])(?=[A-Z0-9])", " ", name).strip()
        for identity, cosine in _by_meaning(words, symbols, embed):
            if len(names) >= limit or cosine < LEAST_MEANING:
                break
            names.setdefault(by_id[identity])
    return tuple(names)[:limit]


def close_matches(name: str, names: Iterable[str], limit: int, likeness: float) -> list[str]:
    """As `difflib.get_close_matches`, which asks of each name by two calls whether its length rules
    it out.
    """
    length = len(name)
    likely = [n for n in names if 2.0 * min(length, len(n)) >= likeness * (length + len(n)) - 1e-6]
    return difflib.get_close_matches(name, likely, limit, likeness)


def _by_meaning(text: str, symbols: Sequence[Symbol], embed: Embed) -> list[tuple[str, float]]:
    """(id, cosine) of the symbols' descriptions, nearest first. `embed` is expected to remember."""
    spoken = [symbol for symbol in symbols if symbol.meaning]
    if not spoken or not text:
        return []
    matrix = np.stack([embed(f"{s.name}: {s.meaning[:200]}") for s in spoken])
    cosines = matrix @ embed(text)
    order = np.argsort(-cosines)
    return [(spoken[int(n)].id, float(cosines[int(n)])) for n in order]


# -- drafts


def unknown_names(
    draft: str,
    symbols: Sequence[Symbol],
    embed: Embed | None = None,
    spoken: Iterable[str] = (),
) -> list[UnknownName]:
    """Names in a draft that stand where instructions stand and that no card has, by line. Empty
    where there are too few cards to tell. `spoken` are texts of the chip's documents: a name that
    occurs in them is known, card or not.
    """
    known = {symbol.name for symbol in symbols}
    if len(known) < LEAST_CARDS:
        return []
    text = _without_comments(draft[:MAX_DRAFT])
    folded = {name.lstrip(".@%$#").lower() for name in known} | {n.lower() for n in known}
    pieces = {part.lower() for name in known for part in re.split(r"\W+", name) if part}
    leading = _leading_words(text)
    elsewhere = _operands(text)
    named = {word for part in spoken for word in WORD.findall(part) if word in leading}
    unknown = []
    for word, line in leading.items():
        plain = word.lstrip(".@%$#").lower()
        known_word = plain in folded or plain in pieces or word in named
        if known_word or word in elsewhere or len(plain) < 2:
            continue
        unknown.append(UnknownName(word, line, nearest_names(word, symbols, embed)))
    return sorted(unknown, key=lambda name: name.line)[:MAX_UNKNOWN]


def _without_comments(text: str) -> str:
    """The draft with comments and strings blanked, line numbers kept."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return _STRING.sub(blank, _COMMENT.sub(blank, text))


def _leading_words(text: str) -> dict[str, int]:
    """Words that begin a statement and are followed by an operand, with their first line. A word
    before `=`, `:` or `(` is a name that the draft gives or calls.
    """
    words: dict[str, int] = {}
    line = 1
    start = 0
    ends: Iterable[tuple[int, str]] = [
        *((m.start(), m[0]) for m in _STATEMENT.finditer(text)),
        (len(text), ""),
    ]
    for end, mark in ends:
        statement = text[start:end].lstrip()
        match = WORD.match(statement)
        if match is not None:
            after = statement[match.end() :].lstrip()
            if after[:1] and after[0] not in "=:+-*/<>([.":
                words.setdefault(match[0], line)
        line += mark == "\n"
        start = end + 1
    return words


def _operands(text: str) -> frozenset[str]:
    """Words that occur other than at the start of a statement: what a draft declares and uses."""
    counts: Counter[str] = Counter()
    for statement in _STATEMENT.split(text):
        words = WORD.findall(statement)
        counts.update(words[1:])
    return frozenset(counts)


def unknown_line(entry: UnknownName) -> str:
    """An unknown name in words, with the names near it."""
    where = f" (line {entry.line} of the draft)" if entry.line else ""
    near = ", ".join(entry.nearest)
    meant = f"; names of this language near it: {near}" if near else ""
    return f"- `{entry.name}`{where} is no name that the documents of this chip define{meant}"
