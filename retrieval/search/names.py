"""Names of a chip's languages: search, occurrences in texts, and unknown names in a draft.

A draft is read without a grammar of its language. A word counts as an instruction's name if it is
in the position of the cards' names in samples: at the start of a statement or before an opening
parenthesis. Names that the draft declares are excluded.
"""

from __future__ import annotations

import difflib
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from kb.catalog.knowledge.symbols import Symbol
from kb.embedding import Vectors
from kb.tokens import STOP_WORDS, tokenize
from retrieval.diagnose.linear_patterns import compile_pattern

NEAREST = 3
SPELLING_SECONDS, MEANING_SECONDS = 0.5, 0.5  # of a search among cards
MAX_DRAFT = 200_000  # characters that are read
MAX_UNKNOWN = 12
LEAST_CARDS = 8  # fewer cards are too small a vocabulary to check a draft against
LEAST_LIKENESS = 0.6  # spelling similarity, 0 to 1
LEAST_MEANING = 0.35  # cosine
MOST_SETS = 500  # sets of names cached without their marks: 0.2 MB for a chip, else tiny

# A name with the marks that languages place before or inside names: .tile, %r3, tl.load, vadd.f32.
WORD = re.compile(r"[.@%$#]?[A-Za-z_][\w.]*")
_HYPHENED = re.compile(rf"{WORD.pattern}(?:-\w+)*")
_MARKS = ".@%$#"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*[;#][^\n]*|[ \t];[^\n]*", re.S | re.M)
_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.M)
_STATEMENT = re.compile(r"[;{}\n]")
_STRING = re.compile(r"\"\"\".*?\"\"\"|\"[^\"\n]*\"|'[^'\n]*'", re.S)
_DOTTED_CALL = re.compile(r"(?<![\w.])(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*(?=[ \t]*\()")

Embed = Callable[[str], Vectors]


@dataclass(frozen=True)
class UnknownName:
    """A name of a draft that has no card. `line` counts from 1; `nearest` are names of cards, by
    spelling, then by meaning."""

    name: str
    line: int
    nearest: tuple[str, ...]


