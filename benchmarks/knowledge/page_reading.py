"""How pages of PDF manuals are read: scans against their text layer, and elements found.

Pages are drawn by the hash of their file and number. For OCR, each becomes a picture in a PDF
without a text layer, which goes through the reader; its text is compared with that of the original
page through the same reader. Reading order counts as an error, so both rates are upper bounds.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pypdfium2
from rapidfuzz.distance import Levenshtein

from benchmarks.report import ended, say, table, write_result
from ingestion.elements import ParsedDocument
from ingestion.formats.pdf.document import parse_pdf
from kb.errors import InvalidRequest

DPI = 200  # of an office scanner
LEAST_CHARACTERS = 400  # of a drawn page
PAGES = 20


@dataclass(frozen=True)
class Drawn:
    """A page of a file."""

    path: Path
    index: int


def drawn(files: Sequence[Path], count: int) -> list[Drawn]:
    """`count` pages with text, by their hash."""
    pages = []
    for path in files:
        document = pypdfium2.PdfDocument(path)
        pages += [Drawn(path, index) for index in range(len(document))]
        document.close()
    pages.sort(key=lambda p: hashlib.sha256(f"{p.path.name} {p.index}".encode()).digest())
    chosen: list[Drawn] = []
    for page in pages:
        if len(chosen) < count and len(text_of(parse_pdf(alone(page)))) >= LEAST_CHARACTERS:
            chosen.append(page)
    return chosen


def alone(page: Drawn) -> bytes:
    """A PDF of this page only."""
    source, target = pypdfium2.PdfDocument(page.path), pypdfium2.PdfDocument.new()
    target.import_pages(source, [page.index])
    buffer = io.BytesIO()
    target.save(buffer)
    source.close()
    return buffer.getvalue()


def scanned(page: Drawn) -> bytes:
    """A PDF with a grey picture of this page."""
    document = pypdfium2.PdfDocument(page.path)
    picture = document[page.index].render(scale=DPI / 72).to_pil().convert("L")
    buffer = io.BytesIO()
    picture.save(buffer, "PDF", resolution=DPI)
    document.close()
    return buffer.getvalue()


def text_of(document: ParsedDocument) -> str:
    """The words of a document, without the lines that tables are drawn with."""
    words = (word for element in document.elements for word in element.text.split())
    return " ".join(word for word in words if word not in ("|", "---"))


def ocr_rows(pages: Sequence[Drawn]) -> list[list[str]]:
    """For each page: file, page, characters, character error rate, word error rate, the share of
    words of the page that are missing in any order, least confidence, seconds."""
    rows = []
    for page in pages:
        expected = text_of(parse_pdf(alone(page)))
        started = time.perf_counter()
        document = parse_pdf(scanned(page))
        seconds = time.perf_counter() - started
        text = text_of(document)
        words, read = expected.split(), text.split()
        missing = sum((Counter(words) - Counter(read)).values()) / len(words)
        boxes = [box for element in document.elements for box in element.boxes]
        rows.append(
            [
                page.path.name,
                str(page.index + 1),
                str(len(expected)),
                f"{Levenshtein.normalized_distance(expected, text):.3f}",
                f"{Levenshtein.normalized_distance(words, read):.3f}",
                f"{missing:.3f}",
                f"{min((b.confidence for b in boxes if b.confidence), default=0.0):.2f}",
                f"{seconds:.1f}",
            ]
        )
        say(" ".join(rows[-1]))
    return rows


def counted(files: Sequence[Path]) -> list[list[str]]:
    """For each file: pages, and elements by kind."""
    rows = []
    for path in files:
        started = time.perf_counter()
        document = parse_pdf(path.read_bytes())
        kinds: Counter[str] = Counter(element.kind for element in document.elements)
        rows.append(
            [
                path.name,
                str(document.pages_seen),
                *(str(kinds[kind]) for kind in KINDS),
                f"{time.perf_counter() - started:.1f}",
            ]
        )
        say(" ".join(rows[-1]))
    return rows


KINDS = ("title", "text", "list", "table", "code", "caption", "figure")
OCR_HEADER = ("file", "page", "characters", "character errors", "word errors", "words missing")


def run(options: argparse.Namespace) -> None:
    files = sorted(options.corpus.rglob("*.pdf"))
    if not files:
        raise InvalidRequest(f"no PDF in {options.corpus}", hint="Give a folder of manuals.")
    parts = ["`python -m benchmarks.knowledge.page_reading FOLDER`"]
    parts.append(table(["file", "pages", *KINDS, "seconds"], counted(files)))
    if options.pages:
        rows = ocr_rows(drawn(files, options.pages))
        columns = [[float(row[n]) for row in rows] for n in (3, 4, 5)]
        means = [f"{sum(column) / len(column):.3f}" for column in columns]
        rows.append(["mean", "", "", *means, "", ""])
        parts.append(table([*OCR_HEADER, "least confidence", "seconds"], rows))
    write_result(options.results, "Pages of PDF manuals", parts)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.knowledge.page_reading", description=__doc__
    )
    parser.add_argument("corpus", type=Path, help="Folder of PDF files.")
    parser.add_argument("--pages", type=int, default=PAGES, help="Pages drawn for OCR.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
