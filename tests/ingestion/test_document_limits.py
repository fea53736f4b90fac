"""Limits on the size of one parsed document, in every format; a slow one does not delay others."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ingestion.elements import Element, ParsedDocument
from ingestion.formats import parse
from ingestion.limits import LINE_CHARS, DocumentLimits
from ingestion.parse_process import ParseLimits, ParserProcess
from ingestion.read import LocalReader
from kb.errors import ParseFailed
from kb.settings import Settings
from tests.ingestion.formats import office_files
from tests.ingestion.formats.test_pdf import drawn_by_reportlab
from tests.waiting import until

if TYPE_CHECKING:
    from tests.fixtures import Store

pytestmark = pytest.mark.slow(seconds=20)

SENTENCES = [f"Unit {n} has {n} lanes." for n in range(9)]


def word_document(paragraphs: list[str]) -> bytes:
    import docx

    document = docx.Document()
    for text in paragraphs:
        document.add_paragraph(text)
    target = io.BytesIO()
    document.save(target)
    return target.getvalue()


def notebook() -> bytes:
    cells = [{"cell_type": "markdown", "source": text} for text in SENTENCES]
    return json.dumps({"nbformat": 4, "metadata": {}, "cells": cells}).encode()


def mail_with(attachment: bytes, name: str, body: str = "See the file.\n") -> bytes:
    from email.message import EmailMessage

    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "a@example.org", "b@example.org", "Notes"
    message.set_content(body)
    message.add_attachment(attachment, maintype="application", subtype="x", filename=name)
    return bytes(message)


FILES: dict[str, Callable[[], bytes]] = {
    "a.docx": lambda: word_document(SENTENCES),
    "a.xlsx": office_files.workbook,
    "a.pptx": office_files.presentation,
    "a.epub": office_files.book,
    "a.odt": office_files.open_document,
    "a.eml": lambda: mail_with(b"Attached.", "a.txt", "\n\n".join(SENTENCES)),
    "a.rtf": lambda: office_files.RTF,
    "a.pdf": lambda: drawn_by_reportlab(None),
    "a.html": lambda: "".join(f"<p>{text}</p>" for text in SENTENCES).encode(),
    "a.md": lambda: "\n\n".join(SENTENCES).encode(),
    "a.rst": lambda: "\n\n".join(SENTENCES).encode(),
    "a.txt": lambda: "\n\n".join(SENTENCES).encode(),
    "a.csv": lambda: "\n".join("unit,lanes" for _ in SENTENCES).encode(),
    "a.ipynb": notebook,
}


@pytest.mark.parametrize("name", FILES)
def test_oversized_file_of_each_format_is_refused(name: str) -> None:
    data = FILES[name]()
    assert parse(data, name).elements
    with pytest.raises(ParseFailed, match="more than 3 paragraphs and table cells") as parts:
        parse(data, name, DocumentLimits(parts=3))
    assert "Split it" in parts.value.hint and "KERNLORE_" in parts.value.hint
    with pytest.raises(ParseFailed, match="more than 0 characters"):
        parse(data, name, DocumentLimits(passages=0))


def test_table_cell_counts_as_one_part() -> None:
    text = "| a | b |\n| --- | --- |\n" + "| 1 | 2 |\n" * 20
    assert parse(text.encode(), "a.md", DocumentLimits(parts=43))
    with pytest.raises(ParseFailed, match="table cells"):
        parse(text.encode(), "a.md", DocumentLimits(parts=42))


def test_cut_line_counts_with_its_remaining_length() -> None:
    data = ("word " * 20_000).encode()
    passages = LINE_CHARS // 800
    assert parse(data, "a.txt", DocumentLimits(passages=passages)).elements
    with pytest.raises(ParseFailed, match="characters"):
        parse(data, "a.txt", DocumentLimits(passages=passages - 1))


# -- archives


def padded(data: bytes, size: int, *, stated: int | None = None, damaged: bool = False) -> bytes:
    """The archive with a compressed member of `size` bytes, whose header may state another size."""
    target = io.BytesIO(data)
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive:
        if damaged:
            archive.writestr("customXml/first.xml", b"x" * 100)
            archive.getinfo("customXml/first.xml").header_offset = 1
        archive.writestr("customXml/padding.xml", b"0" * size)
        if stated is not None:
            archive.getinfo("customXml/padding.xml").file_size = stated
    return target.getvalue()


@pytest.mark.parametrize("name", ["a.docx", "a.xlsx", "a.pptx", "a.epub", "a.odt"])
@pytest.mark.parametrize("how", [{}, {"stated": 10}, {"damaged": True}])
def test_archive_that_unpacks_to_too_much_is_refused(name: str, how: dict[str, int]) -> None:
    bomb = padded(FILES[name](), 3 << 20, **how)  # type: ignore[arg-type]
    assert len(bomb) < 1 << 20
    with pytest.raises(ParseFailed, match="archive unpacks to more than 2 MiB") as refused:
        parse(bomb, name, DocumentLimits(unpacked_bytes=2 << 20))
    assert "KERNLORE_MAX_UNPACKED_BYTES" in refused.value.hint


def test_oversized_archive_in_mail_is_refused() -> None:
    bomb = mail_with(padded(FILES["a.docx"](), 3 << 20), "a.docx")
    read = parse(bomb, "a.eml", DocumentLimits(unpacked_bytes=2 << 20))
    assert any("unpacks to more than 2 MiB" in warning for warning in read.warnings)


def test_cell_span_is_limited_to_that_of_word() -> None:
    import docx
    from docx.oxml import OxmlElement
    from docx.oxml.ns import qn

    document = docx.Document()
    cell = document.add_table(2, 1).cell(0, 0)
    span = OxmlElement("w:gridSpan")
    span.set(qn("w:val"), "1000000000")
    cell._tc.get_or_add_tcPr().append(span)
    cell.text = "wide"
    target = io.BytesIO()
    document.save(target)
    [table] = [e.table for e in parse(target.getvalue(), "a.docx").elements if e.table]
    assert table is not None and len(table.header[0]) < 100


# -- the worker


def reader_of(store: Store, limits: DocumentLimits) -> LocalReader:
    return LocalReader(store.embedder, store.tagger, store.parsers.parse_bytes, limits)


@pytest.mark.parametrize(
    ("limits", "text", "reason"),
    [
        (DocumentLimits(passages=5), "word " * 1200, "more than 5 passages"),
        (DocumentLimits(passages=5), "# A\n\nText.\n\n" * 9, "more than 5 sections"),
        (DocumentLimits(seconds=0.0), "# A\n\nText.\n", "longer than 0 s"),
    ],
)
def test_document_of_too_many_passages_fails_without_rows(
    store: Store, limits: DocumentLimits, text: str, reason: str
) -> None:
    large = store.submit("large.md", text)
    store.worker_with(reader_of(store, limits)).drain()
    failed = store.job(large)
    assert failed.state == "failed" and failed.error is not None
    assert reason in failed.error["message"] and "Split it" in failed.error["hint"]
    assert store.rows("passages") == store.rows("sections") == 0


def test_limits_apply_in_parser_process(store: Store) -> None:
    """The parser refuses before its process sends the elements."""
    with ParserProcess(ParseLimits(document=DocumentLimits(parts=3))) as parsers:
        reader = LocalReader(store.embedder, store.tagger, parsers.parse_bytes)
        large = store.submit("large.txt", "\n\n".join(SENTENCES))
        store.worker_with(reader).drain()
    error = store.job(large).error
    assert error is not None and "more than 3 paragraphs" in error["message"]


def test_limits_come_from_settings() -> None:
    settings = Settings(
        max_unpacked_bytes=1, max_document_parts=2, max_passages=3, parse_seconds=4.0
    )
    assert DocumentLimits.of(settings) == DocumentLimits(1, 2, 3, 4.0)


def test_slow_document_does_not_delay_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingestion.worker.PATIENCE", 0.2)
    monkeypatch.setattr("ingestion.worker.SLOW_LOOK_SECONDS", 0.05)
    finish = threading.Event()

    def parse_slowly(data: bytes, name: str) -> ParsedDocument:
        if name == "slow.md":
            assert finish.wait(60)
        return ParsedDocument((Element("text", data.decode()),))

    slow = store.submit("slow.md", "The slow one.")
    small = [store.submit(f"{n}.md", f"Small one {n}.") for n in range(12)]
    worker = store.worker_with(LocalReader(store.embedder, store.tagger, parse_slowly))
    working = threading.Thread(target=worker.drain)
    working.start()
    try:
        until(lambda: {store.job(one).state for one in small} == {"ready"})
        assert store.job(slow).state == "running"
    finally:
        finish.set()
        working.join(30)
    assert store.job(slow).state == "ready" and store.job(slow).attempts == 1
