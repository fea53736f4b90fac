"""The reader of the Nova compiler: tokens, error messages, and integer expressions with the range
of their values.

Knows no statement and no instruction. Standard library only.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

MAX_ERRORS = 20
KEYWORDS = {"kernel", "in", "out", "tile", "acc", "pad", "const", "var", "for", "step", "while"}
TOKEN = re.compile(
    r"(?P<space>\s+|//[^\n]*)"
    r"|(?P<number>\d+\.(?!\.)\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<mark>\.\.|<=|>=|==|!=|[-+*/%(){}\[\],;=<>])"
)
COMPARISONS = ("<=", ">=", "==", "!=", "<", ">")


class Token(NamedTuple):
    kind: str
    text: str
    line: int
    column: int


class Stop(Exception):
    """The source cannot be read any further."""


@dataclass(frozen=True)
class Span:
    """The values of an expression: in low..high, and base plus a multiple of stride."""

    low: int
    high: int
    base: int
    stride: int

    @classmethod
    def of(cls, value: int) -> Span:
        return cls(value, value, value, 0)

    @property
    def point(self) -> int | None:
        return self.low if self.low == self.high else None

    def divisible(self, by: int) -> bool:
        return self.base % by == 0 and self.stride % by == 0

    def scaled(self, by: int) -> Span:
        low, high = sorted((self.low * by, self.high * by))
        return Span(low, high, self.base * by, abs(self.stride * by))

    def plus(self, other: Span) -> Span:
        stride = math.gcd(self.stride, other.stride)
        return Span(self.low + other.low, self.high + other.high, self.base + other.base, stride)


@dataclass(frozen=True)
class Number:
    """An integer expression: `code` for the simulator, `span` if it is known."""

    code: Any
    span: Span | None


class Reader:
    """The tokens of one file, in order, and the errors found so far.

    numbers: names that expressions may use; None where the value is known only at run time.
    """

    def __init__(self, source: str, name: str, chip: Mapping[str, Any]) -> None:
        self.chip, self.name, self.source = chip, name, source
        self.lines = source.splitlines()
        self.errors: list[str] = []
        self.tokens: list[Token] = []
        self.at = 0
        self.numbers: dict[str, Span | None] = {}

    def names(self) -> list[str]:
        """Everything that is declared, for suggestions."""
        return list(self.numbers)

    # -- errors and tokens

    def error(self, at: Token, kind: str, text: str) -> None:
        shown = self.lines[at.line - 1] if at.line <= len(self.lines) else ""
        place = f"{self.name}:{at.line}:{at.column}"
        pointer = " " * (at.column - 1) + "^"
        message = f"{place}: error {self.chip['errors'][kind]}: {text}\n{shown}\n{pointer}"
        if message not in self.errors:
            self.errors.append(message)
        if len(self.errors) >= MAX_ERRORS:
            raise Stop

    def stop(self, at: Token, text: str) -> NoReturn:
        self.error(at, "syntax", f"syntax error: {text}")
        raise Stop

    def read_tokens(self) -> None:
        source = self.source
        tokens, at, line, start = [], 0, 1, 0
        while at < len(source):
            result = TOKEN.match(source, at)
            if result is None:
                self.stop(Token("", "", line, at - start + 1), f"stray {source[at]!r}")
            if result.lastgroup != "space":
                kind = str(result.lastgroup)
                tokens.append(Token(kind, result.group(), line, at - start + 1))
            if newlines := result.group().count("\n"):
                line += newlines
                start = at + result.group().rindex("\n") + 1
            at = result.end()
        self.tokens = [*tokens, Token("end", "the end of the file", line, at - start + 1)]

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def take(self, text: str = "", kind: str = "") -> Token:
        token = self.next
        if (text and token.text != text) or (kind and token.kind != kind):
            self.stop(token, f"expected {text or 'a ' + kind}, found {token.text}")
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        if self.next.text != text:
            return False
        self.at += 1
        return True

    # -- integer expressions

    def sum(self) -> Number:
        value = self._product()
        while self.next.text in ("+", "-"):
            mark = self.take().text
            value = self._combined(mark, value, self._product())
        return value

    def _product(self) -> Number:
        value = self._factor()
        while self.next.text in ("*", "/", "%"):
            mark = self.take().text
            value = self._combined(mark, value, self._factor())
        return value

    def _factor(self) -> Number:
        token = self.take()
        if token.text == "(":
            value = self.sum()
            self.take(")")
            return value
        if token.text == "-":
            return self._combined("-", Number(0, Span.of(0)), self._factor())
        if token.kind == "number" and token.text.isdigit():
            return Number(int(token.text), Span.of(int(token.text)))
        if token.kind != "name":
            self.stop(token, f"expected an integer, found {token.text}")
        if token.text not in self.numbers:
            self.undeclared(token)
            return Number(0, None)
        span = self.numbers[token.text]
        constant = span.point if span is not None and not span.stride else None
        return Number(token.text if constant is None else constant, span)

    def _combined(self, mark: str, left: Number, right: Number) -> Number:
        span = _combine(mark, left.span, right.span)
        if span is not None and span.point is not None and not span.stride:
            return Number(span.point, span)
        return Number([mark, left.code, right.code], span)

    def undeclared(self, at: Token) -> None:
        near = difflib.get_close_matches(at.text, self.names(), 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        self.error(at, "undeclared", f"undeclared name: {at.text}{meant}")


def _combine(mark: str, left: Span | None, right: Span | None) -> Span | None:
    if left is None or right is None:
        return None
    if mark in "+-":
        return left.plus(right if mark == "+" else right.scaled(-1))
    if mark == "*" and right.point is not None:
        return left.scaled(right.point)
    if mark == "*" and left.point is not None:
        return right.scaled(left.point)
    if left.point is None or not right.point:
        return None
    return Span.of(left.point // right.point if mark == "/" else left.point % right.point)