class Cards(list[Symbol]):
    """The cards of a language on a chip, with what requests look up in them."""

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of everything but keywords and directives that are ordinary words: `kernel`."""
        return frozenset(card.name for card in self if not _is_ordinary(card))

    @cached_property
    def uncommon(self) -> Mapping[str, Sequence[Symbol]]:
        """Cards by name, without types and keywords, which occur in all kinds of text."""
        by_name: dict[str, list[Symbol]] = {}
        for card in self:
            if card.kind not in ("type", "keyword"):
                by_name.setdefault(card.name, []).append(card)
        return by_name

    @cached_property
    def by_name(self) -> Mapping[str, Symbol]:
        """The last card of each name, without those of error codes."""
        return {card.name: card for card in self if card.kind != "error"}

    @cached_property
    def errors(self) -> Sequence[Symbol]:
        return [card for card in self if card.kind == "error"]

    @cached_property
    def by_section(self) -> Mapping[str | None, Sequence[Symbol]]:
        """Cards by the section that they are taken from."""
        by_section: dict[str | None, list[Symbol]] = {}
        for card in self:
            by_section.setdefault(card.section_id, []).append(card)
        return by_section


def _is_ordinary(card: Symbol) -> bool:
    return card.kind == "keyword" or (card.kind == "directive" and card.name.isalpha())


def names_in(text: str, symbols: Collection[str]) -> list[str]:
    """The symbols that occur in a text as complete names, in the order of their first occurrence. A
    name also matches without its mark (`in` for `.in`), unless that is an ordinary word."""
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
    """The names by their form without marks, except ordinary words. Cached, because a chip's names
    are searched for in each text about it."""
    plain = {name.lstrip(_MARKS): name for name in names}
    return {bare: name for bare, name in plain.items() if bare.lower() not in STOP_WORDS}


def search_symbols(
    query: str, symbols: Sequence[Symbol], embed: Embed | None, limit: int
) -> list[Symbol]:
    """The symbols that match a query, best first: the name itself, names that contain or resemble
    it, then cards that mention it. A query that is part of no name is also matched by meaning."""
    text = query.strip()
    folded = text.lower()
    tokens = set(tokenize(text))

    def by_words(symbol: Symbol) -> float:
        name = symbol.name.lower()
        if symbol.name == text:
            return 10.0
        if name == folded:
            return 9.0
        value = 4.0 if folded and (folded in name or name in folded.split()) else 0.0
        words = set(tokenize(f"{symbol.name} {symbol.signature} {symbol.meaning}"))
        return value + 3.0 * len(tokens & words) / max(1, len(tokens))

    def most_alike(symbol: Symbol) -> float:
        shorter, longer = sorted((len(folded), len(symbol.name)))
        return 2.0 * shorter / max(1, shorter + longer)

    scores = {symbol.id: by_words(symbol) for symbol in symbols}
    # The best so far, and those of a similar length, first: time may end before the others.
    order = sorted(symbols, key=lambda s: (-scores[s.id] - 2.0 * most_alike(s), s.name))
    end = time.monotonic() + SPELLING_SECONDS
    for symbol in order:
        if time.monotonic() > end:
            break
        if folded and scores[symbol.id] < 9.0:
            alike = difflib.SequenceMatcher(None, folded, symbol.name.lower()).ratio()
            scores[symbol.id] += 2.0 * alike
    if embed is not None and not any(folded in symbol.name.lower() for symbol in symbols):
        order.sort(key=lambda s: (-scores[s.id], s.name))
        for identity, cosine in _by_meaning(text, order, embed, MEANING_SECONDS):
            scores[identity] += 2.0 * max(0.0, cosine) if scores[identity] < 9.0 else 0.0
    ranked = sorted(symbols, key=lambda s: (-scores[s.id], s.name))
    return [symbol for symbol in ranked[:limit] if scores[symbol.id] >= 1.5]


def nearest_names(name: str, symbols: Sequence[Symbol], embed: Embed | None) -> tuple[str, ...]:
    """Names of cards near an unknown name: by spelling, then by meaning."""
    by_fold = {symbol.name.lower(): symbol.name for symbol in symbols}
    near = close_matches(name.lower(), by_fold, NEAREST, LEAST_LIKENESS)
    names = dict.fromkeys(by_fold[match] for match in near)
    if embed is not None:
        by_id = {symbol.id: symbol.name for symbol in symbols}
        words = re.sub(r"[\W_]+|(?<=[a-z])(?=[A-Z0-9])", " ", name).strip()
        for identity, cosine in _by_meaning(words, symbols, embed):
            if len(names) >= NEAREST or cosine < LEAST_MEANING:
                break
            names.setdefault(by_id[identity])
    return tuple(names)[:NEAREST]


def close_matches(name: str, names: Iterable[str], limit: int, likeness: float) -> list[str]:
    """Like `difflib.get_close_matches`, but rules names out by length without a call for each."""
    length = len(name)
    likely = [n for n in names if 2.0 * min(length, len(n)) >= likeness * (length + len(n)) - 1e-6]
    return difflib.get_close_matches(name, likely, limit, likeness)


def _by_meaning(
    text: str, symbols: Sequence[Symbol], embed: Embed, seconds: float = math.inf
) -> list[tuple[str, float]]:
    """(id, cosine) of the symbols' descriptions, nearest first; after so many seconds without the
    others. `embed` should cache: the next search then gets further."""
    described = [symbol for symbol in symbols if symbol.meaning]
    if not described or not text:
        return []
    wanted = embed(text)
    end = time.monotonic() + seconds
    vectors = []
    for symbol in described:
        vectors.append(embed(f"{symbol.name}: {symbol.meaning[:200]}"))
        if time.monotonic() > end:
            break
    cosines = np.stack(vectors) @ wanted
    order = np.argsort(-cosines)
    return [(described[int(n)].id, float(cosines[int(n)])) for n in order]


# -- drafts


# Words of C and its compilers, which no manual of a chip defines.
_RESERVED = re.compile(
    r"asm|__\w+__|int|long|short|char|float|double|(?:un)?signed|struct|union|enum|typedef|goto"
    r"|u?int(?:_fast|_least)?\d+_t|u?int(?:ptr|max)_t|s?size_t|ptrdiff_t"
)


def unknown_names(
    draft: str, symbols: Sequence[Symbol], embed: Embed | None = None, texts: Iterable[str] = ()
) -> list[UnknownName]:
    """Names in instruction position in a draft, and dotted calls, that have no card, by line. Empty
    if there are too few cards to judge. `texts` are those of the chip's documents: a name that
    occurs in them is known even without a card."""
    known = {symbol.name for symbol in symbols}
    if len(known) < LEAST_CARDS:
        return []
    text = _without_comments(draft[:MAX_DRAFT])
    folded = {name.lstrip(".@%$#").lower() for name in known} | {n.lower() for n in known}
    pieces = {part.lower() for name in known for part in re.split(r"\W+", name) if part}
    calls = _unknown_calls(text, known)
    leading = {**_leading_words(text), **calls}
    elsewhere = (_operands(text) - set(calls)) | set(_DEFINED.findall(draft[:MAX_DRAFT]))
    named = {word for part in texts for word in WORD.findall(part) if word in leading}
    unknown = []
    for word, line in leading.items():
        plain = word.lstrip(".@%$#").lower()
        known_word = plain in folded or plain in pieces or word in named
        if known_word or word in elsewhere or len(plain) < 2 or _RESERVED.fullmatch(word):
            continue
        unknown.append(UnknownName(word, line, nearest_names(word, symbols, embed)))
    return sorted(unknown, key=lambda name: name.line)[:MAX_UNKNOWN]


def _without_comments(text: str) -> str:
    """The draft with comments and strings blanked; line numbers do not change."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return _STRING.sub(blank, _COMMENT.sub(blank, text))


