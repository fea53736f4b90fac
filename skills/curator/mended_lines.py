"""Which lines mended an error where most of a kernel was written anew: those that its messages
point at, and what stands in their place.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from optimizer.evaluation.bundle import Bundle
from retrieval.diagnose.error_words import code_in, says
from skills.curator.contrast import LineDifference
from skills.curator.texts import canonical, is_python, without_comments

MOST_PAIRS = 4
ALIKE = 0.5  # share of equal characters from which a line stands in the place of another
_PLACE = re.compile(r"^\s*(?:([\w./\\+-]{1,200})[:(]|line )(\d{1,7})\b")


def lines_at(
    before: Bundle, after: Bundle, log: str, code: str, words: str
) -> LineDifference | None:
    """The lines that the messages of one error point at and that are gone, with the most similar
    line that came in the place of each; None where no message names a line, or where nothing
    similar came.

    The error is that of the chip's `code`, or without one that with these fixed `words`
    (retrieval/diagnose/error_words.py).
    """
    kept = {canonical(line).strip() for text in after.files.values() for line in _bare(after, text)}
    old = {
        canonical(line).strip() for text in before.files.values() for line in _bare(before, text)
    }
    new = [
        line
        for text in after.files.values()
        for line in _bare(after, text)
        if line.strip() and canonical(line).strip() not in old
    ]
    pairs: dict[str, str] = {}
    for line in _pointed_at(before, log, code, words):
        plain = canonical(line).strip()
        if plain and plain not in kept and plain not in pairs and len(pairs) < MOST_PAIRS:
            came = _closest(plain, new)
            if came is not None:
                pairs[plain] = came
    if not pairs:
        return None
    return LineDifference(tuple(pairs), tuple(dict.fromkeys(pairs.values())))


def _pointed_at(kernel: Bundle, log: str, code: str, words: str) -> Iterator[str]:
    """Lines of the kernel that messages of the error name, in the order of the messages."""
    for message in log.splitlines():
        place = _PLACE.match(message)
        if place is None or not (code_in(message, (code,)) if code else says(message, words)):
            continue
        name = (place[1] or kernel.main).replace("\\", "/").rpartition("/")[2]
        texts = [t for path, t in kernel.files.items() if path.rpartition("/")[2] == name]
        lines = _bare(kernel, texts[0]) if texts else []
        number = int(place[2])
        if 1 <= number <= len(lines):
            yield lines[number - 1]


def _lines(kernel: Bundle) -> list[str]:
    return [line for text in kernel.files.values() for line in _bare(kernel, text)]


def _bare(kernel: Bundle, text: str) -> list[str]:
    """Its lines without comments, numbered as in the source where comments are of one line."""
    return without_comments(text, python=is_python(kernel.language)).splitlines()


def _closest(line: str, others: Sequence[str]) -> str | None:
    """The line most like this one, by characters; the first word of a line counts again."""

    def likeness(other: str) -> float:
        plain = canonical(other).strip()
        ratio = difflib.SequenceMatcher(None, line, plain, autojunk=False).ratio()
        return ratio + 0.25 * (line.split(maxsplit=1)[0] == plain.split(maxsplit=1)[0])

    best = max(others, key=likeness, default=None)
    return best.strip() if best is not None and likeness(best) >= ALIKE else None
