"""Digest of a log: each distinct message once, with its number of repetitions.

Repetitions of one error and a closing hint push the decisive first line out of any cut at the end;
the digest has the first line of each message, in order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.diagnose.log_lines import normalise_error

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
