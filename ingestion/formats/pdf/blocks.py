"""Lines of a page to blocks in reading order: paragraphs, lists, listings, headings, tables.

A block is an element that still knows its lines; `pdf` joins blocks across pages and writes
elements.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ingestion.elements import ElementKind, Table
from ingestion.formats.pdf.headings import Body, Heading
from ingestion.formats.pdf.lines import Line, join_lines
from ingestion.formats.pdf.tables import PlacedTable
from ingestion.formats.pdf.text import LINE_END_HYPHEN

_BULLET = re.compile(r"^([•◦▪▫‣●○■□❑➢➤✓·∙*]|[-\u2013](?=\s)|o(?=\s))\s*")
_ENUMERATED = re.compile(r"^(?:\(?\d{1,2}[.)]|\([a-z]\)|[a-z]\)|\(?[ivx]{1,4}\))\s+(?=\S)")
_CAPTION = re.compile(r"^(?:table|figure|fig\.|tab\.|listing|algorithm)\s+[A-Z]?[\d.\-]*\d", re.I)
_CAPTION_MARK = re.compile(
    r"^(?:table|figure|fig\.|tab\.|listing|algorithm)\s+[A-Z]?[\d.\-]*\d\s*[:.|\u2013\u2014-]\s",
    re.I,
)
_TERMINAL = re.compile(r"[.!?:;][\"'\u201d\u2019)\]]*$")
_MAX_CAPTION = 400


@dataclass(frozen=True)
class Block:
    """`pages` holds the lines of the block, one tuple for each page (or column) it touches."""

    kind: ElementKind
    pages: tuple[tuple[Line, ...], ...]
    level: int | None = None
    placed: tuple[PlacedTable, ...] = ()
    table: Table | None = None

    @property
    def first(self) -> Line:
        """Its first line."""
        return self.pages[0][0]

    @property
    def last(self) -> Line:
        """Its last line."""
        return self.pages[-1][-1]


@dataclass(frozen=True)
class Typography:
    """Running text of the document: its look, and the usual distance of lines for each size."""

    body: Body
    pitches: Mapping[float, float] = field(default_factory=dict)
    vocabulary: Collection[str] = ()

    def pitch(self, size: float) -> float:
        """The usual distance in points between two lines of this size."""
        return self.pitches.get(size, 1.25 * size)


def line_pitches(pages: Sequence[Sequence[Line]]) -> dict[float, float]:
    """The most frequent distance of two lines, for each font size."""
    counts: dict[float, Counter[float]] = {}
    for lines in pages:
        for first, second in pairwise(lines):
            distance = second.base - first.base
            if first.size == second.size and 0.8 * first.size < distance < 2.5 * first.size:
                counts.setdefault(first.size, Counter())[round(distance * 4) / 4] += 1
    return {size: min(c, key=lambda d: (-c[d], d)) for size, c in counts.items()}


def blocks_of_page(
    page: int,
    lines: Sequence[Line],
    headings: Mapping[tuple[int, int], Heading],
    tables: Sequence[PlacedTable],
    style: Typography,
) -> list[Block]:
    """The blocks of one page in reading order."""
    pending = sorted(tables, key=lambda t: (t.y0, t.x0))
    one_column = len({line.column for line in lines}) == 1
    blocks: list[Block] = []
    current: list[Line] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        due = [t for t in pending if _comes_before(t, line, one_column)]
        heading = headings.get((page, index))
        if due or heading or (current and _starts_block(current, line, style)):
            blocks += _finish(current, style)
            current = []
        for table in due:
            blocks.append(Block("table", (), placed=(table,), table=table.table))
            pending.remove(table)
        if heading:
            blocks.append(
                Block("title", (tuple(lines[index : index + heading.count]),), heading.level)
            )
            index += heading.count
            continue
        current.append(line)
        index += 1
    blocks += _finish(current, style)
    blocks += [Block("table", (), placed=(t,), table=t.table) for t in pending]
    return _with_captions(_merged_lists(blocks))


def _comes_before(table: PlacedTable, line: Line, one_column: bool) -> bool:
    """Whether the table stands above the line: in its column, where the page has several. A heading
    can be shorter than the margin beside a table that is centred.
    """
    return line.base > table.y1 - 2 and (one_column or (line.x0 < table.x1 and line.x1 > table.x0))


def is_item(line: Line) -> bool:
    """Whether a line begins an item of a list."""
    return bool(_BULLET.match(line.text) or _ENUMERATED.match(line.text))


def _starts_block(block: Sequence[Line], line: Line, style: Typography) -> bool:
    last, first = block[-1], block[0]
    if line.column != last.column or line.upright != last.upright:
        return True
    if line.mono != first.mono and not _inline_code(block, line, style):
        return True
    distance = line.base - last.base
    if line.mono and first.mono:
        return abs(line.size - last.size) > 0.6 or not 0 < distance < 3.2 * style.pitch(line.size)
    usual = (
        (block[1].base - first.base) if len(block) > 1 else style.pitch(min(line.size, last.size))
    )
    usual = max(usual, style.pitch(line.size)) if len(block) == 2 else usual
    if (
        not 0 < distance <= 1.28 * max(usual, line.size)
        or abs(line.size - last.size) > 0.12 * last.size
    ):
        return True
    if is_item(line):
        return True
    if line.bold and not last.bold and _TERMINAL.search(last.text):
        return True
    if first.bold and not line.bold and len(block) == 1 and _TERMINAL.search(first.text) is None:
        return True
    return _indented_start(block, line)


def _inline_code(block: Sequence[Line], line: Line, style: Typography) -> bool:
    """Whether a monospaced line is just wrapped words of a sentence, or the other way round."""
    last, first = block[-1], block[0]
    if first.mono and len(block) > 1:
        return False
    left = first.hang if is_item(first) else last.x0
    near = 0 < line.base - last.base <= 1.1 * style.pitch(style.body.size)
    return near and abs(line.x0 - left) < 2 and not _TERMINAL.search(last.text)


def _indented_start(block: Sequence[Line], line: Line) -> bool:
    """A first-line indent after a full stop; in a list a line that falls back behind the item."""
    last, first = block[-1], block[0]
    if is_item(first):
        return line.x0 < first.hang - 0.8 * line.size and line.x0 < first.x0 + 0.5 * line.size
    left = min(each.x0 for each in block[1:]) if len(block) > 1 else last.x0
    indent = line.x0 - left
    return (
        0.8 * line.size < indent < 4 * line.size
        and bool(_TERMINAL.search(last.text))
        and line.column == last.column
    )


def _finish(lines: Sequence[Line], style: Typography) -> list[Block]:
    if not lines:
        return []
    first = lines[0]
    kind: ElementKind = "text"
    if all(line.mono for line in lines):
        kind = "code"
    elif is_item(first):
        kind = "list"
    elif _is_caption(lines, style):
        kind = "caption"
    return [Block(kind, (tuple(lines),))]


def _is_caption(lines: Sequence[Line], style: Typography) -> bool:
    first = lines[0]
    if sum(len(line.text) for line in lines) > _MAX_CAPTION or not _CAPTION.match(first.text):
        return False
    looks_other = (
        first.italic or first.bold or abs(first.size - style.body.size) > 0.05 * first.size
    )
    return looks_other or bool(_CAPTION_MARK.match(first.text))


def _merged_lists(blocks: Sequence[Block]) -> list[Block]:
    """Items that follow each other are one list; the first line of an item still tells it."""
    merged: list[Block] = []
    for block in blocks:
        last = merged[-1] if merged else None
        if (
            last and block.kind == last.kind == "list" and block.first.column == last.last.column
        ) or (last and last.kind == "list" and _belongs_to_item(last, block)):
            merged[-1] = replace(last, pages=((*last.pages[0], *block.pages[0]),))
        else:
            merged.append(block)
    return merged


def _belongs_to_item(items: Block, block: Block) -> bool:
    """A second paragraph of an item: text under the item's text, closer than a paragraph away."""
    if block.kind != "text" or block.first.column != items.last.column:
        return False
    item = next(line for line in reversed(items.pages[0]) if is_item(line))
    near = block.first.base - items.last.base < 2.2 * block.first.size
    return (
        near
        and abs(block.first.x0 - item.hang) < 0.5 * block.first.size
        and item.hang > item.x0 + 2
    )


