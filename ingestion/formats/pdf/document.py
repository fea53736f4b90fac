"""PDF: text layer, outline and geometry through pdfium to elements with page, label and box.

Pages that hold only an image are reported as failures, never skipped in silence. Running heads,
page numbers and tables of contents are left out; everything else that pdfium reads ends up in
exactly one element.

It does not recognise text in images and knows nothing about passages. pdfium is not safe in several
threads: one process reads one document at a time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pypdfium2
import pypdfium2.raw as pdfium

from ingestion.elements import Box, Element, PageFailure, ParsedDocument
from ingestion.formats.pdf.blocks import (
    Block,
    Typography,
    block_text,
    blocks_of_page,
    continues_text,
    line_pitches,
)
from ingestion.formats.pdf.furniture import Content, normalised, without_furniture
from ingestion.formats.pdf.headings import Bookmark, body_of, headings_of, outline_of
from ingestion.formats.pdf.lines import Line, lines_of_page
from ingestion.formats.pdf.tables import PlacedTable, continues, joined, tables_of_page
from ingestion.formats.pdf.text import PageText, read_page
from ingestion.formats.tables import render_table
from ingestion.formats.titles import given_title
from kb.errors import ParseFailed

_SCANNED = "scanned: no text layer, only an image; run OCR on the file and upload it again"
_UNMAPPED = "text layer without a Unicode map: its characters cannot be read; run OCR on the file"
_UNLOADABLE = "the page is damaged: pdfium cannot load it"
_EMPTIED = "the file is truncated: nothing is left of this page"
_TRUNCATED = "the end of the file is missing: pages may be incomplete; download it again"
_END, _END_WITHIN = b"%%EOF", 2048
_IMAGE_SHARE, _UNREADABLE_SHARE = 0.2, 0.4
_FLOATS = (
    8  # how many figures, tables and footnotes a paragraph may pass on its way to the next page
)
_TOKEN = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")


@dataclass(frozen=True)
class _Read:
    """What the first pass keeps of a document: lines and tables, not words."""

    lines: tuple[tuple[Line, ...], ...]
    tables: tuple[tuple[PlacedTable, ...], ...]
    heights: tuple[float, ...]
    labels: tuple[str | None, ...]
    failures: tuple[PageFailure, ...]
    vocabulary: frozenset[str]


def parse_pdf(data: bytes) -> ParsedDocument:
    """Read a PDF; raises ParseFailed when no page of it can be read."""
    document = _open(data)
    try:
        truncated = _END not in data[-_END_WITHIN:]
        read = _read_pages(document, truncated)
        outline = outline_of(document)
        title = document.get_metadata_value("Title")
    finally:
        document.close()
    if len(read.failures) == len(read.lines) and all(
        f.reason in (_UNLOADABLE, _EMPTIED) for f in read.failures
    ):
        raise ParseFailed(
            "no page of this PDF can be read: the file is truncated or damaged",
            hint="Download or export the file again and upload it anew.",
        )
    parsed = _assemble(read, outline, title)
    return replace(parsed, warnings=(_TRUNCATED, *parsed.warnings)) if truncated else parsed


def _open(data: bytes) -> pypdfium2.PdfDocument:
    try:
        document = pypdfium2.PdfDocument(data)
        if len(document) == 0:
            document.close()
            raise ParseFailed(
                "this PDF has no pages", hint="Export the file again and upload it anew."
            )
        return document
    except pypdfium2.PdfiumError as error:
        code = getattr(error, "err_code", None)
        if code in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY):
            raise ParseFailed(
                "this PDF is encrypted and needs a password",
                hint="Save a copy without the password (qpdf --decrypt) and upload that.",
            ) from error
        raise ParseFailed(
            f"this PDF cannot be opened: {error}",
            hint="The file is truncated or is no PDF; download or export it again.",
        ) from error


def _read_pages(document: pypdfium2.PdfDocument, truncated: bool) -> _Read:
    lines: list[tuple[Line, ...]] = []
    tables: list[tuple[PlacedTable, ...]] = []
    heights: list[float] = []
    labels: list[str | None] = []
    failures: list[PageFailure] = []
    vocabulary: set[str] = set()
    for index in range(len(document)):
        page_lines: list[Line] = []
        page_tables: list[PlacedTable] = []
        try:
            page = read_page(document, index)
        except pypdfium2.PdfiumError:
            page = None
        reason = _UNLOADABLE if page is None else _failure(page, truncated)
        label = page.label if page else None
        if reason:
            failures.append(PageFailure(index, label, reason))
        elif page:
            for word in page.words:
                vocabulary.update(t.lower() for t in _TOKEN.findall(word.text))
            page_tables = tables_of_page(page, vocabulary)
            inside = {w.order for table in page_tables for w in table.words}
            page_lines = lines_of_page((w for w in page.words if w.order not in inside), index)
        lines.append(tuple(page_lines))
        tables.append(tuple(replace(t, words=()) for t in page_tables))
        heights.append(page.height if page else 0.0)
        labels.append(label)
    return _Read(
        tuple(lines),
        tuple(tables),
        tuple(heights),
        tuple(labels),
        tuple(failures),
        frozenset(vocabulary),
    )


def _failure(page: PageText, truncated: bool) -> str | None:
    if not page.words:
        if page.image_share > _IMAGE_SHARE:
            return _SCANNED
        return _EMPTIED if truncated else None
    return _UNMAPPED if page.unreadable_share > _UNREADABLE_SHARE else None


def _assemble(read: _Read, outline: Sequence[Bookmark], title: str | None) -> ParsedDocument:
    content = without_furniture(
        read.lines, read.heights, read.labels, {normalised(mark.title) for mark in outline}
    )
    body = body_of(content.pages)
    style = Typography(body, line_pitches(content.pages), read.vocabulary)
    headings = headings_of(content.pages, outline, read.heights, body, style.pitches)
    blocks: list[Block] = []
    for page, lines in enumerate(content.pages):
        added = blocks_of_page(page, lines, headings, read.tables[page], style)
        blocks = _appended(blocks, added, body.size)
    labels = [label or content.printed.get(i) for i, label in enumerate(read.labels)]
    elements = tuple(_element(block, labels, read.vocabulary) for block in blocks)
    return ParsedDocument(
        elements=tuple(e for e in elements if e.text.strip()),
        title=_title(title, elements, body.size, blocks),
        pages_seen=len(read.lines),
        failures=tuple(replace(f, page_label=labels[f.page_index]) for f in read.failures),
        warnings=_warnings(content, labels),
    )


def _warnings(content: Content, labels: Sequence[str | None]) -> tuple[str, ...]:
    if not content.contents_pages:
        return ()
    pages = ", ".join(labels[i] or str(i + 1) for i in content.contents_pages)
    return (f"the table of contents is left out (page {pages}): its entries are the headings",)


def _title(
    metadata: str | None, elements: Sequence[Element], body_size: float, blocks: Sequence[Block]
) -> str | None:
    """The title in the metadata unless that is a file name or what a program writes for want of
    one, else the largest heading up front.
    """
    if (given := given_title(metadata)) is not None:
        return given
    early = [
        (block.first.size, element.text)
        for block, element in zip(blocks, elements, strict=True)
        if block.kind == "title" and block.first.page < 2 and block.first.size > body_size
    ]
    return max(early, key=lambda pair: pair[0])[1] if early else None


def _appended(blocks: list[Block], added: list[Block], body_size: float) -> list[Block]:
    """The blocks of the next page after all others; what the page break divided is whole again."""
    for block in added:
        column_break = (
            blocks
            and block.pages
            and blocks[-1].pages
            and _new_column(blocks[-1].last, block.first)
        )
        if column_break and continues_text(blocks[-1], block):
            blocks[-1] = replace(blocks[-1], pages=blocks[-1].pages + block.pages)
        elif block is added[0] and _table_goes_on(blocks, block):
            before, rest = blocks[-1], block.placed[0]
            assert before.table is not None
            blocks[-1] = replace(
                before, placed=(*before.placed, rest), table=joined(before.table, rest)
            )
        elif block.kind == "text" and (home := _home(blocks, block, body_size)) is not None:
            blocks[home] = replace(blocks[home], pages=blocks[home].pages + block.pages)
        else:
            blocks.append(block)
    return blocks


def _new_column(last: Line, line: Line) -> bool:
    return (last.page, last.column) != (line.page, line.column)


def _table_goes_on(blocks: Sequence[Block], block: Block) -> bool:
    if not blocks or block.kind != "table" or blocks[-1].kind != "table" or block.pages:
        return False
    return (
        continues(blocks[-1].placed[-1], block.placed[0])
        and blocks[-1].placed[-1].page + 1 == block.placed[0].page
    )


def _home(blocks: Sequence[Block], block: Block, body_size: float) -> int | None:
    """The paragraph that this block goes on with, past floats and footnotes in between."""
    here = (block.first.page, block.first.column)
    for index in range(len(blocks) - 1, max(-1, len(blocks) - _FLOATS), -1):
        other = blocks[index]
        if other.kind in ("table", "caption"):
            continue
        if (other.last.page, other.last.column) == here or block.first.page - other.last.page > 1:
            return None
        if continues_text(other, block):
            return index
        footnote = other.kind in ("text", "list") and other.last.size < 0.93 * body_size
        if not footnote:
            return None
    return None


def _element(block: Block, labels: Sequence[str | None], vocabulary: frozenset[str]) -> Element:
    boxes = _boxes(block, labels)
    if block.kind == "table" and block.table is not None:
        return Element("table", render_table(block.table), table=block.table, boxes=boxes)
    return Element(block.kind, block_text(block, vocabulary), level=block.level, boxes=boxes)


def _boxes(block: Block, labels: Sequence[str | None]) -> tuple[Box, ...]:
    places: list[tuple[int, int, float, float, float, float]] = [
        (line.page, line.column, line.x0, line.y0, line.x1, line.y1)
        for part in block.pages
        for line in part
    ]
    if block.placed:
        places = [(p[0], 0, p[2], p[3], p[4], p[5]) for p in places]
    places += [(t.page, 0, t.x0, t.y0, t.x1, t.y1) for t in block.placed]
    boxes = []
    for page, column in sorted({place[:2] for place in places}):
        part = [place for place in places if place[:2] == (page, column)]
        x0, y0 = min(p[2] for p in part), min(p[3] for p in part)
        x1, y1 = max(p[4] for p in part), max(p[5] for p in part)
        boxes.append(Box(page, labels[page], *(round(v, 1) for v in (x0, y0, x1, y1))))
    return tuple(boxes)
