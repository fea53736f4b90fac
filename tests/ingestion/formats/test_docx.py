"""DOCX parsing on files written with python-docx."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import docx
import pytest
from docx.oxml import OxmlElement
from docx.oxml.ns import qn

from ingestion.elements import ParsedDocument
from ingestion.formats.office import parse_docx
from kb.errors import ParseFailed


def parsed(build: Callable[[Any], None]) -> ParsedDocument:
    document = docx.Document()
    build(document)
    target = io.BytesIO()
    document.save(target)
    return parse_docx(target.getvalue())


def kinds(document: ParsedDocument) -> list[tuple[str, int | None, str]]:
    return [(e.kind, e.level, e.text) for e in document.elements]


def test_headings_lists_and_code() -> None:
    def build(document: Any) -> None:
        document.add_heading("Banks", 1)
        document.add_paragraph("Shared memory\thas 32 banks.")
        document.add_heading("Padding", 3)
        document.add_paragraph("one", style="List Bullet")
        document.add_paragraph("inner", style="List Bullet 2")
        for line in ("for i in range(4):", "    pass"):
            document.add_paragraph().add_run(line).font.name = "Courier New"

    assert kinds(parsed(build)) == [
        ("title", 1, "Banks"),
        ("text", None, "Shared memory has 32 banks."),
        ("title", 3, "Padding"),
        ("list", None, "- one\n  - inner"),
        ("code", None, "for i in range(4):\n    pass"),
    ]


def test_complaint_10_merged_header_rows_and_caption() -> None:
    def build(document: Any) -> None:
        document.add_paragraph("Table 1: Limits", style="Caption")
        table = document.add_table(4, 3)
        table.cell(0, 0).merge(table.cell(1, 0)).text = "Chip"
        table.cell(0, 1).merge(table.cell(0, 2)).text = "Registers"
        table.cell(1, 1).text, table.cell(1, 2).text = "per thread", "per unit"
        for row, name in ((2, "a"), (3, "b")):
            for column, text in enumerate((name, "255", "64 | Ki")):
                table.cell(row, column).text = text
        for row in table.rows[:2]:
            row._tr.get_or_add_trPr().append(OxmlElement("w:tblHeader"))

    (element,) = parsed(build).elements
    assert element.table is not None
    assert element.table.caption == "Table 1: Limits"
    assert element.table.header == (
        ("Chip", "Registers", "Registers"),
        ("Chip", "per thread", "per unit"),
    )
    assert element.table.rows == (("a", "255", "64 | Ki"), ("b", "255", "64 | Ki"))
    assert element.text.startswith("Table 1: Limits\n\n| Chip | Registers | Registers |")


def test_content_controls_are_read_and_deletions_ignored() -> None:
    def build(document: Any) -> None:
        stored = document.add_paragraph("inside a control")
        control, content = OxmlElement("w:sdt"), OxmlElement("w:sdtContent")
        stored._p.addprevious(control)
        content.append(stored._p)
        control.append(content)
        paragraph = document.add_paragraph("stays")
        deletion = OxmlElement("w:del")
        run = paragraph.add_run(" goes")._r
        run.addprevious(deletion)
        deletion.append(run)

    assert [e.text for e in parsed(build).elements] == ["inside a control", "stays"]


def test_paragraph_with_outline_level_is_a_heading() -> None:
    def build(document: Any) -> None:
        paragraph = document.add_paragraph("Custom heading")
        level = OxmlElement("w:outlineLvl")
        level.set(qn("w:val"), "1")
        paragraph._p.get_or_add_pPr().append(level)

    assert kinds(parsed(build)) == [("title", 2, "Custom heading")]


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 cut off", b"plain text"])
def test_damaged_file_is_an_error_with_hint(data: bytes) -> None:
    with pytest.raises(ParseFailed) as caught:
        parse_docx(data)
    assert caught.value.hint
