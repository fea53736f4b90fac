"""The operands of an instruction: text of an assembler in, numbers for the simulator out.

Signs, registers and ranges are those of one chip. Knows no lines and no kernels. Standard library
only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # a program finds its neighbours by their bare names
    from examples.assembly_chip.dialect import KINDS
else:
    from dialect import KINDS

_NAME = re.compile(r"[A-Za-z_]\w*")
_MNEMONIC = re.compile(r"[A-Za-z][\w.]*")
_FLOAT = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?")
_TOKEN = re.compile(r"\s*(?:(0[xX][0-9a-fA-F]{1,8}|\d{1,12})(?!\w)|([A-Za-z_]\w*)|([-+*]))")
INT32 = 32
BANKS = {"s": "scalars", "v": "vectors", "a": "accs", "t": "tags"}
BANK_NAMES = {bank: KINDS[bank] for bank in BANKS}


class Problem(Exception):
    """An operand that the chip refuses. kind: one of chip.json's errors."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class Register(NamedTuple):
    bank: str
    number: int


@dataclass
class Symbols:
    """The names of a kernel. constants: constants, blocks and counters of repeated blocks."""

    constants: dict[str, int] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def __contains__(self, name: str) -> bool:
        return name in self.constants or name in self.inputs or name in self.outputs


