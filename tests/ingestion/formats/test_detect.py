"""Which parser a file gets, and decoding of its bytes."""

from __future__ import annotations

import io
import zipfile

import pytest

from ingestion.elements import Table, make_table, render_table, table_element
from ingestion.formats import parse
from ingestion.formats.detect import Format, decode, detect, drop_base64
from ingestion.formats.text import parse_text
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


# -- plain text, the tables of all formats, and cells


def kinds(text: str) -> list[tuple[str, str]]:
    return [(element.kind, element.text) for element in parse_text(text).elements]


def test_paragraphs_lists_and_code() -> None:
    assert kinds("One line\nand more.\n\n\n- a\n- b\n\n    x = f(1);\n\n    y = 2;\n") == [
        ("text", "One line\nand more."),
        ("list", "- a\n- b"),
        ("code", "x = f(1);\n\ny = 2;"),
    ]


def test_only_unambiguous_lines_are_headings() -> None:
    text = (
        "Overview\n========\n\n1.2 Memory model\n\nREGISTER FILE\n\nA short line\n\n"
        "64 KB of LDS. It is shared.\n"
    )
    document = parse_text(text)
    assert [(e.text, e.level) for e in document.elements if e.kind == "title"] == [
        ("Overview", 1),
        ("1.2 Memory model", 2),
        ("REGISTER FILE", 2),
    ]
    assert document.title == "Overview"


def test_table_is_rectangular_and_clean() -> None:
    table = make_table([["a", "b\n c"]], [["1"], ["", " "], ["2", "3"]], "  Peak \n rates ")
    assert table == Table((("a", "b c"),), (("1", ""), ("2", "3")), "Peak rates")
    assert render_table(table) == "Peak rates\n\n| a | b c |\n| --- | --- |\n| 1 |  |\n| 2 | 3 |"
    assert table_element(make_table([], [["", " "]])) is None


def test_pipe_in_cell_is_escaped() -> None:
    assert render_table(make_table([], [["a|b", "c"]])) == "| a\\|b | c |"


ERRORS = """orbc 3.2 error log collection

O3-1042  well allocation exceeds limit
    The kernel states more than 163840 bytes with .well. Use smaller blocks.
O3-2007  misaligned dget
    The address must be a multiple of 64. The assembler checks constants only.

Example:
softmax.orb:12: error: O3-1042: well allocation exceeds limit
softmax.orb:19: error: O3-3001: unknown mnemonic 'vexpf'
"""


def test_each_entry_of_an_error_list_is_one_element() -> None:
    elements = parse_text(ERRORS).elements
    assert [element.kind for element in elements] == ["text", "list", "list", "text", "code"]
    assert elements[1].text.startswith("O3-1042") and elements[1].text.endswith("blocks.")
    assert elements[2].text.endswith("checks constants only.")
    assert elements[4].text.startswith("softmax.orb:12") and "vexpf" in elements[4].text
    together = parse_text("RFC2119  Key words\nand other text\nP100  a part\n").elements
    assert [element.kind for element in together] == ["text"]
    [paragraph] = parse_text("Note:\nIt is 12:30 now, and a ratio is 3:1.\n").elements
    assert paragraph.kind == "text"
