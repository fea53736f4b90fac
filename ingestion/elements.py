"""What a parser saw: the words between a file format and everything after it.

A parser turns bytes into one `ParsedDocument`; sections, passages, tags and facts are made from it
and never look at the bytes again. Knows nothing about the catalog, hardware or embedding.

Invariant: `text` is what a reader of the document would read, in the document's own words. Text
formats (Markdown, reStructuredText, plain text) keep their source lines as they are, because a
rewritten line can no longer be quoted.

A document crosses from the parsing process to its parent as JSON, not as a pickle: the child has
just read a stranger's file, and what it sends must not be able to run code."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ElementKind = Literal["title", "text", "list", "table", "code", "caption"]


@dataclass(frozen=True)
class Box:
    """Where an element stands on a page: PDF points (1/72 inch), origin at the top left of the
    page. All four are 0 on slides and sheets, which are pages without places.
    """

    page_index: int
    page_label: str | None
    x0: float
    y0: float
    x1: float
    y1: float


@dataclass(frozen=True)
class Table:
    """A table as cells. `rows` excludes the `header` rows; all rows have equally many cells."""

    header: tuple[tuple[str, ...], ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str | None = None


@dataclass(frozen=True)
class Element:
    """One block of a document in reading order.

    `level` is the depth of a heading, 1 for the outermost; only titles have one. `language` is that
    of a code block, where the document states it. `boxes` has one for each page that the element
    touches; it is empty for formats without pages.
    """

    kind: ElementKind
    text: str
    level: int | None = None
    language: str | None = None
    table: Table | None = None
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class PageFailure:
    """A page of which nothing could be read, and why ("scanned: no text layer", ...)."""

    page_index: int
    page_label: str | None
    reason: str


@dataclass(frozen=True)
class ParsedDocument:
    """Everything a parser knows about one file. Formats without pages count as one page."""

    elements: tuple[Element, ...]
    title: str | None = None
    pages_seen: int = 1
    failures: tuple[PageFailure, ...] = ()
    warnings: tuple[str, ...] = ()
    front_matter: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pages_parsed(self) -> int:
        """Pages of which something was read, or that were blank."""
        return self.pages_seen - len(self.failures)

    @property
    def complete(self) -> bool:
        """False when any page was lost: such a document is `partial`, never `ready`."""
        return not self.failures


def document_to_json(document: ParsedDocument) -> str:
    """Write a document; dates in front matter become ISO strings."""
    return json.dumps(dataclasses.asdict(document), ensure_ascii=False, default=_plain)


def document_from_json(text: str) -> ParsedDocument:
    """Read what `document_to_json` wrote. Raises ValueError, KeyError or TypeError otherwise."""
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
