"""The assembler of the family: checks a source file for one chip and writes an object file.

    python assembler.py SOURCE -o OUTPUT --chip chip.json [--entry NAME]

Standard library only. Errors read `file:line: CODE text`; exit status 1. Words, signs and limits
are those of chip.json; the simulator defines the instructions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a program finds its neighbours by their bare names
    from examples.assembly_chip.operands import Operands, Problem, Symbols
else:
    from operands import Operands, Problem, Symbols

FORMAT = "assembly-chip-object-1"
MAX_ERRORS = 20
MAX_TURNS = 10_000  # of repeated blocks in one file; more do not fit any instruction memory
MAX_NESTED = 8


class Endless(Exception):
    """The kernel does not fit the instruction memory, so the rest need not be unrolled."""


@dataclass(frozen=True)
class Line:
    number: int
    text: str


@dataclass
class Kernel:
    """Declarations and code of a kernel. code: operation, operands, line of each instruction."""

    name: str
    line: int
    symbols: Symbols = field(default_factory=Symbols)
    labels: dict[str, int] = field(default_factory=dict)
    code: list[tuple[str, list[Any], int]] = field(default_factory=list)
    jumps: list[tuple[int, int, str]] = field(default_factory=list)  # instruction, operand, label
    scratch: int = 0


class Assembler:
    """One pass over one file; it goes on after an error, to report several."""

    def __init__(self, name: str, chip: Mapping[str, Any]) -> None:
        self.name, self.chip = name, chip
        self.syntax = chip["syntax"]
        self.mnemonics = {row["name"]: op for op, row in chip["operations"].items()}
        self.words = {word: name for name, word in chip["directives"].items()}
        self.operands = Operands(chip)
        self.errors: dict[str, None] = {}  # in order, each once
        self.kernels: dict[str, Kernel] = {}
        self.kernel: Kernel | None = None
        self.part_is_stated = False
        self.turns = 0
        self.nested = 0

    # -- errors

    def error(self, line: int, kind: str, text: str) -> None:
        error = self.chip["errors"][kind]
        self.errors[f"{self.name}:{line}: {error['code']} {error['text']}: {text}"] = None

    # -- the file

    def assemble(self, source: str, entry: str) -> Kernel | None:
        """The kernel to emit; every kernel of the file is checked."""
        cleaned = (
            Line(number, " ".join(text.partition(self.syntax["comment"])[0].split()))
            for number, text in enumerate(source.splitlines(), 1)
        )
        lines = [line for line in cleaned if line.text]
        try:
            self._block(lines)
        except Endless:
            return None
        last = lines[-1].number if lines else 1
        if self.kernel is not None:
            self.error(self.kernel.line, "structure", f"kernel {self.kernel.name} is not closed")
        if not self.part_is_stated and not self.errors:
            self.error(1, "part", "the file does not state its part")
        if not entry and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if entry not in self.kernels and self.kernel is None:
            listed = ", ".join(self.kernels) or "none"
            self.error(last, "entry", f"{entry or '(give --entry)'}; the file has {listed}")
        return self.kernels.get(entry)

    def _block(self, lines: list[Line]) -> None:
        """Statements one after the other; a repeated block as often as it says."""
        position = 0
        while position < len(lines) and len(self.errors) < MAX_ERRORS:
            line = lines[position]
            position += 1
            try:
                if self._directive_of(line) == "repeat":
                    end = self._end_of_repeat(lines, position)
                    self._repeat(line, lines[position:end])
                    position = end + 1
                else:
                    self._statement(line)
            except Problem as problem:
                self.error(line.number, problem.kind, problem.text)
                if problem.kind == "program":
                    raise Endless from None

    def _directive_of(self, line: Line) -> str:
        """The directive of a line by its canonical name, or ""."""
        leader = self.syntax["leader"]
        if not line.text.startswith(leader):
            return ""
        word = line.text[len(leader) :].split(maxsplit=1)[0] if line.text != leader else ""
        if word not in self.words:
            near = get_close_matches(word, self.words, 1)
            hint = f"; the nearest is {leader}{near[0]}" if near else ""
            raise Problem("directive", f"{leader}{word}{hint}")
        return str(self.words[word])

    def _end_of_repeat(self, lines: list[Line], position: int) -> int:
        depth = 1
        leader, words = self.syntax["leader"], self.chip["directives"]
        for place in range(position, len(lines)):
            word = lines[place].text.split(maxsplit=1)[0]
            depth += (word == leader + words["repeat"]) - (word == leader + words["endrepeat"])
            if not depth:
                return place
        raise Problem("structure", "the repeated block is not closed")

    def _repeat(self, line: Line, body: list[Line]) -> None:
        if self.kernel is None:
            raise Problem("structure", "a repeated block stands outside a kernel")
        arguments = self._arguments(line, 1, 2)
        symbols = self.kernel.symbols
        count = self.operands.expression(arguments[0], symbols)
        if not 1 <= count <= self.chip["repeat_max"]:
            raise Problem("repeat", f"{count} is not between 1 and {self.chip['repeat_max']}")
        variable = arguments[1] if len(arguments) == 2 else ""
        if variable:
            self._check_new(variable)
        self.turns += count
        if self.turns > MAX_TURNS:
            raise Problem("program", f"its repeated blocks have more than {MAX_TURNS} turns")
        if self.nested == MAX_NESTED:
            raise Problem("structure", f"more than {MAX_NESTED} repeated blocks inside each other")
        self.nested += 1
        for turn in range(count):
            if variable:
                symbols.constants[variable] = turn
            self._block(body)
        self.nested -= 1
        symbols.constants.pop(variable, None)

    # -- statements

    def _statement(self, line: Line) -> None:
        directive = self._directive_of(line)
        if not self.part_is_stated and directive != "part":
            self.part_is_stated = True  # say it once
            word = self.syntax["leader"] + self.chip["directives"]["part"]
            self.error(line.number, "part", f"the file does not begin with {word}")
        if directive:
            getattr(self, f"_{directive}")(line)
        elif label := self.operands.label(line.text):
            self._label(label)
        else:
            self._instruction(line)

    def _arguments(self, line: Line, least: int, most: int) -> list[str]:
        word, _, rest = line.text.partition(" ")
        arguments = [part.strip() for part in rest.split(",")] if rest.strip() else []
        if not least <= len(arguments) <= most or "" in arguments:
            takes = f"{least}" if least == most else f"{least} or {most}"
            raise Problem("operands", f"{word} takes {takes}, {len(arguments)} are given")
        return arguments

    def _inside(self) -> Kernel:
        if self.kernel is None:
            raise Problem("structure", "this line stands outside a kernel")
        return self.kernel

    def _check_new(self, name: str) -> None:
        if not self.operands.is_name(name):
            raise Problem("syntax", f"{name} is no name")
        kernel = self._inside()
        if name in kernel.symbols or name in kernel.labels:
            raise Problem("duplicate", f"{name} is already declared")
        if self.operands.register(name):
            raise Problem("duplicate", f"{name} has the form of a register")

    def _part(self, line: Line) -> None:
        (name,) = self._arguments(line, 1, 1)
        if self.part_is_stated:
            raise Problem("structure", "the part is stated once, at the start of the file")
        self.part_is_stated = True
        if name != self.chip["id"]:
            raise Problem("part", f"the file is for {name}, this is {self.chip['id']}")

    def _kernel(self, line: Line) -> None:
        (name,) = self._arguments(line, 1, 1)
        if self.kernel is not None:
            raise Problem("structure", f"kernel {self.kernel.name} is not closed before {name}")
        if not self.operands.is_name(name):
            raise Problem("syntax", f"{name} is no name")
        self.kernel = Kernel(name, line.number)
        if name in self.kernels:
            raise Problem("duplicate", f"there is a kernel {name} already")

    def _end(self, line: Line) -> None:
        kernel = self._inside()
        self._arguments(line, 0, 0)
        self.kernels.setdefault(kernel.name, kernel)
        self.kernel = None
        for place, operand, label in kernel.jumps:
            _, operands, number = kernel.code[place]
            if label not in kernel.labels:
                near = get_close_matches(label, kernel.labels, 1)
                hint = f"; the nearest is {near[0]}" if near else ""
                self.error(number, "label", f"{label}{hint}")
            operands[operand] = kernel.labels.get(label, 0)
        if not kernel.code or kernel.code[-1][0] not in ("halt", "jump"):
            raise Problem("ending", f"kernel {kernel.name}")
        past = [label for label, place in kernel.labels.items() if place == len(kernel.code)]
        if past:
            raise Problem("ending", f"there is no instruction behind label {past[0]}")

    def _input(self, line: Line) -> None:
        self._argument(line, "inputs")

    def _output(self, line: Line) -> None:
        self._argument(line, "outputs")

    def _argument(self, line: Line, role: str) -> None:
        kernel = self._inside()
        (name,) = self._arguments(line, 1, 1)
        if kernel.code:
            raise Problem("structure", "arguments are declared before the first instruction")
        self._check_new(name)
        getattr(kernel.symbols, role).append(name)

    def _const(self, line: Line) -> None:
        kernel = self._inside()
        name, text = self._arguments(line, 2, 2)
        self._check_new(name)
        kernel.symbols.constants[name] = self.operands.expression(text, kernel.symbols)

    def _scratch(self, line: Line) -> None:
        kernel = self._inside()
        name, text = self._arguments(line, 2, 2)
        self._check_new(name)
        size = self.operands.expression(text, kernel.symbols) * self.chip["unit_bytes"]
        kernel.symbols.constants[name] = kernel.scratch // self.chip["unit_bytes"]
        if size <= 0 or size % 4:
            raise Problem("block", f"{name} has {size} bytes")
        align = max(self.chip["vector_align"], self.chip["dma_align"])
        fitted = kernel.scratch <= self.chip["scratch_bytes"]
        kernel.scratch += -(-size // align) * align
        if fitted and kernel.scratch > self.chip["scratch_bytes"]:
            limit = self.chip["scratch_bytes"]
            raise Problem(
                "scratch", f"with {name} {kernel.scratch} bytes, the scratchpad has {limit}"
            )

    def _endrepeat(self, line: Line) -> None:
        raise Problem("structure", "there is no repeated block to close")

    def _label(self, name: str) -> None:
        self._check_new(name)
        kernel = self._inside()
        kernel.labels[name] = len(kernel.code)

    def _instruction(self, line: Line) -> None:
        word, _, rest = line.text.partition(" ")
        operation = self.mnemonics.get(word)
        if operation is None:
            if not self.operands.is_mnemonic(word):
                raise Problem("syntax", line.text[:60])
            near = get_close_matches(word, self.mnemonics, 1)
            hint = f"; the nearest is {near[0]}" if near else ""
            raise Problem("mnemonic", f"{word}{hint}")
        kernel = self._inside()
        if len(kernel.code) >= self.chip["code_limit"]:
            limit = self.chip["code_limit"]
            raise Problem("program", f"kernel {kernel.name} has more than {limit} instructions")
        texts = [part.strip() for part in rest.split(",")] if rest.strip() else []
        try:
            operands = self.operands.of(operation, texts, kernel.symbols)
        except Problem:
            kernel.code.append((operation, [], line.number))  # labels keep their places
            raise
        for place, operand in enumerate(operands):
            if isinstance(operand, str):
                kernel.jumps.append((len(kernel.code), place, operand))
        kernel.code.append((operation, operands, line.number))


def object_of(kernel: Kernel, name: str, chip: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "chip": chip["id"],
        "source": name,
        "kernel": kernel.name,
        "inputs": kernel.symbols.inputs,
        "outputs": kernel.symbols.outputs,
        "scratch_bytes": kernel.scratch,
        "code": kernel.code,
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
    assembler = Assembler(asked.source.name, chip)
    kernel = assembler.assemble(source, asked.entry)
    if assembler.errors or kernel is None:
        for message in list(assembler.errors)[:MAX_ERRORS]:
            print(message, file=sys.stderr)
        print(f"{len(assembler.errors)} errors, no object file", file=sys.stderr)
        return 1
    described = object_of(kernel, asked.source.name, chip)
    asked.output.write_text(json.dumps(described) + "\n", encoding="utf-8")
    print(f"{kernel.name}: {len(kernel.code)} instructions, {kernel.scratch} bytes of scratchpad")
    return 0


if __name__ == "__main__":
    sys.exit(main())
