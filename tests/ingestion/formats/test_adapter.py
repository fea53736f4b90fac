"""Formats behind `unstructured`, offline: never an empty success."""

from __future__ import annotations

import importlib.util

import pytest

from ingestion.formats.adapter import parse_other
from kb.errors import ParseFailed, UnsupportedFormat

MAIL = (
    b"From: a@example.org\nTo: b@example.org\nSubject: Tile sizes\n"
    b"Date: Mon, 01 Jan 2024 00:00:00 +0000\nContent-Type: text/plain\n\n"
    b"The second level cache holds 50 MB. Use tiles of 128.\n\n- one\n- two\n"
)
installed = importlib.util.find_spec
needs_unstructured = pytest.mark.skipif(
    installed("unstructured") is None, reason="the extra [unstructured] is not installed"
)


@needs_unstructured
def test_complaint_03_mail_is_read_without_a_language_model_or_network() -> None:
    document = parse_other(MAIL, "tiles.eml")
    assert document.title == "Tile sizes"
    assert [(e.kind, e.text) for e in document.elements[1:]] == [
        ("text", "The second level cache holds 50 MB. Use tiles of 128."),
        ("list", "- one\n- two"),
    ]


@needs_unstructured
@pytest.mark.skipif(installed("pypandoc") is None, reason="pypandoc is not installed")
def test_rich_text_keeps_headings_and_tables() -> None:
    rtf = (
        rb"{\rtf1\ansi {\pard\outlinelevel0 \b\fs36 Memory\par}"
        rb"{\pard The chip has 50 MB of cache.\par}"
        rb"{\trowd\cellx100\cellx200 \pard\intbl Chip\cell Cache\cell\row"
        rb"\trowd\cellx100\cellx200 \pard\intbl H\cell 50\cell\row}}"
    )
    document = parse_other(rtf, "memory.rtf")
    assert document.elements[0].kind == "title"
    tables = [e.table for e in document.elements if e.table]
    assert tables and "50" in tables[0].rows[0]


def test_delimited_text_is_one_table() -> None:
    (element,) = parse_other(b"\xef\xbb\xbfchip,cache\nH,50\nA,40\n", "caches.csv").elements
    assert element.table is not None
    assert element.table.header == (("chip", "cache"),)
    assert element.table.rows == (("H", "50"), ("A", "40"))


@needs_unstructured
def test_complaint_03_an_empty_answer_is_an_error() -> None:
    with pytest.raises(ParseFailed) as caught:
        parse_other(b"", "empty.eml")
    assert caught.value.hint


@needs_unstructured
@pytest.mark.skipif(installed("pypandoc") is None, reason="pypandoc is not installed")
@pytest.mark.parametrize("name", ["broken.odt", "broken.epub"])
def test_damaged_files_are_errors(name: str) -> None:
    with pytest.raises(ParseFailed, match="cannot be read"):
        parse_other(b"garbage", name)


def test_an_unknown_extension_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match=r"\.xyz") as caught:
        parse_other(b"data", "file.xyz")
    assert caught.value.hint


@pytest.mark.skipif(installed("pptx") is not None, reason="python-pptx is installed here")
def test_a_missing_reader_says_how_to_install_it() -> None:
    with pytest.raises(UnsupportedFormat, match="not installed") as caught:
        parse_other(b"PK", "slides.pptx")
    assert "pip install" in caught.value.hint
