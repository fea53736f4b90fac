"""A definition of a name in one place of a document, before all places are merged to a card, and
the category that the words around it imply: instructions, error codes, or no part of a language.
All texts are verbatim, only cut at a bound.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from kb.catalog.knowledge.symbols import CardKind

MAX_NAME = 80  # characters
MAX_SIGNATURE = 500
MAX_MEANING = 400
MAX_LIMIT = 300
MAX_LIMITS = 10  # of one card
MAX_OPERANDS = 24
MAX_OPERAND = 200
MAX_FURTHER = 8
MAX_PROSE = 20_000  # characters of one block


@dataclass(frozen=True)
class Definition:
    """A definition of `name` in section `section`. `kind` is None if the section does not determine
    it. A definition that is not `sure`, because the name could be something else, counts only if
    code of the document uses the name. The other fields are those of a `Card`."""

    name: str
    section: int
    kind: CardKind | None
    signature: str
    operands: tuple[tuple[str, str], ...]
    meaning: str
    limits: tuple[str, ...]
    language: str
    further: tuple[str, ...]
    sure: bool

    @property
    def richness(self) -> int:
        """How much of a card it fills: a definition has more than a mention."""
        fields = (self.signature, self.operands, self.limits, self.further)
        return 2 * bool(self.meaning) + sum(map(bool, fields))


def definition(
    name: str,
    section: int,
    kind: CardKind | None = None,
    *,
    signature: str = "",
    operands: Iterable[tuple[str, str]] = (),
    meaning: str = "",
    limits: Iterable[str] = (),
    language: str = "",
    further: Iterable[str] = (),
    sure: bool = True,
) -> Definition:
    """A definition with its texts cut at their bounds."""
    pairs = islice(operands, MAX_OPERANDS)
    return Definition(
        name,
        section,
        kind,
        cut(signature, MAX_SIGNATURE),
        tuple((cut(operand, MAX_OPERAND), cut(text, MAX_OPERAND)) for operand, text in pairs),
        cut(meaning, MAX_MEANING),
        bounded(limits, MAX_LIMITS, MAX_LIMIT),
        language,
        bounded(further, MAX_FURTHER, MAX_LIMIT),
        sure,
    )


@dataclass(frozen=True)
class Surroundings:
    """The place of a table, list or paragraph: its section, the words around it, nearest first, and
    the names that code of the document uses."""

    section: int
    around: tuple[str, ...]
    in_code: Collection[str]


def cut(text: str, limit: int) -> str:
    """The text without white space at its ends, cut between words at a bound."""
    text = text.strip()
    if len(text) <= limit:
        return text
    shortened = text[:limit]
    return shortened[: max(shortened.rfind(" "), shortened.rfind("\n"), limit // 2)].rstrip()


def bounded(texts: Iterable[str], count: int, limit: int) -> tuple[str, ...]:
    """The first `count` different texts, each within `limit` characters."""
    distinct: dict[str, None] = {}
    for text in texts:
        if len(distinct) == count:
            break
        if short := cut(text, limit):
            distinct[short] = None
    return tuple(distinct)


def message_and(message: str, explanation: str) -> str:
    if not explanation or not message or message in explanation:
        return explanation or message
    return f"{message.rstrip('.')}. {explanation}"


def word_set(words: str) -> frozenset[str]:
    """A set of words, written with spaces between them."""
    return frozenset(words.split())


# -- the words around a definition

_WORD = re.compile(r"[A-Za-z]+")

_WORDS_BY_KIND: dict[CardKind, str] = {
    "instruction": "instruction insn mnemonic opcode",
    "function": "function intrinsic api routine builtin method primitive subroutine",
    "directive": "directive pragma pseudo decorator",
    "keyword": "keyword qualifier specifier statement declaration modifier",
    "register": "register csr",
    "type": "type dtype datatype",
    "error": "error exception trap fault diagnostic",
    "constant": "constant macro enum enumerator",
}
KIND_WORDS: dict[str, CardKind] = {
    word: kind for kind, words in _WORDS_BY_KIND.items() for word in words.split()
}
# They do not tell the kind of a name.
NEUTRAL_WORDS = word_set("name symbol operator operation op identifier command call builtin")
SYNTAX_WORDS = word_set("syntax signature prototype format form usage declaration")
LANGUAGE_WORDS = word_set("language syntax grammar isa keywords statements declarations")

_PREPOSITIONS = word_set("of for in by on with using from to and that supported")
_GENERIC = word_set(
    "set sets system systems code codes list lists table tables reference references summary name "
    "names message messages syntax overview index definition definitions format formats mnemonics "
    "details descriptions description catalog listing encodings common fields support isa page"
)
_FOREIGN = word_set(
    "environment env installation install setup prerequisites requirements changelog release "
    "releases compatibility cli command options flags metric metrics counter counters benchmark "
    "benchmarks performance profiler profiling hyperparameters tutorial tutorials references "
    "contributors license docker cmake build building directory directories folder folders files "
    "repository acronyms abbreviations glossary terms terminology related further dimensions"
)
_ARGUMENTS = word_set(
    "parameter parameters argument arguments args operand operands field fields member members "
    "attribute attributes option options where input inputs output outputs return returns"
)


def words_of(text: str) -> list[str]:
    """The words in lower case; plurals of the words above become singulars."""
    return [_singular(word) for word in _WORD.findall(text.lower()[:400])]


def _singular(word: str) -> str:
    for ending in ("s", "es"):
        stem = word.removesuffix(ending)
        if word.endswith(ending) and (stem in KIND_WORDS or stem in NEUTRAL_WORDS):
            return stem
    return word


def kind_in(texts: Iterable[str]) -> CardKind | None:
    """The kind that the nearest of these texts names: the noun of a heading, or a plural in a
    sentence or caption."""
    for text in texts:
        words = _WORD.findall(text.lower()[-400:])
        if len(words) > 8 or text.rstrip().endswith((":", ".", "::")):
            named = [_singular(word) for word in words if word.endswith("s")]
        else:
            named = _head_noun(words)
        for word in reversed(named):
            if word in KIND_WORDS:
                return KIND_WORDS[word]
    return None


def _head_noun(words: list[str]) -> list[str]:
    """The subject of a heading: `Instruction set of X` is about instructions, `Register pressure`
    about pressure."""
    end = next((n for n, word in enumerate(words) if n and word in _PREPOSITIONS), len(words))
    nouns = words[:end]
    while len(nouns) > 1 and nouns[-1] in _GENERIC:
        nouns = nouns[:-1]
    return [_singular(word) for word in nouns[-1:]]


def is_foreign(texts: Iterable[str]) -> bool:
    """Whether the texts are about tools, builds or measurements rather than a language."""
    return any(word in _FOREIGN for text in texts for word in _WORD.findall(text.lower()[:400]))


def lists_arguments(text: str) -> bool:
    """Whether a heading or the text before a list announces parameters: `Parameters`, `where:`,
    `takes the following arguments:`."""
    last = text.strip().rpartition("\n")[2]
    words = _WORD.findall(last.lower())[-12:]
    return any(word in _ARGUMENTS for word in words)


def speaks_of_language(texts: Iterable[str]) -> bool:
    """Whether a text is about a language or its parts."""
    return any(
        word in LANGUAGE_WORDS or KIND_WORDS.get(_singular(word)) in ("directive", "keyword")
        for text in texts
        for word in _WORD.findall(text.lower()[:400])
    )


HOSTS = ("", "python", "py", "c", "cpp", "c++")  # languages that embed others

# Fences of commands, configuration and output, which are not in a language of the chip.
FOREIGN_FENCES = word_set(
    "bash sh shell console shell-session zsh powershell bat cmd json yaml yml toml ini cfg xml "
    "html css javascript js csv diff patch cmake make makefile dockerfile docker log output stdout "
    "ipython-output mermaid dot graphviz latex tex math bibtex rst markdown md sql bnf ebnf"
)


# -- prose

_END = re.compile(r"(?<=[.!?])[\"')\]*]{0,3}\s++(?=[\"'(\[`*:]{0,3}[A-Z0-9`.%_])|\n[ \t]*+\n")
_BULLET = re.compile(r"^[ \t]*+(?:[-*+•]|\d{1,3}[.)])[ \t]++(?=\S)", re.MULTILINE)
_ABBREVIATED = re.compile(r"\b(?:e\.g|i\.e|etc|cf|vs|resp|approx|Fig|Sec|No)\.[\"')\]]{0,2}$")


def sentences_of(text: str) -> Iterator[str]:
    """The sentences of a paragraph or a list, with their line breaks."""
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
    joined_text = ""
    for number, sentence in enumerate(sentences_of(text)):
        joined = f"{joined_text} {sentence}".strip()
        if number == 2 or (joined_text and len(joined) > limit):
            break
        joined_text = joined
    return joined_text
