"""A code sample as tokens, of which many languages have the same few kinds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

OPENING, CLOSING = "([{<", ")]}>"

_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)|^[ \t]*#[ \t][^\n]*", re.DOTALL | re.MULTILINE)
# Digits and letters of ASCII only: others are no numbers and no names to a compiler. A number of
# more digits is no size, and one that begins with 0 is octal in some languages.
_TOKEN = re.compile(
    r"(?P<float>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+\.(?!\.)|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<int>(?:0|[1-9][0-9]{0,14})(?!\w))|(?P<odd>[0-9]\w*)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<mark>:=|==|[-+*/]=|\+\+|--|\S)"
)


@dataclass(frozen=True)
class Token:
    """kind: float, int, odd, name or mark. line: from 0."""

    kind: str
    text: str
    start: int
    line: int


def tokens_of(text: str) -> list[Token]:
    """Comments are left out; places are those of the text."""
    blank = _COMMENT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    found = []
    line = place = 0
    for match in _TOKEN.finditer(blank):
        line += blank.count("\n", place, match.start())
        place = match.start()
        found.append(Token(str(match.lastgroup), match[0], place, line))
    return found


def split(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """At commas that stand in no bracket."""
    depth, part = 0, list[Token]()
    for token in tokens:
        depth += (token.text in OPENING) - (token.text in CLOSING)
        if token.text == "," and depth == 0:
            yield part
            part = []
        else:
            part.append(token)
    if part:
        yield part


def statements(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Up to a semicolon, a brace or the end of a line that is in no square bracket."""
    part: list[Token] = []
    open_ = 0
    for token in tokens:
        ends = token.text in ";{}"
        if part and (ends or (open_ == 0 and token.line != part[-1].line)):
            yield part
            part, open_ = [], 0
        if not ends:
            part.append(token)
            open_ = max(0, open_ + (token.text == "[") - (token.text == "]"))
    if part:
        yield part


def subscripts(tokens: Sequence[Token], place: int) -> list[list[Token]]:
    """`[a][b]` or `[a, b]` behind a name, without the brackets; not one that is never closed."""
    found: list[list[Token]] = []
    while place < len(tokens) and tokens[place].text == "[":
        end = _closing(tokens, place)
        if end is None:
            break
        found += list(split(tokens[place + 1 : end]))
        place = end + 1
    return found


def _closing(tokens: Sequence[Token], opening: int) -> int | None:
    depth = 0
    for place in range(opening, len(tokens)):
        depth += (tokens[place].text == "[") - (tokens[place].text == "]")
        if depth == 0:
            return place
    return None
