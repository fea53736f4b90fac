"""The output of a file reader: a document as elements, tables and boxes.

Readers turn bytes into one `ParsedDocument`; sections, passages, tags and facts are derived from it
without the bytes. Does not know the catalog, hardware or embedding. Invariant: `text` is the text
that a person reads in the document. Readers of text formats (Markdown, reStructuredText, plain
text) do not change source lines, so that they can be quoted.

A document crosses from the parser process to its parent as JSON, not as a pickle: the child has
just read an untrusted file, so its output must not be able to run code.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pydantic import TypeAdapter

ElementKind = Literal["title", "text", "list", "table", "code", "caption", "figure"]


@dataclass(frozen=True)
class Box:
    """The rectangle of an element on a page: PDF points (1/72 inch), origin at the top left of the
    page. All four coordinates are 0 on slides and sheets, which have no layout. `confidence` (0 to
    1) is the least of the lines that OCR read in it, None for a text layer."""

    page_index: int
    page_label: str | None
    x0: float
    y0: float
    x1: float
    y1: float
    confidence: float | None = None


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
    of a code block, if the document states it. `boxes` has one for each page that the element
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
    """A page that could not be read, and why ("scanned: no text layer", ...)."""

    page_index: int
    page_label: str | None
    reason: str


@dataclass(frozen=True)
class ParsedDocument:
    """The content of one file. Formats without pages count as one page."""

    elements: tuple[Element, ...]
    title: str | None = None
    pages_seen: int = 1
    failures: tuple[PageFailure, ...] = ()
    warnings: tuple[str, ...] = ()
    front_matter: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pages_parsed(self) -> int:
        """The number of pages that were read or are blank."""
        return self.pages_seen - len(self.failures)


def not_included(directive: str) -> str:
    """The warning for a directive whose file did not come with the file that includes it."""
    how = "send both in one request, as a ZIP, or with `kernlore ingest FOLDER`"
    return f"{directive} was not read, as no such file came with this one: {how}"


def document_to_json(document: ParsedDocument) -> str:
    """Write a document; dates in front matter become ISO strings."""
    return json.dumps(dataclasses.asdict(document), ensure_ascii=False, default=_plain)


def _plain(value: Any) -> str:
    dated = isinstance(value, datetime.date | datetime.time)
    return value.isoformat() if dated else str(value)


def document_from_json(text: str) -> ParsedDocument:
    """Read the JSON of `document_to_json`. Raises ValueError for anything else."""
    return _adapter().validate_json(text)


@cache
def _adapter() -> TypeAdapter[ParsedDocument]:
    from pydantic import TypeAdapter

    return TypeAdapter(ParsedDocument)


# -- tables


def make_table(
    header: Iterable[Sequence[str]], rows: Iterable[Sequence[str]], caption: str | None = None
) -> Table:
    """Clean cells, drop empty rows and pad every row to the widest one."""
    heads, body = _cleaned(header), _cleaned(rows)
    width = max(map(len, heads + body), default=0)
    return Table(
        header=tuple(row + ("",) * (width - len(row)) for row in heads),
        rows=tuple(row + ("",) * (width - len(row)) for row in body),
        caption=_one_line(caption or "") or None,
    )


def _cleaned(rows: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    cleaned = (tuple(map(_one_line, row)) for row in rows)
    return [row for row in cleaned if any(row)]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def table_element(table: Table, source: str | None = None) -> Element | None:
    """The element of a table, or None for one without cells. `source` is the table as written in
    the document, if a person can read that form."""
    if not table.header and not table.rows:
        return None
    if source is None:
        text = render_table(table)
    else:
        text = f"{table.caption}\n\n{source}" if table.caption else source
    return Element("table", text, table=table)


def render_table(table: Table) -> str:
    """The table in Markdown: caption, all header rows, a rule, the rows.

    Several header rows stay several lines above the rule, which strict Markdown does not allow, but
    merging them would make text that the document does not contain.
    """
    lines = [table.caption, ""] if table.caption else []
    lines += map(_line, table.header)
    if table.header:
        lines.append("|" + " --- |" * len(table.header[0]))
    lines += map(_line, table.rows)
    return "\n".join(lines)


def _line(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


# -- titles

_PLACEHOLDER = re.compile(
    r"\.(?:docx?|tex|dvi|pptx?|xlsx?|pdf|indd|fm|md|html?|rtf|odt)$"
    r"|^untitled\b|^microsoft (?:word|powerpoint|excel)\b|^\(?(?:anonymous|unnamed|no title)\)?$"
    r"|^(?:powerpoint presentation|word document|document\s*\d*|pdf document|none|null)$",
    re.IGNORECASE,
)


def metadata_title(metadata: str | None) -> str | None:
    """The title in a file's metadata; None for a file name ("x.docx", "Microsoft Word - x") or a
    placeholder that a program wrote, such as "untitled" or reportlab's "(anonymous)"."""
    title = _one_line(metadata or "")
    return title if title and not _PLACEHOLDER.search(title) else None