class Operands:
    """Reads the operands of one chip's instructions."""

    def __init__(self, chip: Mapping[str, Any]) -> None:
        self.chip = chip
        syntax = chip["syntax"]
        self.first = syntax["order"] == "first"
        self.prefix = syntax["immediate"]
        self.separator = syntax["place"]
        banks = "|".join(re.escape(syntax[bank]) for bank in BANKS)
        self._banks = {syntax[bank]: bank for bank in BANKS}
        self._register = re.compile(rf"{re.escape(syntax['sigil'])}({banks})(\d{{1,6}})")
        before, after = (re.escape(part) for part in syntax["label"].split("{}"))
        self._label = re.compile(rf"{before}\s*([A-Za-z_]\w*)\s*{after}")
        self._address = re.compile(
            {
                "bracket": r"\[\s*(?P<base>[^\s+\]]+)\s*(?:\+(?P<shift>.+))?\]",
                "angle": r"<\s*(?P<base>[^\s+>]+)\s*(?:\+(?P<shift>.+))?>",
                "paren": r"(?P<shift>[^(]*)\(\s*(?P<base>[^\s)]+)\s*\)",
                "index": r"(?P<base>[^\s\[]+)\s*\[(?P<shift>.*)\]",
            }[syntax["address"]]
        )

    # -- parsing

    def is_name(self, text: str) -> bool:
        return bool(_NAME.fullmatch(text))

    def is_mnemonic(self, text: str) -> bool:
        return bool(_MNEMONIC.fullmatch(text))

    def label(self, text: str) -> str:
        """The name that a line defines as a label, or ""."""
        match = self._label.fullmatch(text)
        return match[1] if match else ""

    def register(self, text: str) -> Register | None:
        match = self._register.fullmatch(text)
        return Register(self._banks[match[1]], int(match[2])) if match else None

    def kind(self, text: str) -> str:
        """A description of the text for a message."""
        register = self.register(text)
        if register:
            return BANK_NAMES[register.bank]
        if text.startswith(self.prefix):
            return "immediate"
        if self._address.fullmatch(text):
            return KINDS["m"]
        if self.separator in text:
            return KINDS["p"]
        return "name" if self.is_name(text) else "unreadable operand"

    # -- operands

    def of(self, operation: str, texts: list[str], symbols: Symbols) -> list[Any]:
        """The operands in canonical order: written, read, last. A label stays its name."""
        description = self.chip["operations"][operation]
        written, read, last = (description[place] for place in ("to", "from", "last"))
        order = [*written, *read] if self.first else [*read, *written]
        order = [*order, *last]
        if len(texts) != len(order) or "" in texts:
            name = description["name"]
            raise Problem("operands", f"{name} takes {len(order)}, {len(texts)} are given")
        values = []
        for number, (operand, text) in enumerate(zip(order, texts, strict=True), 1):
            kind = operand.split(".")[0]
            value = getattr(self, "_immediate" if kind in "nSF" else "_operand")(
                kind, text, number, symbols
            )
            self._check_range(operation, kind, value)
            values.append(value)
        self._check_directions(operation, values, symbols)
        if self.first:
            return values
        ahead, behind = values[: len(read)], values[len(read) : len(read) + len(written)]
        return [*behind, *ahead, *values[len(read) + len(written) :]]

    def _check_directions(self, operation: str, values: list[Any], symbols: Symbols) -> None:
        role = {"dmain": "inputs", "dmaout": "outputs"}.get(operation)
        if role is None:
            return
        place = next(value for value in values if isinstance(value, dict) and "argument" in value)
        if place["argument"] not in getattr(symbols, role):
            raise Problem("direction", f"{place['argument']} is none of the {role}")

    def _mismatch(self, kind: str, text: str, number: int) -> Problem:
        looks = self.kind(text)
        if looks == "unreadable operand":
            return Problem("syntax", f"operand {number}: {text[:40]}")
        wanted = KINDS[kind]
        return Problem("kind", f"operand {number}, {text[:40]}: {looks} instead of {wanted}")

    def _operand(self, kind: str, text: str, number: int, symbols: Symbols) -> Any:
        if kind in BANKS:
            return self._numbered(kind, text, number)
        if kind == "m":
            return self._scratch_address(text, number, symbols)
        if kind == "p":
            return self._place(text, number, symbols)
        if kind == "f":
            return self._field(text, number, symbols)
        if not self.is_name(text) or self.register(text):
            raise self._mismatch(kind, text, number)
        return text  # a label

    def _numbered(self, kind: str, text: str, number: int) -> int:
        register = self.register(text)
        if register is None or register.bank != kind:
            raise self._mismatch(kind, text, number)
        size = self.chip[BANKS[kind]]
        if register.number >= size:
            error = "tag" if kind == "t" else "register"
            raise Problem(error, f"{text}; the last one has the number {size - 1}")
        return register.number

    def _scratch_address(self, text: str, number: int, symbols: Symbols) -> dict[str, int]:
        match = self._address.fullmatch(text)
        if match is None:
            raise self._mismatch("m", text, number)
        base = self._numbered("s", match["base"], number)
        shift = (match["shift"] or "").strip()
        displacement = self.expression(shift, symbols) if shift else 0
        limit, unit = self.chip["disp_max"], self.chip["unit_bytes"]
        if not 0 <= displacement <= limit or displacement * unit % 4:
            raise Problem("displacement", f"{displacement}; it is a whole word from 0 to {limit}")
        return {"base": base, "displacement": displacement}

    def _place(self, text: str, number: int, symbols: Symbols) -> dict[str, Any]:
        argument, separator, offset = text.partition(self.separator)
        argument, offset = argument.strip(), offset.strip()
        if not separator or not self.is_name(argument):
            raise self._mismatch("p", text, number)
        if argument not in (*symbols.inputs, *symbols.outputs):
            raise Problem("name", f"{argument} is no argument")
        return {"argument": argument, "offset": self._immediate("S", offset, number, symbols)}

    def _field(self, text: str, number: int, symbols: Symbols) -> dict[str, str]:
        argument, separator, word = text.partition(".")
        if not separator:
            raise self._mismatch("f", text, number)
        if argument not in (*symbols.inputs, *symbols.outputs):
            raise Problem("name", f"{argument} is no argument")
        fields = {name: field for field, name in self.chip["fields"].items()}
        if word not in fields:
            raise Problem("field", f"{word}; there are {', '.join(fields)}")
        return {"argument": argument, "field": fields[word]}

    def _immediate(self, kind: str, text: str, number: int, symbols: Symbols) -> Any:
        """A register as {"register": number}, else the number itself."""
        if self.register(text) and kind != "n":
            return {"register": self._numbered("s", text, number)}
        if not text.startswith(self.prefix):
            raise self._mismatch(kind, text, number)
        digits = text[len(self.prefix) :].strip()
        is_float = bool(_FLOAT.fullmatch(digits))
        if is_float != (kind == "F"):
            wanted = "a floating-point number" if kind == "F" else "an integer"
            raise Problem("float", f"operand {number}, {text[:40]}, is not {wanted}")
        if is_float:
            return float(digits)
        value = self.expression(digits, symbols)
        if kind == "n" and not 0 <= value < self.chip["lanes"]:
            raise Problem("lane", f"{value}; the last one is {self.chip['lanes'] - 1}")
        return value

    def _check_range(self, operation: str, kind: str, operand: Any) -> None:
        value = operand["offset"] if kind == "p" else operand
        bits = INT32 if operation == "set" else self.chip["imm_bits"]
        fits = not isinstance(value, int) or -(1 << bits - 1) <= value < 1 << bits - 1
        if kind in "Sp" and not fits:
            raise Problem("immediate", f"{value} does not fit {bits} bits")

    # -- expressions

    def expression(self, text: str, symbols: Symbols) -> int:
        """A sum of products of integers and names."""
        total, product, sign, expected, position = 0, 1, 1, True, 0
        while position < len(text.rstrip()):
            match = _TOKEN.match(text, position)
            if match is None or (match[3] is None) != expected:
                if match is not None and match[3] in ("-", "+") and not position:
                    sign, position = (-1 if match[3] == "-" else 1), match.end()
                    continue
                raise self._unreadable(text)
            position = match.end()
            if expected:
                product *= self._factor(match, symbols)
            elif match[3] != "*":
                total, product = total + sign * product, 1
                sign = -1 if match[3] == "-" else 1
            expected = not expected
        if expected:
            raise self._unreadable(text)
        return total + sign * product

    def _unreadable(self, text: str) -> Problem:
        if _FLOAT.fullmatch(text.strip()):
            return Problem("float", f"{text} is not an integer")
        return Problem("syntax", f"expression {text[:40]}")

    def _factor(self, match: re.Match[str], symbols: Symbols) -> int:
        if match[1]:
            return int(match[1], 0) if match[1].lower().startswith("0x") else int(match[1])
        if match[2] not in symbols.constants:
            raise Problem("name", match[2])
        return symbols.constants[match[2]]