def _with_captions(blocks: Sequence[Block]) -> list[Block]:
    """A caption right before or after a table becomes the table's."""
    out: list[Block] = []
    skip = -1
    for i, block in enumerate(blocks):
        if i == skip:
            continue
        if block.kind == "table" and block.table is not None and block.table.caption is None:
            before = out[-1] if out and _captions(out[-1]) else None
            after = (
                blocks[i + 1]
                if before is None and i + 1 < len(blocks) and _captions(blocks[i + 1])
                else None
            )
            caption = before or after
            if before:
                out.pop()
            if after:
                skip = i + 1
            if caption:
                text = join_lines(line.text for line in caption.pages[0])
                block = replace(
                    block, pages=caption.pages, table=replace(block.table, caption=text)
                )
        out.append(block)
    return out


def _captions(block: Block) -> bool:
    return block.kind == "caption" and block.first.text.lower().startswith("tab")


def continues_text(last: Block, following: Block) -> bool:
    """Whether a block is plainly the rest of the one at the end of the page or column before."""
    if last.kind == "code":
        return following.kind == "code" and abs(following.first.size - last.last.size) < 0.3
    if last.kind not in ("text", "list") or following.kind != "text":
        return False
    if abs(last.last.size - following.first.size) > 0.3 or is_item(following.first):
        return False
    end, start = last.last.text, following.first.text
    if end.endswith((LINE_END_HYPHEN, "-")):
        return True
    if _TERMINAL.search(end):
        return False
    others = last.pages[-1][:-1]
    return not start[:1].isupper() or (
        len(others) > 0 and last.last.x1 > max(line.x1 for line in others) - 3 * last.last.size
    )


def block_text(block: Block, vocabulary: Collection[str]) -> str:
    """What a reader reads; listings keep their layout, items stand on lines of their own."""
    lines = [line for page in block.pages for line in page]
    if block.kind == "code":
        return "\n".join(_listing(page) for page in block.pages)
    if block.kind == "list":
        return "\n".join(_items(lines, vocabulary))
    return join_lines((line.text for line in lines), vocabulary)


def _items(lines: Sequence[Line], vocabulary: Collection[str]) -> list[str]:
    groups: list[list[Line]] = []
    for line in lines:
        if is_item(line) or not groups:
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


def _listing(lines: Sequence[Line]) -> str:
    """Monospaced lines with their indentation, columns and empty lines."""
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
