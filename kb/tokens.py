"""Search tokens of words and identifiers, the same for indexed text and for queries.

A kernel author searches for names: `cp.async.bulk`, `s_waitcnt vmcnt(0)`, `__launch_bounds__`,
`NCC_EVRF031`. Each gives a token for the whole and one for each of its parts (dot, underscore,
camel case, letter-digit borders). Plain words are stemmed. Tokens consist of [a-z0-9_], so the
tokenizer of a full-text engine leaves them unchanged.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import lru_cache

from snowballstemmer.english_stemmer import EnglishStemmer

# A name: letters, digits and underscores, joined by dots, colons or hyphens ("cp.async",
# "std::max", "sm-90").
_NAME = re.compile(r"[A-Za-z0-9_]+(?:(?:\.|::|->|-)[A-Za-z0-9_]+)*", re.ASCII)
_WORD = re.compile(r"[A-Za-z]+\Z", re.ASCII)
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", re.ASCII)
_JOINT = re.compile(r"\.|::|->|-|_")
_DOTS = re.compile(r"\.|::|->|-")
_MAX_NAME = 80  # longer runs are base64 or mangled symbols: parts only

# British spellings are made American before stemming: "optimise", "colour".
_ISE = re.compile(r"([a-z]{3,})is(e|es|ed|ing|ation|ations|er|ers|able)\Z")
_OUR = re.compile(r"([a-z]{2,})our(s|ed|ing|ite|able|hood|)\Z")

# Not `snowballstemmer.stemmer`, which uses another implementation, with other stems, if that is
# installed. A stemmer has state, so each thread has its own.
_of_thread = threading.local()

# Function words are dropped from queries and index, which halves the postings.
_FUNCTION_WORDS = """
    a an and are as at be been but by can could did do does for from had has have he her his
    how i if in into is it its may me might my no nor not of on or our she should so some
    such than that the their them then there these they this those to too us was we were
    what when where which while who whom why will with would you your
"""
STOP_WORDS = frozenset(_FUNCTION_WORDS.split())


@lru_cache(maxsize=200_000)
def stem(word: str) -> str:
    """The English stem of a lower-case word, in American spelling."""
    word = _ISE.sub(r"\1iz\2", word)
    if len(word) > 5:
        word = _OUR.sub(r"\1or\2", word)
    stemmer = getattr(_of_thread, "stemmer", None)
    if stemmer is None:
        stemmer = _of_thread.stemmer = EnglishStemmer()
    return str(stemmer.stemWord(word))


@lru_cache(maxsize=200_000)
def _expand(name: str) -> tuple[str, ...]:
    """The tokens of a name: the whole, then its parts; none for a function word."""
    lowered = name.lower()
    if _WORD.match(name) and (name.islower() or name.istitle() or len(name) < 4):
        return () if lowered in STOP_WORDS else (stem(lowered),)
    tokens: dict[str, None] = {}
    if len(name) <= _MAX_NAME:
        tokens["_".join(part for part in _JOINT.split(lowered) if part)] = None
    for joint in _DOTS.split(lowered):  # "sm__throughput" of "sm__throughput.avg"
        if "_" in joint.strip("_") and len(joint) <= _MAX_NAME:
            tokens["_".join(part for part in joint.split("_") if part)] = None
    for part in _JOINT.split(name):
        for piece in (part, *_PIECE.findall(part)):
            word = piece.lower()
            # A single letter or digit of "f8e4m3" has no meaning alone.
            if len(word) > 2 or (word and piece == part):
                tokens[stem(word) if word.isalpha() else word] = None
    return tuple(token for token in tokens if token and token not in STOP_WORDS)


def tokenize(text: str) -> list[str]:
    """All tokens of a text in order."""
    return [token for name in _NAME.findall(text) for token in _expand(name)]


def shadow(text: str) -> str:
    """The tokens of a text, as the full-text index stores them."""
    return " ".join(tokenize(text))


# -- heading paths as shown next to the title of a document


def below_title(path: Sequence[str], title: str) -> tuple[str, ...]:
    """The headings without those that repeat the title, as the first one of most manuals does."""
    folded = _folded(title)
    return tuple(heading for heading in path if _folded(heading) != folded)


def _folded(text: str) -> str:
    return " ".join(text.split()).casefold()
