"""PDF files to elements with page, label and box: lines become blocks (paragraphs, lists, listings,
headings, tables), and blocks that a page break divides are joined.

Pages with only an image, and pictures in other pages, are read by OCR if it is installed; without
it, such pages are reported as failures. Running heads, page numbers and tables of contents are left
out. All other text that pdfium reads is in exactly one element. pdfium is not thread-safe: a
process reads one document at a time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pypdfium2
import pypdfium2.raw as pdfium

from ingestion.elements import (
    Box,
    Element,
    ElementKind,
    PageFailure,
    ParsedDocument,
    Table,
    metadata_title,
    render_table,
)
from ingestion.formats.pdf.headings import (
    BodyStyle,
    Bookmark,
    Content,
    PageHeading,
    body_of,
    headings_of,
    normalised,
    outline_of,
    without_furniture,
)
from ingestion.formats.pdf.page import (
    LINE_END_HYPHEN,
    PageText,
    PathBox,
    TextLine,
    Word,
    join_lines,
    line_of,
    read_page,
    regions_of_page,
)
from ingestion.formats.pdf.pictures import (
    INSTALLED,
    PICTURE_SHARE,
    PlacedFigure,
    Recogniser,
    figures_of_page,
)
from ingestion.formats.pdf.tables import (
    PlacedTable,
    continues,
    joined,
    tables_of_page,
    unruled_tables,
)
from ingestion.limits import DocumentLimits
from kb.errors import ParseFailed

_SCANNED = "scanned: no text layer, only an image"
_UNMAPPED = "text layer without a Unicode map: its characters cannot be read"
_NO_OCR = "install kernlore[ocr] and upload the file again, or run OCR on it"
_NO_TEXT = "OCR reads no text on it"
_NO_TIME = "the time for OCR is over: split the file, or raise KERNLORE_PARSE_SECONDS"
_NO_PICTURES = "no time for OCR of pictures on {} of {} pages: raise KERNLORE_PARSE_SECONDS"
_UNLOADABLE = "the page is damaged: pdfium cannot load it"
_EMPTIED = "the file is truncated: nothing is left of this page"
_TRUNCATED = "the end of the file is missing: pages may be incomplete; download it again"
_END, _END_WITHIN = b"%%EOF", 2048
_IMAGE_SHARE, _UNREADABLE_SHARE = 0.2, 0.4
_FLOATS = 8  # figures, tables and footnotes between the two parts of a divided paragraph, at most
_TOKEN = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
Placed = PlacedTable | PlacedFigure


@dataclass(frozen=True)
class _PageContents:
    """The pages of a document as lines, tables and figures, without the words."""

    lines: tuple[tuple[TextLine, ...], ...]
    placed: tuple[tuple[Placed, ...], ...]
    heights: tuple[float, ...]
    labels: tuple[str | None, ...]
    failures: tuple[PageFailure, ...]
    vocabulary: frozenset[str]


def parse_pdf(data: bytes, limits: DocumentLimits | None = None) -> ParsedDocument:
    """Read a PDF; raises ParseFailed when no page of it can be read. OCR stops before the time of
    `limits` ends, so that the pages without it are not lost."""
    ocr = Recogniser((limits or DocumentLimits()).seconds) if INSTALLED else None
    document = _open(data)
    try:
        truncated = _END not in data[-_END_WITHIN:]
        read = _read_pages(document, truncated, ocr)
        outline = outline_of(document)
        title = document.get_metadata_value("Title")
    finally:
        document.close()
    damaged = [f for f in read.failures if f.reason in (_UNLOADABLE, _EMPTIED)]
    if len(damaged) == len(read.lines):
        raise ParseFailed(
            "no page of this PDF can be read: the file is truncated or damaged",
            hint="Download or export the file again and upload it anew.",
        )
    parsed = _assemble(read, outline, title)
    warnings = [_TRUNCATED] if truncated else []
    if ocr is not None and ocr.without_pictures:
        pages = len(set(ocr.without_pictures))
        warnings.append(_NO_PICTURES.format(pages, len(read.lines)))
    return replace(parsed, warnings=(*warnings, *parsed.warnings))


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


def _read_pages(
    document: pypdfium2.PdfDocument, truncated: bool, ocr: Recogniser | None
) -> _PageContents:
    lines: list[tuple[TextLine, ...]] = []
    placed: list[tuple[Placed, ...]] = []
    heights: list[float] = []
    labels: list[str | None] = []
    failures: list[PageFailure] = []
    vocabulary: set[str] = set()
    for index in range(len(document)):
        page_lines: list[TextLine] = []
        page_tables: list[PlacedTable] = []
        page_figures: list[PlacedFigure] = []
        try:
            page = read_page(document, index)
        except pypdfium2.PdfiumError:
            page = None
        reason = _UNLOADABLE if page is None else _failure(page, truncated)
        if page and reason in (_SCANNED, _UNMAPPED):
            page, reason = _recognised(document, page, reason, ocr)
        label = page.label if page else None
        if reason:
            failures.append(PageFailure(index, label, reason))
        elif page:
            for word in page.words:
                vocabulary.update(t.lower() for t in _TOKEN.findall(word.text))
            page_tables = tables_of_page(page, vocabulary)
            inside = {w.order for table in page_tables for w in table.words}
            outside = [w for w in page.words if w.order not in inside]
            page_figures = _figures(document, page, outside, page_tables, ocr)
            inside = {w.order for figure in page_figures for w in figure.words}
            regions = regions_of_page(w for w in outside if w.order not in inside)
            for column, region in enumerate(regions):
                unruled = unruled_tables(region, index, vocabulary)
                page_tables += unruled
                used = {w.order for table in unruled for w in table.words}
                rest = ([w for w in line if w.order not in used] for line in region)
                page_lines += [line_of(line, index, column) for line in rest if line]
        lines.append(tuple(page_lines))
        parts: list[Placed] = [*page_tables, *page_figures]
        placed.append(tuple(replace(part, words=()) for part in parts))
        heights.append(page.height if page else 0.0)
        labels.append(label)
    return _PageContents(
        tuple(lines),
        tuple(placed),
        tuple(heights),
        tuple(labels),
        tuple(failures),
        frozenset(vocabulary),
    )


def _recognised(
    document: pypdfium2.PdfDocument, page: PageText, reason: str, ocr: Recogniser | None
) -> tuple[PageText, str | None]:
    """The page with the words that OCR reads; the reason if it is not read."""
    if ocr is None:
        return page, f"{reason}; {_NO_OCR}"
    if not ocr.has_time():
        return page, f"{reason}; {_NO_TIME}"
    words = tuple(ocr.words(document[page.index]))
    return (replace(page, words=words), None) if words else (page, f"{reason}; {_NO_TEXT}")


def _figures(
    document: pypdfium2.PdfDocument,
    page: PageText,
    words: Sequence[Word],
    tables: Sequence[PlacedTable],
    ocr: Recogniser | None,
) -> list[PlacedFigure]:
    """The figures of a page; OCR reads pictures on a page with a text layer."""

    def read(part: PathBox) -> Sequence[Word]:
        if ocr is None:
            return ()
        if not ocr.has_time(PICTURE_SHARE):
            ocr.without_pictures.append(page.index)
            return ()
        first = len(page.words)
        found = ocr.words(document[page.index], part)
        return [replace(word, order=first + word.order) for word in found]

    places = [PathBox(t.x0, t.y0, t.x1, t.y1) for t in tables]
    if any(word.confidence is not None for word in words):
        return []  # a scan: its picture is the page
    return figures_of_page(page, words, places, read)


def _failure(page: PageText, truncated: bool) -> str | None:
    if not page.words:
        if page.image_share > _IMAGE_SHARE:
            return _SCANNED
        return _EMPTIED if truncated else None
    return _UNMAPPED if page.unreadable_share > _UNREADABLE_SHARE else None


def _assemble(
    read: _PageContents, outline: Sequence[Bookmark], title: str | None
) -> ParsedDocument:
    content = without_furniture(
        read.lines, read.heights, read.labels, {normalised(mark.title) for mark in outline}
    )
    body = body_of(content.pages)
    style = _Typography(body, _line_pitches(content.pages))
    headings = headings_of(content.pages, outline, read.heights, body, style.pitches)
    blocks: list[PageBlock] = []
    for page, lines in enumerate(content.pages):
        added = _blocks_of_page(page, lines, headings, read.placed[page], style)
        blocks = _appended(blocks, added, body.size)
    labels = [label or content.printed.get(i) for i, label in enumerate(read.labels)]
    elements = tuple(_element(block, labels, read.vocabulary) for block in blocks)
    return ParsedDocument(
        elements=tuple(e for e in elements if e.text.strip()),
        title=_title(title, elements, body.size, blocks),
        pages_seen=len(read.lines),
        failures=tuple(replace(f, page_label=labels[f.page_index]) for f in read.failures),
        warnings=_warnings(content, labels, elements),
    )


def _warnings(
    content: Content, labels: Sequence[str | None], elements: Sequence[Element]
) -> tuple[str, ...]:
    def listed(pages: Collection[int]) -> str:
        return ", ".join(labels[i] or str(i + 1) for i in sorted(pages))

    warnings = []
    if content.contents_pages:
        pages = listed(content.contents_pages)
        warnings.append(
            f"the table of contents is left out (page {pages}): its entries are the headings"
        )
    read = [box for e in elements for box in e.boxes if box.confidence is not None]
    if read:
        least = min(box.confidence or 0.0 for box in read)
        warnings.append(
            f"read by OCR, least confidence {least:.2f} (page"
            f" {listed({box.page_index for box in read})}): compare numbers with the page"
        )
    return tuple(warnings)


def _title(
    metadata: str | None, elements: Sequence[Element], body_size: float, blocks: Sequence[PageBlock]
) -> str | None:
    """The title in the metadata, else the largest heading of the first two pages."""
    if (given := metadata_title(metadata)) is not None:
        return given
    early = [
        (block.first.size, element.text)
        for block, element in zip(blocks, elements, strict=True)
        if block.kind == "title" and block.first.page < 2 and block.first.size > body_size
    ]
    return max(early, key=lambda pair: pair[0])[1] if early else None


def _appended(blocks: list[PageBlock], added: list[PageBlock], body_size: float) -> list[PageBlock]:
    """`blocks` with those of the next page; blocks that the page break divides are joined."""
    for block in added:
        last = blocks[-1] if blocks and blocks[-1].pages and block.pages else None
        column_break = last is not None and _new_column(last.last, block.first)
        if column_break and _continues_text(blocks[-1], block):
            blocks[-1] = replace(blocks[-1], pages=blocks[-1].pages + block.pages)
        elif block is added[0] and _continues_table(blocks, block):
            before, rest = blocks[-1], block.placed[0]
            assert before.table is not None and isinstance(rest, PlacedTable)
            table = joined(before.table, rest)
            blocks[-1] = replace(before, placed=(*before.placed, rest), table=table)
        elif (
            block.kind == "text" and (index := _continued_by(blocks, block, body_size)) is not None
        ):
            blocks[index] = replace(blocks[index], pages=blocks[index].pages + block.pages)
        else:
            blocks.append(block)
    return blocks


def _new_column(last: TextLine, line: TextLine) -> bool:
    return (last.page, last.column) != (line.page, line.column)


def _continues_table(blocks: Sequence[PageBlock], block: PageBlock) -> bool:
    if not blocks or block.kind != "table" or blocks[-1].kind != "table" or block.pages:
        return False
    first, second = blocks[-1].placed[-1], block.placed[0]
    assert isinstance(first, PlacedTable) and isinstance(second, PlacedTable)
    return first.page + 1 == second.page and continues(first, second)


def _continued_by(blocks: Sequence[PageBlock], block: PageBlock, body_size: float) -> int | None:
    """The index of the paragraph that this block continues, past floats and footnotes."""
    here = (block.first.page, block.first.column)
    for index in range(len(blocks) - 1, max(-1, len(blocks) - _FLOATS), -1):
        other = blocks[index]
        if other.kind in ("table", "caption", "figure"):
            continue
        if (other.last.page, other.last.column) == here or block.first.page - other.last.page > 1:
            return None
        if _continues_text(other, block):
            return index
        if other.kind not in ("text", "list") or other.last.size >= 0.93 * body_size:
            return None  # no footnote
    return None


def _element(block: PageBlock, labels: Sequence[str | None], vocabulary: frozenset[str]) -> Element:
    boxes = _boxes(block, labels)
    if block.kind == "table" and block.table is not None:
        return Element("table", render_table(block.table), table=block.table, boxes=boxes)
    if block.kind == "figure":
        caption = join_lines((line.text for line in _lines_of(block)), vocabulary)
        texts = (part.text for part in block.placed if isinstance(part, PlacedFigure))
        return Element("figure", "\n".join(filter(None, (caption, *texts))), boxes=boxes)
    return Element(block.kind, _block_text(block, vocabulary), level=block.level, boxes=boxes)


def _boxes(block: PageBlock, labels: Sequence[str | None]) -> tuple[Box, ...]:
    parts: dict[tuple[int, int], list[TextLine | Placed]] = {}
    for line in _lines_of(block):
        parts.setdefault((line.page, 0 if block.placed else line.column), []).append(line)
    for table in block.placed:
        parts.setdefault((table.page, 0), []).append(table)
    boxes = []
    for (page, _), part in sorted(parts.items(), key=lambda item: item[0]):
        x0, y0 = min(p.x0 for p in part), min(p.y0 for p in part)
        x1, y1 = max(p.x1 for p in part), max(p.y1 for p in part)
        least = min((p.confidence for p in part if p.confidence is not None), default=None)
        x0, y0, x1, y1 = (round(v, 1) for v in (x0, y0, x1, y1))
        boxes.append(Box(page, labels[page], x0, y0, x1, y1, least and round(least, 3)))
    return tuple(boxes)


# -- from lines to blocks

_BULLET = re.compile(r"^([•◦▪▫‣●○■□❑➢➤✓·∙*]|[-\u2013](?=\s)|o(?=\s))\s*")
_ENUMERATED = re.compile(r"^(?:\(?\d{1,2}[.)]|\([a-z]\)|[a-z]\)|\(?[ivx]{1,4}\))\s+(?=\S)")
_CAPTION = re.compile(r"^(?:table|figure|fig\.|tab\.|listing|algorithm)\s+[A-Z]?[\d.\-]*\d", re.I)
_CAPTION_MARK = re.compile(
    r"^(?:table|figure|fig\.|tab\.|listing|algorithm)\s+[A-Z]?[\d.\-]*\d\s*[:.|\u2013\u2014-]\s",
    re.I,
)
_TERMINAL = re.compile(r"[.!?:;][\"'\u201d\u2019)\]]*$")
_TERMINAL_STOP = re.compile(r"[.!?][\"'\u201d\u2019)\]]*$")
_MAX_CAPTION, _MAX_HEAD = 400, 200
_HEAD_DISTANCE = 2.5  # most distance of a table from its title, in font sizes


@dataclass(frozen=True)
class PageBlock:
    """An element with its lines: `pages` has one tuple for each page or column that it touches."""

    kind: ElementKind
    pages: tuple[tuple[TextLine, ...], ...]
    level: int | None = None
    placed: tuple[Placed, ...] = ()
    table: Table | None = None

    @property
    def first(self) -> TextLine:
        """Its first line."""
        return self.pages[0][0]

    @property
    def last(self) -> TextLine:
        """Its last line."""
        return self.pages[-1][-1]


@dataclass(frozen=True)
class _Typography:
    """The look of running text, and the usual distance in points of two lines of each size."""

    body: BodyStyle
    pitches: Mapping[float, float]

    def pitch(self, size: float) -> float:
        return self.pitches.get(size, 1.25 * size)


def _line_pitches(pages: Sequence[Sequence[TextLine]]) -> dict[float, float]:
    """The most frequent distance of two lines, for each font size."""
    counts: dict[float, Counter[float]] = {}
    for lines in pages:
        for first, second in pairwise(lines):
            distance = second.base - first.base
            if first.size == second.size and 0.8 * first.size < distance < 2.5 * first.size:
                counts.setdefault(first.size, Counter())[round(distance * 4) / 4] += 1
    return {size: min(c, key=lambda d: (-c[d], d)) for size, c in counts.items()}


def _blocks_of_page(
    page: int,
    lines: Sequence[TextLine],
    headings: Mapping[tuple[int, int], PageHeading],
    placed: Sequence[Placed],
    style: _Typography,
) -> list[PageBlock]:
    """The blocks of one page in reading order."""
    pending = sorted(placed, key=lambda t: (t.y0, t.x0))
    one_column = len({line.column for line in lines}) == 1
    blocks: list[PageBlock] = []
    current: list[TextLine] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        due = [t for t in pending if _comes_before(t, line, one_column)]
        heading = headings.get((page, index))
        if due or heading or (current and _starts_block(current, line, style)):
            blocks += _finish(current, style)
            current = []
        for part in due:
            blocks.append(_placed_block(part))
            pending.remove(part)
        if heading:
            title = tuple(lines[index : index + heading.count])
            blocks.append(PageBlock("title", (title,), heading.level))
            index += heading.count
            continue
        current.append(line)
        index += 1
    blocks += _finish(current, style)
    blocks += map(_placed_block, pending)
    return _with_captions(_merged_lists(blocks))


def _placed_block(part: Placed) -> PageBlock:
    if isinstance(part, PlacedFigure):
        return PageBlock("figure", (), placed=(part,))
    return PageBlock("table", (), placed=(part,), table=part.table)


def _comes_before(table: Placed, line: TextLine, one_column: bool) -> bool:
    """Whether the table or figure is above the line, and in its column if the page has several.
    (Not in one: a short heading can end left of a centred table.)"""
    return line.base > table.y1 - 2 and (one_column or (line.x0 < table.x1 and line.x1 > table.x0))


def _is_item(line: TextLine) -> bool:
    """Whether a line begins an item of a list."""
    return bool(_BULLET.match(line.text) or _ENUMERATED.match(line.text))


def _starts_block(block: Sequence[TextLine], line: TextLine, style: _Typography) -> bool:
    last, first = block[-1], block[0]
    if line.column != last.column or line.upright != last.upright:
        return True
    if line.mono != first.mono and not _inline_code(block, line, style):
        return True
    distance = line.base - last.base
    if line.mono and first.mono:
        return abs(line.size - last.size) > 0.6 or not 0 < distance < 3.2 * style.pitch(line.size)
    usual = block[1].base - first.base if len(block) > 1 else style.pitch(min(line.size, last.size))
    usual = max(usual, style.pitch(line.size)) if len(block) == 2 else usual
    apart = not 0 < distance <= 1.28 * max(usual, line.size)
    if apart or abs(line.size - last.size) > 0.12 * last.size or _is_item(line):
        return True
    if line.bold and not last.bold and _TERMINAL.search(last.text):
        return True
    if first.bold and not line.bold and len(block) == 1 and _TERMINAL.search(first.text) is None:
        return True
    return _indented_start(block, line)


def _inline_code(block: Sequence[TextLine], line: TextLine, style: _Typography) -> bool:
    """Whether a line continues a sentence although only one of the two is monospaced."""
    last, first = block[-1], block[0]
    if first.mono and len(block) > 1:
        return False
    left = first.hang if _is_item(first) else last.x0
    near = 0 < line.base - last.base <= 1.1 * style.pitch(style.body.size)
    return near and abs(line.x0 - left) < 2 and not _TERMINAL.search(last.text)


def _indented_start(block: Sequence[TextLine], line: TextLine) -> bool:
    """Whether a line begins a new paragraph by its position: indented and after a full stop, or, in
    a list, left of the item's text."""
    last, first = block[-1], block[0]
    if _is_item(first):
        return line.x0 < first.hang - 0.8 * line.size and line.x0 < first.x0 + 0.5 * line.size
    left = min(each.x0 for each in block[1:]) if len(block) > 1 else last.x0
    indent = line.x0 - left
    ended = _TERMINAL.search(last.text) is not None and line.column == last.column
    return ended and 0.8 * line.size < indent < 4 * line.size


