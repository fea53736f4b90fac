"""Tables of a PDF page, as cells: with rules, or with white space between their columns.

pdfplumber's table algorithm gets the rules that pdfium found: no page is parsed twice, and a page
without rules costs nothing. Cells get the words of the page. Does not know captions or the next
page.
"""

from __future__ import annotations

import math
import re
import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from pdfplumber.table import (
    cells_to_tables,
    edges_to_intersections,
    intersections_to_cells,
    merge_edges,
)

from ingestion.elements import Table, make_table
from ingestion.formats.pdf.page import (
    PageText,
    PathBox,
    Word,
    cells_of_line,
    confidence_of,
    in_one_column,
    join_lines,
)

MAX_HEADER_ROWS = 3
_THIN, _SHORT, _SNAP = 2.5, 3.0, 3.0
_MAX_EDGES, _MAX_COLUMNS = 4000, 40
_STACKED = 3  # lines at equal heights in all columns that are rows and not wrapped text


@dataclass(frozen=True)
class PlacedTable:
    """A table and its place. `columns` are the x of its column edges. `header_sure`: the header
    looks different from the body; otherwise it is the first row."""

    table: Table
    page: int
    x0: float
    y0: float
    x1: float
    y1: float
    columns: tuple[float, ...]
    header_sure: bool
    words: tuple[Word, ...]
    confidence: float | None = None


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
        column, row = _index(xs, box[0]), _index(ys, box[1])
        spans = max(1, _index(ys, box[3]) - row), max(1, _index(xs, box[2]) - column)
        cells.append(_cell((row, column, *spans), words, page.index, vocabulary))
    filled = [c for c in cells if c.text]
    rows_used, columns_used = {c.row for c in filled}, {c.column for c in filled}
    if len(rows_used) < 2 or len(columns_used) < 2 or len(filled) < 0.3 * len(cells):
        return None
    return _table_of(cells, xs, ys, used, page.index)


def _table_of(
    cells: Sequence[Cell], xs: Sequence[float], ys: Sequence[float], used: Sequence[Word], page: int
) -> PlacedTable:
    """The table of these cells, with the coordinates of its columns and rows."""
    cells, kept_columns = _without_empty_columns(_with_signs(cells, len(xs) - 1), len(xs) - 1)
    rows: list[list[Cell]] = [[] for _ in ys[1:]]
    for cell in cells:
        rows[cell.row].append(cell)
    header_count, sure = _header_rows(rows)
    grid = _grid(cells, len(rows), len(kept_columns), header_count)
    body = []
    for number, row in enumerate(grid[header_count:], header_count):
        body += _unstacked(rows[number], len(kept_columns)) or [row]
    table = make_table(grid[:header_count], body)
    edges = (*(xs[c] for c in kept_columns), xs[-1])
    place = (page, xs[0], ys[0], xs[-1], ys[-1])
    return PlacedTable(table, *place, edges, sure, tuple(used), confidence_of(used))


def _holds(box: Box4, word: Word) -> bool:
    middle = word.base - 0.3 * word.size
    return box[0] <= (word.x0 + word.x1) / 2 < box[2] and box[1] <= middle < box[3]