def _leading_words(text: str) -> dict[str, int]:
    """Words that begin a statement and are followed by an operand, with their first line. A word
    before `=`, `:` or `(` is a name that the draft defines or calls."""
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
            if after[:1] and after[0] not in "=:+-*/<>([.,":
                words.setdefault(match[0], line)
        line += mark == "\n"
        start = end + 1
    return words


def _unknown_calls(text: str, known: Collection[str]) -> dict[str, int]:
    """Calls of dotted names that are no cards, of modules that have cards, with their first line:
    `lib.math.sigmod(x)` where `lib.math.exp` and others are known."""
    modules = Counter(name.rpartition(".")[0] for name in known)
    calls: dict[str, int] = {}
    for match in _DOTTED_CALL.finditer(text):
        if match[0] not in known and modules[match[0].rpartition(".")[0]] > 1:
            calls.setdefault(match[0], text.count("\n", 0, match.start()) + 1)
    return calls


def _operands(text: str) -> frozenset[str]:
    """Words that occur elsewhere than at the start of a statement: names that a draft declares and
    uses."""
    counts: Counter[str] = Counter()
    for statement in _STATEMENT.split(text):
        words = WORD.findall(statement)
        counts.update(words[1:])
    return frozenset(counts)


def unknown_line(entry: UnknownName) -> str:
    """An unknown name as a sentence, with its nearest names."""
    where = f" (line {entry.line} of the draft)" if entry.line else ""
    near = ", ".join(entry.nearest)
    meant = f"; names of this language near it: {near}" if near else ""
    return f"- `{entry.name}`{where} is no name that the documents of this chip define{meant}"


# -- names that a compiler reports as unknown

MOST_MISSING = 4  # names of a log
LEAST_LIKENESS_OF_LOG = 0.75  # spelling similarity
LONGEST = 80  # characters of a name
READ = 200_000  # characters of a log
LOGS = 16  # logs with cached names, which one request needs twice

