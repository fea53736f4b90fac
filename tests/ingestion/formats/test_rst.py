"""reStructuredText with the constructs of Sphinx documentation."""

from __future__ import annotations

from pathlib import Path

from ingestion.elements import Element, ParsedDocument, Table
from ingestion.formats.rst import parse_rst


def kinds(document: ParsedDocument) -> list[tuple[str, str]]:
    return [(element.kind, element.text) for element in document.elements]


def table_of(text: str) -> Table:
    (element,) = parse_rst(text).elements
    assert element.table is not None
    return element.table


def test_heading_levels_by_order_of_appearance() -> None:
    document = parse_rst(
        "=====\nGuide\n=====\n\nMemory\n======\n\nBanks\n~~~~~\n\nText\n\nEnd\n===\n"
    )
    assert [(e.text, e.level) for e in document.elements if e.kind == "title"] == [
        ("Guide", 1),
        ("Memory", 2),
        ("Banks", 3),
        ("End", 2),
    ]
    assert document.title == "Guide"


def test_headings_inside_a_condition_are_headings() -> None:
    document = parse_rst(
        "Errors\n======\n\nCauses\n------\n\n.. only:: xtensa\n\n   Alignment\n   ^^^^^^^^^\n\n"
        "   Four bytes.\n\n   .. only:: new\n\n      Words\n      +++++\n\n      Text\n\n"
        "   Other\n   -----\n\n   Text\n\nEnd\n---\n"
    )
    assert [(e.text, e.level) for e in document.elements if e.kind == "title"] == [
        ("Errors", 1),
        ("Causes", 2),
        ("Alignment", 3),
        ("Words", 4),
        ("Other", 2),
        ("End", 2),
    ]
    assert ("text", "Four bytes.") in kinds(document)


def test_content_that_looks_like_options_is_read() -> None:
    document = parse_rst(
        ".. list::\n\n   :CHIP_A: - Enlarge the cache.\n   - Place code in RAM.\n\n"
        ".. note::\n   :class: wide\n\n   Text\n\n.. code-block::\n\n   :a: b\n"
    )
    assert kinds(document) == [
        ("text", ":CHIP_A: - Enlarge the cache."),
        ("list", "- Place code in RAM."),
        ("text", "Text"),
        ("code", ":a: b"),
    ]


def test_text_is_the_dedented_source() -> None:
    source = "See :ref:`banks <lds-banks>` and ``ds_read``\n*twice*."
    assert kinds(parse_rst(source)) == [("text", source)]
    assert kinds(parse_rst("   quoted\n   twice\n")) == [("text", "quoted\ntwice")]
    assert kinds(parse_rst("* one\n  more\n\n* two\n")) == [("list", "* one\n  more\n\n* two")]


def test_code_syntaxes() -> None:
    document = parse_rst(
        ".. code-block:: C++\n   :linenos:\n\n   int x;\n     y();\n\nAs here::\n\n    a = 1\n\n"
        ">>> 1 + 1\n2\n"
    )
    assert list(document.elements) == [
        Element("code", "int x;\n  y();", language="c++"),
        Element("text", "As here::"),
        Element("code", "a = 1"),
        Element("code", ">>> 1 + 1\n2", language="python"),
    ]


def test_admonitions_are_normal_content_and_their_titles_text() -> None:
    document = parse_rst(
        ".. note:: Starts here\n   and goes on.\n\n.. tab-set::\n\n   .. tab-item:: AMD\n"
        "      :sync: amd\n\n      #. Build\n\n         .. code:: bash\n\n            make\n"
    )
    assert kinds(document) == [
        ("text", "Starts here\nand goes on."),
        ("text", "AMD"),
        ("list", "#. Build"),
        ("code", "make"),
    ]


def test_sphinx_markup_is_removed() -> None:
    document = parse_rst(
        ".. meta::\n   :description: x\n\n.. _label:\n\n.. toctree::\n   :maxdepth: 1\n\n"
        "   other\n\n"
        ".. |sub| replace:: y\n\n.. a comment\n   of two lines\n\n:orphan:\n\n.. "
        "image:: a.png\n\nStays.\n"
    )
    assert kinds(document) == [("text", "Stays.")]


def test_text_below_target_is_not_lost() -> None:
    document = parse_rst(
        ".. _here:\n\n    Indented by mistake.\n\n.. image:: a.png\n\n   This too.\n"
    )
    assert kinds(document) == [("text", "Indented by mistake."), ("text", "This too.")]