def _cell(
    place: tuple[int, int, int, int], words: Sequence[Word], page: int, vocabulary: Collection[str]
) -> Cell:
    """The cell of these words; `place` is its row and column, and how many of each it spans."""
    lines = in_one_column(words, page)
    return Cell(
        *place,
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


def _with_signs(cells: Sequence[Cell], count: int) -> Sequence[Cell]:
    """The cells with those of a column of signs joined to the numbers beside them: "$" to the next
    column, "%" and ")" to the one before."""
    for column in range(count):
        texts = [c.text for c in cells if c.column == column and c.columns == 1 and c.text]
        for signs, beside in ((_CURRENCIES, column + 1), ("%)", column - 1)):
            if texts and all(text in signs for text in texts):
                cells = _joined_columns(cells, column, beside)
                break
    return cells


def _joined_columns(cells: Sequence[Cell], column: int, beside: int) -> list[Cell]:
    first = min(column, beside)
    joined: list[Cell] = []
    for cell in sorted(cells, key=lambda c: (c.row, c.column)):
        last = joined[-1] if joined else None
        if last and last.row == cell.row and last.column == first and cell.column == first + 1:
            text = " ".join(filter(None, (last.text, cell.text)))
            fonts = last.fonts | cell.fonts
            width = cell.column + cell.columns - first
            joined[-1] = replace(last, text=text, fonts=fonts, columns=width, lines=())
        elif cell.column == first + 1:
            joined.append(replace(cell, column=first, columns=cell.columns + 1))
        else:
            joined.append(cell)
    return joined


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


def _header_rows(rows: Sequence[Sequence[Cell]]) -> tuple[int, bool]:
    """The number of header rows, and whether they look different from the body."""
    row_count = len(rows)
    most = min(MAX_HEADER_ROWS, row_count - 1)
    body_fonts = frozenset[str]().union(*(c.fonts for row in rows[most:] for c in row))
    below = [c for row in rows[1:] for c in row]
    body_bold = sum(c.bold for c in below) > 0.5 * sum(bool(c.text) for c in below)

    def is_header(row: Sequence[Cell]) -> bool:
        filled = [c for c in row if c.text]
        if row is not rows[0] and [(c.column, c.columns) for c in filled] == [(0, 1)]:
            return False  # the label of a group of rows
        same = [c for c in filled if (body_bold or not c.bold) and c.fonts & body_fonts]
        return bool(filled) and not same

    styled = sum(1 for _ in takewhile(is_header, rows[:most]))
    count = max(styled, _spanned_depth(rows, row_count))
    if count:
        return min(count, most), True
    first = [c.text for c in rows[0] if c.text]
    named = sum(bool(_NAMED.search(text)) for text in first)
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


# -- tables without rules: rows of cells with wide spaces between them, at equal places

_GAP = 1.0  # least space between cells, in font sizes; spaces of justified prose are smaller
_SIGNS = 0.7  # share of signs in a column that belongs to its neighbour
_ROW_PITCH = 3.2  # most distance of two rows, in font sizes
_WRAPPED = 1.4  # most distance of the lines of one cell, in font sizes
_LEAST_ROWS = 3  # with several cells
_LABELS = 2  # rows of one cell, such as a label of a group, between rows of several
_CROSSED = 0.12  # share of rows whose text may cross the space between two columns
_ALIGNED = 0.7  # share of the cells of a column that begin or end at one place
_LONG = 6  # words of a cell that may be a line of prose
# Of a header: words, years, numbers of bits.
_NAMED = re.compile(r"[^\W\d_]|^(?:19|20)\d\d\b|^\d+:\d+$")
_LEADERS = re.compile(r"(?:\s?[.\u2026\u00b7]){4,}")
_MARK = re.compile(r"[^\w\s]|\(?(?:\d{1,2}|[a-z]|[ivx]{1,4})[.)]|\[\w+\]")
_BIT = re.compile(r"(?:([A-Z]+)(?:-(?=\d))?)?(\d{1,4})?")
_WIDTH = 10_000  # for a name of a width, as in XLEN-1
_LARGER = 1.15  # size of a heading over that of a table
_CAPTION = re.compile(r"(?:table|figure|fig\.|listing)\s*[A-Z]?\d", re.I)
_REMARKS = ("#", "//", "/*", ";", "--")
_CURRENCIES = "$\u20ac\u00a3\u00a5"
Row = list[list[Word]]


def unruled_tables(
    lines: Sequence[Sequence[Word]], page: int, vocabulary: Collection[str] = ()
) -> list[PlacedTable]:
    """The tables without rules among the lines of one column of a page."""
    rows = [cells_of_line(line, _GAP) for line in lines]
    tables = (_unruled(block, page, vocabulary) for block in _row_blocks(rows))
    return [table for table in tables if table is not None]


def _row_blocks(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows close to each other, each of several cells or a label between such rows."""
    block: list[Row] = []
    for row in rows:
        apart = bool(block) and _distance(block[-1], row) > _ROW_PITCH * _size(row)
        labels = sum(1 for _ in takewhile(lambda r: len(r) == 1, reversed(block)))
        many_labels = len(row) == 1 and labels >= _LABELS
        if block and (apart or many_labels or _begins_other(block, row)):
            yield _trimmed(block)
            block = []
        if not _is_code(row) and (len(row) > 1 or block or _is_short(row)):
            block.append(row)
    yield _trimmed(block)


def _begins_other(block: Sequence[Row], row: Row) -> bool:
    """Whether a row is no row of the table above it: code, a caption, a heading in larger type, or
    the bits of the next encoding."""
    first = " ".join(word.text for word in row[0])
    # The numbers of bits above an encoding are smaller than its fields.
    size = _size(row)
    larger = len(block) >= _LEAST_ROWS and all(
        size > _LARGER * _size(other) for other in reversed(block)
    )
    return larger or _is_code(row) or bool(_bits_of(row)) or bool(_CAPTION.match(first))


def _trimmed(block: list[Row]) -> list[Row]:
    """The rows up to the last of several cells, from the first on, or from a heading over columns
    other than the first."""
    several = [n for n, row in enumerate(block) if len(row) > 1]
    if not several:
        return []
    first = several[0]
    left = min(row[0][0].x0 for row in block[first : several[-1] + 1])
    while first and block[first - 1][0][0].x0 > left + 40:
        first -= 1
    return block[first : several[-1] + 1]


def _distance(above: Row, below: Row) -> float:
    return below[0][0].base - above[0][0].base


def _size(row: Row) -> float:
    return max(word.size for cell in row for word in cell)


def _is_short(row: Row) -> bool:
    return len(row) == 1 and len(row[0]) <= _LONG


def _is_code(row: Row) -> bool:
    return all(word.font.mono for cell in row for word in cell)


def _unruled(block: Sequence[Row], page: int, vocabulary: Collection[str]) -> PlacedTable | None:
    several = [row for row in block if len(row) > 1]
    bits = _bit_fields(block) if len(block) > 1 else []
    if len(several) < _LEAST_ROWS and not bits:
        return None
    xs = bits or _column_edges(several)
    if not 3 <= len(xs) <= _MAX_COLUMNS + 1:
        return None
    if bits:
        grid = [_in_fields(row, xs, is_bits=row is block[0]) for row in block]
    else:
        grid = [_by_column(row, xs) for row in _unwrapped(block, xs)]
        if not _is_table(grid, len(xs) - 1):
            return None
    cells = [
        _cell((number, first, 1, last - first + 1), words, page, vocabulary)
        for number, row in enumerate(grid)
        for (first, last), words in sorted(row.items())
    ]
    used = [word for row in block for cell in row for word in cell]
    ys = [min(w.y0 for words in row.values() for w in words) for row in grid]
    return _table_of(cells, xs, [*ys, max(w.y1 for w in used)], used, page)


def _bit_fields(block: Sequence[Row]) -> list[float]:
    """The edges of the fields of an encoding, if the first row has the numbers of their highest and
    lowest bits, such as 31 25 24 20 19 15; else empty."""
    top = [word for cell in block[0] for word in cell]
    bits = _bits_of(block[0])
    if not bits:
        return []
    parts = max((list(_parts(row)) for row in block[1:]), key=len)
    if not len(parts) <= len(bits) <= 2 * len(parts) <= 2 * _MAX_COLUMNS:
        return []
    # The cheapest way to read the numbers as fields without a space between them, of one number or
    # two, each over one part of the fullest row: (numbers read, parts read) -> (cost, begins).
    ways: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(0, 0): (0.0, ())}
    for part, words in enumerate(parts):
        middle = (words[0].x0 + words[-1].x1) / 2
        for start in range(part, len(top)):
            cost, begins = ways.get((start, part), (math.inf, ()))
            for end in (start + 1, start + 2):
                if end > len(top) or (end < len(top) and bits[end] != bits[end - 1] - 1):
                    continue
                away = abs((top[start].x0 + top[end - 1].x1) / 2 - middle)
                way = (cost + away, (*begins, start))
                ways[end, part + 1] = min(ways.get((end, part + 1), way), way)
    cost, begins = ways.get((len(top), len(parts)), (math.inf, ()))
    if math.isinf(cost):
        return []
    inner = [(top[n - 1].x1 + top[n].x0) / 2 for n in begins[1:]]
    words = [word for row in block for cell in row for word in cell]
    return [min(w.x0 for w in words), *inner, max(w.x1 for w in words)]


def _bits_of(row: Row) -> list[int]:
    """The numbers of bits of a row that has only such, from high to low; else empty."""
    texts = [word.text for cell in row for word in cell]
    numbers = [_BIT.fullmatch(text) for text in texts]
    if len(texts) < _LEAST_ROWS or not all(numbers):
        return []
    bits = [_WIDTH - int(m[2] or 0) if m[1] else int(m[2]) for m in numbers if m]
    return bits if all(high > low for high, low in pairwise(bits)) else []


def _parts(row: Row) -> Iterator[list[Word]]:
    for cell in row:
        yield from cells_of_line(cell, _GAP / 2)


def _in_fields(
    row: Row, xs: Sequence[float], *, is_bits: bool
) -> dict[tuple[int, int], list[Word]]:
    """The words of a row by field; two numbers of bits as 31:25."""
    fields: dict[tuple[int, int], list[Word]] = {}
    for word in (word for cell in row for word in cell):
        column = _column(word, xs)
        fields.setdefault((column, column), []).append(word)
    if is_bits:
        for words in fields.values():
            if len(words) == 2:
                both = f"{words[0].text}:{words[1].text}"
                words[:] = [replace(words[0], text=both, x1=words[1].x1)]
    return fields


def _column_edges(rows: Sequence[Row]) -> list[float]:
    """The left edge of each column, and the right edge of the last: the middles of the spaces that
    hardly any row crosses. A column of signs such as "$" belongs to its neighbour."""
    spans = [[(cell[0].x0, cell[-1].x1) for cell in row] for row in rows]
    places = sorted({x for row in spans for span in row for x in span})
    most = int(_CROSSED * len(rows))
    spaces: list[tuple[float, float]] = []
    begins, ends = (sorted(span[side] for row in spans for span in row) for side in (0, 1))
    for left, right in pairwise(places):
        if bisect_right(begins, left) - bisect_right(ends, left) > most:  # cells across this space
            continue
        if spaces and spaces[-1][1] == left:
            spaces[-1] = (spaces[-1][0], right)
        else:
            spaces.append((left, right))
    least = 0.4 * statistics.median(_size(row) for row in rows)
    middles = [(a + b) / 2 for a, b in spaces if b - a >= least]
    edges = [places[0], *middles, places[-1]]
    texts: list[list[str]] = [[] for _ in edges[1:]]
    for word in (word for row in rows for cell in row for word in cell):
        texts[bisect_right(middles, (word.x0 + word.x1) / 2)].append(word.text)
    kept = edges[:1]
    for edge, before, after in zip(middles, texts, texts[1:], strict=False):
        if _share_of(before, f"{_CURRENCIES}(") < _SIGNS and _share_of(after, "%)") < _SIGNS:
            kept.append(edge)
    return [*kept, edges[-1]]


def _share_of(texts: Sequence[str], signs: str) -> float:
    return sum(text in signs for text in texts) / max(1, len(texts))


def _by_column(row: Row, xs: Sequence[float]) -> dict[tuple[int, int], list[Word]]:
    """The words of a row by the first and last column of their cell. A sign of a currency belongs
    to the number after it."""
    cells: dict[tuple[int, int], list[Word]] = {}
    for number, cell in enumerate(row):
        columns = [_column(word, xs) for word in cell]
        if cell[-1].text in _CURRENCIES and number + 1 < len(row):
            columns[-1] = _column(row[number + 1][0], xs)
        if columns[0] != columns[-1] and _spans(cell, xs):
            cells.setdefault((columns[0], columns[-1]), []).extend(cell)
            continue
        for column, word in zip(columns, cell, strict=True):
            cells.setdefault((column, column), []).append(word)
    return cells


def _spans(cell: Sequence[Word], xs: Sequence[float]) -> bool:
    """Whether the words of a cell run over an edge without a wider space there."""
    gaps = [b.x0 - a.x1 for a, b in pairwise(cell)]
    over = [b.x0 - a.x1 for a, b in pairwise(cell) if _column(a, xs) != _column(b, xs)]
    return bool(over) and max(over) <= 1.5 * statistics.median_low(gaps)


def _column(word: Word, xs: Sequence[float]) -> int:
    middle = (word.x0 + word.x1) / 2
    return max(0, min(len(xs) - 2, sum(x <= middle for x in xs) - 1))


def _unwrapped(block: Sequence[Row], xs: Sequence[float]) -> list[Row]:
    """The rows with the further lines of their cells: lines that have nothing in the first column
    below a row that has."""
    rows: list[Row] = []
    for row in block:
        last = rows[-1] if rows else None
        columns = {_column(word, xs) for cell in row for word in cell}
        if (
            last is not None
            and 0 not in columns
            and _distance(last, row) <= _WRAPPED * _size(row)
            and columns <= {_column(word, xs) for cell in last for word in cell}
            and 0 in {_column(word, xs) for cell in last for word in cell}
            and not any(ch.isdigit() for cell in row for word in cell for ch in word.text)
        ):
            rows[-1] = [*last, *row]
        else:
            rows.append(row)
    return rows


def _is_table(grid: Sequence[dict[tuple[int, int], list[Word]]], columns: int) -> bool:
    """Whether rows of cells are a table: no list, table of contents or columns of prose."""
    filled = [row for row in grid if len(row) > 1]
    if len(filled) < max(_LEAST_ROWS, 4 if columns == 2 else 0):
        return False
    texts = [[" ".join(w.text for w in words) for words in row.values()] for row in grid]
    if sum(any(_LEADERS.search(text) for text in row) for row in texts) > 0.3 * len(grid):
        return False
    first = [row[0, 0] for row in filled if (0, 0) in row]
    marks = sum(bool(_MARK.fullmatch(words[0].text)) for words in first)
    remarks = sum(text.startswith(_REMARKS) for row in texts for text in row[-1:])
    if marks > 0.5 * len(first) or remarks > 0.3 * len(grid):
        return False
    by_column = [[row[c, c] for row in filled if (c, c) in row] for c in range(columns)]
    if sum(map(len, by_column)) < 0.5 * columns * len(filled):
        return False
    long = [statistics.median(map(len, column)) >= _LONG for column in by_column if column]
    if sum(long) > 1 or (columns == 2 and long[:1] == [True]):
        return False
    return all(_is_aligned(column) for column in by_column[1:] if len(column) >= _LEAST_ROWS)


def _is_aligned(cells: Sequence[Sequence[Word]]) -> bool:
    """Whether most cells of a column begin, end or have their middle at one place."""
    sides = (
        [cell[0].x0 for cell in cells],
        [cell[-1].x1 for cell in cells],
        [(cell[0].x0 + cell[-1].x1) / 2 for cell in cells],
    )
    most = 0
    for places in sides:
        counts = Counter(round(x / 6) for x in places)
        most = max(most, *(counts[n] + counts[n + 1] for n in counts))
    return most >= _ALIGNED * len(cells)
