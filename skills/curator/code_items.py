"""The top-level items of a source file: functions, declarations and directives.

Works on text without comments, by braces or indentation, and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LITERAL = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'")
INCLUDE = re.compile(r"^\s*#\s*include\s*([<\"])([^>\"]+)[>\"]")
_TRANSPARENT = re.compile(r"(?:extern\s*\"[^\"]*\"|\bnamespace(?:\s+[\w:]+)?)\s*$")


@dataclass(frozen=True)
class Item:
    """A definition, declaration or directive at the top level of a file. `name` is set for the
    definition of a function, whose head is `head`."""

    text: str
    kind: str  # function, directive, include, bracket or other
    name: str = ""
    head: str = ""


def items_of(text: str) -> Iterator[Item]:
    """The top-level items of a text without comments, in order."""
    held: list[str] = []  # lines of the present item
    cutter = _Cutter()
    lines = iter(text.splitlines())
    for line in lines:
        if line.lstrip().startswith("#"):
            while line.endswith("\\"):
                line += "\n" + next(lines, "")
            if cutter.inside:
                held.append(line)
            else:
                yield Item(line, "include" if INCLUDE.match(line) else "directive")
            continue
        start = 0
        masked = LITERAL.sub(lambda m: "s" * len(m.group()), line)
        for place, char in enumerate(masked):
            kind = cutter.after(char, held, line[start:place])
            if kind:
                whole = "\n".join([*held, line[start : place + 1]])
                yield _item(whole, kind)
                held, start = [], place + 1
        if line[start:].strip():
            held.append(line[start:])


@dataclass
class _Cutter:
    """Braces and parentheses that are open at a place of a file. `function`: they are those of a
    function's body."""

    depth: int = 0
    parens: int = 0
    function: bool = False

    @property
    def inside(self) -> bool:
        return bool(self.depth or self.parens)

    def after(self, char: str, held: list[str], line: str) -> str:
        """The kind of the item that ends with this character, or ""."""
        self.parens += (char == "(") - (char == ")")
        if char == "{":
            if self.depth == 0:
                head = "\n".join([*held, line])
                if _TRANSPARENT.search(head.strip()):
                    return "bracket"
                self.function = self.function or _is_head(head)
            self.depth += 1
            return ""
        if char == "}" and self.depth == 0:
            return "bracket"
        self.depth -= char == "}"
        if self.inside or not (char == ";" or (char == "}" and self.function)):
            return ""
        kind = "function" if self.function else "other"
        self.function = False
        return kind


def _is_head(text: str) -> bool:
    bare = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    without, count = bare, 1
    while count:  # default arguments have a "=" too
        without, count = re.subn(r"\([^()]+\)|<[^<>]+>", "()", without)
    return re.search(r"\)\s*(?:const|noexcept)?\s*$", bare) is not None and "=" not in without


def _item(text: str, kind: str) -> Item:
    if kind != "function":
        return Item(text.strip("\n"), kind)
    masked = "\n".join("" if line.lstrip().startswith("#") else line for line in text.splitlines())
    head = masked.partition("{")[0].rstrip()
    closing = head.rfind(")")
    depth, opening = 0, -1
    for place in range(closing, -1, -1):
        depth += (head[place] == ")") - (head[place] == "(")
        if depth == 0:
            opening = place
            break
    name = re.search(r"([\w:~]+)\s*$", head[:opening])
    if name is None:
        return Item(text.strip("\n"), "other")
    return Item(text.strip("\n"), "function", name[1], head)
