"""How words and identifiers become search tokens: the same for indexed text and for queries.

A kernel author searches for names: `cp.async.bulk`, `s_waitcnt vmcnt(0)`, `__launch_bounds__`,
`NCC_EVRF031`. Each is kept whole and also given by its parts (dot, underscore, camel case,
letter-digit borders). Plain words are stemmed. The output is text of [a-z0-9_] tokens, so a
full-text engine's own tokenizer passes it through unchanged.

Knows nothing about documents or queries.
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from itertools import chain

from snowballstemmer.english_stemmer import EnglishStemmer

# A name: letters, digits and underscores, joined by dots, colons or hyphens ("cp.async",
# "std::max", "sm-90").
_NAME = re.compile(r"[A-Za-z0-9_]+(?:(?:\.|::|->|-)[A-Za-z0-9_]+)*", re.ASCII)
_WORD = re.compile(r"[A-Za-z]+\Z", re.ASCII)
_PIECE = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", re.ASCII)
_JOINT = re.compile(r"\.|::|->|-|_")
_DOTS = re.compile(r"\.|::|->|-")
_MAX_NAME = 80  # longer runs are base64 or mangled symbols: parts only

# British and American spelling meet before the stemmer: "optimise", "colour".
_ISE = re.compile(r"([a-z]{3,})is(e|es|ed|ing|ation|ations|er|ers|able)\Z")
_OUR = re.compile(r"([a-z]{2,})our(s|ed|ing|ite|able|hood|)\Z")

# Not `snowballstemmer.stemmer`: that takes another implementation, with other stems, where one is
# installed, and index and query would disagree between environments.
# A stemmer keeps the word that it works on, so each thread has its own.
_of_thread = threading.local()

# Function words carry no subject; dropping them from queries and index alike halves the postings.
_FUNCTION_WORDS = """
    a an and are as at be been but by can could did do does for from had has have he her his
    how i if in into is it its may me might my no nor not of on or our she should so some
    such than that the their them then there these they this those to too us was we were
    what when where which while who whom why will with would you your
"""
STOP_WORDS = frozenset(_FUNCTION_WORDS.split())


@lru_cache(maxsize=200_000)
def stem(word: str) -> str:
    """The English stem of a lower-case word, in one spelling."""
    word = _ISE.sub(r"\1iz\2", word)
    if len(word) > 5:
        word = _OUR.sub(r"\1or\2", word)
    stemmer = getattr(_of_thread, "stemmer", None)
    if stemmer is None:
        stemmer = _of_thread.stemmer = EnglishStemmer()
    return str(stemmer.stemWord(word))


@lru_cache(maxsize=200_000)
def _expand(name: str) -> tuple[str, ...]:
    """The tokens of one name, whole first, then its parts; empty for a function word."""
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
            # One letter or a lone digit of "f8e4m3" names nothing by itself.
            if len(word) > 2 or (word and piece == part):
                tokens[stem(word) if word.isalpha() else word] = None
    return tuple(token for token in tokens if token and token not in STOP_WORDS)


def tokenize(text: str) -> list[str]:
    """All tokens of a text in order; a name gives its whole and its parts."""
    return [token for name in _NAME.findall(text) for token in _expand(name)]


def distinct_tokens(text: str) -> frozenset[str]:
    """The different tokens of a text: those of `tokenize`, with each name looked at once."""
    return frozenset(chain.from_iterable(map(_expand, set(_NAME.findall(text)))))


def shadow(text: str) -> str:
    """The text as the full-text index stores it."""
    return " ".join(tokenize(text))