def _finish(lines: Sequence[TextLine], style: _Typography) -> list[PageBlock]:
    if not lines:
        return []
    first = lines[0]
    kind: ElementKind = "text"
    if all(line.mono for line in lines):
        kind = "code"
    elif _is_item(first):
        kind = "list"
    elif _is_caption(lines, style):
        kind = "caption"
    return [PageBlock(kind, (tuple(lines),))]


def _is_caption(lines: Sequence[TextLine], style: _Typography) -> bool:
    first = lines[0]
    if sum(len(line.text) for line in lines) > _MAX_CAPTION or not _CAPTION.match(first.text):
        return False
    resized = abs(first.size - style.body.size) > 0.05 * first.size
    return first.italic or first.bold or resized or bool(_CAPTION_MARK.match(first.text))


def _merged_lists(blocks: Sequence[PageBlock]) -> list[PageBlock]:
    """Blocks with items in a row joined to one list."""
    merged: list[PageBlock] = []
    for block in blocks:
        last = merged[-1] if merged and merged[-1].kind == "list" else None
        if last is not None and _continues_list(last, block):
            merged[-1] = replace(last, pages=((*last.pages[0], *block.pages[0]),))
        else:
            merged.append(block)
    return merged


def _continues_list(items: PageBlock, block: PageBlock) -> bool:
    """Whether a block is the next item, or a second paragraph of the last: text under its text,
    closer than a paragraph away."""
    if block.kind not in ("list", "text") or block.first.column != items.last.column:
        return False
    if block.kind == "list":
        return True
    item = next(line for line in reversed(items.pages[0]) if _is_item(line))
    near = block.first.base - items.last.base < 2.2 * block.first.size
    aligned = abs(block.first.x0 - item.hang) < 0.5 * block.first.size
    return near and aligned and item.hang > item.x0 + 2


