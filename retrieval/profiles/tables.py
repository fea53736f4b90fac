"""CSV tables in a text: the header is found by its columns, after any other output."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class CsvTable:
    """A header and its rows; a row may be shorter or longer than the header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def place(self, *names: str) -> int | None:
        """The index of the first column with one of these names, ignoring case."""
        folded = [name.lower() for name in self.header]
        return next((folded.index(n.lower()) for n in names if n.lower() in folded), None)

    def cells(self, *names: str) -> Iterator[str]:
        """The column with one of these names; an empty text for rows that lack it."""
        place = self.place(*names)
        for row in self.rows:
            yield "" if place is None or place >= len(row) else row[place].strip()


def find_table(text: str, *columns: Sequence[str]) -> CsvTable | None:
    """The first table whose header has a column of each group of names, or None. A repeated header,
    as in concatenated files, is skipped.
    """
    groups = [[name.lower() for name in group] for group in columns]
    if not _holds(text, groups):
        return None
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if not _holds(line, groups):
            continue
        header = _cells(line)
        table = CsvTable(header, ())
        if all(table.place(*group) is not None for group in columns):
            rows = (tuple(row) for row in csv.reader(lines[place + 1 :]) if row)
            return CsvTable(header, tuple(row for row in rows if _stripped(row) != header))
    return None


def _holds(text: str, groups: Sequence[Sequence[str]]) -> bool:
    folded = text.lower()
    return all(any(name in folded for name in group) for group in groups)


def _cells(line: str) -> tuple[str, ...]:
    return _stripped(next(csv.reader([line]), []))


def _stripped(row: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell.strip().removeprefix("\ufeff").strip('"') for cell in row)
