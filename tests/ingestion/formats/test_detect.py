"""Which parser a file gets, and decoding of its bytes."""

from __future__ import annotations

import io
import zipfile

import pytest

from ingestion.formats import parse
from ingestion.formats.detect import Format, decode, detect, drop_base64
from kb.errors import ParseFailed, UnsupportedFormat

HTML = b"<!DOCTYPE html>\n<html><body><h1>Caches</h1><p>A line is 64 bytes.</p></body></html>"
NOTEBOOK = b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


def zipped(*members: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for member in members:
            archive.writestr(member, "x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "manual.pdf", Format.PDF),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "manual.md", Format.PDF),
        (HTML, "page.txt", Format.HTML),
        (b"\xef\xbb\xbf" + HTML, "page", Format.HTML),
        (NOTEBOOK, "lesson.json", Format.NOTEBOOK),
        (zipped("[Content_Types].xml", "word/document.xml"), "notes.zip", Format.DOCX),
        (zipped("ppt/presentation.xml"), "slides.pptx", Format.OTHER),
        (b"# Title\n", "a.MD", Format.MARKDOWN),
        (b"Title\n=====\n", "a.rst", Format.RST),
        (b"Title\n=====\n\n.. note:: careful\n", "README", Format.RST),
        (b"# Title\n\n## Part\n\n```c\nint x;\n```\n", "README", Format.MARKDOWN),
        (b"# a comment\nkey = value\n", "settings.txt", Format.TEXT),
        (b"not a PDF at all\n", "broken.pdf", Format.TEXT),
    ],
)
def test_content_takes_precedence_over_name(data: bytes, name: str, expected: Format) -> None:
    assert detect(data, name) is expected


def test_wrong_extension_gives_warning() -> None:
    document = parse(HTML, "page.md")
    assert [e.text for e in document.elements] == ["Caches", "A line is 64 bytes."]
    assert any("named like markdown" in warning for warning in document.warnings)


@pytest.mark.parametrize(
    ("data", "name", "error"),
    [
        (b"", "empty.md", ParseFailed),
        (b" \n\n", "blank.md", ParseFailed),
        (bytes(range(256)) * 40, "noise.md", UnsupportedFormat),
        (bytes(range(256)) * 40, "noise.pdf", ParseFailed),
        (b"\x89PNG\r\n\x1a\n" + bytes(64), "figure.md", UnsupportedFormat),
        (
            b'<?xml version="1.0"?>\n<!-- drawn -->\n<svg width="1"/>',
            "block.svg",
            UnsupportedFormat,
        ),
        (zipped("a.md", "b.md"), "manuals.zip", UnsupportedFormat),
        (zipped("word/document.xml")[:60], "cut.docx", ParseFailed),
        (b"x", "a.bin", UnsupportedFormat),
    ],
)
def test_non_document_is_refused_with_hint(
    data: bytes, name: str, error: type[ParseFailed] | type[UnsupportedFormat]
) -> None:
    with pytest.raises(error) as caught:
        parse(data, name)
    assert name in caught.value.message
    assert caught.value.hint.endswith(".")


CODE = "# Tiles\n\nfor i in range(4):\n    a = 1; b = 2\n\n    # ---\n    c = a\n"


@pytest.mark.parametrize(
    ("name", "language"), [("k.py", "python"), ("k.CU", "cuda"), ("k.s", "asm")]
)
def test_source_file_is_one_code_block(name: str, language: str) -> None:
    document = parse(CODE.encode(), name)
    [block] = document.elements
    assert (block.kind, block.language) == ("code", language)
    assert block.text + "\n" == CODE and document.warnings == ()


def test_character_sets() -> None:
    assert decode("\ufeffschön".encode()) == decode("schön".encode())
    latin = decode("Größe der Zeile".encode("cp1252"))
    assert latin.text == "Größe der Zeile"
    assert "not UTF-8" in latin.warnings[0]
    wide = decode("warp size 32\n".encode("utf-16"))
    assert wide.text == "warp size 32\n"
    broken = decode(
        "ein Ä und noch ein Ö und ü und ß und é und è und ñ und ç ô î â û".encode() + b"\xff"
    )
    assert broken.text.startswith("ein Ä") and "replaced" in broken.warnings[0]


def test_nul_bytes_are_removed_with_warning() -> None:
    document = parse(b"A wave has 64\x00 lanes.\n", "a.txt")
    assert document.elements[0].text == "A wave has 64 lanes."
    assert document.warnings == ("1 NUL characters removed",)


def test_base64_is_dropped() -> None:
    blob = "iVBORw0KGgoAAAANSUhEUg" * 40
    assert drop_base64(f"![alt](data:image/png;base64,{blob}==) after") == "![alt]() after"
    assert drop_base64(f"before {blob} after") == "before  after"
    assert drop_base64("=" * 500) == "=" * 500


@pytest.mark.parametrize("piece", [b"<!---->", b"<!-- -->", b"\n", b" \n", b"<?a>", b".\n", b"%\n"])
def test_format_of_any_text_is_found_in_linear_time(piece: bytes) -> None:
    """Expressions that match one text in several ways took minutes to years for these."""
    assert detect(b"a" + piece * 9000, "a.txt") is Format.TEXT
    assert detect(piece * 9000 + b"x", "a.txt") is Format.TEXT
