"""PDF parsing on golden files whose pages, labels and tables are known."""

from __future__ import annotations

from dataclasses import replace
from io import BytesIO

import pytest
from reportlab.lib.colors import black
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import Paragraph, SimpleDocTemplate, Table, TableStyle

from ingestion.elements import Element, ParsedDocument
from ingestion.formats.pdf.document import parse_pdf
from ingestion.limits import DocumentLimits
from kb.errors import ParseFailed
from tests.ingestion import golden


@pytest.fixture(scope="module")
def manual() -> ParsedDocument:
    return parse_pdf(golden.manual())


def holding(document: ParsedDocument, text: str) -> Element:
    found = [e for e in document.elements if text in e.text]
    assert len(found) == 1, [e.text for e in found]
    return found[0]


def test_complaint_09_every_element_has_page_label_and_box(manual: ParsedDocument) -> None:
    assert manual.pages_seen == manual.pages_parsed == 6
    assert not manual.failures
    for element in manual.elements:
        assert element.boxes
        for box in element.boxes:
            assert 0 <= box.x0 < box.x1 <= golden.WIDTH
            assert 0 <= box.y0 < box.y1 <= golden.HEIGHT
    first = holding(manual, "Revision 3").boxes[0]
    assert (first.page_index, first.page_label) == (0, "i")
    banks = holding(manual, "32 banks of four").boxes[0]
    assert (banks.page_index, banks.page_label) == (5, "4")


def test_box_is_measured_from_top_of_page(manual: ParsedDocument) -> None:
    box = holding(manual, "Threads run in groups").boxes[0]
    baseline = golden.HEIGHT - (golden.TOP - 18 - 1.2 * 18 - 8)
    assert box.y0 < baseline < box.y1
    assert box.x0 == pytest.approx(golden.LEFT, abs=1)


def test_heading_paths_follow_outline(manual: ParsedDocument) -> None:
    titles = [(e.level, e.text) for e in manual.elements if e.kind == "title"]
    assert titles == [
        (1, "Chip Manual"),
        (1, "1 Execution"),
        (2, "1.1 Warps"),
        (2, "1.2 Code"),
        (1, "2 Memory"),
        (2, "2.1 Banks"),
    ]
    assert manual.title == "Chip Manual"


def test_running_heads_and_contents_are_dropped(manual: ParsedDocument) -> None:
    everything = "\n".join(e.text for e in manual.elements)
    assert "Page 3" not in everything
    assert "revision 3" not in everything
    assert ". . ." not in everything
    assert any("table of contents" in warning for warning in manual.warnings)


def test_sentence_over_page_break_is_one_element_with_two_boxes(manual: ParsedDocument) -> None:
    element = holding(manual, golden.SPLIT_SENTENCE)
    assert [box.page_label for box in element.boxes] == ["1", "2"]


def test_word_hyphenated_at_line_end_is_joined(manual: ParsedDocument) -> None:
    assert golden.HYPHENATED in holding(manual, "divergent").text


def test_items_and_code_keep_their_layout(manual: ParsedDocument) -> None:
    items = holding(manual, "32 lanes")
    assert items.kind == "list"
    assert items.text == "- one warp has 32 lanes\n- lanes of one warp share a program counter"
    code = holding(manual, "acc += a[i]")
    assert code.kind == "code"
    assert code.text == "for (int i = 0; i < n; ++i) {\n    acc += a[i];\n}"


def test_complaint_10_table_over_two_pages_keeps_header_rows(manual: ParsedDocument) -> None:
    tables = [e for e in manual.elements if e.kind == "table"]
    assert len(tables) == 1
    table = tables[0].table
    assert table is not None
    assert table.header == golden.OCCUPANCY_HEADER
    assert [row[0] for row in table.rows] == [f"chip{i:02d}" for i in range(40)]
    assert table.caption == "Table 7. Occupancy limits of all chips"
    assert [box.page_label for box in tables[0].boxes] == ["3", "4"]
    assert tables[0].text.startswith("Table 7. Occupancy limits of all chips\n\n| Chip | Limits |")


def test_table_text_is_not_repeated(manual: ParsedDocument) -> None:
    assert sum("chip07" in e.text for e in manual.elements) == 1