def _with_captions(blocks: Sequence[PageBlock]) -> list[PageBlock]:
    """A caption right before or after a table or figure becomes part of it."""
    out: list[PageBlock] = []
    waiting = list(reversed(blocks))
    while waiting:
        block = waiting.pop()
        if block.kind == "figure":  # its caption is usually below
            after_or_before = waiting if waiting and _is_figure_caption(waiting[-1]) else out
            if after_or_before and _is_figure_caption(after_or_before[-1]):
                block = replace(block, pages=after_or_before.pop().pages)
        elif block.table is not None and block.table.caption is None:
            before_or_after = out if out and _is_table_caption(out[-1]) else waiting
            if before_or_after and _captions_table(before_or_after, waiting):
                block = _captioned(block, [before_or_after.pop()])
            else:
                above: list[PageBlock] = []
                while out and _heads_table(out[-1], [*above, block]):
                    above.insert(0, out.pop())
                block = _captioned(block, above) if above else block
        out.append(block)
    return out


def _captioned(block: PageBlock, captions: Sequence[PageBlock]) -> PageBlock:
    assert block.table is not None
    lines = tuple(line for caption in captions for line in caption.pages[0])
    table = replace(block.table, caption=join_lines(line.text for line in lines))
    return replace(block, pages=(lines,), table=table)


