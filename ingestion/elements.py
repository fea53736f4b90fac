"""What a parser saw: the words between a file format and everything after it.

A parser turns bytes into one `ParsedDocument`; sections, passages, tags and facts are made from it
and never look at the bytes again. Knows nothing about the catalog, hardware or embedding.

Invariant: `text` is what a reader of the document would read, in the document's own words. Text
formats (Markdown, reStructuredText, plain text) keep their source lines as they are, because a
rewritten line can no longer be quoted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

ElementKind = Literal["title", "text", "list", "table", "code", "caption"]


@dataclass(frozen=True)
class Box:
    """Where an element stands on a page: PDF points (1/72 inch), origin at the top left of the
    page.
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

    level: heading depth, 1 is the outermost; only for kind "title".
    language: of a code block, where the document says it.
    boxes: one per page the element touches; empty for formats without pages.
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
        return self.pages_seen - len(self.failures)

    @property
    def complete(self) -> bool:
        """False when any page was lost: such a document is `partial`, never `ready`."""
        return not self.failures
