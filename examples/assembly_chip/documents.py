"""The documentation of one chip: the texts of `manual/` with its words, signs and numbers.

In a text, `{{name}}` is a value, `{{@add}}` an instruction's name, `{{.kernel}}` a directive and
`{{! add s0, s1, #4}}` a line of canonical text. `{{?condition}}` keeps the rest of its line on some
chips only. Lines between `{{code}}` and `{{/code}}` are canonical text. Standard library only.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a program finds its neighbours by their bare names
    from examples.assembly_chip.dialect import KINDS, Dialect
else:
    from dialect import KINDS, Dialect

MANUAL = Path(__file__).resolve().parent / "manual"
_PLACEHOLDER = re.compile(r"\{\{([!@.]?)([^{}]+)\}\}")
_CONDITION = re.compile(r"^(\s*)\{\{\?(\w+)\}\}")
_LITERAL = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_UNITS: Mapping[int, tuple[str, str]] = {
    1: ("byte", "One unit is one byte, and a word has four of them."),
    4: ("word", "One unit is one word of 4 bytes, not one byte."),
}
Rows = Sequence[Sequence[str]]


def filled(text: str, chip: Mapping[str, Any], escape: Callable[[str], str] = str) -> str:
    """The text with the values of the chip; its literals stay between single backticks."""
    return Writer(chip, {}, {}).filled(text, escape)


def documents(
    chip: Mapping[str, Any],
    instructions: Mapping[str, Mapping[str, Any]],
    errors: Mapping[str, Mapping[str, Any]],
) -> dict[str, str]:
    """Every document by the name of its file."""
    writer = Writer(chip, instructions, errors)
    return {path.name: writer.document(path) for path in sorted(MANUAL.iterdir())}


def conditions(chip: Mapping[str, Any]) -> set[str]:
    """The conditions of texts that hold for this chip."""
    return {
        f"order_{chip['syntax']['order']}",
        f"unit_{_UNITS[chip['unit_bytes']][0]}",
        f"reduce_{chip['reduce_to']}",
        f"base_{chip['exp_base']}",
        "aread_clears" if chip["aread_clears"] else "aread_keeps",
        "shape_stays" if chip["shape_stays"] else "shape_once",
        "duplex" if chip["duplex"] else "simplex",
    }


def values(chip: Mapping[str, Any]) -> dict[str, Any]:
    """Values that the texts may name."""
    clock, lanes, bits = chip["clock_hz"], chip["lanes"], chip["imm_bits"]
    unit = chip["unit_bytes"]
    name, reminder = _UNITS[unit]
    syntax = chip["syntax"]
    return {
        **{key: value for key, value in chip.items() if isinstance(value, int | str)},
        **{f"field_{key}": word for key, word in chip["fields"].items()},
        **{f"code_{kind}": error["code"] for kind, error in chip["errors"].items()},
        **{key: syntax[key] for key in ("comment", "leader", "place")},
        **{f"letter_{bank}": f"{syntax['sigil']}{syntax[bank]}" for bank in "svat"},
        **_phrases(chip),
        "imm": syntax["immediate"],
        "Family": chip["family"].capitalize(),
        "clock_mhz": clock // 1_000_000,
        "peak_gflops": f"{2 * lanes * clock / 1e9:g}",
        "bandwidth_gb": f"{clock * chip['dma_bytes_per_cycle'] * (1 + chip['duplex']) / 1e9:g}",
        "memory_mib": chip["memory_bytes"] >> 20,
        "scratch_kib": chip["scratch_bytes"] >> 10,
        "scratch_units": chip["scratch_bytes"] // unit,
        "vector_bits": 32 * lanes,
        "vector_bytes": 4 * lanes,
        "vector_units": 4 * lanes // unit,
        **{
            f"{name}_size": _size(chip[name], unit)
            for name in ("vector_align", "dma_align", "max_transfer")
        },
        "block_align": max(chip["dma_align"], chip["vector_align"]),
        "imm_low": -(1 << bits - 1),
        "imm_high": (1 << bits - 1) - 1,
        "last_lane": lanes - 1,
        "last_tag": chip["tags"] - 1,
        "last_scalar": chip["scalars"] - 1,
        "last_vector": chip["vectors"] - 1,
        "last_acc": chip["accs"] - 1,
        "operation_count": len(chip["operations"]),
        "unit_name": name,
        "unit_reminder": reminder,
    }


def _size(count: int, unit: int) -> str:
    """Bytes, and address units where they differ."""
    return f"{count} bytes" if unit == 1 else f"{count} bytes ({count // unit} words)"


def _phrases(chip: Mapping[str, Any]) -> dict[str, str]:
    """Sentences about differences between chips other than numbers."""
    first = chip["syntax"]["order"] == "first"
    two = chip["exp_base"] == "2"
    return {
        "order_word": "before the sources" if first else "behind the sources",
        "order_example": "destination, source, source" if first else "source, source, destination",
        "exp_advice": "For powers of e, first multiply the argument by 1.4426950408889634, log2(e)."
        if two
        else "The base is e; no scaling of the argument is needed.",
        "reduce_text": "All lanes of the destination receive the result, inactive ones too."
        if chip["reduce_to"] == "all"
        else "Only lane 0 of the destination receives the result; all other lanes become 0.0.",
        "aread_text": "Reading clears the accumulator: it holds 0.0 in all lanes afterwards."
        if chip["aread_clears"]
        else "The accumulator keeps its contents.",
        "shape_text": "The setting holds for all later transfers until it is changed."
        if chip["shape_stays"]
        else "The setting holds for the next transfer only; after that transfer has been started "
        "the number of rows is 1 again.",
        "channel_text": "There are two channels, one for each direction, that work side by side."
        if chip["duplex"]
        else "There is one channel; transfers of both directions share it.",
    }


class Writer:
    """Fills the texts of one chip."""

    def __init__(
        self,
        chip: Mapping[str, Any],
        instructions: Mapping[str, Mapping[str, Any]],
        errors: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self.chip, self.instructions, self.errors = chip, instructions, errors
        self.dialect = Dialect(chip)
        self.values = values(chip)
        self.conditions = conditions(chip)

    # -- texts

    def filled(self, text: str, escape: Callable[[str], str] = str) -> str:
        def value(match: re.Match[str]) -> str:
            sign, name = match[1], match[2].strip()
            if sign == "@":
                return escape(str(self.chip["operations"][name]["name"]))
            if sign == ".":
                return escape(self.dialect.directive(name))
            if sign == "!":
                return escape(self.dialect.line(name))
            return escape(str(self.values[name]))

        return _PLACEHOLDER.sub(value, text)

    def document(self, path: Path) -> str:
        is_page = path.suffix == ".html"
        margin = 3 if path.suffix == ".rst" else 0
        text = "\n".join(self._lines(path.read_text(encoding="utf-8").splitlines(), margin))
        text = self.filled(text, html.escape if is_page else str)
        if path.suffix == ".rst":
            text = _LITERAL.sub(r"``\1``", text)
        elif is_page:
            text = _LITERAL.sub(r"<code>\1</code>", text)
        return text.rstrip() + "\n"

    def _lines(self, lines: Sequence[str], margin: int) -> list[str]:
        """The text for this chip: other chips' parts removed, code indented in its words, tables
        filled in."""
        kept: list[str] = []
        code: list[str] | None = None
        for line in lines:
            if match := _CONDITION.match(line):
                if match[2] not in self.conditions:
                    continue
                line = match[1] + line[match.end() :]
            if line.strip() == "{{code}}":
                code = []
            elif line.strip() == "{{/code}}":
                kept += _behind_margin(code or [], margin)
                code = None
            elif code is not None:
                code.append(self.dialect.line(self.filled(line)))
            elif match := re.fullmatch(r"\{\{table (\w+) ?(.*)\}\}", line.strip()):
                kept += getattr(self, f"_{match[1]}_lines")(match[2])
            else:
                kept.append(line)
        return kept

    # -- tables

    def _group_lines(self, group: str) -> list[str]:
        """The summary of a group of instructions, then each of them in full."""
        chosen = [name for name, row in self.instructions.items() if row["group"] == group]
        head = ("Instruction", "Purpose", "Result or next instruction after")
        rows = [
            (
                f"`{self.dialect.syntax_line(name)}`",
                self.instructions[name]["title"],
                _cycles(self.chip[self.instructions[name]["cycles"]]),
            )
            for name in chosen
        ]
        caption = f"{group.capitalize()}: summary"
        lines = list_table(caption, [head, *rows])
        for name in chosen:
            lines += ["", *self._instruction(name)]
        return lines

    def _instruction(self, operation: str) -> list[str]:
        row, dialect = self.instructions[operation], self.dialect
        name = self.chip["operations"][operation]["name"]
        named = dialect.named(operation)
        title = f"{name} - {row['title']}"
        cycles = self.chip[row["cycles"]]
        effect, detail = (
            re.sub(r"\{(\w+)\}", lambda match: named[match[1]], self.filled(row[part]))
            for part in ("effect", "detail")
        )
        return [
            title,
            "~" * len(title),
            "",
            f".. describe:: {dialect.syntax_line(operation)}",
            "",
            f"   {effect}",
            "",
            *self._operand_fields(operation),
            f"   :Cycles: {self._cycles(operation, cycles)}",
            f"   :Errors: {', '.join(self._codes(operation)) or 'none of its own'}",
            f"   :Example: `{self._example(operation)}`",
            "",
            f"   {detail}",
        ]

    def _operand_fields(self, operation: str) -> list[str]:
        description = self.chip["operations"][operation]
        named = self.dialect.named(operation)
        both = "read and written"
        places = (
            ("to", both if operation in ("amac", "amacl") else "written"),
            ("from", both if operation == "loop" else "read"),
            ("last", "used"),
        )
        listed = [
            f"{named[operand.split('.')[1]]} {KINDS[operand.split('.')[0]]} ({verb})"
            for place, verb in places
            for operand in description[place]
        ]
        return [f"   :Operands: {'; '.join(listed) or 'none'}"]

    def _cycles(self, operation: str, cycles: int) -> str:
        if operation in ("exp", "recip", "rsqrt"):
            busy = self.chip["special_cycles"]
            return f"result after {cycles}; the special function unit is busy for {busy}"
        if operation in ("dmain", "dmaout"):
            return f"{cycles} to start; see the chapter on transfers for their duration"
        if operation in ("jump", "blt", "bne", "loop"):
            return f"{cycles} if taken" + ("" if operation == "jump" else ", 1 if not")
        if not self.chip["operations"][operation]["to"] or operation == "vstore":
            return "1 to issue, and what it waits for" if operation == "wait" else "1 to issue"
        return f"1 to issue, result after {cycles}"

    def _codes(self, operation: str) -> list[str]:
        of_kind = {
            "S": ["immediate"],
            "F": ["float"],
            "n": ["lane"],
            "m": ["displacement", "bounds", "hazard"],
            "f": ["field"],
            "t": ["tag"],
            "l": ["label"],
            "p": ["direction", "device", "dma_align", "dma_size", "queue"],
        }
        of_operation = {"halt": ["unfinished"], "setlen": ["length"], "amac": ["unset"]}
        of_operation |= {name: ["vector_align"] for name in ("vload", "vstore", "vword")}
        description = self.chip["operations"][operation]
        kinds = [text[0] for place in ("to", "from", "last") for text in description[place]]
        wanted = [code for kind in kinds for code in of_kind.get(kind, [])]
        wanted += of_operation.get(operation, [])
        return [str(self.chip["errors"][kind]["code"]) for kind in dict.fromkeys(wanted)]

    def _example(self, operation: str) -> str:
        description = self.chip["operations"][operation]
        texts = []
        used = dict.fromkeys("sva", 0)
        plain = {"S": "#12", "F": "#0.5", "m": "[s4+2VB]", "t": "t1", "l": "next", "n": "#3"}
        argument = {"p": "y@s6" if operation == "dmaout" else "x@s6", "f": "x.cols"}
        for operand in (text for place in ("to", "from", "last") for text in description[place]):
            kind, letter = operand.split(".")
            if kind in used:
                used[kind] += 1
                texts.append(f"{kind}{used[kind]}")
            else:
                texts.append("s7" if letter == "len" else {**plain, **argument}[kind])
        return self.dialect.instruction(operation, texts)

    def _errors_lines(self, stage: str) -> list[str]:
        """A section for each code of the stage, in the order of the codes."""
        kinds = [kind for kind, row in self.errors.items() if row["stage"] == stage]
        lines: list[str] = []
        for kind in sorted(kinds, key=lambda kind: str(self.chip["errors"][kind]["code"])):
            error, row = self.chip["errors"][kind], self.errors[kind]
            title = f"{error['code']}: {error['text']}"
            lines += ["", title, "~" * len(title), "", self.filled(row["cause"]), ""]
            lines += [f"*Remedy.* {self.filled(row['remedy'])}"]
        return lines

    def _codes_lines(self, stage: str) -> list[str]:
        kinds = [kind for kind, row in self.errors.items() if row["stage"] == stage]
        rows = [(self.chip["errors"][k]["code"], self.chip["errors"][k]["text"]) for k in kinds]
        name = "Codes of the assembler" if stage == "assembler" else "Codes of the running chip"
        return list_table(name, [("Code", "Text"), *sorted(rows)])


def _cycles(count: int) -> str:
    return "1 cycle" if count == 1 else f"{count} cycles"


def _behind_margin(lines: Sequence[str], margin: int) -> list[str]:
    """The lines, moved to the right where they do not start behind the margin already."""
    least = min((len(line) - len(line.lstrip()) for line in lines if line), default=margin)
    missing = " " * max(0, margin - least)
    return [f"{missing}{line}".rstrip() for line in lines]


def list_table(caption: str, rows: Rows) -> list[str]:
    """A table of reStructuredText with one header row."""
    lines = [f".. list-table:: {caption}", "   :header-rows: 1", ""]
    for row in rows:
        lines += [f"   {'*' if not place else ' '} - {cell}" for place, cell in enumerate(row)]
    return lines
