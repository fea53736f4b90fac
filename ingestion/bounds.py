"""A bound on what one line may become: a file of one endless line or word would else make tens of
thousands of passages that no reader ever cites.

What is beyond the bound is counted and named, so that the document is `partial`, never cut in
silence. Prose does not come near it: 40,000 characters are ten pages without a line end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ingestion.elements import Element, Table, render_table

LINE_CHARS = 40_000  # about 100 passages


@dataclass(frozen=True)
class CutLine:
    """A line that was cut: how it begins, its characters, and how many of them were kept."""

    begins: str
    characters: int
    kept: int

    def __str__(self) -> str:
        return (
            f"a line of {self.characters:,} characters ({self.begins!r}...) was cut after"
            f" {self.kept:,}; break it into lines to have the rest read"
        )


class _Bound:
    """Cuts lines, and keeps what it cut."""

    def __init__(self) -> None:
        self.cut: list[CutLine] = []

    def line(self, line: str) -> str:
        if len(line) <= LINE_CHARS:
            return line
        end = line.rfind(" ", LINE_CHARS // 2, LINE_CHARS)
        kept = line[: end if end > 0 else LINE_CHARS]
        self._note(line, len(line), len(kept))
        return kept

    def table(self, table: Table) -> Table:
        """With as many columns as fit into a line in every row. A row that loses cells is noted,
        however short they are.
        """
        rows = [tuple(map(self.line, row)) for row in table.header + table.rows]
        widths = [list(accumulate(len(cell) + 3 for cell in row)) for row in rows]
        columns = min((bisect_right(width, LINE_CHARS + 3) for width in widths), default=0)
        for row, width in zip(rows, widths, strict=True):
            if any(row[columns:]):
                self._note(" | ".join(row[:8]), width[-1], width[columns - 1])
        header = len(table.header)
        kept = tuple(row[: max(columns, 1)] for row in rows)
        return Table(kept[:header], kept[header:], table.caption)

    def _note(self, line: str, characters: int, kept: int) -> None:
        self.cut.append(CutLine(" ".join(line[:60].split())[:40], characters, kept))


def bounded(elements: Sequence[Element]) -> tuple[tuple[Element, ...], tuple[CutLine, ...]]:
    """The elements with every line and every row of a table within the bound, and what was cut."""
    bound = _Bound()
    return tuple(_bounded(element, bound) for element in elements), tuple(bound.cut)


def _bounded(element: Element, bound: _Bound) -> Element:
    if len(element.text) <= LINE_CHARS:  # and then so are its cells
        return element
    if element.table is None:
        return replace(element, text="\n".join(map(bound.line, element.text.split("\n"))))
    table = bound.table(element.table)
    return (
        element
        if table == element.table
        else replace(element, text=render_table(table), table=table)
    )
