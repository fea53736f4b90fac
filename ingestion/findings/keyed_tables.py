"""Facts under keys of their author's own: tables with a column of keys, one of values and one of
units, as limits are handed over in CSV or JSON.

Knows no chip. Known keys and labels are read in `facts`; what is read here is what that leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kb.hardware.facts import fact_keys, find_unit, mistyped_key

# Under "Property" a guide lists whatever there is: its rows without a fact are named in the report.
_KEY = re.compile(r"keys?|names?", re.I)
_VALUE = re.compile(r"values?", re.I)
_UNIT = re.compile(r"units?", re.I)
_NUMBER = re.compile(r"[+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_MAX_KEY, _MAX_UNIT = 64, 20


@dataclass(frozen=True)
class KeyedColumns:
    """The columns of a keyed table by their places."""

    key: int
    value: int
    unit: int


@dataclass(frozen=True)
class KeyedValue:
    """A row that was read: the value in the canonical unit where its unit is known, else in the
    unit that is stated."""

    key: str
    value: float
    unit: str


def keyed_columns(heads: Sequence[str]) -> KeyedColumns | None:
    """The columns of keys, values and units; None for a table that lacks one of them, or has two
    columns of values, which are of several subjects."""
    places = [
        [n for n, head in enumerate(heads) if pattern.fullmatch(head.strip())]
        for pattern in (_KEY, _VALUE, _UNIT)
    ]
    if any(len(columns) != 1 for columns in places):
        return None
    return KeyedColumns(places[0][0], places[1][0], places[2][0])


def keyed_value(row: Sequence[str], columns: KeyedColumns) -> KeyedValue | None:
    """The value of a row, None where it is no plain number, or its key or unit is none."""
    key = snake(row[columns.key])
    number = row[columns.value].strip()
    unit = row[columns.unit].strip() or "count"
    if not key or not _NUMBER.fullmatch(number) or len(unit) > _MAX_UNIT:
        return None
    value, known = float(number.replace(",", "")), fact_keys().get(key)
    stated = find_unit(unit)
    if known is not None and (stated is None or stated.canonical != known.unit):
        return None
    if known is not None and stated is not None and not known.plausible(value * stated.factor):
        return None
    if known is None and mistyped_key(key) is not None:
        key = f"x_{key}"[:_MAX_KEY]
    if stated is None:
        return KeyedValue(key, value, unit)
    return KeyedValue(key, value * stated.factor, stated.canonical)


def snake(label: str) -> str:
    """A label as a key: `Transfers in flight` is `transfers_in_flight`. Empty where it cannot be
    one."""
    key = re.sub(r"[^a-z0-9]+", "_", label.strip().strip("`*").lower()).strip("_")
    return key if key[:1].isalpha() and len(key) <= _MAX_KEY else ""


def keyed_rows(
    rows: Sequence[Sequence[str]], heads: Sequence[str]
) -> Iterator[tuple[int, KeyedColumns, KeyedValue]]:
    """Each row of a keyed table that gives a value, with its number; of a key that stands there
    twice with two values, none."""
    columns = keyed_columns(heads)
    if columns is None:
        return
    read = [(r, value) for r, row in enumerate(rows) if (value := keyed_value(row, columns))]
    values: dict[str, set[float]] = {}
    for _, value in read:
        values.setdefault(value.key, set()).add(value.value)
    for r, value in read:
        if len(values[value.key]) == 1:
            yield r, columns, value
