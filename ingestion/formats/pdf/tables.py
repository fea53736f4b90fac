"""Ruled tables of a PDF page, as cells.

pdfplumber's table algorithm gets the rules that pdfium found: no page is parsed twice, and a page
without rules costs nothing. Cells get the words of the page. Does not know captions or the next
page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from pdfplumber.table import (
    cells_to_tables,
    edges_to_intersections,
    intersections_to_cells,
    merge_edges,
)

from ingestion.elements import Table, make_table
from ingestion.formats.pdf.page import PageText, PathBox, Word, in_one_column, join_lines

MAX_HEADER_ROWS = 3
_THIN, _SHORT, _SNAP = 2.5, 3.0, 3.0
_MAX_EDGES, _MAX_COLUMNS = 4000, 40
_STACKED = 3  # lines at equal heights in all columns that are rows and not wrapped text


@dataclass(frozen=True)
class PlacedTable:
    """A table and its place. `columns` are the x of its column edges. `header_sure`: the header
    looks different from the body; otherwise it is the first row.
    """

    table: Table
    page: int
    x0: float
    y0: float
    x1: float
    y1: float
    columns: tuple[float, ...]
    header_sure: bool
    words: tuple[Word, ...]


@dataclass(frozen=True)
class Cell:
    """A cell of the grid: its first row and column, and how many of each it spans."""

    row: int
    column: int
    rows: int
    columns: int
    text: str
    fonts: frozenset[str]
    bold: bool
    lines: tuple[tuple[float, str], ...] = ()


Box4 = tuple[float, float, float, float]


def tables_of_page(page: PageText, vocabulary: Collection[str] = ()) -> list[PlacedTable]:
    """All tables of a page that have rules around their cells, from top to bottom."""
    edges = _edges(page)
    if len(edges) < 6 or len(edges) > _MAX_EDGES or not page.words:
        return []
    merged = merge_edges(edges, _SNAP, _SNAP, _SNAP, _SNAP)
    cells = intersections_to_cells(edges_to_intersections(merged, _SNAP, _SNAP))
    tables = []
    for group in cells_to_tables(cells):
        placed = _placed_table(group, page, vocabulary)
        if placed is not None:
            tables.append(placed)
    return tables


def _edges(page: PageText) -> list[dict[str, object]]:
    edges: list[dict[str, object]] = []
    for box in page.paths:
        width, height = box.x1 - box.x0, box.y1 - box.y0
        if width > 0.98 * page.width and height > 0.9 * page.height:
            continue
        if height <= _THIN and width > _SHORT:
            edges.append(_edge(box.x0, (box.y0 + box.y1) / 2, box.x1, (box.y0 + box.y1) / 2))
        elif width <= _THIN and height > _SHORT:
            edges.append(_edge((box.x0 + box.x1) / 2, box.y0, (box.x0 + box.x1) / 2, box.y1))
        elif width > _SHORT and height > _SHORT:
            edges += _frame(box)
    return edges


def _frame(box: PathBox) -> list[dict[str, object]]:
    return [
        _edge(box.x0, box.y0, box.x1, box.y0),
        _edge(box.x0, box.y1, box.x1, box.y1),
        _edge(box.x0, box.y0, box.x0, box.y1),
        _edge(box.x1, box.y0, box.x1, box.y1),
    ]


def _edge(x0: float, y0: float, x1: float, y1: float) -> dict[str, object]:
    return {
        "x0": x0,
        "x1": x1,
        "top": y0,
        "bottom": y1,
        "width": x1 - x0,
        "height": y1 - y0,
        "orientation": "h" if y0 == y1 else "v",
    }


def _steps(values: Iterable[float]) -> list[float]:
    """Sorted values with those within the snap distance merged."""
    steps: list[float] = []
    for value in sorted(values):
        if not steps or value - steps[-1] > _SNAP:
            steps.append(value)
    return steps


def _index(steps: Sequence[float], value: float) -> int:
    return min(range(len(steps)), key=lambda i: abs(steps[i] - value))


def _placed_table(
    group: Sequence[Box4], page: PageText, vocabulary: Collection[str]
) -> PlacedTable | None:
    xs = _steps(x for cell in group for x in (cell[0], cell[2]))
    ys = _steps(y for cell in group for y in (cell[1], cell[3]))
    if not (3 <= len(xs) <= _MAX_COLUMNS + 1 and len(ys) >= 3):
        return None
    inside = [
        w for w in page.words if xs[0] <= (w.x0 + w.x1) / 2 <= xs[-1] and ys[0] <= w.base <= ys[-1]
    ]
    cells: list[Cell] = []
    used: list[Word] = []
    for box in _unsplit(group, inside):
        words = [w for w in inside if _holds(box, w)]
        used += words
        cells.append(_cell(box, xs, ys, words, page.index, vocabulary))
    filled = [c for c in cells if c.text]
    rows_used, columns_used = {c.row for c in filled}, {c.column for c in filled}
    if len(rows_used) < 2 or len(columns_used) < 2 or len(filled) < 0.3 * len(cells):
        return None
    cells, kept_columns = _without_empty_columns(cells, len(xs) - 1)
    header_count, sure = _header_rows(cells, len(ys) - 1)
    grid = _grid(cells, len(ys) - 1, len(kept_columns), header_count)
    body = []
    for number, row in enumerate(grid[header_count:], header_count):
        body += _unstacked([c for c in cells if c.row == number], len(kept_columns)) or [row]
    table = make_table(grid[:header_count], body)
    edges = (*(xs[c] for c in kept_columns), xs[-1])
    return PlacedTable(table, page.index, xs[0], ys[0], xs[-1], ys[-1], edges, sure, tuple(used))


def _holds(box: Box4, word: Word) -> bool:
    middle = word.base - 0.3 * word.size
    return box[0] <= (word.x0 + word.x1) / 2 < box[2] and box[1] <= middle < box[3]


def _cell(
    box: Box4,
    xs: Sequence[float],
    ys: Sequence[float],
    words: Sequence[Word],
    page: int,
    vocabulary: Collection[str],
) -> Cell:
    column, row = _index(xs, box[0]), _index(ys, box[1])
    lines = in_one_column(words, page)
    return Cell(
        row=row,
        column=column,
        rows=max(1, _index(ys, box[3]) - row),
        columns=max(1, _index(xs, box[2]) - column),
        text=join_lines(_rewrapped([line.text for line in lines], vocabulary), vocabulary),
        fonts=frozenset(w.font.name for w in words),
        bold=bool(words) and all(w.font.bold for w in words),
        lines=tuple((line.base, line.text) for line in lines),
    )


def _unsplit(group: Sequence[Box4], words: Sequence[Word]) -> list[Box4]:
    """Join cells of one row if a word is printed across the rule between them."""
    out: list[Box4] = []
    for box in sorted(group, key=lambda b: (b[1], b[3], b[0])):
        last = out[-1] if out else None
        if last and last[1:4:2] == box[1:4:2] and last[2] == box[0] and _crossed(box, words):
            out[-1] = (last[0], last[1], box[2], last[3])
        else:
            out.append(box)
    return out


def _crossed(box: Box4, words: Sequence[Word]) -> bool:
    return any(
        w.x0 < box[0] - 2 and w.x1 > box[0] + 2 and box[1] < w.base - 0.3 * w.size < box[3]
        for w in words
    )


def _rewrapped(lines: Sequence[str], vocabulary: Collection[str]) -> list[str]:
    """Join words that a narrow column breaks without a hyphen: "Addres", "s"."""
    out: list[str] = []
    for line in lines:
        word = "".join(out[-1].split()[-1:]) + line if out else ""
        known = len(line) <= 2 and word.lower() in vocabulary
        tail = known or not any(ch.isalnum() for ch in line)
        if out and tail and " " not in out[-1] and not out[-1].endswith("-"):
            out[-1] += line
        else:
            out.append(line)
    return out


def _without_empty_columns(cells: Sequence[Cell], count: int) -> tuple[list[Cell], list[int]]:
    """Drop columns in which no cell with text begins, such as those between double rules."""
    filled = sorted({c.column for c in cells if c.text})
    place = {column: i for i, column in enumerate(filled)}
    moved = []
    for cell in cells:
        columns = range(cell.column, min(count, cell.column + cell.columns))
        covered = [place[c] for c in columns if c in place]
        if covered:
            moved.append(replace(cell, column=covered[0], columns=len(covered)))
    return moved, filled


def _header_rows(cells: Sequence[Cell], row_count: int) -> tuple[int, bool]:
    """The number of header rows, and whether they look different from the body."""
    rows = [[c for c in cells if c.row == r] for r in range(row_count)]
    most = min(MAX_HEADER_ROWS, row_count - 1)
    body_fonts = frozenset[str]().union(*(c.fonts for c in cells if c.row >= most))
    below = [c for c in cells if c.row >= 1]
    body_bold = sum(c.bold for c in below) > 0.5 * sum(bool(c.text) for c in below)

    def is_header(row: Sequence[Cell]) -> bool:
        filled = [c for c in row if c.text]
        same = [c for c in filled if (body_bold or not c.bold) and c.fonts & body_fonts]
        return bool(filled) and not same

    styled = sum(1 for _ in takewhile(is_header, rows[:most]))
    count = max(styled, _spanned_depth(rows, row_count))
    if count:
        return min(count, most), True
    first = [c.text for c in rows[0] if c.text]
    named = sum(any(ch.isalpha() for ch in text) for text in first)
    return int(named > 0.5 * len(first)), False


def _spanned_depth(rows: Sequence[Sequence[Cell]], row_count: int) -> int:
    """The number of header rows if cells of the first row span columns: the next rows name them."""
    if len(rows[0]) < 2 or not any(c.columns > 1 and c.column > 0 and c.text for c in rows[0]):
        return 0
    depth = max(c.rows for c in rows[0])
    while depth < min(MAX_HEADER_ROWS, row_count - 1):
        if not any(c.columns > 1 and c.text for c in rows[depth - 1]):
            break
        depth += 1
    return depth


def _grid(cells: Sequence[Cell], rows: int, columns: int, header: int) -> list[list[str]]:
    """A full grid: a header cell repeats in each column that it spans, a body cell in each row."""
    grid = [[""] * columns for _ in range(rows)]
    for cell in cells:
        across = range(cell.column, min(columns, cell.column + cell.columns))
        if cell.row < header:
            for column in across:
                grid[cell.row][column] = cell.text
        else:
            for row in range(cell.row, min(rows, cell.row + cell.rows)):
                grid[row][cell.column] = cell.text
    return grid


def _unstacked(cells: Sequence[Cell], columns: int) -> list[list[str]]:
    """The rows of a band with rules only between columns; empty if its lines are wrapped text."""
    counts = {len(c.lines) for c in cells}
    if len(cells) != columns or len(counts) != 1 or counts.pop() < _STACKED:
        return []
    rows = list(zip(*(c.lines for c in cells), strict=True))
    aligned = all(max(base for base, _ in row) - min(base for base, _ in row) < 2 for row in rows)
    return [[text for _, text in row] for row in rows] if aligned else []


def continues(first: PlacedTable, second: PlacedTable) -> bool:
    """Whether the second table has the columns of the first, as its rest would."""
    if len(first.columns) != len(second.columns):
        return False
    edges = zip(first.columns, second.columns, strict=True)
    return all(abs(a - b) <= 4.0 for a, b in edges)


def joined(first: Table, second: PlacedTable) -> Table:
    """The rows of both tables; a repeated header is dropped, a guessed one becomes a row."""
    header = second.table.header
    rows = second.table.rows
    if header and header != first.header and not (second.header_sure and first.header):
        rows = header + rows
    return Table(first.header, first.rows + rows, first.caption)