def test_headings_without_outline_follow_number_and_font() -> None:
    document = parse_pdf(golden.without_outline())
    titles = [(e.level, e.text) for e in document.elements if e.kind == "title"]
    assert titles[:4] == [
        (1, "A Tuning Guide"),
        (1, "1 Chapter number 1"),
        (2, "1.1 Section below"),
        (3, "Run-in remark"),
    ]
    assert len(titles) == 7
    assert document.title == "A Tuning Guide"


def test_two_columns_are_read_in_order() -> None:
    document = parse_pdf(golden.two_columns())
    text = " ".join(e.text for e in document.elements if e.kind == "text")
    left = [f"the left column has line number {i:02d} here" for i in range(20)]
    right = [f"the right column has line number {i:02d} here" for i in range(20)]
    assert text == " ".join([*left, *right])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_several_columns_are_read_in_order(count: int) -> None:
    """Also from the top of the page, where equal first lines are not a running head."""
    texts = [[f"Column {c} says in line {i:02d}" for i in range(12)] for c in range(count)]
    document = parse_pdf(golden.columns(texts))
    text = " ".join(e.text for e in document.elements)
    assert text == " ".join(line for lines in texts for line in lines)


def test_rows_of_short_texts_are_read_across() -> None:
    """A table without ruling lines is drawn row by row; the cells of a row belong together."""
    rows = [
        [f"name {i:02d} of it", f"its meaning is {i:02d}", f"see page {i:02d}"] for i in range(12)
    ]
    (element,) = parse_pdf(golden.rows(rows)).elements
    assert element.table is not None
    assert [list(row) for row in (*element.table.header, *element.table.rows)] == rows


def test_signs_join_their_numbers_and_a_title_its_table() -> None:
    (element,) = parse_pdf(golden.amounts()).elements
    assert element.table is not None
    assert element.table.caption == "Balance of the fabs in millions"
    assert (element.table.header + element.table.rows)[:2] == (
        ("Cash", "$ 1,980", "$ 1,101"),
        ("Receivables, net", "1,015", "1,049"),
    )


def test_fields_of_an_encoding_are_columns_under_their_bits() -> None:
    (element,) = parse_pdf(golden.encoding()).elements
    assert element.table is not None
    assert element.table.header == (("31:25", "24:20", "19:15", "14:12", "11:7", "6:0"),)
    assert element.table.rows == (
        ("imm[11:5]", "rs2", "rs1", "funct3", "imm[4:0]", "opcode"),
        ("offset", "src", "base", "width", "offset", "STORE"),
    )


def test_long_row_of_falling_numbers_is_no_encoding() -> None:
    """To match all of them with the parts below took more memory than a child may use."""
    numbers = [str(n) for n in range(3000, 0, -1)]
    rows = [numbers, *[["f"] * len(numbers)] * 3]
    (element,) = parse_pdf(golden.rows(rows, size=1, page_width=14_400)).elements
    assert element.kind == "text"


def test_text_of_a_diagram_is_a_figure_with_its_caption_and_place() -> None:
    before, figure, after = parse_pdf(golden.diagram()).elements
    assert (before.kind, figure.kind, after.kind) == ("text", "figure", "text")
    assert figure.text.splitlines() == [
        "Figure 3: Data paths of the chip.",
        "DMA engine  Scratchpad  Tensor unit",
        "64 B/cycle",
    ]
    (box,) = figure.boxes
    assert box.x0 < 92 and box.x1 > 440 and box.y1 - box.y0 > 60


def test_listings_side_by_side_are_read_one_after_the_other() -> None:
    document = parse_pdf(golden.code_panels(lines=12))
    panels = [e.text.splitlines() for e in document.elements if e.kind == "code"]
    expected = [[f"panel{p} = load(line{n:02d})" for n in range(12)] for p in range(3)]
    assert panels == expected
    assert [e.kind for e in document.elements if e.kind != "code"] == ["text"]


@pytest.mark.slow(seconds=9)
def test_scanned_page_is_read_by_ocr_with_confidence() -> None:
    pytest.importorskip("rapidocr", reason="the extra `ocr` is not installed")
    lines = ["Memory banks of the accelerator", "Each of 32 banks holds 8 KiB, with one port."]
    document = parse_pdf(golden.scanned(lines))
    assert not document.failures
    assert " ".join(e.text for e in document.elements) == " ".join(lines)
    boxes = [box for element in document.elements for box in element.boxes]
    assert all(0.8 < (box.confidence or 0) <= 1 for box in boxes)
    assert "read by OCR" in document.warnings[0]
    (failure,) = parse_pdf(golden.scanned([])).failures  # as if in a script that OCR does not know
    assert failure.reason.endswith("OCR reads no text on it")


