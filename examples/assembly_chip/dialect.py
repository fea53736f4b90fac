"""The spelling of one chip for the common instructions of the family.

Canonical text, the form of kernels and examples, has the destination first, registers `s0`
(scalar), `v0` (vector), `a0` (accumulator) and `t0` (tag), immediates `#1`, addresses `[s0+8]`,
places in arguments `x@s0`, labels `name:`, directives `.kernel` and comments `; words`. A number
with the letter B counts bytes (`64B`), with VB whole vectors (`2VB`); both become address units.
Knows the words and signs of a chip, not what its instructions do. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

# Kinds of operands, by their letter in instructions.toml.
KINDS: Mapping[str, str] = {
    "s": "scalar register",
    "S": "scalar register or integer immediate",
    "v": "vector register",
    "a": "accumulator",
    "F": "floating-point immediate or scalar register",
    "m": "scratchpad address",
    "p": "place in an argument",
    "t": "tag",
    "l": "label",
    "n": "lane number",
    "f": "launch scalar",
}
ADDRESSES: Mapping[str, str] = {
    "bracket": "[{base}+{displacement}]",
    "angle": "<{base}+{displacement}>",
    "paren": "{displacement}({base})",
    "index": "{base}[{displacement}]",
}
_REGISTER = re.compile(r"[svat]\d+")
_ADDRESS = re.compile(r"\[(s\d+)(?:\+(.+))?\]")
_PLACE = re.compile(r"([a-z]\w*)@(.+)")
_FIELD = re.compile(r"([a-z]\w*)\.(\w+)")
_SIZE = re.compile(r"\b(\d+)(V?)B\b")


class Dialect:
    """The words and signs of one chip."""

    def __init__(self, chip: Mapping[str, Any]) -> None:
        self.chip = chip
        self.syntax: Mapping[str, str] = chip["syntax"]
        self.operations: Mapping[str, Mapping[str, Any]] = chip["operations"]

    # -- pieces

    def register(self, bank: str, number: int | str) -> str:
        return f"{self.syntax['sigil']}{self.syntax[bank]}{number}"

    def directive(self, name: str) -> str:
        return self.syntax["leader"] + str(self.chip["directives"][name])

    def label(self, name: str) -> str:
        return self.syntax["label"].format(name)

    def comment(self, words: str) -> str:
        return f"{self.syntax['comment']} {words}"

    def address(self, base: str, displacement: str) -> str:
        """`displacement` may be empty: most forms then leave it out."""
        form = self.syntax["address"]
        if not displacement:
            displacement = "0" if form == "index" else ""
        text = ADDRESSES[form].format(base=base, displacement=displacement)
        return text if displacement else text.replace("+", "")

    def sizes(self, text: str) -> str:
        """Bytes and vectors become address units."""
        unit = self.chip["unit_bytes"]
        vector = 4 * self.chip["lanes"]
        return _SIZE.sub(
            lambda match: str(int(match[1]) * (vector if match[2] else 1) // unit), text
        )

    # -- lines

    def operand(self, text: str) -> str:
        """One operand of canonical text."""
        text = self.sizes(text.strip())
        if _REGISTER.fullmatch(text):
            return self.register(text[0], text[1:])
        if text.startswith("#"):
            return self.syntax["immediate"] + text[1:]
        if match := _ADDRESS.fullmatch(text):
            return self.address(self.operand(match[1]), match[2] or "")
        if match := _PLACE.fullmatch(text):
            return match[1] + self.syntax["place"] + self.operand(match[2])
        if match := _FIELD.fullmatch(text):
            return f"{match[1]}.{self.chip['fields'][match[2]]}"
        return text

    def instruction(self, operation: str, operands: Sequence[str] = ()) -> str:
        """Operands in canonical order: written, read, last."""
        description = self.operations[operation]
        written, read = len(description["to"]), len(description["from"])
        drawn = [self.operand(text) for text in operands]
        first, second = drawn[:written], drawn[written : written + read]
        order = [*first, *second] if self.syntax["order"] == "first" else [*second, *first]
        return f"{description['name']} {', '.join([*order, *drawn[written + read :]])}".rstrip()

    def line(self, text: str) -> str:
        """One line of canonical text with its indentation."""
        code, semicolon, words = text.partition(";")
        indent = code[: len(code) - len(code.lstrip())]
        code = code.strip()
        remark = self.comment(words.strip()) if semicolon else ""
        if not code:
            return f"{indent}{remark}".rstrip()
        drawn = self._statement(code)
        return f"{indent}{drawn}   {remark}".rstrip()

    def _statement(self, code: str) -> str:
        if code.endswith(":"):
            return self.label(code[:-1])
        word, _, rest = code.partition(" ")
        if word.startswith("."):
            return f"{self.directive(word[1:])} {self.sizes(rest.strip())}".rstrip()
        return self.instruction(word, rest.split(",") if rest.strip() else ())

    def text(self, canonical: str) -> str:
        return "\n".join(self.line(line) for line in canonical.splitlines())

    # -- as the manual shows an instruction

    def syntax_line(self, operation: str) -> str:
        """The instruction with the letters of its operands."""
        description = self.operations[operation]
        written, read, last = (
            [self._shown(operand) for operand in description[place]]
            for place in ("to", "from", "last")
        )
        first = self.syntax["order"] == "first"
        order = [*written, *read] if first else [*read, *written]
        return f"{description['name']} {', '.join([*order, *last])}".rstrip()

    def _shown(self, operand: str) -> str:
        kind, letter = operand.split(".")
        sign = self.syntax["immediate"]
        return {
            "S": f"{self.register('s', letter)}|{sign}{letter}",
            "F": f"{sign}x|{self.register('s', letter)}",
            "m": self.address(self.register("s", letter), "disp"),
            "p": f"ARG{self.syntax['place']}{self.register('s', letter)}",
            "t": self.register("t", "N"),
            "l": "label",
            "n": f"{sign}{letter}",
            "f": "ARG.FIELD",
        }.get(kind) or self.register(kind, letter)

    def named(self, operation: str) -> dict[str, str]:
        """How the texts of the manual call the operands, by letter."""
        description = self.operations[operation]
        operands = [*description["to"], *description["from"], *description["last"]]
        names = {}
        for operand in operands:
            kind, letter = operand.split(".")
            bank = "s" if kind in "SFmp" else kind
            plain = len(letter) > 1 or kind in "nlf"
            names[letter] = f"`{letter if plain else self.register(bank, letter)}`"
        return names
