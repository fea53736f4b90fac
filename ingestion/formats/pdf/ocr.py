"""The text of a scanned page, by RapidOCR, whose models are part of its package (extra `ocr`).

Returns words like those of a text layer, with the confidence of their lines. Does not know tables,
headings or documents.
"""

from __future__ import annotations

import math
import statistics
import time
from functools import cache
from importlib.util import find_spec
from typing import Any

import pypdfium2

from ingestion.formats.pdf.page import Font, PathBox, Word

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