def _heads_table(block: PageBlock, below: Sequence[PageBlock]) -> bool:
    """Whether a block is a title, a unit or an introduction of the table at the end of `below`:
    short text close above it, which is no sentence that ends."""
    first = below[0]
    top = first.first.y0 if first.pages else first.placed[0].y0
    if block.kind != "text" or _TERMINAL_STOP.search(block.last.text):
        return False
    near = 0 <= top - block.last.y1 < _HEAD_DISTANCE * block.last.size
    characters = sum(len(line.text) for b in (block, *below[:-1]) for line in b.pages[0])
    return near and characters <= _MAX_HEAD


def _captions_table(blocks: Sequence[PageBlock], following: Sequence[PageBlock]) -> bool:
    """Whether the last block is the caption of a table beside it; below it also as a figure."""
    return _is_table_caption(blocks[-1]) or (blocks is following and _is_figure_caption(blocks[-1]))


def _is_figure_caption(block: PageBlock) -> bool:
    return block.kind == "caption" and not _is_table_caption(block)


def _is_table_caption(block: PageBlock) -> bool:
    return block.kind == "caption" and block.first.text.lower().startswith("tab")


def _continues_text(last: PageBlock, following: PageBlock) -> bool:
    """Whether a block is clearly the rest of the last one of the page or column before."""
    if last.kind == "code":
        beside = following.first.page == last.last.page and (
            abs(following.first.base - last.pages[-1][0].base) < 3 * last.last.size
        )
        same = abs(following.first.size - last.last.size) < 0.3
        return following.kind == "code" and same and not beside
    if last.kind not in ("text", "list") or following.kind != "text":
        return False
    if abs(last.last.size - following.first.size) > 0.3 or _is_item(following.first):
        return False
    end, start = last.last.text, following.first.text
    if end.endswith((LINE_END_HYPHEN, "-")):
        return True
    if _TERMINAL.search(end):
        return False
    right = max((line.x1 for line in last.pages[-1][:-1]), default=float("inf"))
    return not start[:1].isupper() or last.last.x1 > right - 3 * last.last.size


