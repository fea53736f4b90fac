"""The text layer of one PDF page: words with place, size and font, and lines in reading order.

Coordinates are PDF points with the origin at the top left of the page as displayed: crop box and
page rotation are applied here. A line never crosses a column gutter. Does not know paragraphs,
headings or tables.
"""

from __future__ import annotations

import ctypes
import re
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import pypdfium2
import pypdfium2.raw as pdfium

# pdfium writes this for a hyphen at a line end and drops the line break after it.
LINE_END_HYPHEN = "\ufffe"

_WORD = re.compile(rf"[^\s{LINE_END_HYPHEN}]*{LINE_END_HYPHEN}|[^\s{LINE_END_HYPHEN}]+")
_GLYPHS = {
    **{0xFB00 + i: text for i, text in enumerate(("ff", "fi", "fl", "ffi", "ffl", "st", "st"))},
    0x00AD: "-",
    # Bullets of the Symbol and Wingdings fonts, in the private use area.
    **{code: "•" for code in (0xF0A7, 0xF0B7, 0xF0A8, 0xF0D8, 0xF076, 0xF0FC)},
    **{code: None for code in (*range(9), 11, 12, *range(14, 32), 127, 0x200B, 0xFEFF)},
}
_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffd\ue000-\uf8ff]")
# Icon fonts, and halves of surrogate pairs that a broken font map leaves behind.
_ICONS = re.compile(r"[\ue000-\uf8ff\ud800-\udfff]")
_MONO = re.compile(
    r"mono|courier|consol|typewriter|cmtt|cmsltt|sftt|menlo|inconsolata|andale|codepro|codefont",
    re.I,
)
_BOLD = re.compile(r"bold|black|heavy|semibold|demi|cmbx|cmssbx|medi\b|-bd", re.I)
_ITALIC = re.compile(r"ital|obli|cmti|cmmi|slant", re.I)
_FIXED_PITCH, _KNOWN_WIDTHS, _MAX_FORM_DEPTH = 1, 4, 6
# A rectangle has at most 6 segments; a longer path is several rules or a curve.
_SIMPLE_PATH, _LONGEST_PATH = 6, 400


