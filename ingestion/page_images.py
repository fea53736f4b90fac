"""Pages of PDF documents as images, drawn in a separate process and cached in memory.

An uploaded file may crash or exhaust pdfium, so a page is drawn by a child with limits on memory
and time (`ingestion/formats/pdf/draw_page.py`). Images are never written to the store: a deleted
document leaves none.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from ingestion.formats.pdf.draw_page import MISSING
from kb.errors import NotFound, ParseFailed
from kb.settings import MIB, Settings
from kb.workers import ChildProcess

CACHE_BYTES = 48 * MIB
SECONDS = 20.0
AT_ONCE = 2
# Run as a file: as a module of its package it would load the package, ten times as long.
_DRAW = Path(__file__).parent / "formats" / "pdf" / "draw_page.py"


@dataclass(frozen=True)
class PageImage:
    """A page as PNG, and its size in PDF points (1/72 inch), in which boxes are given."""

    png: bytes
    width: float
    height: float


class PageImages:
    """Draws pages, and caches the images used last up to `CACHE_BYTES`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._changing = threading.Lock()  # protects _images
        self._places = threading.Semaphore(AT_ONCE)
        self._images: OrderedDict[tuple[str, int], PageImage] = OrderedDict()

    def page(self, data: bytes, sha256: str, index: int) -> PageImage:
        """The page with this index, counted from 0. `sha256` is that of the file. Raises NotFound
        for a page that the file does not have, and ParseFailed where it cannot be drawn."""
        key = (sha256, index)
        with self._changing:
            if key in self._images:
                self._images.move_to_end(key)
                return self._images[key]
        with self._places:
            image = self._drawn(data, index)
        with self._changing:
            self._images[key] = image
            while sum(len(cached.png) for cached in self._images.values()) > CACHE_BYTES:
                self._images.popitem(last=False)
        return image

    def _drawn(self, data: bytes, index: int) -> PageImage:
        with tempfile.TemporaryDirectory(prefix="kernlore-page-") as folder:
            source, picture = Path(folder) / "document.pdf", Path(folder) / "page.png"
            source.write_bytes(data)
            command = (sys.executable, _DRAW, source, index, picture)
            child = ChildProcess([str(part) for part in command], self._settings)
            try:
                printed, complaint = child.answer(SECONDS)
            except TimeoutError:
                raise _not_drawn(index, f"it took longer than {SECONDS:.0f} seconds") from None
            finally:
                child.end()
            if child.code == MISSING:
                raise NotFound(
                    f"the document has no page {index + 1}", hint="Open the original instead."
                )
            if child.code != 0 or not picture.is_file():
                reason = complaint.strip().splitlines()[-1:] or ["it ended without a picture"]
                raise _not_drawn(index, reason[0][:300])
            size = json.loads(printed)
            return PageImage(picture.read_bytes(), size["width"], size["height"])


def _not_drawn(index: int, reason: str) -> ParseFailed:
    return ParseFailed(
        f"page {index + 1} cannot be drawn: {reason}", hint="Open the original instead."
    )
