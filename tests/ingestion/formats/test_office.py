"""Formats read through `unstructured`, offline, each with a real file: never an empty success."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ingestion.elements import Element, ParsedDocument, Table
from ingestion.formats import office, parse
from ingestion.formats.office import parse_other
from ingestion.parse_process import ParseLimits, ParserProcess, memory_is_enforced
from kb.errors import KernloreError, ParseFailed, UnsupportedFormat
from tests.ingestion.formats import office_files

pytestmark = pytest.mark.slow(seconds=11)

MAIL = (
    b"From: a@example.org\nTo: b@example.org\nSubject: Tile sizes\n"
    b"Date: Mon, 01 Jan 2024 00:00:00 +0000\nContent-Type: text/plain\n\n"
    b"The second level cache holds 50 MB. Use tiles of 128.\n\n- one\n- two\n"
)
MAKERS: dict[str, Callable[[], bytes]] = {
    "pptx": office_files.presentation,
    "xlsx": office_files.workbook,
    "epub": office_files.book,
    "rtf": lambda: office_files.RTF,
    "odt": office_files.open_document,
    "eml": office_files.mail,
    "msg": office_files.outlook_message,
}
OUTLINE = [(1, "Memory"), (2, "Banks"), (1, "Barriers")]
MESSAGE = [(1, "Errata of Orion"), (2, "Barriers"), (3, "Workaround")]
needs_unstructured = pytest.mark.skipif(
    importlib.util.find_spec("unstructured") is None,
    reason="the extra [unstructured] is not installed",
)


def read(extension: str) -> ParsedDocument:
    return parse(MAKERS[extension](), f"file.{extension}")


def headings(document: ParsedDocument) -> list[tuple[int | None, str]]:
    return [(e.level, e.text) for e in document.elements if e.kind == "title"]


def tables(document: ParsedDocument) -> list[Table]:
    return [element.table for element in document.elements if element.table]


def bodies(document: ParsedDocument, kind: str) -> list[str]:
    return [element.text for element in document.elements if element.kind == kind]


@needs_unstructured
def test_slides_are_pages_with_their_title_as_heading() -> None:
    document = read("pptx")
    assert headings(document) == [(1, "Orion accelerator"), (1, "Memory hierarchy"), (1, "Peaks")]
    assert document.pages_seen == 3
    labels = [(e.boxes[0].page_index, e.boxes[0].page_label) for e in document.elements]
    assert labels == [(0, "1")] * 2 + [(1, "2")] * 3 + [(2, "3")] * 2
    assert bodies(document, "text") == [
        "Programming guide, revision 2",
        "Bank conflicts cost a factor of eight.",  # the notes follow the title of their slide
    ]
    assert bodies(document, "list") == [
        "- The scratchpad holds 192 KB per core.\n  - It has 32 banks of four bytes.\n"
        "- Use tiles of 128."
    ]
    assert tables(document) == [Table((("Type", "TFLOPS"),), (("fp16", "383"), ("fp8", "766")))]


@needs_unstructured
def test_sheets_are_sections_with_tables() -> None:
    document = read("xlsx")
    assert document.title is None  # the file name is the title then
    assert headings(document) == [(1, "Peaks"), (1, "Limits"), (2, "Limits of one core")]
    assert tables(document) == [
        Table((("Chip", "fp16 TFLOPS"),), (("Orion 1", "383"), ("Orion 2", "766.5"))),
        Table((("Resource", "Limit"),), (("Registers", "65536"), ("Threads", "1024"))),
    ]
    assert bodies(document, "text") == [
        "The production stepping of the chip may change these values."
    ]
    assert [e.boxes[0].page_label for e in document.elements] == ["1"] * 2 + ["2"] * 4


@needs_unstructured
def test_books_keep_headings_lists_tables_and_code() -> None:
    document = read("epub")
    assert document.title == "Orion Guide"  # from the metadata
    assert headings(document) == OUTLINE
    assert bodies(document, "list") == ["- 32 banks\n  - of four bytes\n- one port"]
    assert tables(document) == [Table((("Chip", "Cache"),), (("Orion 1", "50 MB"),))]
    assert bodies(document, "code") == ["bar.sync 0;\n  bar.arrive 1;"]


@needs_unstructured
def test_rich_text_keeps_headings_and_tables() -> None:
    document = read("rtf")
    assert headings(document) == OUTLINE
    rows = (("Orion 1", "50 MB"), ("Orion 2", "60 MB"))
    assert tables(document) == [Table((("Chip", "Cache"),), rows)]
    assert bodies(document, "text") == [
        "The scratchpad holds 192 KB.",
        "Conflicts of 32 banks serialise.",
        "Every warp has to arrive.",
    ]


@needs_unstructured
def test_open_document_text() -> None:
    document = read("odt")
    assert headings(document) == [(1, "Memory")]
    assert bodies(document, "list") == ["- 32 banks\n- one port"]
    assert tables(document) == [Table((("Chip", "Cache"),), (("Orion 1", "50 MB"),))]


@needs_unstructured
def test_mail_has_its_subject_as_title_and_its_attachments() -> None:
    document = read("eml")
    assert headings(document) == [*MESSAGE, (2, "a.csv")]
    assert [table.rows for table in tables(document)] == [(("1", "broken"),), (("H", "50"),)]
    assert bodies(document, "code") == ["bar.sync 0;\n  bar.arrive 1;"]
    (warning,) = document.warnings
    assert "b.png was not read" in warning and "PNG" in warning


@needs_unstructured
def test_outlook_messages_are_read_like_mail() -> None:
    document = read("msg")
    assert headings(document) == [*MESSAGE, (2, "a.txt")]
    assert document.elements[-1] == Element("text", "An attached line.")
    assert tables(document) == [Table((("Revision", "State"),), (("1", "broken"),))]


@needs_unstructured
def test_complaint_03_mail_needs_no_language_model_or_network() -> None:
    document = parse_other(MAIL, "tiles.eml")
    assert document.title == "Tile sizes"
    assert [(e.kind, e.text) for e in document.elements[1:]] == [
        ("text", "The second level cache holds 50 MB. Use tiles of 128."),
        ("list", "- one\n- two"),
    ]


@needs_unstructured
def test_converters_work_within_parser_limits(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_bytes(office_files.book())
    with ParserProcess() as parser:
        assert parser.parse(path, "guide.epub").title == "Orion Guide"


@needs_unstructured
@pytest.mark.parametrize("extension", ["rtf", "pptx", "xlsx", "epub", "odt", "msg"])
def test_content_takes_precedence_over_extension(extension: str) -> None:
    document = parse_other(MAKERS[extension](), "renamed.txt")
    assert document.elements == parse_other(MAKERS[extension](), f"a.{extension}").elements


def test_delimited_text_is_one_table() -> None:
    (element,) = parse_other(b"\xef\xbb\xbfchip,cache\nH,50\nA,40\n", "caches.csv").elements
    assert element.table is not None
    assert element.table.header == (("chip", "cache"),)
    assert element.table.rows == (("H", "50"), ("A", "40"))


XML = b"""<?xml version="1.0"?>
<!DOCTYPE book [<!ENTITY chip "Slab">]>
<book><title>Unit manual</title><!-- draft --><chapter>
<para>The <literal>port</literal> of &chip; serves one read, and <em>long <b>stalls</b> follow</em>
a conflict.</para>
<para>Before a list: <list><item>first <code>add</code> item</item></list> After it.</para>
<funcdef>void <function>drain</function></funcdef>
<programlisting>a = <b>1</b>
b = 2</programlisting></chapter></book>"""


@needs_unstructured
def test_xml_text_after_inline_tags_is_read() -> None:
    document = parse_other(XML, "unit.xml")
    title, port, around, prototype, code = [element.text for element in document.elements]
    assert title == document.title == "Unit manual"
    assert port == "The port of &chip; serves one read, and long stalls follow a conflict."
    assert around == "Before a list: first add item After it."
    assert (prototype, code) == ("void drain", "a = 1\nb = 2")
    with pytest.raises(ParseFailed, match="cannot be read"):
        parse_other(XML[:-40], "cut.xml")


@needs_unstructured
def test_complaint_03_empty_result_is_an_error() -> None:
    with pytest.raises(ParseFailed) as caught:
        parse_other(b"", "empty.eml")
    assert caught.value.hint


@needs_unstructured
@pytest.mark.parametrize("extension", ["odt", "epub", "pptx", "xlsx", "msg", "rtf"])
def test_damaged_files_are_errors(extension: str) -> None:
    data = b"{\\rtf1 {" if extension == "rtf" else b"garbage"
    with pytest.raises(ParseFailed, match=r"cannot be read|nothing could be read") as caught:
        parse_other(data, f"broken.{extension}")
    assert "damaged" in caught.value.hint or "empty" in caught.value.hint
    assert len(caught.value.message) < 400


@needs_unstructured
@pytest.mark.parametrize("extension", ["pptx", "xlsx", "epub", "odt"])
def test_truncated_file_is_an_error(extension: str) -> None:
    data = MAKERS[extension]()
    with pytest.raises(KernloreError, match="damaged zip"):
        parse(data[: len(data) // 2], f"cut.{extension}")


def test_unknown_extension_is_refused() -> None:
    with pytest.raises(UnsupportedFormat, match=r"\.xyz") as caught:
        parse_other(b"data", "file.xyz")
    assert caught.value.hint


@pytest.mark.parametrize(
    ("stream", "name", "message", "hint"),
    [
        ("WordDocument", "old.doc", "before 2007", ".docx"),
        ("PowerPoint Document", "old.bin", "before 2007", ".pptx"),
        ("EncryptedPackage", "secret.xlsx", "encrypted", "password"),
    ],
)
def test_binary_office_files_have_hint_on_conversion(
    stream: str, name: str, message: str, hint: str
) -> None:
    with pytest.raises(KernloreError, match=message) as caught:
        parse(office_files.old_office(stream), name)
    assert hint in caught.value.hint


@needs_unstructured
@pytest.mark.parametrize(
    ("extension", "module", "package"),
    [
        ("pptx", "pptx", "python-pptx"),
        ("xlsx", "openpyxl", "openpyxl"),
        ("rtf", "pypandoc", "pypandoc_binary"),
        ("msg", "oxmsg", "python-oxmsg"),
    ],
)
def test_missing_package_is_named(
    extension: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = MAKERS[extension]()
    monkeypatch.delitem(
        sys.modules, f"unstructured.partition.{office._READERS[extension].module}", raising=False
    )
    monkeypatch.setitem(sys.modules, module, None)
    installed = office._installed
    monkeypatch.setattr(office, "_installed", lambda name: name != package and installed(name))
    with pytest.raises(UnsupportedFormat) as caught:
        parse_other(data, f"a.{extension}")
    assert caught.value.message == f"reading .{extension} needs {package}, which is not installed"
    assert "pip install 'kernlore[unstructured]'" in caught.value.hint


@needs_unstructured
@pytest.mark.parametrize(
    ("installed", "message", "hint"),
    [(False, "which is not installed", "pip install"), (True, "does not start", "may run")],
)
def test_missing_pandoc_program_is_named(
    monkeypatch: pytest.MonkeyPatch, installed: bool, message: str, hint: str
) -> None:
    import pypandoc

    def absent() -> str:
        raise OSError("No pandoc was found")

    monkeypatch.setattr(pypandoc, "get_pandoc_path", absent)
    monkeypatch.setattr(office, "_installed", lambda name: installed)
    with pytest.raises(UnsupportedFormat, match=f"the program pandoc.*{message}") as caught:
        parse_other(office_files.RTF, "a.rtf")
    assert hint in caught.value.hint
    assert ("pip install" in caught.value.hint) is not installed


@needs_unstructured
def test_broken_import_is_not_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "unstructured.partition.rtf", raising=False)
    monkeypatch.setitem(sys.modules, "pypandoc", None)  # importing it fails
    with pytest.raises(UnsupportedFormat, match="installed package cannot be imp") as caught:
        parse_other(office_files.RTF, "a.rtf")
    assert "pypandoc" in caught.value.message and "pip install" not in caught.value.hint


@needs_unstructured
@pytest.mark.skipif(not memory_is_enforced(), reason="this system has no address space limit")
def test_out_of_memory_is_not_a_missing_package(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(office_files.RTF)
    limits = ParseLimits(memory_mib=76)  # too little memory for the imports
    with ParserProcess(limits) as parser, pytest.raises(ParseFailed, match="memory") as caught:
        parser.parse(path, "a.rtf")
    assert "limits of the parser" in caught.value.hint
