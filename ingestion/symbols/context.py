"""What the words around a table or list say about the names in it: instructions, error codes, or
something that is no part of a language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ingestion.symbols.drafts import word_set
from kb.catalog.knowledge.symbols import CardKind

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
# Of a name these say nothing: the kind is for the shape of the name to tell.
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
    """The words in lower case, a plural as its singular where that is a word of a kind."""
    return [singular(word) for word in _WORD.findall(text.lower()[:400])]


def singular(word: str) -> str:
    """Only for the words above; others stay."""
    for ending in ("s", "es"):
        stem = word.removesuffix(ending)
        if word.endswith(ending) and (stem in KIND_WORDS or stem in NEUTRAL_WORDS):
            return stem
    return word


def kind_in(texts: Iterable[str]) -> CardKind | None:
    """The kind that the nearest of these texts names: by the noun of a heading, by a plural in a
    sentence or caption."""
    for text in texts:
        words = _WORD.findall(text.lower()[-400:])
        if len(words) > 8 or text.rstrip().endswith((":", ".", "::")):
            named = [singular(word) for word in words if word.endswith("s")]
        else:
            named = _head_noun(words)
        for word in reversed(named):
            if word in KIND_WORDS:
                return KIND_WORDS[word]
    return None


def _head_noun(words: list[str]) -> list[str]:
    """What a heading is about: `Instruction set of X` is about instructions, `Register pressure`
    is about pressure."""
    end = next((n for n, word in enumerate(words) if n and word in _PREPOSITIONS), len(words))
    kept = words[:end]
    while len(kept) > 1 and kept[-1] in _GENERIC:
        kept = kept[:-1]
    return [singular(word) for word in kept[-1:]]


def is_foreign(texts: Iterable[str]) -> bool:
    """Whether the place is about tools, builds or measurements rather than a language."""
    return any(word in _FOREIGN for text in texts for word in _WORD.findall(text.lower()[:400]))


def lists_arguments(text: str) -> bool:
    """Whether a heading or the words before a list announce parameters and not names of their
    own: `Parameters`, `where:`, `takes the following arguments:`."""
    last = text.strip().rpartition("\n")[2]
    words = _WORD.findall(last.lower())[-12:]
    return any(word in _ARGUMENTS for word in words)


def speaks_of_language(texts: Iterable[str]) -> bool:
    """Whether a heading is about a language or its parts."""
    return any(
        word in LANGUAGE_WORDS or KIND_WORDS.get(singular(word)) in ("directive", "keyword")
        for text in texts
        for word in _WORD.findall(text.lower()[:400])
    )


# Fences of commands, configuration and output: what they use is no part of a chip's languages.
FOREIGN_FENCES = word_set(
    "bash sh shell console shell-session zsh powershell bat cmd json yaml yml toml ini cfg xml "
    "html css javascript js csv diff patch cmake make makefile dockerfile docker log output stdout "
    "ipython-output mermaid dot graphviz latex tex math bibtex rst markdown md sql bnf ebnf"
)
