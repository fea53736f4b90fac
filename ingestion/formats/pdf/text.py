"""The text layer of one PDF page: words with their place, size and font.

Reads pdfium only. It does not know lines, paragraphs or headings; `pdf_lines` makes those from the
words.

Coordinates are PDF points with the origin at the top left of the page as it is shown: crop box and
page rotation are applied here once, so that nobody after this module thinks about them.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pypdfium2
import pypdfium2.raw as pdfium

# pdfium writes this for a hyphen at a line end and drops the line break after it.
LINE_END_HYPHEN = "\ufffe"

_WORD = re.compile(rf"[^\s{LINE_END_HYPHEN}]*{LINE_END_HYPHEN}|[^\s{LINE_END_HYPHEN}]+")
_GLYPHS = {
    **{0xFB00 + i: text for i, text in enumerate(("ff", "fi", "fl", "ffi", "ffl", "st", "st"))},
    0x00AD: "-",
    # Bullets of the Symbol and Wingdings fonts stand in the private use area.
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
_FIXED_PITCH, _MAX_FORM_DEPTH = 1, 6
# A rectangle has at most 5 segments and a closing one; more means several rules drawn as one path,
# or a curve.
_SIMPLE_PATH, _LONGEST_PATH = 6, 400


@dataclass(frozen=True, slots=True)
class Font:
    """A font as the file names it, and what that says about its look."""

    name: str
    bold: bool
    italic: bool
    mono: bool


@dataclass(frozen=True, slots=True)
class Word:
    """A run of characters without white space. `order` is its place in the content stream.

    glued: no white space was printed before it, only a shift of the line (a super- or subscript).
    """

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


@dataclass(frozen=True, slots=True)
class PathBox:
    """The bounds of one drawn path: a rule, the frame of a cell, the background of a listing."""

    x0: float
    y0: float
    x1: float
    y1: float


@dataclass(frozen=True)
class PageText:
    """One page: its words, rules and size in points, and the shares (0 to 1) of its area that are
    pictures and of its characters that have no readable code.
    """

    index: int
    label: str | None
    width: float
    height: float
    words: tuple[Word, ...]
    paths: tuple[PathBox, ...]
    image_share: float
    unreadable_share: float


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
        paths, image_area = _drawings(page, place)
        width, height = page.get_size()
        return PageText(
            index=index,
            label=document.get_page_label(index) or None,
            width=width,
            height=height,
            words=tuple(words),
            paths=tuple(paths),
            image_share=min(1.0, image_area / max(1.0, width * height)),
            unreadable_share=len(_UNREADABLE.findall(text.translate(_GLYPHS)))
            / max(1, len(text.strip())),
        )
    finally:
        page.close()


def _placement(page: pypdfium2.PdfPage) -> Place:
    box = pdfium.FS_RECTF()
    pdfium.FPDF_GetPageBoundingBox(page.raw, ctypes.byref(box))
    left, right, bottom, top = (
        box.left,
        box.right,
        min(box.bottom, box.top),
        max(box.bottom, box.top),
    )
    rotation = page.get_rotation()
    if rotation == 90:
        return lambda x, y: (y - bottom, x - left)
    if rotation == 180:
        return lambda x, y: (right - x, y - bottom)
    if rotation == 270:
        return lambda x, y: (top - y, right - x)
    return lambda x, y: (x - left, top - y)


def _page_string(textpage: pypdfium2.PdfTextPage) -> str:
    """One Python character per pdfium character, so that an offset in it is a character index."""
    count = textpage.count_chars()
    text: str = textpage.get_text_range() if count else ""
    if len(text) == count:
        return text
    raw = textpage.raw
    return "".join(chr(pdfium.FPDFText_GetUnicode(raw, i) or 32) for i in range(count))


class _Style:
    """Font and size of a text object, looked up once per object."""

    def __init__(self, textpage: Any) -> None:
        self._textpage = textpage
        self._fonts: dict[int, Font] = {}
        self._styles: dict[int, tuple[Font, float, bool, bool]] = {}
        self._matrix = pdfium.FS_MATRIX()
        self._last: tuple[Font, float, bool, bool] = (
            Font("", False, False, False),
            10.0,
            False,
            True,
        )

    def at(self, index: int) -> tuple[Font, float, bool, bool]:
        """(font, size in points, rises or falls along x, reads left to right) of a character."""
        handle = pdfium.FPDFText_GetTextObject(self._textpage, index)
        address = ctypes.cast(handle, ctypes.c_void_p).value
        if address is None:
            return self._last
        if address not in self._styles:
            self._styles[address] = self._read(index, handle)
        self._last = self._styles[address]
        return self._last

    def _read(self, index: int, handle: Any) -> tuple[Font, float, bool, bool]:
        size = ctypes.c_float()
        pdfium.FPDFTextObj_GetFontSize(handle, ctypes.byref(size))
        pdfium.FPDFText_GetMatrix(self._textpage, index, ctypes.byref(self._matrix))
        m = self._matrix
        scale = (m.c * m.c + m.d * m.d) ** 0.5 or 1.0
        vertical = abs(m.b) > abs(m.a)
        forward = (m.b > 0) if vertical else (m.a >= 0)
        return self._font(handle), round(size.value * scale, 2), vertical, forward

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
    fixed = bool(pdfium.FPDFFont_GetFlags(font) & _FIXED_PITCH)
    bold = bool(_BOLD.search(name)) or pdfium.FPDFFont_GetWeight(font) >= 600
    return Font(name, bold, bool(_ITALIC.search(name)), fixed or bool(_MONO.search(name)))


def _words(textpage: Any, text: str, place: Place) -> list[Word]:
    style = _Style(textpage)
    box = pdfium.FS_RECTF()
    box_ref = ctypes.byref(box)
    ox, oy = ctypes.c_double(), ctypes.c_double()
    ox_ref, oy_ref = ctypes.byref(ox), ctypes.byref(oy)
    turned = (
        place(0, 0)[0] != place(0, 1)[0]
    )  # x moves with y: the page is shown turned by 90 degrees
    words: list[Word] = []
    previous_end = 0
    for match in _WORD.finditer(text):
        start, end = match.span()
        content = _ICONS.sub("", match.group().translate(_GLYPHS))
        if not content:
            continue
        font, size, vertical, forward = style.at(start)
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


def _drawings(page: pypdfium2.PdfPage, place: Place) -> tuple[list[PathBox], float]:
    """Bounds of all paths, and the area that images cover."""
    paths: list[PathBox] = []
    areas: list[float] = []
    count = pdfium.FPDFPage_CountObjects(page.raw)
    objects = (pdfium.FPDFPage_GetObject(page.raw, i) for i in range(count))
    _collect(objects, place, paths, areas, 0)
    return paths, sum(areas)


def _collect(
    objects: Any, place: Place, paths: list[PathBox], areas: list[float], depth: int
) -> None:
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
                    paths.append(PathBox(x0, y0, x1, y1))
                elif segments <= _LONGEST_PATH:
                    paths.extend(_straight_parts(item, segments, _within(item, place)))
            else:
                areas.append((x1 - x0) * (y1 - y0))
        elif kind == pdfium.FPDF_PAGEOBJ_FORM and depth < _MAX_FORM_DEPTH:
            children = (
                pdfium.FPDFFormObj_GetObject(item, i)
                for i in range(pdfium.FPDFFormObj_CountObjects(item))
            )
            _collect(children, _within(item, place), paths, areas, depth + 1)


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
