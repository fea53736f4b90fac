"""A code sample as tokens, of which many languages have the same few kinds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

OPENING, CLOSING = "([{<", ")]}>"

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^[ \t]*#[ \t][^\n]*", re.DOTALL | re.MULTILINE)
_TOKEN = re.compile(
    r"(?P<float>\d+\.\d+(?:[eE][+-]?\d+)?|\d+\.(?!\.)|\d+[eE][+-]?\d+)"
    r"|(?P<int>\d+(?![\w]))|(?P<odd>\d\w*)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<mark>:=|==|[-+*/]=|\+\+|--|[^\s\w])"
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
    for match in _TOKEN.finditer(blank):
        line = blank.count("\n", 0, match.start())
        found.append(Token(str(match.lastgroup), match[0], match.start(), line))
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
    """Up to a semicolon, a brace or the end of a line."""
    part: list[Token] = []
    for token in tokens:
        if part and token.line != part[-1].line:
            yield part
            part = []
        if token.text in ";{}":
            if part:
                yield part
            part = []
        else:
            part.append(token)
    if part:
        yield part


def subscripts(tokens: Sequence[Token], place: int) -> list[list[Token]]:
    """`[a][b]` or `[a, b]` behind a name, without the brackets."""
    found: list[list[Token]] = []
    while place < len(tokens) and tokens[place].text == "[":
        depth, end = 0, place
        for end in range(place, len(tokens)):
            depth += (tokens[end].text == "[") - (tokens[end].text == "]")
            if depth == 0:
                break
        found += list(split(tokens[place + 1 : end]))
        place = end + 1
    return found
