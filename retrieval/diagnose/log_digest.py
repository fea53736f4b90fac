"""A log read whole: each distinct message once, the first of its kind, with how often it came.

Twenty repetitions of one error and a closing hint push the decisive first line out of any cut from
the end; here the first of each message stays, in its order, and the repetitions are a number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.diagnose.log_lines import normalise_error

MAX_LINES = 20_000  # that are read
MAX_LINE = 400  # characters shown
MAX_MESSAGES = 500  # distinct messages kept
LEAST_CUT = 24  # characters, of which a cut message says something
CUT = " ..."

# Where a message stands: `file:3:14:`, `file(3,14):`, `line 3:`. What differs only here is one
# message.
_PLACE = re.compile(
    r"^\s*(?:[\w./\\+-]{1,200}(?::\d{1,7}){1,2}|[\w./\\+-]{1,200}\(\d{1,7}(?:,\d{1,5})?\)"
    r"|line \d{1,7})\s*:?\s*"
)
_LABEL = re.compile(
    r"\b(?:error|fatal|trap|exception|failed|failure|abort(?:ed)?|illegal|invalid|undefined"
    r"|mismatch|overflow|timeout|fault)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LogMessage:
    """A distinct message: its first line as it was printed, that line's number from 1, how often
    the message came, and whether it says that something failed. Messages of one `kind` differ only
    in places and numbers, in other logs too.
    """

    text: str
    line: int
    count: int
    failure: bool
    kind: str


def log_messages(log: str) -> list[LogMessage]:
    """The distinct messages of a log: those that say that something failed, then the others, each
    in the order of their first lines.
    """
    firsts: dict[str, tuple[int, str]] = {}
    counts: dict[str, int] = {}
    for number, line in enumerate(log.splitlines()[:MAX_LINES], 1):
        if not line.strip():
            continue
        shape = _shape(line)
        firsts.setdefault(shape, (number, line))
        counts[shape] = counts.get(shape, 0) + 1
    messages = [
        LogMessage(
            _shortened(line.rstrip()), number, counts[shape], bool(_LABEL.search(line)), shape
        )
        for shape, (number, line) in firsts.items()
    ]
    return sorted(messages, key=lambda m: (not m.failure, m.line))[:MAX_MESSAGES]


def _shortened(line: str) -> str:
    """Of a very long line its beginning and its end, where the message may stand."""
    if len(line) <= MAX_LINE:
        return line
    half = MAX_LINE // 2
    return f"{line[:half]} ... {line[-half:]}"


def _shape(line: str) -> str:
    """What makes a message the same one: its words and quoted names, not its place or numbers."""
    message = _PLACE.sub("", line)
    quoted = " ".join(re.findall(r"[`'\"]([^`'\"]{1,80})[`'\"]", message))
    return f"{normalise_error(message)} {quoted}"


def digest(log: str, limit: int) -> str:
    """The log in at most `limit` characters: distinct messages in the order in which they were
    printed, repetitions counted. A log that fits is unchanged; where no message fits whole, the
    beginning of the first is given.
    """
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
