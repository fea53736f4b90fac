"""The Nova kernel compiler: checks a kernel against one chip and writes an object file.

    python novac.py SOURCE -o OUTPUT --chip chip.json [--entry NAME]

Standard library only. Errors read `file:line:column: error CODE: text`; exit status 1.
"""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from novac_reader import COMPARISONS, KEYWORDS, Number, Reader, Span, Stop, Token

FORMAT = "nova-object-1"
# operation -> kinds of its operands
ELEMENTWISE = ("add", "sub", "mul", "div", "max", "min")
UNARY = ("exp", "log", "sqrt", "rcp", "tanh")
OPERANDS: Mapping[str, tuple[str, ...]] = {
    "load": ("tile", "place"),
    "store": ("place", "tile"),
    "fill": ("tile|acc", "number"),
    "copy": ("tile", "tile|acc"),
    **dict.fromkeys(ELEMENTWISE, ("tile", "tile", "tile|number")),
    **dict.fromkeys(UNARY, ("tile", "tile")),
    "rowsum": ("tile", "tile"),
    "rowmax": ("tile", "tile"),
    "mac": ("acc", "tile", "tile"),
}
Shape = tuple[int, int]


@dataclass(frozen=True)
class Operand:
    """kind: tile | acc | place | number. code: for the simulator."""

    kind: str
    code: Any
    shape: Shape | None
    at: Token


@dataclass
class Kernel:
    name: str
    arguments: dict[str, dict[str, Any]] = field(default_factory=dict)
    tiles: dict[str, dict[str, Any]] = field(default_factory=dict)
    accumulators: dict[str, Shape] = field(default_factory=dict)
    numbers: dict[str, Span | None] = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)
    body: list[Any] = field(default_factory=list)
    scratchpad: int = 0
    registers: int = 0

    def declared(self, name: str) -> bool:
        tables = (self.arguments, self.tiles, self.accumulators, self.numbers)
        return any(name in table for table in tables)


