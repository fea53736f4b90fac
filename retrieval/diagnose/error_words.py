"""The first error of a log, and its fixed words: what stays of a message when names, numbers and
paths are replaced, so that the same cause in another kernel reads the same.

Fixed words are stored as a text with `<name>`, `<n>` and `<path>` in place of what differs, and a
log is searched for them without knowing the kernel behind it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from retrieval.diagnose.log_digest import log_messages
from retrieval.diagnose.log_lines import normalise_error, query_lines, without_prefix

MAX_WORDS = 160  # characters of the fixed words
LEAST_WORDS = 6  # characters without which they say nothing

_PLACE = re.compile(
    r"^\s*[\w./\\+-]{1,200}(?::\d{1,7}){1,2}:?\s*|^\s*[\w./\\+-]{1,200}\(\d{1,7}(?:,\d{1,5})?\)\s*:?"
    r"|^\s*line \d{1,7}\s*:?\s*"
)
_TRACEBACK = "Traceback (most recent call last)"
_CODE = "kernlorecode"  # stands for an error code; no number or path
_GAP = re.compile(r"<(?:name|n|path|hex)>")
_WORD = re.compile(r"(?<![\w<])[A-Za-z_]\w*(?![\w>])")
# A word of this form is a name that somebody gave, where the kernel has it too.
_GIVEN = re.compile(r"[A-Za-z_]*\d\w*|\w*_\w*|[a-z]+[A-Z]\w*")


def first_error(log: str, codes: Collection[str] = ()) -> str:
    """The message that a log's failure begins with, as it was printed; empty for an empty log.

    A message that names one of the chip's error `codes` comes first, then a line that says that
    something failed. Of a Python traceback it is the exception.
    """
    messages = log_messages(log)
    named = (m for m in sorted(messages, key=lambda m: m.line) if code_in(m.text, codes))
    if (coded := next(named, None)) is not None:
        return coded.text.strip()
    if _TRACEBACK in log:
        return next(iter(query_lines(log, 1)), "")
    return messages[0].text.strip() if messages else ""


def code_in(message: str, codes: Collection[str]) -> str:
    """The first of the codes that a message names as a whole word; empty for none."""
    words = re.findall(r"[\w.+-]*\w", message)
    known = set(codes)
    return next((word for word in words if word in known), "")


def fixed_words(message: str, source: str = "", mended: str = "", code: str = "") -> str:
    """A message without its place, numbers, paths and names.

    Names are what is quoted, words of `source` (the kernel that failed) with a digit or an
    underscore in them, and words that only one of `source` and `mended` has. The `code` stays, and
    where there is one the words end at the first name or number: what follows depends on it.
    """
    bare = _PLACE.sub("", without_prefix(message), count=1)
    # A code stays whole, whatever its form.
    text = normalise_error(bare.replace(code, _CODE) if code else bare)
    text = text.replace(_CODE, code) if code else text
    ours, theirs = set(_WORD.findall(source)), set(_WORD.findall(mended))

    def kept(match: re.Match[str]) -> str:
        word = match.group()
        given = word in ours and _GIVEN.fullmatch(word)
        changed = bool(mended) and (word in ours) != (word in theirs)
        return "<name>" if (given or changed) and word != code else word

    words = _WORD.sub(kept, text)
    gap = _GAP.search(words, words.find(code) + len(code)) if code else None
    return (words[: gap.end()] if gap is not None else words)[:MAX_WORDS].strip()


def shared_words(texts: Sequence[str]) -> str:
    """The beginning that fixed words of several messages share, in whole words."""
    split = [text.split() for text in texts]
    shared = []
    for words in zip(*split, strict=False):
        if len(set(words)) > 1:
            break
        shared.append(words[0])
    return " ".join(shared)


def saying(log: str, words: Mapping[str, str]) -> frozenset[str]:
    """The keys of the fixed words that one message of a log has, in their order."""
    if not log or not words:
        return frozenset()
    messages = [" ".join(message.text.split()) for message in log_messages(log)]
    return frozenset(key for key, text in words.items() if _said(messages, text))


def says(log: str, words: str) -> bool:
    """Whether one message of a log has these fixed words, in their order."""
    return bool(saying(log, {"": words}))


def _said(messages: Sequence[str], words: str) -> bool:
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