@dataclass(frozen=True, slots=True)
class Font:
    """A font by its name in the file, and its style according to the name."""

    name: str
    bold: bool
    italic: bool
    mono: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A run of characters without white space. `order` is its index in the content stream.
    `glued`: no white space precedes it, only a shift of the line (a super- or subscript).
    `confidence` is that of OCR, None in a text layer."""

    text: str
    x0: float
    y0: float
    x1: float
    y1: float
    base: float
    size: float
    font: Font
    order: int
    glued: bool
    upright: bool
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class PathBox:
    """The bounds of one drawn path: a rule, the frame of a cell, the background of a listing."""

    x0: float
    y0: float
    x1: float
    y1: float


@dataclass(frozen=True)
class PageText:
    """One page: its words, rules, other drawings, pictures and size in points, and the share (0 to
    1) of its characters that have no readable code."""

    index: int
    label: str | None
    width: float
    height: float
    words: tuple[Word, ...]
    paths: tuple[PathBox, ...]
    curves: tuple[PathBox, ...]
    pictures: tuple[PathBox, ...]
    unreadable_share: float

    @property
    def image_share(self) -> float:
        """The share (0 to 1) of its area that pictures cover."""
        areas = ((p.x1 - p.x0) * (p.y1 - p.y0) for p in self.pictures)
        return min(1.0, sum(areas) / max(1.0, self.width * self.height))


Place = Callable[[float, float], tuple[float, float]]


def read_page(document: pypdfium2.PdfDocument, index: int) -> PageText:
    """Read one page; raises PdfiumError when pdfium cannot load it."""
    page = document[index]
    try:
        place = _placement(page)
        textpage = page.get_textpage()
        try:
            text = _page_string(textpage)
            words = _words(textpage.raw, text, place)
        finally:
            textpage.close()
        drawings = _drawings(page, place)
        width, height = page.get_size()
        unreadable = len(_UNREADABLE.findall(text.translate(_GLYPHS)))
        return PageText(
            index=index,
            label=document.get_page_label(index) or None,
            width=width,
            height=height,
            words=tuple(words),
            paths=tuple(drawings.paths),
            curves=tuple(drawings.curves),
            pictures=tuple(drawings.pictures),
            unreadable_share=unreadable / max(1, len(text.strip())),
        )
    finally:
        page.close()


def _placement(page: pypdfium2.PdfPage) -> Place:
    box = pdfium.FS_RECTF()
    pdfium.FPDF_GetPageBoundingBox(page.raw, ctypes.byref(box))
    left, right = box.left, box.right
    bottom, top = sorted((box.bottom, box.top))
    rotation = page.get_rotation()
    if rotation == 90:
        return lambda x, y: (y - bottom, x - left)
    if rotation == 180:
        return lambda x, y: (right - x, y - bottom)
    if rotation == 270:
        return lambda x, y: (top - y, right - x)
    return lambda x, y: (x - left, top - y)


def _page_string(textpage: pypdfium2.PdfTextPage) -> str:
    """The text with one Python character per pdfium character, so that offsets are indexes."""
    count = textpage.count_chars()
    text: str = textpage.get_text_range() if count else ""
    if len(text) == count:
        return text
    raw = textpage.raw
    return "".join(chr(pdfium.FPDFText_GetUnicode(raw, i) or 32) for i in range(count))


class _TextStyle(NamedTuple):
    """The style of a text object, its size in points. `vertical`: lines run up or down the page;
    `forward`: they read from left to right, or from bottom to top."""

    font: Font
    size: float
    vertical: bool
    forward: bool


class _Styles:
    """The styles of text objects, looked up once per object."""

    def __init__(self, textpage: Any) -> None:
        self._textpage = textpage
        self._fonts: dict[int, Font] = {}
        self._styles: dict[int, _TextStyle] = {}
        self._matrix = pdfium.FS_MATRIX()
        self._last = _TextStyle(Font("", False, False, False), 10.0, False, True)

    def at(self, index: int) -> _TextStyle:
        handle = pdfium.FPDFText_GetTextObject(self._textpage, index)
        address = ctypes.cast(handle, ctypes.c_void_p).value
        if address is None:
            return self._last
        if address not in self._styles:
            self._styles[address] = self._read(index, handle)
        self._last = self._styles[address]
        return self._last

    def _read(self, index: int, handle: Any) -> _TextStyle:
        size = ctypes.c_float()
        pdfium.FPDFTextObj_GetFontSize(handle, ctypes.byref(size))
        pdfium.FPDFText_GetMatrix(self._textpage, index, ctypes.byref(self._matrix))
        m = self._matrix
        scale = (m.c * m.c + m.d * m.d) ** 0.5 or 1.0
        vertical = abs(m.b) > abs(m.a)
        forward = (m.b > 0) if vertical else (m.a >= 0)
        return _TextStyle(self._font(handle), round(size.value * scale, 2), vertical, forward)

    def _font(self, handle: Any) -> Font:
        font = pdfium.FPDFTextObj_GetFont(handle)
        address = ctypes.cast(font, ctypes.c_void_p).value or 0
        if address not in self._fonts:
            self._fonts[address] = _describe(font) if address else self._last[0]
        return self._fonts[address]


def _describe(font: Any) -> Font:
    buffer = ctypes.create_string_buffer(256)
    pdfium.FPDFFont_GetBaseFontName(font, buffer, 256)
    name = buffer.value.decode("utf-8", "replace")
    fixed = bool(pdfium.FPDFFont_GetFlags(font) & _FIXED_PITCH) or _equally_wide(font)
    bold = bool(_BOLD.search(name)) or pdfium.FPDFFont_GetWeight(font) >= 600
    return Font(name, bold, bool(_ITALIC.search(name)), fixed or bool(_MONO.search(name)))


def _equally_wide(font: Any) -> bool:
    """Whether wide and narrow letters have the same width: not all fonts say so by name or flag."""
    width = ctypes.c_float()
    widths = []
    for letter in "imlwMW.":
        if pdfium.FPDFFont_GetGlyphWidth(font, ord(letter), 1000.0, ctypes.byref(width)):
            widths.append(round(width.value))
    known = [value for value in widths if value > 0]
    return len(known) >= _KNOWN_WIDTHS and len(set(known)) == 1


def _words(textpage: Any, text: str, place: Place) -> list[Word]:
    styles = _Styles(textpage)
    box = pdfium.FS_RECTF()
    box_ref = ctypes.byref(box)
    ox, oy = ctypes.c_double(), ctypes.c_double()
    ox_ref, oy_ref = ctypes.byref(ox), ctypes.byref(oy)
    turned = place(0, 0)[0] != place(0, 1)[0]  # displayed turned by 90 degrees: x depends on y
    words: list[Word] = []
    previous_end = 0
    for match in _WORD.finditer(text):
        start, end = match.span()
        content = _ICONS.sub("", match.group().translate(_GLYPHS))
        if not content:
            continue
        font, size, vertical, forward = styles.at(start)
        pdfium.FPDFText_GetLooseCharBox(textpage, start, box_ref)
        left, bottom, right, top = box.left, box.bottom, box.right, box.top
        if end - start > 1:
            pdfium.FPDFText_GetLooseCharBox(textpage, end - 1, box_ref)
            left, right = min(left, box.left), max(right, box.right)
            bottom, top = min(bottom, box.bottom), max(top, box.top)
        pdfium.FPDFText_GetCharOrigin(textpage, start, ox_ref, oy_ref)
        (ax, ay), (bx, by) = place(left, bottom), place(right, top)
        gap = text[previous_end:start]
        words.append(
            Word(
                text=content,
                x0=min(ax, bx),
                y0=min(ay, by),
                x1=max(ax, bx),
                y1=max(ay, by),
                base=place(ox.value, oy.value)[1],
                size=size,
                font=font,
                order=len(words),
                glued="\n" in gap and " " not in gap,
                upright=vertical == turned and (forward or vertical),
            )
        )
        previous_end = end
    return words


class _Drawings(NamedTuple):
    """Bounds of simple paths and the straight parts of others, of other paths, of pictures."""

    paths: list[PathBox]
    curves: list[PathBox]
    pictures: list[PathBox]


def _drawings(page: pypdfium2.PdfPage, place: Place) -> _Drawings:
    drawings = _Drawings([], [], [])
    count = pdfium.FPDFPage_CountObjects(page.raw)
    objects = (pdfium.FPDFPage_GetObject(page.raw, i) for i in range(count))
    _collect(objects, place, drawings, 0)
    return drawings


def _collect(objects: Any, place: Place, drawings: _Drawings, depth: int) -> None:
    left, bottom, right, top = (ctypes.c_float() for _ in range(4))
    refs = [ctypes.byref(value) for value in (left, bottom, right, top)]
    for item in objects:
        kind = pdfium.FPDFPageObj_GetType(item)
        if kind in (pdfium.FPDF_PAGEOBJ_PATH, pdfium.FPDF_PAGEOBJ_IMAGE):
            if not pdfium.FPDFPageObj_GetBounds(item, *refs):
                continue
            (ax, ay), (bx, by) = place(left.value, bottom.value), place(right.value, top.value)
            x0, y0, x1, y1 = min(ax, bx), min(ay, by), max(ax, bx), max(ay, by)
            if kind == pdfium.FPDF_PAGEOBJ_PATH:
                segments = pdfium.FPDFPath_CountSegments(item)
                if segments <= _SIMPLE_PATH:
                    drawings.paths.append(PathBox(x0, y0, x1, y1))
                    continue
                drawings.curves.append(PathBox(x0, y0, x1, y1))
                if segments <= _LONGEST_PATH:
                    parts = _straight_parts(item, segments, _within(item, place))
                    drawings.paths.extend(parts)
            else:
                drawings.pictures.append(PathBox(x0, y0, x1, y1))
        elif kind == pdfium.FPDF_PAGEOBJ_FORM and depth < _MAX_FORM_DEPTH:
            children = (
                pdfium.FPDFFormObj_GetObject(item, i)
                for i in range(pdfium.FPDFFormObj_CountObjects(item))
            )
            _collect(children, _within(item, place), drawings, depth + 1)


def _straight_parts(path: Any, segments: int, place: Place) -> list[PathBox]:
    """The horizontal and vertical strokes of a path of many segments."""
    x, y = ctypes.c_float(), ctypes.c_float()
    strokes: list[PathBox] = []
    last: tuple[float, float] | None = None
    for i in range(segments):
        segment = pdfium.FPDFPath_GetPathSegment(path, i)
        kind = pdfium.FPDFPathSegment_GetType(segment)
        pdfium.FPDFPathSegment_GetPoint(segment, ctypes.byref(x), ctypes.byref(y))
        point = place(x.value, y.value)
        if last is not None and kind == pdfium.FPDF_SEGMENT_LINETO:
            dx, dy = abs(point[0] - last[0]), abs(point[1] - last[1])
            if min(dx, dy) < 0.5 < max(dx, dy):
                xs, ys = sorted((point[0], last[0])), sorted((point[1], last[1]))
                strokes.append(PathBox(xs[0], ys[0], xs[1], ys[1]))
        last = point
    return strokes


def _within(form: Any, place: Place) -> Place:
    matrix = pdfium.FS_MATRIX()
    pdfium.FPDFPageObj_GetMatrix(form, ctypes.byref(matrix))
    a, b, c, d, e, f = matrix.a, matrix.b, matrix.c, matrix.d, matrix.e, matrix.f
    return lambda x, y: place(a * x + c * y + e, b * x + d * y + f)


# -- from words to lines

_MIN_COLUMN_RUNS = 6
_MIN_GUTTER = 9.0
_TRIED = 6  # places of a first gutter, those first that the fewest lines cross


@dataclass(frozen=True, slots=True)
class TextLine:
    """One printed line, without its words, to keep thousands of pages in memory.

    `column` counts the columns of the page in reading order. `hang` is the x of the second word,
    `tail_gap` the space before the last word, `inner_gap` the widest space after the second word.
    `pieces` are (x, text) of each word of a monospaced line, whose layout matters.
    """

    text: str
    page: int
    column: int
    x0: float
    y0: float
    x1: float
    y1: float
    base: float
    size: float
    font: str
    mono: bool
    bold: bool
    italic: bool
    upright: bool
    hang: float
    tail_gap: float
    inner_gap: float
    pieces: tuple[tuple[float, str], ...]
    pitch: float
    confidence: float | None = None


def line_of(words: Sequence[Word], page: int, column: int = 0) -> TextLine:
    """The line of these words, which are sorted from left to right."""
    sizes: dict[float, int] = {}
    fonts: dict[str, int] = {}
    total = mono = bold = italic = 0
    for word in words:
        length = len(word.text)
        sizes[word.size] = sizes.get(word.size, 0) + length
        fonts[word.font.name] = fonts.get(word.font.name, 0) + length
        total += length
        mono += length * word.font.mono
        bold += length * word.font.bold
        italic += length * word.font.italic
    size = max(sizes, key=lambda s: (sizes[s], s))
    is_mono = mono >= 0.8 * total
    longest = max(words, key=lambda w: len(w.text))
    return TextLine(
        text=join_words(words),
        page=page,
        column=column,
        x0=min(w.x0 for w in words),
        y0=min(w.y0 for w in words),
        x1=max(w.x1 for w in words),
        y1=max(w.y1 for w in words),
        base=statistics.median_low([w.base for w in words if w.size == size]),
        size=size,
        font=max(fonts, key=lambda f: (fonts[f], f)),
        mono=is_mono,
        bold=bold >= 0.9 * total,
        italic=italic >= 0.9 * total,
        upright=words[0].upright,
        hang=words[1].x0 if len(words) > 1 else words[0].x0,
        tail_gap=words[-1].x0 - words[-2].x1 if len(words) > 1 else 0.0,
        inner_gap=max((b.x0 - a.x1 for a, b in pairwise(words[1:])), default=0.0),
        pieces=tuple((w.x0, w.text) for w in words) if is_mono else (),
        pitch=(longest.x1 - longest.x0) / max(1, len(longest.text)),
        confidence=confidence_of(words),
    )


def confidence_of(words: Iterable[Word]) -> float | None:
    """The least confidence of OCR among some words; None if a text layer has them all."""
    return min((w.confidence for w in words if w.confidence is not None), default=None)


def join_words(words: Sequence[Word]) -> str:
    """The words joined with single spaces, but for super- and subscripts that follow directly."""
    parts: list[str] = []
    for i, word in enumerate(words):
        if i and not (word.glued and word.x0 - words[i - 1].x1 < 0.12 * word.size):
            parts.append(" ")
        parts.append(word.text)
    return "".join(parts)


def join_lines(texts: Iterable[str], vocabulary: Collection[str] = ()) -> str:
    """Lines of one paragraph as one string; a word divided by a line end is joined. A hyphen
    remains if the rest of the document (`vocabulary`, lower case) writes the word so."""
    joined = ""
    for text in texts:
        if not joined:
            joined = text
        elif joined.endswith((LINE_END_HYPHEN, "-", "\u2010")) and joined[-2:-1].isalpha():
            joined = joined[:-1] + _hyphen(joined[:-1], text, vocabulary) + text
        else:
            separator = "-" if joined.endswith(LINE_END_HYPHEN) else " "
            joined = joined.rstrip(LINE_END_HYPHEN) + separator + text
    return joined.replace(LINE_END_HYPHEN, "-")


def _hyphen(before: str, after: str, vocabulary: Collection[str]) -> str:
    first = before.rsplit(None, 1)[-1].lstrip("(\"'\u201c\u2018[").lower()
    second = "".join(after.split(None, 1)[:1]).rstrip(".,;:)\"'\u201d\u2019]").lower()
    if f"{first}-{second}" in vocabulary:
        return "-"
    if first + second in vocabulary:
        return ""
    return "" if after[:1].islower() and "-" not in first else "-"


def in_one_column(words: Sequence[Word], page: int) -> list[TextLine]:
    """The lines of a region of one column, such as a table cell."""
    return [line_of(ws, page) for ws in _merge_runs(_runs([w for w in words if w.upright]))]


def regions_of_page(words: Iterable[Word]) -> list[list[list[Word]]]:
    """The columns of a page and the bands between them in reading order: each as its lines, from
    top to bottom. Turned text (axis labels, margin stamps) is the last region."""
    words = list(words)
    runs, panels = _panels(_runs([w for w in words if w.upright]))
    columns: list[list[list[Word]]] = []
    _split_columns(runs, columns, depth=0)
    regions = []
    for column in columns:
        part: list[list[Word]] = []
        for run in sorted(column, key=lambda r: r[0].base) if panels else column:
            if id(run) in panels:
                regions += [part, *panels[id(run)]]
                part = []
            else:
                part.append(run)
        regions.append(part)
    turned = [w for w in words if not w.upright]
    return [*(_merge_runs(r) for r in regions if r), *([[turned]] if turned else ())]


_PANEL_RUNS = 4  # lines of a panel, at least


def _panels(runs: list[list[Word]]) -> tuple[list[list[Word]], dict[int, list[list[list[Word]]]]]:
    """The runs, with those of listings side by side replaced by one run of all their words, and the
    listings by the id of that run. Panels are drawn one after the other, a listing with remarks at
    its right line by line."""
    listings = sorted(
        (r for r in runs if all(w.font.mono for w in r)), key=lambda r: (r[0].base, r[0].x0)
    )
    groups: list[list[list[Word]]] = []
    for run in listings:
        near = groups and run[0].base - groups[-1][-1][0].base < 3 * run[0].size
        if not near:
            groups.append([])
        groups[-1].append(run)
    panels: dict[int, list[list[list[Word]]]] = {}
    prose = [r[0].base for r in runs if not r[0].font.mono and len(r) >= 3]
    for group in groups:
        parts = _side_by_side(sorted(group, key=lambda r: r[0].order))
        top, bottom = group[0][0].base, group[-1][0].base
        if len(parts) < 2 or any(top <= base <= bottom for base in prose):
            continue
        whole = sorted((w for run in group for w in run), key=lambda w: w.x0)
        whole[0] = replace(whole[0], base=top)
        whole.append(max(whole, key=lambda w: w.x1))
        members = {id(run) for run in group}
        runs = [*(r for r in runs if id(r) not in members), whole]
        panels[id(whole)] = parts
    return runs, panels


def _side_by_side(group: list[list[Word]]) -> list[list[list[Word]]]:
    """The listings of a group of runs from left to right; one if no space divides it."""
    begins, ends = sorted(r[0].x0 for r in group), sorted(r[-1].x1 for r in group)
    for x in sorted(set(ends)):
        count = bisect_right(ends, x)
        if bisect_right(begins, x) > count or min(count, len(group) - count) < _PANEL_RUNS:
            continue
        left = [r for r in group if r[-1].x1 <= x]
        right = [r for r in group if r[0].x0 > x]
        if not _row_wise(left, right):
            return [left, *_side_by_side(right)]
    return [group]


def cells_of_line(words: Sequence[Word], gap: float) -> list[list[Word]]:
    """The words of a line in parts, divided at spaces of more than `gap` times the font size."""
    cells = [[words[0]]]
    for last, word in pairwise(words):
        if word.x0 - last.x1 > gap * max(word.size, last.size):
            cells.append([])
        cells[-1].append(word)
    return cells


def _top(word: Word) -> float:
    return word.base - 0.75 * word.size


def _bottom(word: Word) -> float:
    return word.base + 0.2 * word.size


def _runs(words: Sequence[Word]) -> list[list[Word]]:
    """Words in a row of the content stream that are on one line without a wide gap."""
    runs: list[list[Word]] = []
    for word in words:
        if runs:
            last = runs[-1][-1]
            gap = word.x0 - last.x1
            level = _top(last) <= (_top(word) + _bottom(word)) / 2 <= _bottom(last) or (
                _top(word) <= (_top(last) + _bottom(last)) / 2 <= _bottom(word)
            )
            if level and -0.3 * word.size <= gap <= max(1.3 * word.size, _MIN_GUTTER):
                runs[-1].append(word)
                continue
        runs.append([word])
    return runs


def _merge_runs(runs: Sequence[list[Word]]) -> list[list[Word]]:
    """Lines from top to bottom; runs at one height are one line."""
    lines: list[list[Word]] = []
    spans: list[tuple[float, float]] = []
    for run in sorted(runs, key=lambda r: (-max(w.size for w in r), min(w.base for w in r))):
        lead = max(run, key=lambda w: w.size)
        middle = (_top(lead) + _bottom(lead)) / 2
        home = next((i for i, (top, bottom) in enumerate(spans) if top <= middle <= bottom), None)
        height = _bottom(lead) - _top(lead)
        if home is not None and spans[home][1] - spans[home][0] > 1.7 * height:
            home = None  # a drop cap or a brace spans several lines
        if home is None:
            lines.append(list(run))
            spans.append((_top(lead), _bottom(lead)))
        else:
            lines[home] += run
    order = sorted(range(len(lines)), key=lambda i: spans[i][1])
    return [sorted(lines[i], key=lambda w: (w.x0, w.order)) for i in order]


def _split_columns(runs: list[list[Word]], out: list[list[list[Word]]], depth: int) -> None:
    """Append to `out` the bands above, left, right and below of each gutter, in reading order."""
    gutter = _gutter(runs) if depth < 3 and len(runs) >= 2 * _MIN_COLUMN_RUNS else None
    if gutter is None:
        if runs:
            out.append(runs)
        return
    band: list[list[Word]] = []
    for run in sorted(runs, key=lambda r: r[0].base):
        if run[0].x0 < gutter < run[-1].x1:
            _flush_band(band, gutter, out, depth)
            band = []
            if out and out[-1] and out[-1][0][0].x0 < gutter < out[-1][0][-1].x1:
                out[-1].append(run)
            else:
                out.append([run])
        else:
            band.append(run)
    _flush_band(band, gutter, out, depth)


def _flush_band(
    band: list[list[Word]], gutter: float, out: list[list[list[Word]]], depth: int
) -> None:
    left = [r for r in band if r[-1].x1 <= gutter]
    right = [r for r in band if r[0].x0 >= gutter]
    if left and right:
        _split_columns(left, out, depth + 1)
        _split_columns(right, out, depth + 1)
    elif left or right:
        out.append(left or right)


def _gutter(runs: Sequence[list[Word]]) -> float | None:
    """The x of a gutter with wide prose on both sides, or None. The content stream goes across the
    columns of a table row by row, and down one column of prose after the other."""
    prose = [r for r in runs if len(r) >= 3 and not r[0].font.mono]
    if len(prose) < 2 * _MIN_COLUMN_RUNS:
        return None
    x0, x1 = min(r[0].x0 for r in runs), max(r[-1].x1 for r in runs)
    width = x1 - x0
    best: tuple[int, float] | None = None
    for step in range(25, 76):
        x = x0 + width * step / 100
        left = [r for r in prose if r[-1].x1 <= x]
        right = [r for r in prose if r[0].x0 >= x]
        crossing = len(prose) - len(left) - len(right)
        if min(len(left), len(right)) < _MIN_COLUMN_RUNS or crossing > 0.3 * len(prose):
            continue
        prose_columns = _is_prose_column(left, width) and _is_prose_column(right, width)
        if prose_columns and not _row_wise(left, right):
            score = len(left) + len(right) - crossing
            if best is None or score > best[0]:
                best = (score, x)
    return best[1] if best else _first_gutter(runs, prose)


def _first_gutter(runs: Sequence[list[Word]], prose: Sequence[list[Word]]) -> float | None:
    """The x right of the first of three or more columns of prose, or None. The text right of it has
    another gutter."""
    if len(prose) < 3 * _MIN_COLUMN_RUNS:
        return None
    width = max(r[-1].x1 for r in runs) - min(r[0].x0 for r in runs)
    begins, ends = sorted(r[0].x0 for r in prose), sorted(r[-1].x1 for r in prose)
    crossing = {x: bisect_left(begins, x) - bisect_right(ends, x) for x in set(ends)}
    divided: dict[int, bool] = {}  # number of runs right of x -> whether they have a gutter
    for x in sorted(crossing, key=lambda x: (crossing[x], x))[:_TRIED]:
        left = [r for r in prose if r[-1].x1 <= x]
        right = [r for r in prose if r[0].x0 >= x]
        if len(left) < _MIN_COLUMN_RUNS or len(right) < 2 * _MIN_COLUMN_RUNS:
            continue
        if crossing[x] > 0.3 * len(prose) or not _is_prose_column(left, width):
            continue
        rest = [r for r in runs if r[0].x0 >= x]
        if not _row_wise(left, right) and len(rest) not in divided:
            divided[len(rest)] = _gutter(rest) is not None
        if divided.get(len(rest)):
            return (x + min(r[0].x0 for r in right)) / 2
    return None


def _is_prose_column(runs: Sequence[list[Word]], page_width: float) -> bool:
    widths = [r[-1].x1 - r[0].x0 for r in runs]
    left = min(r[0].x0 for r in runs)
    column = max(r[-1].x1 for r in runs) - left
    return column > 0.2 * page_width and statistics.median(widths) > 0.6 * column


def _row_wise(left: Sequence[list[Word]], right: Sequence[list[Word]]) -> bool:
    ends = {r[-1].order for r in left}
    neighbours = sum(r[0].order - 1 in ends for r in right)
    return neighbours > 0.5 * len(right)