def test_pages_without_time_for_ocr_are_reported_with_the_setting() -> None:
    pytest.importorskip("rapidocr", reason="the extra `ocr` is not installed")
    limits = replace(DocumentLimits(), seconds=0.0)
    (failure,) = parse_pdf(golden.scanned(["any text"]), limits).failures
    assert "KERNLORE_PARSE_SECONDS" in failure.reason
    (warning,) = parse_pdf(golden.picture(), limits).warnings
    assert warning.startswith("no time for OCR of pictures on 1 of 1 pages")


def test_complaint_03_scanned_page_is_reported_and_blank_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ingestion.formats.pdf.document.INSTALLED", False)
    document = parse_pdf(golden.scanned_in_the_middle())
    assert document.pages_seen == 3
    assert [(f.page_index, f.reason.split(":")[0]) for f in document.failures] == [(1, "scanned")]
    assert "kernlore[ocr]" in document.failures[0].reason


def test_printed_numbers_label_pages_without_labels() -> None:
    document = parse_pdf(golden.printed_numbers_only())
    assert [e.boxes[0].page_label for e in document.elements] == ["11", "12", "13", "14"]
    assert all(not e.text.endswith(("11", "14")) for e in document.elements)


def test_rotated_page_is_read_in_order() -> None:
    (element,) = parse_pdf(golden.rotated()).elements
    assert element.text == (
        "A wide sheet is read from its long side. Its second line is below the first."
    )
    box = element.boxes[0]
    assert (box.x0, box.y0) == (pytest.approx(100, abs=2), pytest.approx(52, abs=4))


def test_encrypted_file_error_asks_for_copy_without_password() -> None:
    with pytest.raises(ParseFailed, match="password") as caught:
        parse_pdf(golden.encrypted())
    assert "without the password" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"%PDF-1.7\n", b"\x00\x01 not a document" * 50])
def test_invalid_pdf_is_an_error_with_hint(data: bytes) -> None:
    with pytest.raises(ParseFailed) as caught:
        parse_pdf(data)
    assert caught.value.hint


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.95])
def test_complaint_03_truncated_file_never_looks_complete(share: float) -> None:
    data = golden.manual()
    whole = parse_pdf(data)
    try:
        document = parse_pdf(data[: int(share * len(data))])
    except ParseFailed as error:
        assert error.hint
        return
    assert document.failures or document.elements == whole.elements
    assert any("end of the file is missing" in warning for warning in document.warnings)


def drawn_by_reportlab(title: str | None) -> bytes:
    """A manual laid out by reportlab: centred tables, headings at the margin."""
    styles = getSampleStyleSheet()
    grid = TableStyle([("GRID", (0, 0), (-1, -1), 0.5, black)])
    rows = [["Property", "Value"], ["L2 cache size", "48 MiB"], ["Banks", "16"]]
    cells = Table(rows, style=grid)
    parts = [
        Paragraph("Orbis-3 Architecture Guide", styles["Title"]),
        Paragraph("2 Memory", styles["Heading1"]),
        cells,
        Paragraph("2.1 The well", styles["Heading2"]),
        Paragraph("A kernel may take at most 160 KiB of the well of each tile.", styles["Normal"]),
    ]
    file = BytesIO()
    SimpleDocTemplate(file, title=title).build(parts)
    return file.getvalue()


@pytest.mark.parametrize(
    "given", (None, "(anonymous)", "untitled", "Microsoft Word - guide_v3", "guide_v3.docx")
)
def test_placeholder_title_is_ignored(given: str | None) -> None:
    assert parse_pdf(drawn_by_reportlab(given)).title == "Orbis-3 Architecture Guide"


def test_given_title_is_used() -> None:
    assert parse_pdf(drawn_by_reportlab("Anonymous pipes of Orbis")).title == (
        "Anonymous pipes of Orbis"
    )


def test_table_belongs_to_heading_above_it() -> None:
    parsed = parse_pdf(drawn_by_reportlab(None))
    order = [e.text if e.kind == "title" else e.kind for e in parsed.elements]
    assert order[1:] == ["2 Memory", "table", "2.1 The well", "text"]
