"""Digest of a log: each distinct message once, with its number of repetitions.

Repetitions of one error and a closing hint push the decisive first line out of any cut at the end;
the digest has the first line of each message, in order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from retrieval.diagnose.log_lines import normalise_error, query_lines, without_prefix

MAX_LINES = 20_000  # lines that are read
MAX_LINE = 400  # characters of a line
MAX_MESSAGES = 500  # distinct messages
LEAST_CUT = 24  # characters; a message is not cut below this length
CUT = " ..."

# Location of a message: `file:3:14:`, `file(3,14):`, `line 3:`. Lines that differ only in it count
# as one message.
_PLACE = re.compile(
    r"^\s*(?:[\w./\\+-]{1,200}(?::\d{1,7}){1,2}|[\w./\\+-]{1,200}\(\d{1,7}(?:,\d{1,5})?\)"
    r"|line \d{1,7})\s*:?\s*"
)
_LABEL = re.compile(
    r"\b(?:error|fatal|trap|exception|failed|failure|abort(?:ed)?|illegal|invalid|undefined"
    r"|mismatch|overflow|timeout|fault)\b|\w(?:error|exception)\b|\bout of \w",
    re.IGNORECASE,
)
_TRACEBACK = "Traceback (most recent call last)"
_POINTERS = re.compile(r"[\s~^]*")  # a line that marks a part of the line before


@dataclass(frozen=True)
class LogMessage:
    """A distinct message: its first line as printed, that line's number from 1, the number of
    occurrences, and whether it reports a failure. Messages of one `kind` differ only in locations
    and numbers, also across logs."""

    text: str
    line: int
    count: int
    failure: bool
    kind: str


def log_messages(log: str) -> list[LogMessage]:
    """The distinct messages of a log: those that report a failure, then the others, then lines that
    point at a part of another, each in the order of their first lines."""
    firsts: dict[str, tuple[int, str, bool]] = {}
    counts: dict[str, int] = {}
    in_traceback = False
    for number, line in enumerate(log.splitlines()[:MAX_LINES], 1):
        if not line.strip():
            continue
        raised = in_traceback and not line[0].isspace()  # the exception, of any name
        in_traceback = _TRACEBACK in line or (in_traceback and not raised)
        shape = _shape(line)
        firsts.setdefault(shape, (number, line, raised or bool(_LABEL.search(line))))
        counts[shape] = counts.get(shape, 0) + 1
    messages = [
        LogMessage(_shortened(line.rstrip()), number, counts[shape], failure, shape)
        for shape, (number, line, failure) in firsts.items()
    ]
    return sorted(messages, key=_order)[:MAX_MESSAGES]


def _order(message: LogMessage) -> tuple[bool, bool, int]:
    pointers = _POINTERS.fullmatch(message.text) is not None
    return not message.failure, pointers, message.line


def _shortened(line: str) -> str:
    """The beginning and the end of a very long line, either of which may contain the message."""
    if len(line) <= MAX_LINE:
        return line
    half = MAX_LINE // 2
    return f"{line[:half]} ... {line[-half:]}"


def _shape(line: str) -> str:
    """Key of equal messages: words and quoted names, without location and numbers."""
    message = _PLACE.sub("", line)
    quoted = " ".join(re.findall(r"[`'\"]([^`'\"]{1,80})[`'\"]", message))
    return f"{normalise_error(message)} {quoted}"


def digest(log: str, limit: int) -> str:
    """The log in at most `limit` characters: distinct messages in the order of printing, with
    repetition counts. A log that fits is returned unchanged; if no message fits, the beginning of
    the first is returned."""
    if len(log) <= limit and not _repeats(log):
        return log
    chosen: list[tuple[int, str]] = []
    room = limit
    left_out = 0
    for message in log_messages(log):
        text = message.text + (f"   ({message.count} times)" if message.count > 1 else "")
        if len(text) + 1 > room and not chosen and room >= LEAST_CUT:
            text = text[: room - len(CUT) - 1] + CUT
        if len(text) + 1 > room:
            left_out += 1
            continue
        room -= len(text) + 1
        chosen.append((message.line, text))
    lines = [text for _, text in sorted(chosen)]
    if left_out:
        noun = "message" if left_out == 1 else "messages"
        lines.append(f"({left_out} further {noun} left out)")
    return "\n".join(lines)


def _repeats(log: str) -> bool:
    shapes: Sequence[str] = [_shape(line) for line in log.splitlines() if line.strip()]
    return len(shapes) > 2 * len(set(shapes))


# -- the first error of a log, and its fixed words: the message with names, numbers and paths
# replaced, so that the same cause in another kernel gives the same text
#
# Fixed words are stored as a text with the placeholders `<name>`, `<n>` and `<path>`. A log can be
# searched for them without the kernel behind it.

MAX_WORDS = 160  # characters of the fixed words
LEAST_WORDS = 6  # characters below which they are not specific

_WORD_PLACE = re.compile(
    r"^\s*[\w./\\+-]{1,200}(?::\d{1,7}){1,2}:?\s*|^\s*[\w./\\+-]{1,200}\(\d{1,7}(?:,\d{1,5})?\)\s*:?"
    r"|^\s*line \d{1,7}\s*:?\s*"
)
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
    bare = _WORD_PLACE.sub("", without_prefix(message), count=1)
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
