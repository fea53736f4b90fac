"""The four ways reStructuredText writes a table, as cells.

Works on dedented lines and knows nothing about where in a document they stood. Spanned cells of
grid tables are read line by line, which keeps their words but not their extent.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence

from ingestion.elements import Table
from ingestion.formats.tables import make_table

GRID_BORDER = re.compile(r"^\+(?:[-=]+\+)+\s*$")
SIMPLE_BORDER = re.compile(r"^=+(?:[ \t]+=+)+\s*$")
_ROW = re.compile(r"^\*(?:\s|$)")
_CELL = re.compile(r"^-(?:\s|$)")
_PARTIAL_BORDER = re.compile(r"^[-=+]+$")


def list_table(lines: Sequence[str], options: Mapping[str, str], caption: str | None) -> Table:
    """A list of lists: `*` starts a row, `-` a cell."""
    rows = [_cells(item) for item in _split(lines, _ROW)]
    heads = _number(options.get("header-rows"))
    return make_table(rows[:heads], rows[heads:], caption)


def csv_table(lines: Sequence[str], options: Mapping[str, str], caption: str | None) -> Table:
    """Comma-separated rows; the header may stand in an option."""
    known = {"tab": "\t", "space": " "}
    delimiter = options.get("delim", ",")
    delimiter = known.get(delimiter, delimiter)
    separator = delimiter if len(delimiter) == 1 else ","

    def read(source: Sequence[str]) -> list[list[str]]:
        return list(csv.reader(source, delimiter=separator, skipinitialspace=True))

    rows = read([line for line in lines if line.strip()])
    heads = _number(options.get("header-rows"))
    header = read([options["header"]]) if options.get("header") else []
    return make_table(header + rows[:heads], rows[heads:], caption)


def grid_table(lines: Sequence[str], caption: str | None = None) -> Table:
    """A table drawn with `+---+` and `|`."""
    edges = [n for n, char in enumerate(lines[0].rstrip()) if char == "+"]
    groups: list[list[list[str]]] = []
    heads = 0
    row: list[list[str]] = []
    for line in lines[1:]:
        if GRID_BORDER.match(line):
            if row:
                groups.append(row)
            row = []
            if "=" in line:
                heads = len(groups)
        else:
            row.append(_grid_line(line.rstrip(), edges))
    rows = [_merged(group, len(edges) - 1) for group in groups]
    return make_table(rows[:heads], rows[heads:], caption)


def simple_table(lines: Sequence[str], caption: str | None = None) -> Table:
    """A table whose columns are underlined by `===`."""
    columns = [found.span() for found in re.finditer(r"=+", lines[0])]
    borders = [n for n, line in enumerate(lines) if SIMPLE_BORDER.match(line)]
    header: list[list[str]] = []
    rows: list[list[str]] = []
    for number, line in enumerate(lines):
        if number in borders or not line.strip() or not line.strip().strip("- "):
            continue
        target = header if len(borders) > 2 and number < borders[1] else rows
        cells = _simple_line(line, columns)
        if target and not cells[0].strip():
            target[-1] = [f"{old} {new}" for old, new in zip(target[-1], cells, strict=True)]
        else:
            target.append(cells)
    return make_table(header, rows, caption)


def _split(lines: Sequence[str], mark: re.Pattern[str]) -> list[list[str]]:
    """The items of a list without their marks. Lines before the first mark are dropped."""
    items: list[list[str]] = []
    indent: int | None = None
    for line in lines:
        stripped = line.lstrip()
        depth = len(line) - len(stripped)
        if mark.match(stripped) and (indent is None or depth <= indent):
            indent = depth
            items.append([" " * (depth + 1) + stripped[1:]])
        elif items:
            items[-1].append(line)
    return items


def _cells(row: list[str]) -> list[str]:
    return ["\n".join(cell) for cell in _split(row, _CELL)]


def _grid_line(line: str, edges: Sequence[int]) -> list[str]:
    """Cut at the edges drawn on this line; a spanning cell stays in its first column."""
    cells = [""] * (len(edges) - 1)
    start = 0
    for column in range(1, len(edges)):
        edge = edges[column]
        if edge >= len(line) or line[edge] in "|+" or column == len(edges) - 1:
            piece = line[edges[start] + 1 : edge].strip()
            cells[start] = "" if _PARTIAL_BORDER.match(piece) else piece
            start = column
    return cells


def _merged(group: Sequence[Sequence[str]], width: int) -> list[str]:
    return [" ".join(line[column] for line in group if line[column]) for column in range(width)]


def _simple_line(line: str, columns: Sequence[tuple[int, int]]) -> list[str]:
    ends = [start for start, _ in columns[1:]] + [max(len(line), columns[-1][1])]
    return [line[start:end] for (start, _), end in zip(columns, ends, strict=True)]


def _number(value: str | None) -> int:
    return int(value) if value and value.strip().isdigit() else 0
