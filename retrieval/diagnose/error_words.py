"""The first error of a log, and its fixed words: the message with names, numbers and paths
replaced, so that the same cause in another kernel gives the same text.

Fixed words are stored as a text with the placeholders `<name>`, `<n>` and `<path>`. A log can be
searched for them without the kernel behind it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from retrieval.diagnose.log_digest import log_messages
from retrieval.diagnose.log_lines import normalise_error, query_lines, without_prefix

MAX_WORDS = 160  # characters of the fixed words
LEAST_WORDS = 6  # characters below which they are not specific

_PLACE = re.compile(
    r"^\s*[\w./\\+-]{1,200}(?::\d{1,7}){1,2}:?\s*|^\s*[\w./\\+-]{1,200}\(\d{1,7}(?:,\d{1,5})?\)\s*:?"
    r"|^\s*line \d{1,7}\s*:?\s*"
)
_TRACEBACK = "Traceback (most recent call last)"
_CODE = "kernlorecode"  # placeholder for an error code; neither a number nor a path
_GAP = re.compile(r"<(?:name|n|path|hex)>")
_WORD = re.compile(r"(?<![\w<])[A-Za-z_]\w*(?![\w>])")
# Words of this form are identifiers if the kernel contains them too.
_GIVEN = re.compile(r"[A-Za-z_]*\d\w*|\w*_\w*|[a-z]+[A-Z]\w*")


def first_error(log: str, codes: Collection[str] = ()) -> str:
    """The message of a log's first failure, as printed; empty for an empty log. A message with one
    of the chip's error `codes` takes precedence, then a line that reports a failure. For a Python
    traceback, the exception."""
    messages = log_messages(log)
    named = (m for m in sorted(messages, key=lambda m: m.line) if code_in(m.text, codes))
    if (coded := next(named, None)) is not None:
        return coded.text.strip()
    if _TRACEBACK in log:
        return next(iter(query_lines(log, 1)), "")
    return messages[0].text.strip() if messages else ""


def code_in(message: str, codes: Collection[str]) -> str:
    """The first of the codes that occurs in a message as a whole word, or ""."""
    words = re.findall(r"[\w.+-]*\w", message)
    known = set(codes)
    return next((word for word in words if word in known), "")


def fixed_words(message: str, source: str = "", mended: str = "", code: str = "") -> str:
    """A message without its location, numbers, paths and names.

    Names are quoted words, words of `source` (the failed kernel) with a digit or an underscore, and
    words that only one of `source` and `mended` has. The `code` is not replaced. With a code, the
    words end at the first name or number, because the rest depends on it.
    """
    bare = _PLACE.sub("", without_prefix(message), count=1)
    # A placeholder protects the code from replacement.
    text = normalise_error(bare.replace(code, _CODE) if code else bare)
    text = text.replace(_CODE, code) if code else text
    ours, theirs = set(_WORD.findall(source)), set(_WORD.findall(mended))

    def replaced(match: re.Match[str]) -> str:
        word = match.group()
        given = word in ours and _GIVEN.fullmatch(word)
        changed = bool(mended) and (word in ours) != (word in theirs)
        return "<name>" if (given or changed) and word != code else word

    words = _WORD.sub(replaced, text)
    gap = _GAP.search(words, words.find(code) + len(code)) if code else None
    return (words[: gap.end()] if gap is not None else words)[:MAX_WORDS].strip()


def shared_words(texts: Sequence[str]) -> str:
    """The common beginning of fixed words of several messages, in whole words."""
    split = [text.split() for text in texts]
    shared = []
    for words in zip(*split, strict=False):
        if len(set(words)) > 1:
            break
        shared.append(words[0])
    return " ".join(shared)


def matching_keys(log: str, words: Mapping[str, str]) -> frozenset[str]:
    """The keys whose fixed words occur, in order, in one message of a log."""
    if not log or not words:
        return frozenset()
    messages = [" ".join(message.text.split()) for message in log_messages(log)]
    return frozenset(key for key, text in words.items() if _contains(messages, text))


def contains_words(log: str, words: str) -> bool:
    """Whether one message of a log contains these fixed words, in order."""
    return bool(matching_keys(log, {"": words}))


def _contains(messages: Sequence[str], words: str) -> bool:
    pieces = [piece.strip() for piece in _GAP.split(words) if piece.strip(" \t.,:;'\"`()[]")]
    if sum(map(len, pieces)) < LEAST_WORDS:
        return False
    patterns = [_pattern(piece) for piece in pieces]
    return any(_in_order(message, patterns) for message in messages)


def _pattern(piece: str) -> re.Pattern[str]:
    text = re.escape(" ".join(piece.split()))
    before = r"(?<!\w)" if re.match(r"\w", piece) else ""
    after = r"(?!\w)" if re.search(r"\w$", piece) else ""
    return re.compile(f"{before}{text}{after}", re.IGNORECASE)


def _in_order(message: str, patterns: Sequence[re.Pattern[str]]) -> bool:
    at = 0
    for pattern in patterns:
        match = pattern.search(message, at)
        if match is None:
            return False
        at = match.end()
    return True
