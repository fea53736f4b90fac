"""JSON that is a table: a list of objects with the same fields, alone or under names.

Anything else stays the text that it is. A notebook is JSON too and has a reader of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ingestion.elements import Element, ParsedDocument
from ingestion.formats.tables import make_table, table_element

MAX_FIELDS = 24
MAX_ROWS = 5_000
_PLAIN = (str, int, float, bool, type(None))


def parse_json_tables(text: str) -> ParsedDocument | None:
    """The tables of a JSON text, None where it is none or holds anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    groups = [("", value)] if not isinstance(value, dict) or _is_keyed(value) else value.items()
    elements: list[Element] = []
    for name, rows in groups:
        table = table_element(make_table(*_cells(rows))) if _rows(rows) else None
        if table is None:
            return None
        elements += [Element("title", str(name), level=1)] if name else []
        elements.append(table)
    return ParsedDocument(tuple(elements)) if elements else None


def _is_keyed(value: Mapping[str, Any]) -> bool:
    """`{"limit": {"value": 3, "unit": "count"}, ...}`: each field is a row."""
    return all(isinstance(row, dict) and "value" in row for row in value.values())


def _rows(value: Any) -> list[dict[str, Any]]:
    """The objects that are rows, each with plain values; empty where any is not."""
    if isinstance(value, dict) and value and _is_keyed(value):
        value = [{"key": key, **row} for key, row in value.items()]
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ROWS:
        return []
    good = (
        isinstance(row, dict) and all(isinstance(cell, _PLAIN) for cell in row.values())
        for row in value
    )
    return value if all(good) else []


def _cells(value: Any) -> tuple[Sequence[Sequence[str]], Sequence[Sequence[str]]]:
    rows = _rows(value)
    fields = list(dict.fromkeys(field for row in rows for field in row))[:MAX_FIELDS]
    return [fields], [list(_shown(row, fields)) for row in rows]


def _shown(row: Mapping[str, Any], fields: Sequence[str]) -> Iterator[str]:
    for field in fields:
        cell = row.get(field)
        yield "" if cell is None else cell if isinstance(cell, str) else json.dumps(cell)