_QUOTE = "[\"'`\u2018\u2019]"
_NAME = rf"(?:[\w.]+(?:::|->))?(?P<name>[A-Za-z_][\w.]{{1,{LONGEST}}})"
# Patterns, each with lower-case words; a matching line contains at least one.
_UNKNOWN = tuple(
    (words, re.compile(pattern))
    for words, pattern in (
        (("is undefined",), rf"identifier {_QUOTE}{_NAME}{_QUOTE} is undefined"),
        (
            ("undeclared",),
            rf"(?:use of undeclared identifier|call to undeclared function)"
            rf" {_QUOTE}{_NAME}{_QUOTE}",
        ),
        (
            ("unknown type", "named"),
            rf"(?:unknown type name|no (?:template|member) named) {_QUOTE}{_NAME}{_QUOTE}",
        ),
        (("declared",), rf"{_QUOTE}{_NAME}{_QUOTE} (?:was not declared in this scope|undeclared)"),
        (("not a member",), rf"{_QUOTE}{_NAME}{_QUOTE} is not a member of"),
        (("has no member",), rf"has no member {_QUOTE}{_NAME}{_QUOTE}"),
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
# Places of a language's own modules and names of its compiler in a log, the special ones first.
_SIGNS = tuple(
    (language, re.compile(sign))
    for language, sign in (
        ("gluon", r"\btriton[./]experimental[./]gluon\b"),
        (
            "triton",
            r"\btriton[./](?:runtime|compiler|backends|language)\b|\bmlir::triton\b|#ttg?\.",
        ),
        ("cute", r"\bcutlass[./](?:cute|base_dsl)\b"),
        ("pallas", r"\bjax[./](?:experimental|_src)[./]pallas\b"),
        ("nki", r"\bneuronxcc[./]nki\b"),
        ("hip", r"\bhipcc\b|-Rpass-analysis=kernel-resource-usage|\.hip(?:\.cpp)?:\d+:\d+: "),
        ("cuda", r"\bnvcc\b|\.cuh?\(\d+\): (?:error|warning)"),
        ("sycl", r"\bicpx\b|-fsycl\b|\bsycl::|\b(?:PI|UR_RESULT)_ERROR_"),
        ("vulkan", r"\bVUID-|\bvkCreate\w+Pipelines?\b"),
        ("metal", r"\bMTLLibrary|\bMTLCompute|\bprogram_source:\d|\[MTL\w+ "),
        ("opencl", r"\bclBuildProgram\b|\bclEnqueue\w+|\bCL_(?:INVALID|OUT_OF|BUILD)_\w+"),
        ("ascendc", r"\bEZ9999\b|\baclrt[A-Z]\w+|\bai ?(?:vec|core) (?:error|exception)"),
    )
)
_CODE = re.compile(r"`([.@%$#]?[A-Za-z_][\w.]{3,80})`")


def missing_names(log: str, cards: Sequence[Symbol]) -> list[UnknownName]:
    """The names that a log reports as unknown, each with the nearest known names. Names that a card
    has or mentions are left out: the cause is then a missing header, import or target."""
    names = names_unknown_to(log[:READ])
    if not names:
        return []
    known = vocabulary(cards)
    strange = [name for name in names if name not in known][:MOST_MISSING]
    return [UnknownName(name, 0, _nearest(name, known)) for name in strange]


def missing_in_draft(draft: str, log: str, cards: Sequence[Symbol]) -> list[UnknownName]:
    """The names of a draft that its compiler reports as unknown, with their first lines."""
    lines = [_names_of_line(line) for line in draft[:MAX_DRAFT].splitlines()]
    placed = [
        replace(entry, line=1 + next(n for n, names in enumerate(lines) if entry.name in names))
        for entry in (missing_names(log, cards) if draft and log else ())
        if any(entry.name in names for names in lines)
    ]
    return sorted(placed, key=lambda entry: entry.line)


def _names_of_line(line: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", line))


@lru_cache(maxsize=LOGS)
def names_unknown_to(log: str) -> tuple[str, ...]:
    """The names that a log reports as unknown, cached because a request needs them twice."""
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
    """Every name in the cards, with its card: their own names, then those that a card mentions in
    code."""
    known = {card.name: card for card in cards if card.kind != "error"}
    for card in cards:
        for text in (*card.limits, *card.further, card.meaning):
            for name in _CODE.findall(text):
                known.setdefault(name, card)
    return known


def _nearest(name: str, known: Mapping[str, Symbol]) -> tuple[str, ...]:
    """Names with a similar spelling, in full or without the module before them."""
    spelled: dict[str, str] = {}
    for other in known:
        spelled.setdefault(other.lower(), other)
    if "." not in name:
        for other in known:
            spelled.setdefault(other.rpartition(".")[2].lower(), other)
    near = close_matches(name.lower(), spelled, NEAREST, LEAST_LIKENESS_OF_LOG)
    return tuple(dict.fromkeys(spelled[match] for match in near))


def language_named(log: str) -> str | None:
    """The language whose module a Python error is about, else the one whose modules or compiler the
    log has, or None."""
    read = log[:READ]
    if (module := _MODULE.search(read)) is not None:
        return _LANGUAGES[module[1]]
    return next((language for language, sign in _SIGNS if sign.search(read)), None)


# A function of C++ with its types, in no namespace: kernels of libraries are in one.
_OF_CPP = compile_pattern(r"(?:void )?\w+(?:<[^:]*>)?\([^:]*\)")


def language_of_kernel(kernel: str, languages: Sequence[str]) -> str | None:
    """The language of C++ among those of the chip, for a kernel that a profiler prints with types;
    compilers of Python print a name alone."""
    known = [name for name in languages if name in ("cuda", "hip")]
    return known[0] if len(known) == 1 and _OF_CPP.fullmatch(kernel) else None


def sections_of_names(names: Sequence[UnknownName], cards: Sequence[Symbol]) -> dict[str, str]:
    """The sections that describe the nearest names, with the name."""
    near = [entry.nearest[0] for entry in names if entry.nearest]
    known = vocabulary(cards) if near else {}
    return {known[name].section_id: name for name in near}


def hint_of_name(entry: UnknownName, chip: str) -> str:
    """The hint for a name that a compiler reports as unknown."""
    begin = f"`{entry.name}` is not a name that the documents about {chip} know"
    if not entry.nearest:
        return f"{begin}, and none is near it: declare it, or write it out of what there is."
    return f"{begin}; near names: {', '.join(entry.nearest)}."
