"""Plain text, the tables of all formats, and cells."""

from __future__ import annotations

from ingestion.elements import Table, make_table, render_table, table_element
from ingestion.formats.text import parse_text


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
