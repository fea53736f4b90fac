"""Figures of a PDF page: drawings and pictures with the text inside them; and the text of a scanned
page, by RapidOCR, whose models are part of its package (extra `ocr`).

A figure is a group of shapes that lie close to each other and frame neither prose nor code. Does
not know captions; the words of a picture come from OCR, if it is installed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pypdfium2

from ingestion.formats.pdf.page import (
    Font,
    PageText,
    PathBox,
    Word,
    cells_of_line,
    confidence_of,
    regions_of_page,
)
from ingestion.formats.pdf.tables import unruled_tables

_CELL = 6.0  # points; shapes in neighbouring cells belong together
_LEAST_AREA, _LEAST_PICTURE, _LEAST_SIDE = 0.025, 0.02, 40.0  # shares of the page, points
_LEAST_SHAPES = 4  # fewer are a frame, or rules around a heading
_LABEL = 5  # words of a label; more are a line of prose
_PROSE = 0.5  # share of words in such lines or in code from which a frame is no figure
_MOST_CELLS = 10_000_000  # of a page
_NEAR = 16.0  # points around the shapes in which a label belongs to them
_TITLE = 1.5  # size of a word of a title over that of most words
_GAP = 1.0  # space between labels, in font sizes
Read = Callable[[PathBox], Sequence[Word]]


@dataclass(frozen=True)
class PlacedFigure:
    """A figure: its text, one line of labels a line, and its place."""

    text: str
    page: int
    x0: float
    y0: float
    x1: float
    y1: float
    words: tuple[Word, ...]
    confidence: float | None = None


def figures_of_page(
    page: PageText, words: Sequence[Word], tables: Sequence[PathBox], read: Read
) -> list[PlacedFigure]:
    """The figures of a page. `words` are those outside of tables, whose places are `tables`; `read`
    returns the words in a picture."""
    figures = []
    usual = statistics.median([w.size for w in words]) if words else 0.0
    for box, shapes, pictures in _groups(page):
        if any(_share(box, table) > 0.3 for table in tables):
            continue
        own = [w for w in words if _inside(w, box)]
        if (shapes < _LEAST_SHAPES and not pictures) or _is_text(own) or _is_table(own):
            continue
        printed = [w for part in pictures for w in read(part)]
        own += [w for w in printed if not any(_share(_box(w), _box(o)) > 0.5 for o in own)]
        if not own:
            continue
        if any(w.size > _TITLE * usual for w in own if w.confidence is None):
            continue  # the band of a title
        wider = PathBox(box.x0 - _NEAR, box.y0 - _NEAR, box.x1 + _NEAR, box.y1 + _NEAR)
        inside = {w.order for w in own}
        near = [w for w in words if _inside(w, wider) and w.order not in inside]
        own += [w for label in _labels(near) if len(label) < _LABEL for w in label]
        figures.append(_figure(page, box, own))
    return figures


def _groups(page: PageText) -> list[tuple[PathBox, int, list[PathBox]]]:
    """The groups of shapes: their place, the number of drawn shapes, and the large pictures."""
    shapes = [_clipped(b, page) for b in (*page.paths, *page.curves) if _is_part(b, page)]
    pictures = [_clipped(b, page) for b in page.pictures if _is_part(b, page)]
    size = int(page.height / _CELL) + 2, int(page.width / _CELL) + 2
    if not (shapes or pictures) or size[0] * size[1] > _MOST_CELLS:
        return []
    from scipy.ndimage import label  # takes 0.3 s, and most pages have no shape

    grid = np.zeros(size, np.bool_)
    for box in (*shapes, *pictures):
        grid[_cells(box.y0, box.y1), _cells(box.x0, box.x1)] = True
    labelled, _ = label(grid, structure=np.ones((3, 3)))
    members_of: dict[int, tuple[list[PathBox], list[PathBox]]] = {}
    for place, boxes in enumerate((shapes, pictures)):
        for box in boxes:
            at = int(box.y0 / _CELL), int(box.x0 / _CELL)
            members_of.setdefault(int(labelled[at]), ([], []))[place].append(box)
    groups = []
    area = max(1.0, page.width * page.height)
    for mine, own in members_of.values():
        members = [*mine, *own]
        x0, y0 = min(b.x0 for b in members), min(b.y0 for b in members)
        box = PathBox(x0, y0, max(b.x1 for b in members), max(b.y1 for b in members))
        width, height = box.x1 - box.x0, box.y1 - box.y0
        if width * height < _LEAST_AREA * area or min(width, height) < _LEAST_SIDE:
            continue
        groups.append((box, len(mine), [p for p in own if _area(p) > _LEAST_PICTURE * area]))
    return groups


def _is_part(box: PathBox, page: PageText) -> bool:
    """Whether a shape is on the page and not as large as the page."""
    large = box.x1 - box.x0 > 0.95 * page.width and box.y1 - box.y0 > 0.8 * page.height
    return not large and 0 <= box.x0 < page.width and 0 <= box.y0 < page.height


def _clipped(box: PathBox, page: PageText) -> PathBox:
    """The part of a shape that is on the page."""
    return PathBox(box.x0, box.y0, min(box.x1, page.width), min(box.y1, page.height))


def _area(box: PathBox) -> float:
    return (box.x1 - box.x0) * (box.y1 - box.y0)


def _box(word: Word) -> PathBox:
    return PathBox(word.x0, word.y0, word.x1, word.y1)


def _share(box: PathBox, other: PathBox) -> float:
    """The share of the smaller box that both cover."""
    width = min(box.x1, other.x1) - max(box.x0, other.x0)
    height = min(box.y1, other.y1) - max(box.y0, other.y0)
    both = max(0.0, width) * max(0.0, height)
    return both / max(1e-6, min(_area(box), _area(other)))


def _cells(low: float, high: float) -> slice:
    return slice(int(low / _CELL), int(high / _CELL) + 1)


def _inside(word: Word, box: PathBox) -> bool:
    x, y = (word.x0 + word.x1) / 2, (word.y0 + word.y1) / 2
    return box.x0 <= x <= box.x1 and box.y0 <= y <= box.y1


def _labels(words: Sequence[Word]) -> list[list[Word]]:
    lines = (line for region in regions_of_page(words) for line in region)
    return [label for line in lines for label in cells_of_line(line, _GAP)]


def _is_text(words: Sequence[Word]) -> bool:
    """Whether most words are code or in lines too long for labels."""
    upright = [w for w in words if w.upright]
    mono = sum(w.font.mono for w in words)
    long = sum(len(label) for label in _labels(upright) if len(label) > _LABEL)
    return long + mono > _PROSE * len(words)


def _is_table(words: Sequence[Word]) -> bool:
    """Whether most words are in a table, whose rows a background or rules set apart."""
    tables = [t for region in regions_of_page(words) for t in unruled_tables(region, 0)]
    return sum(len(table.words) for table in tables) > _PROSE * len(words)


def _figure(page: PageText, box: PathBox, words: Sequence[Word]) -> PlacedFigure:
    lines = [
        "  ".join(" ".join(w.text for w in label) for label in cells_of_line(line, _GAP))
        for region in regions_of_page(words)
        for line in region
    ]
    return PlacedFigure(
        "\n".join(lines),
        page.index,
        min(box.x0, *(w.x0 for w in words)),
        min(box.y0, *(w.y0 for w in words)),
        max(box.x1, *(w.x1 for w in words)),
        max(box.y1, *(w.y1 for w in words)),
        tuple(words),
        confidence_of(words),
    )


INSTALLED = find_spec("rapidocr") is not None
SCALE = 2.1  # pixels per point, 150 dpi: with 200 dpi the time doubles and the errors remain
MOST_PIXELS = 16_000_000  # of a picture, for large drawings; OCR itself scales to 2,000 a side
THREADS = 2
# Shares of the time for a document after which no further page, and no further picture of a page
# with a text layer, is read.
TIME_SHARE, PICTURE_SHARE = 0.7, 0.2
# Boxes of one font size differ in height by this factor, as a line may have no ascender. A heading
# is higher and has wider characters than the usual line.
_SAME_SIZE, _HIGHER, _WIDER = 1.3, 1.1, 1.2
_EM_PER_HEIGHT, _BELOW_BASE = 0.8, 0.24
_FONT = Font("", bold=False, italic=False, mono=False)


class Recogniser:
    """Reads pages of one document, for which there are `seconds` from now on. `without_pictures`
    are pages for whose pictures there was no time."""

    def __init__(self, seconds: float) -> None:
        self.without_pictures: list[int] = []
        self._seconds = seconds
        self._started, self._cpu_started = time.monotonic(), time.process_time()

    def has_time(self, share: float = TIME_SHARE) -> bool:
        """Whether less than this share of the time, and of processor time, has passed."""
        passed = time.monotonic() - self._started
        return max(passed, time.process_time() - self._cpu_started) < share * self._seconds

    def words(self, page: pypdfium2.PdfPage, part: PathBox | None = None) -> list[Word]:
        """The words of a page, or of a part of it, line by line; empty if it has no text."""
        width, height = page.get_size()
        x0, y0, x1, y1 = (part.x0, part.y0, part.x1, part.y1) if part else (0, 0, width, height)
        scale = min(SCALE, math.sqrt(MOST_PIXELS / max(1.0, width * height)))
        # The page as displayed: `render` applies rotation and crop box.
        cut = (x0, max(0, height - y1), max(0, width - x1), y0)
        result = _engine()(page.render(scale, crop=cut).to_numpy(), use_cls=False)
        lines = [
            (
                [
                    float(v) / scale + start
                    for v, start in zip(
                        (*box.min(axis=0), *box.max(axis=0)), (x0, y0) * 2, strict=True
                    )
                ],
                text,
                float(score),
            )
            for box, text, score in zip(
                result.boxes if result.boxes is not None else (),
                result.txts or (),
                result.scores or (),
                strict=True,
            )
            if text.strip()
        ]
        if not lines:
            return []
        high = statistics.median(box[3] - box[1] for box, _, _ in lines)
        wide = statistics.median((box[2] - box[0]) / len(text) for box, text, _ in lines)
        words: list[Word] = []
        for box, text, score in lines:
            size = box[3] - box[1]
            larger = size > _HIGHER * high and (box[2] - box[0]) / len(text) > _WIDER * wide
            if not larger and high / _SAME_SIZE < size < high * _SAME_SIZE:
                size = high
            words += _words(box, text, round(_EM_PER_HEIGHT * size, 1), score, len(words))
        return words


def _words(box: list[float], text: str, size: float, confidence: float, order: int) -> list[Word]:
    """The words of a line, placed by their share of its characters."""
    x0, y0, x1, y1 = box
    step = (x1 - x0) / max(1, len(text))
    words: list[Word] = []
    at = 0
    for part in text.split():
        at = text.index(part, at)
        words.append(
            Word(
                text=part,
                x0=x0 + at * step,
                y0=y0,
                x1=x0 + (at + len(part)) * step,
                y1=y1,
                base=y1 - _BELOW_BASE * (y1 - y0),
                size=size,
                font=_FONT,
                order=order + len(words),
                glued=False,
                upright=True,
                confidence=confidence,
            )
        )
        at += len(part)
    return words


@cache
def _engine() -> Any:
    from rapidocr import RapidOCR

    return RapidOCR(
        params={
            "Global.log_level": "error",
            "EngineConfig.onnxruntime.intra_op_num_threads": THREADS,
        }
    )
