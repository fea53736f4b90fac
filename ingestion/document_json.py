"""A ParsedDocument as JSON and back: how it crosses from the parsing process to its parent.

JSON, not pickle: the child has just read a stranger's file, and what it sends must not be able to
run code."""

from __future__ import annotations

import dataclasses
import datetime
import json
from typing import Any

from ingestion.elements import Box, Element, PageFailure, ParsedDocument, Table


def dumps(document: ParsedDocument) -> str:
    """Write a document; dates in front matter become ISO strings."""
    return json.dumps(dataclasses.asdict(document), ensure_ascii=False, default=_plain)


def loads(text: str) -> ParsedDocument:
    """Read what `dumps` wrote."""
    raw = json.loads(text)
    return ParsedDocument(
        elements=tuple(_element(e) for e in raw["elements"]),
        title=raw["title"],
        pages_seen=raw["pages_seen"],
        failures=tuple(PageFailure(**f) for f in raw["failures"]),
        warnings=tuple(raw["warnings"]),
        front_matter=raw["front_matter"],
    )


def _plain(value: Any) -> str:
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


def _element(raw: dict[str, Any]) -> Element:
    table = raw["table"]
    return Element(
        kind=raw["kind"],
        text=raw["text"],
        level=raw["level"],
        language=raw["language"],
        table=_table(table) if table else None,
        boxes=tuple(Box(**box) for box in raw["boxes"]),
    )


def _table(raw: dict[str, Any]) -> Table:
    rows = ("header", "rows")
    header, body = (tuple(tuple(row) for row in raw[name]) for name in rows)
    return Table(header, body, raw["caption"])
