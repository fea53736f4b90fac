"""Plain text, the tables of all formats, and cells."""

from __future__ import annotations

from ingestion.elements import Table
from ingestion.formats.tables import make_table, render_table, table_element
from ingestion.formats.text import parse_text


def kinds(text: str) -> list[tuple[str, str]]:
    return [(element.kind, element.text) for element in parse_text(text).elements]


def test_paragraphs_lists_and_code() -> None:
    assert kinds("One line\nand more.\n\n\n- a\n- b\n\n    x = f(1);\n\n    y = 2;\n") == [
        ("text", "One line\nand more."),
        ("list", "- a\n- b"),
        ("code", "x = f(1);\n\ny = 2;"),
    ]


def test_headings_only_where_they_cannot_be_anything_else() -> None:
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


def test_a_table_is_rectangular_and_clean() -> None:
    table = make_table([["a", "b\n c"]], [["1"], ["", " "], ["2", "3"]], "  Peak \n rates ")
    assert table == Table((("a", "b c"),), (("1", ""), ("2", "3")), "Peak rates")
    assert render_table(table) == "Peak rates\n\n| a | b c |\n| --- | --- |\n| 1 |  |\n| 2 | 3 |"
    assert table_element(make_table([], [["", " "]])) is None


def test_a_pipe_in_a_cell_stays_one_cell() -> None:
    assert render_table(make_table([], [["a|b", "c"]])) == "| a\\|b | c |"
