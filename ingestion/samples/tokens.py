"""A code sample as tokens, of which many languages have the same few kinds, and which size of which
tensor each of its literals is.
"""

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
    """`kind` is float, int, odd, name or mark; `line` counts from 0."""

    kind: str
    text: str
    start: int
    line: int


def tokens_of(text: str) -> list[Token]:
    """The tokens of a sample without its comments; `start` counts characters of the text."""
    blank = _COMMENT.sub(lambda tokens: re.sub(r"[^\n]", " ", tokens[0]), text)
    tokens = []
    line = place = 0
    for match in _TOKEN.finditer(blank):
        line += blank.count("\n", place, match.start())
        place = match.start()
        tokens.append(Token(str(match.lastgroup), match[0], place, line))
    return tokens


def split(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Split at commas that stand in no bracket."""
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
    """Split at semicolons, braces and ends of lines that are in no square bracket."""
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
    indices: list[list[Token]] = []
    while place < len(tokens) and tokens[place].text == "[":
        end = _closing(tokens, place)
        if end is None:
            break
        indices += list(split(tokens[place + 1 : end]))
        place = end + 1
    return indices


def _closing(tokens: Sequence[Token], opening: int) -> int | None:
    depth = 0
    for place in range(opening, len(tokens)):
        depth += (tokens[place].text == "[") - (tokens[place].text == "]")
        if depth == 0:
            return place
    return None


@dataclass(frozen=True)
class Tensor:
    """An argument of the entry. `literals` are its sizes as they stand in the argument list."""

    name: str
    role: str
    literals: tuple[Token, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return tuple(int(token.text) for token in self.literals)


class Sizes:
    """Which size of which tensor a literal is: dimensions that one variable runs over are the same;
    what cannot be distinguished is one size."""

    def __init__(
        self, tensors: Sequence[Tensor], body: Sequence[Token], constants: set[str]
    ) -> None:
        self.tensors = tensors
        self.constants = constants
        self._same: dict[tuple[int, int], tuple[int, int]] = {}
        self._value = {
            (n, axis): size
            for n, tensor in enumerate(tensors)
            for axis, size in enumerate(tensor.sizes)
        }
        self._runs: dict[str, tuple[int, int]] = {}
        self._body = body
        self._follow_indices()

    @property
    def values(self) -> dict[str, int]:
        """The sizes of the sample by name, such as `a_0`."""
        return {self._name(place): value for place, value in self._value.items()}

    def _name(self, place: tuple[int, int]) -> str:
        tensor, axis = self._root(place)
        return f"{self.tensors[tensor].name}_{axis}"

    def _root(self, place: tuple[int, int]) -> tuple[int, int]:
        while place in self._same:
            place = self._same[place]
        return place

    def _join(self, place: tuple[int, int], other: tuple[int, int]) -> None:
        first, second = sorted((self._root(place), self._root(other)))
        if first != second and self._value[first] == self._value[second]:
            self._same[second] = first

    def _follow_indices(self) -> None:
        numbers = {tensor.name: n for n, tensor in enumerate(self.tensors)}
        for place, token in enumerate(self._body):
            if token.text not in numbers:
                continue
            tensor = numbers[token.text]
            for axis, index in enumerate(subscripts(self._body, place + 1)):
                if (tensor, axis) not in self._value:
                    break
                for name in index:
                    if name.kind == "name" and name.text not in self.constants:
                        self._join(self._runs.setdefault(name.text, (tensor, axis)), (tensor, axis))

    def bound(
        self, body: Sequence[Token]
    ) -> tuple[tuple[tuple[str, ...], ...], list[tuple[int, int, str]], list[tuple[str, str]]]:
        """The dims of every tensor, the literals that are sizes, and what steps through them."""
        known = set(self._value.values())
        literals = [t for t in body if t.kind == "int" and int(t.text) in known - {0, 1}]
        places = [(token, self._dimension_of(token)) for token in literals]
        for token, place in places:
            if place is None:
                self._join_all(int(token.text))
        steps = []
        sized = []
        for token, place in places:
            size = self._name(place or self._any(int(token.text)))
            sized.append((token.start, len(token.text), size))
            steps += [
                (size, other.text)
                for other in self._line(token)
                if place is not None and other.text in self.constants
            ]
        dims = tuple(
            tuple(self._name((n, axis)) for axis in range(len(tensor.sizes)))
            for n, tensor in enumerate(self.tensors)
        )
        for n, tensor in enumerate(self.tensors):
            for axis, token in enumerate(tensor.literals):
                sized.append((token.start, len(token.text), self._name((n, axis))))
        return dims, sized, list(dict.fromkeys(steps))

    def _line(self, token: Token) -> list[Token]:
        return [other for other in self._body if other.line == token.line]

    def _dimension_of(self, literal: Token) -> tuple[int, int] | None:
        """The dimension that the one variable of its line runs over."""
        value = int(literal.text)
        places = {
            self._root(self._runs[token.text])
            for token in self._line(literal)
            if token.text in self._runs
        }
        fitting = [place for place in places if self._value[place] == value]
        return fitting[0] if len(fitting) == 1 else None

    def _any(self, value: int) -> tuple[int, int]:
        return next(self._root(place) for place, size in self._value.items() if size == value)

    def _join_all(self, value: int) -> None:
        first, *rest = [place for place, size in self._value.items() if size == value]
        for place in rest:
            self._join(first, place)