def test_list_table() -> None:
    table = table_of(
        ".. list-table:: Peaks\n   :header-rows: 1\n\n   * - Type\n     - TFLOPS\n   *\n"
        "     - fp16\n"
        "     - 383\n\n       with sparsity\n"
    )
    assert table == Table((("Type", "TFLOPS"),), (("fp16", "383 with sparsity"),), "Peaks")


def test_csv_table_inline_and_external() -> None:
    table = table_of(
        '.. csv-table::\n   :header: "Counter", "Unit"\n\n   "``SQ_WAVES``", "Waves, new"\n'
    )
    assert table == Table((("Counter", "Unit"),), (("``SQ_WAVES``", "Waves, new"),))
    outside = parse_rst(".. csv-table:: T\n   :file: counters.csv\n")
    assert outside.elements == () and "counters.csv" in outside.warnings[0]


def test_drawn_tables_keep_their_source() -> None:
    grid = (
        "+------+-----+\n| type | ops |\n+======+=====+\n| int8 | 512 |\n|      | max |\n"
        "+------+-----+"
    )
    (element,) = parse_rst(grid).elements
    assert element.text == grid
    assert element.table == Table((("type", "ops"),), (("int8", "512 max"),))
    simple = "====  =====\ntype  ops\n====  =====\nint8  512\nint4  1024\n====  ====="
    indented = simple.replace("\n", "\n   ")
    (element,) = parse_rst(f".. table:: Rates\n\n   {indented}\n").elements
    assert element.table == Table((("type", "ops"),), (("int8", "512"), ("int4", "1024")), "Rates")
    assert element.text == f"Rates\n\n{simple}"


def test_object_descriptions() -> None:
    document = parse_rst(
        ".. py:function:: copy(dst, src)\n                 copy(dst)\n   :noindex:\n\n"
        "   Copies.\n\n"
        "   :param dst: [P, F] tensor\n\n.. envvar:: NEURON_RT_LOG\n\n   The log level.\n"
    )
    assert kinds(document) == [
        ("text", "copy(dst, src)\ncopy(dst)"),
        ("text", "Copies."),
        ("text", ":param dst: [P, F] tensor"),
        ("text", "NEURON_RT_LOG"),
        ("text", "The log level."),
    ]


def test_figures_footnotes_definitions_and_unknown_directives() -> None:
    document = parse_rst(
        ".. figure:: a.png\n   :alt: A diagram of banks\n\n   Banks.\n\n.. [1] See the guide.\n\n"
        "term\n   what it means\n\n.. homemade:: x\n\n   Words count.\n\n.. raw:: html\n\n"
        "   <p>Raw.</p>\n"
    )
    assert kinds(document) == [
        ("caption", "A diagram of banks"),
        ("caption", "Banks."),
        ("text", "[1] See the guide."),
        ("text", "term\n   what it means"),
        ("text", "Words count."),
        ("text", "Raw."),
    ]


def test_spanning_cells_stay_in_their_columns() -> None:
    grid = (
        "+---+---+---+\n| a     | b |\n+---+---+---+\n| 1 | 2 | 3 |\n|   +---+---+\n"
        "|   | 4 | 5 |\n+---+---+---+"
    )
    assert table_of(grid) == Table((), (("a", "", "b"), ("1", "2", "3"), ("", "4", "5")))
    indented = "\n".join(f"   {line}" for line in grid.split("\n"))
    (element, after) = parse_rst(f".. note::\n\n{indented}\n\nAfter it.\n").elements
    assert element.text == grid and after.text == "After it."


def test_docutils_errors_keep_their_text() -> None:
    broken = "=====  ===\na  b\n=====  ===\n1      2\n  x"
    document = parse_rst(f"{broken}\n\nBelow.\n")
    words = " ".join(e.text for e in document.elements).split()
    assert {"a", "b", "1", "2", "Below."} <= set(words)
    inside = parse_rst("- item\n\n  Title in it\n  ===========\n\n  Words.\n")
    assert "Title in it" in " ".join(e.text for e in inside.elements)


def test_includes_and_raw_html_are_ignored(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("password")
    document = parse_rst(
        f".. include:: {secret}\n\n.. literalinclude:: {secret}\n\n"
        f".. csv-table::\n   :file: {secret}\n\n.. |x| include:: {secret}\n\n"
        f".. raw:: html\n   :file: {secret}\n\n:raw-html:`<b>x</b>` and |x|\n"
    )
    text = "\n".join(element.text for element in document.elements)
    assert "password" not in text
    assert text == ":raw-html:`<b>x</b>` and |x|"


def test_lists_keep_their_markers() -> None:
    source = "a. one\nb. two\n\n* three\n* four\n\n  more"
    assert [e.text for e in parse_rst(source).elements] == [
        "a. one\nb. two",
        "* three\n* four\n\n  more",
    ]