def _block_text(block: PageBlock, vocabulary: Collection[str]) -> str:
    """The text of a block; listings keep their layout, each item of a list is a line."""
    lines = _lines_of(block)
    if block.kind == "code":
        return "\n".join(_listing(page) for page in block.pages)
    if block.kind == "list":
        return "\n".join(_items(lines, vocabulary))
    return join_lines((line.text for line in lines), vocabulary)


def _lines_of(block: PageBlock) -> list[TextLine]:
    return [line for part in block.pages for line in part]


def _items(lines: Sequence[TextLine], vocabulary: Collection[str]) -> list[str]:
    groups: list[list[TextLine]] = []
    for line in lines:
        if _is_item(line) or not groups:
            groups.append([line])
        else:
            groups[-1].append(line)
    lefts = sorted({round(g[0].x0) for g in groups})
    steps = [x for i, x in enumerate(lefts) if i == 0 or x - lefts[i - 1] > 4]
    items = []
    for group in groups:
        depth = max(sum(x <= group[0].x0 + 2 for x in steps) - 1, 0)
        text = join_lines((line.text for line in group), vocabulary)
        items.append("  " * depth + _BULLET.sub("- ", text, count=1))
    return items


def _listing(lines: Sequence[TextLine]) -> str:
    """The text of monospaced lines with their indentation, columns and empty lines."""
    left = min(line.x0 for line in lines)
    width = sorted(line.pitch for line in lines)[len(lines) // 2] or 6.0
    steps = [b.base - a.base for a, b in pairwise(lines)]
    counts = Counter(round(step * 2) / 2 for step in steps if step > 0.5 * lines[0].size)
    pitch = min(counts, key=lambda step: (-counts[step], step), default=lines[0].size * 1.2)
    out: list[str] = []
    for i, line in enumerate(lines):
        if i:
            out += [""] * max(0, min(2, round(steps[i - 1] / pitch) - 1))
        text = ""
        for x, piece in line.pieces:
            column = round((x - left) / width)
            text += " " * max(column - len(text), 1 if text else 0) + piece
        out.append(text.replace(LINE_END_HYPHEN, "-"))
    return "\n".join(out)