class Compiler(Reader):
    """One pass over one file: reads, checks and emits."""

    def __init__(self, source: str, name: str, chip: Mapping[str, Any]) -> None:
        super().__init__(source, name, chip)
        self.operations = {word: operation for operation, word in chip["opcodes"].items()}
        self.kernel = Kernel("")
        self.spans: tuple[Span | None, ...] = ()  # of the place that was read last
        self.overflowing: Token | None = None  # the first tile that does not fit
        self.last_accumulator = Token("", "", 1, 1)

    def names(self) -> list[str]:
        kernel = self.kernel
        return [*kernel.arguments, *kernel.tiles, *kernel.accumulators, *kernel.numbers]

    # -- declarations

    def file(self, entry: str) -> Kernel | None:
        """The kernel to emit; every kernel of the file is checked."""
        self.read_tokens()
        kernels = {}
        start = self.next
        while self.next.kind != "end":
            kernel = self._kernel()
            kernels[kernel.name] = kernel
        if not entry and len(kernels) == 1:
            return next(iter(kernels.values()))
        if entry not in kernels:
            message = f"no such kernel: {entry or '(give --entry)'}"
            self.error(start, "entry", f"{message}; found {', '.join(kernels) or 'none'}")
        return kernels.get(entry)

    def _kernel(self) -> Kernel:
        self.take("kernel")
        self.kernel = Kernel(self.take(kind="name").text)
        self.numbers = self.kernel.numbers
        self.take("(")
        while not self.accept(")"):
            role = self.take(kind="name")
            if role.text not in ("in", "out"):
                self.stop(role, f"expected in or out, found {role.text}")
            name = self._new_name()
            shape = self._shape()
            self.kernel.arguments[name.text] = {"role": role.text, "shape": shape}
            if self.next.text != ")":
                self.take(",")
        self.kernel.body = self._block()
        self._resources_fit()
        return self.kernel

    def _new_name(self) -> Token:
        name = self.take(kind="name")
        if name.text in KEYWORDS or name.text in self.operations:
            self.stop(name, f"{name.text} is a word of the language")
        if self.kernel.declared(name.text):
            self.error(name, "undeclared", f"undeclared name: {name.text} is declared twice")
        return name

    def _shape(self) -> Shape:
        sizes = []
        while self.accept("["):
            at = self.next
            size = self.sum().span
            if size is None or size.point is None or size.point < 1:
                self.stop(at, "a size is a positive constant")
            sizes.append(size.point)
            self.take("]")
        if not 1 <= len(sizes) <= 2:
            self.stop(self.next, f"expected one or two sizes, found {len(sizes)}")
        return (1, sizes[0]) if len(sizes) == 1 else (sizes[0], sizes[1])

    def _tile(self) -> None:
        name = self._new_name()
        rows, columns = self._shape()
        self._whole_vectors(name, columns, column_tile=True)
        width = self.chip["bank_width"]
        pad = 0
        if self.accept("pad"):
            at = self.next
            result = self.sum().span
            if result is None or result.point is None or result.point < 0:
                self.stop(at, "a pad is a constant")
            pad = result.point
        pitch = width if columns == 1 else (columns + pad) * 4
        if pitch % width:
            text = f"misaligned tile {name.text}: its pitch of {pitch} bytes is no multiple of the"
            self.error(name, "alignment", f"{text} bank width, {width} bytes")
        self.kernel.scratchpad += rows * pitch
        self.kernel.tiles[name.text] = {"shape": (rows, columns), "pitch": pitch}
        if self.kernel.scratchpad > self.chip["scratchpad_bytes"] and self.overflowing is None:
            self.overflowing = name

    def _accumulator(self) -> None:
        name = self._new_name()
        rows, columns = self._shape()
        self._whole_vectors(name, columns, column_tile=False)
        self.kernel.registers += rows * -(-columns // self.chip["lanes"])
        self.kernel.accumulators[name.text] = (rows, columns)
        self.last_accumulator = name

    def _whole_vectors(self, name: Token, columns: int, *, column_tile: bool) -> None:
        lanes = self.chip["lanes"]
        if columns % lanes and not (column_tile and columns == 1):
            text = f"{name.text} has {columns} columns, a vector has {lanes} lanes"
            self.error(name, "width", f"vector width mismatch: {text}")

    def _resources_fit(self) -> None:
        limit, used = self.chip["scratchpad_bytes"], self.kernel.scratchpad
        if self.overflowing is not None:
            message = f"tiles need {used} bytes, the scratchpad has {limit} bytes"
            self.error(self.overflowing, "scratchpad", f"scratchpad overflow: {message}")
        self.overflowing = None
        limit = self.chip["vector_registers"]
        if self.kernel.registers > limit:
            text = f"accumulators need {self.kernel.registers} vector registers"
            message = f"accumulator overflow: {text}, there are {limit}"
            self.error(self.last_accumulator, "registers", message)

    # -- statements

    def _block(self) -> list[Any]:
        self.take("{")
        body = []
        while not self.accept("}"):
            result = self._statement()
            if result is not None:
                body.append(result)
        return body

    def _statement(self) -> Any:
        first = self.take(kind="name")
        compound = {"for": self._for, "while": self._while}
        if first.text in compound:
            return compound[first.text]()
        simple = {"tile": self._tile, "acc": self._accumulator, "const": self._const}
        emitted = None
        if first.text in simple:
            simple[first.text]()
        elif first.text == "var":
            name = self._new_name()
            self.kernel.variables.add(name.text)
            emitted = self._assign(name)
        elif self.next.text == "=":
            if first.text not in self.kernel.variables:
                self.stop(first, f"{first.text} is no variable and cannot be assigned")
            emitted = self._assign(first)
        else:
            emitted = self._instruction(first)
        self.take(";")
        return emitted

    def _const(self) -> None:
        name = self._new_name()
        self.take("=")
        at = self.next
        value = self.sum().span
        if value is None or value.point is None:
            self.stop(at, "a constant is made of constants")
        self.kernel.numbers[name.text] = value

    def _assign(self, name: Token) -> Any:
        self.take("=")
        value = self.sum()
        self.kernel.numbers[name.text] = None  # a variable is known only while the kernel runs
        return ["set", name.text, value.code]

    def _for(self) -> Any:
        name = self._new_name()
        self.take("in")
        start = self.sum()
        self.take("..")
        end = self.sum()
        step = self.sum() if self.accept("step") else Number(1, Span.of(1))
        if step.span is None or step.span.point is None or step.span.point < 1:
            self.stop(name, "a step is a positive constant")
        self.kernel.numbers[name.text] = self._counted(start.span, end.span, step.span.point)
        body = self._block()
        del self.kernel.numbers[name.text]
        return ["for", name.text, start.code, end.code, step.span.point, body]

    @staticmethod
    def _counted(start: Span | None, end: Span | None, step: int) -> Span | None:
        if start is None or end is None or start.point is None or end.point is None:
            return None
        if end.point <= start.point:
            return None
        trips = (end.point - start.point - 1) // step
        last = start.point + trips * step
        return Span(start.point, last, start.point, step if trips else 0)

    def _while(self) -> Any:
        left = self.sum()
        mark = self.take()
        if mark.text not in COMPARISONS:
            self.stop(mark, f"expected a comparison, found {mark.text}")
        right = self.sum()
        return ["while", mark.text, left.code, right.code, self._block()]

    # -- instructions

    def _instruction(self, name: Token) -> Any:
        operands = [self._operand()]
        while self.accept(","):
            operands.append(self._operand())
        operation = self.operations.get(name.text)
        if operation is None:
            near = difflib.get_close_matches(name.text, self.operations, 1, 0.5)
            meant = f"; did you mean {near[0]}?" if near else ""
            self.error(name, "opcode", f"unknown opcode: {name.text}{meant}")
            return None
        known = [operand for operand in operands if operand.kind]
        if len(known) == len(operands) and self._kinds_fit(name, operation, known):
            self._shapes_fit(name, operation, known)
        return ["op", operation, [operand.code for operand in operands], name.line]

    def _operand(self) -> Operand:
        at = self.next
        if at.text == "-" or at.kind == "number":
            sign = -1.0 if self.accept("-") else 1.0
            return Operand("number", sign * float(self.take(kind="number").text), None, at)
        self.take(kind="name")
        kernel = self.kernel
        if at.text in kernel.tiles:
            return Operand("tile", at.text, kernel.tiles[at.text]["shape"], at)
        if at.text in kernel.accumulators:
            return Operand("acc", at.text, kernel.accumulators[at.text], at)
        if at.text in kernel.arguments:
            return self._place(at)
        if at.text in kernel.numbers:
            span = kernel.numbers[at.text]
            if span is None or span.point is None:
                message = f"{at.text} is not constant, vector instructions take constants"
                self.error(at, "operand", f"wrong operand: {message}")
                return Operand("", None, None, at)
            return Operand("number", float(span.point), None, at)
        self.undeclared(at)
        while self.accept("["):
            self.sum()
            self.take("]")
        return Operand("", None, None, at)

    def _place(self, at: Token) -> Operand:
        indices = []
        while self.accept("["):
            indices.append(self.sum())
            self.take("]")
        rows, _ = shape = self.kernel.arguments[at.text]["shape"]
        if len(indices) == 1 and rows == 1:
            indices.insert(0, Number(0, Span.of(0)))
        if len(indices) != 2:
            self.stop(at, f"{at.text} takes two indices, found {len(indices)}")
        self.spans = tuple(index.span for index in indices)
        return Operand("place", [at.text, *(index.code for index in indices)], shape, at)

    def _kinds_fit(self, name: Token, operation: str, operands: list[Operand]) -> bool:
        wanted = OPERANDS[operation]
        if len(operands) != len(wanted):
            message = f"{name.text} takes {len(wanted)} operands, found {len(operands)}"
            self.error(name, "operand", f"wrong operand: {message}")
            return False
        for number, (operand, kinds) in enumerate(zip(operands, wanted, strict=True), 1):
            if operand.kind not in kinds.split("|"):
                message = f"operand {number} of {name.text} is a {kinds}, found a {operand.kind}"
                self.error(operand.at, "operand", f"wrong operand: {message}")
                return False
        return True

    def _shapes_fit(self, name: Token, operation: str, operands: list[Operand]) -> None:
        if operation in ("load", "store"):
            return self._transfer(*(operands if operation == "store" else reversed(operands)))
        shapes = [operand.shape for operand in operands if operand.shape is not None]
        if not _agree(operation, shapes):
            shown = ", ".join(f"[{rows}][{columns}]" for rows, columns in shapes)
            self.error(name, "shape", f"shapes do not agree: {name.text} {shown}")
        return None

    def _transfer(self, place: Operand, tile: Operand) -> None:
        assert place.shape is not None and tile.shape is not None
        what, burst = place.at.text, self.chip["burst_bytes"]
        for axis, span in enumerate(self.spans):
            size, extent = tile.shape[axis], place.shape[axis]
            if span is not None and (span.low < 0 or span.high + size > extent):
                message = f"{('rows', 'columns')[axis]} {span.low}..{span.high + size} of {what}"
                self.error(place.at, "range", f"access out of range: {message}, which has {extent}")
                return
        row, column = self.spans
        offset = row.scaled(place.shape[1]).plus(column) if row and column else None
        if offset is not None and not offset.scaled(4).divisible(burst):
            message = f"misaligned transfer: {what} is entered inside a burst of {burst} bytes"
            self.error(place.at, "alignment", message)
        elif tile.shape[0] > 1 and tile.shape[1] < place.shape[1] and place.shape[1] * 4 % burst:
            message = f"misaligned transfer: rows of {what} are {place.shape[1] * 4} bytes apart"
            self.error(place.at, "alignment", f"{message}, no multiple of a burst of {burst} bytes")


def _agree(operation: str, shapes: list[Shape]) -> bool:
    if operation == "mac":
        (rows, columns), (m, k), (depth, n) = shapes
        return (rows, columns, depth) == (m, n, k)
    if operation in ("rowsum", "rowmax"):
        return shapes[0] == (shapes[1][0], 1)
    if operation in ELEMENTWISE and len(shapes) == 3:
        rows, columns = shapes[0]
        return shapes[1] == shapes[0] and shapes[2] in (shapes[0], (rows, 1), (1, columns))
    return len(set(shapes)) == 1


def emitted(kernel: Kernel, chip: Mapping[str, Any], source: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "chip": chip["id"],
        "kernel": kernel.name,
        "source": source,
        "arguments": [{"name": name, **message} for name, message in kernel.arguments.items()],
        "tiles": kernel.tiles,
        "accumulators": kernel.accumulators,
        "scratchpad_bytes": kernel.scratchpad,
        "vector_registers": kernel.registers,
        "body": kernel.body,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--chip", type=Path, required=True)
    parser.add_argument("--entry", default="")
    asked = parser.parse_args()
    chip = json.loads(asked.chip.read_text(encoding="utf-8"))
    source = asked.source.read_text(encoding="utf-8", errors="replace")
    compiler = Compiler(source, asked.source.name, chip)
    kernel = None
    try:
        kernel = compiler.file(asked.entry)
    except Stop:
        pass  # errors up to here are in `errors`
    except RecursionError:
        compiler.errors.append(f"error {chip['errors']['syntax']}: syntax error: nested too deeply")
    if compiler.errors or kernel is None:
        print("\n".join([*compiler.errors, f"{len(compiler.errors)} error(s)"]), file=sys.stderr)
        return 1
    asked.output.write_text(json.dumps(emitted(kernel, chip, asked.source.name)), encoding="utf-8")
    used = f"scratchpad {kernel.scratchpad} of {chip['scratchpad_bytes']} bytes"
    registers = f"vector registers {kernel.registers} of {chip['vector_registers']}"
    print(f"{kernel.name}: {used}, {registers}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
