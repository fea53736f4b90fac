"""Markdown: source lines unchanged, with their structure."""

from __future__ import annotations

from ingestion.elements import Element, ParsedDocument
from ingestion.formats.markdown import parse_markdown


def kinds(document: ParsedDocument) -> list[tuple[str, str]]:
    return [(element.kind, element.text) for element in document.elements]


def only(text: str) -> Element:
    elements = parse_markdown(text).elements
    assert len(elements) == 1, elements
    return elements[0]


def test_front_matter_is_data_not_text() -> None:
    document = parse_markdown(
        "---\ntitle: Masking\nlanguages: [triton]\n---\n# Bounds\n\nMask it.\n"
    )
    assert document.front_matter == {"title": "Masking", "languages": ["triton"]}
    assert document.title == "Masking"
    assert kinds(document) == [("title", "Bounds"), ("text", "Mask it.")]


def test_broken_front_matter_gives_warning() -> None:
    document = parse_markdown("---\ntitle: [unclosed\n---\n\nText.\n")
    assert "not valid YAML" in document.warnings[0]
    assert ("text", "Text.") in kinds(document)


def test_heading_syntaxes() -> None:
    document = parse_markdown(
        "# One `a_b` #\n\nTwo\n---\n\n<h3 align=center>Three</h3>\n\n#### Four {#anchor}\n"
    )
    assert [(e.text, e.level) for e in document.elements] == [
        ("One `a_b`", 1),
        ("Two", 2),
        ("Three", 3),
        ("Four", 4),
    ]


def test_text_is_the_unchanged_source() -> None:
    source = "The **LDS** has `32` banks\nand [a link](x.md), <br> too."
    assert only(source) == Element("text", source)
    items = "* one\n  * inner\n* two"
    assert only(items) == Element("list", items)


def test_code_keeps_lines_and_language() -> None:
    assert only("```C++ title=x\nint a;\n\n  b();\n```\n") == Element(
        "code", "int a;\n\n  b();", language="c++"
    )
    assert only("```\n# not a heading <!-- kept -->\n```").text == "# not a heading <!-- kept -->"


def test_list_yields_its_code_blocks_in_order() -> None:
    document = parse_markdown(
        "1. Build it:\n\n   ```bash\n   make\n   ```\n\n   Then wait.\n2. Run.\n"
    )
    assert kinds(document) == [
        ("list", "1. Build it:"),
        ("code", "make"),
        ("list", "   Then wait.\n2. Run."),
    ]


def test_long_list_is_cut_at_its_items() -> None:
    items = [f"- item {n} " + "word " * 40 for n in range(12)]
    elements = parse_markdown("\n".join(items)).elements
    assert [e.kind for e in elements] == ["list"] * 12
    assert elements[3].text.startswith("- item 3 ")


def test_pipe_table() -> None:
    source = "| dtype | rate |\n|:--|--:|\n| `int8` | 512 |\n| a \\| b |"
    table = only(source)
    assert table.text == source and table.table is not None
    assert table.table.header == (("dtype", "rate"),)
    assert table.table.rows == (("`int8`", "512"), ("a | b", ""))


def test_html_table_with_blank_lines_is_one_table() -> None:
    document = parse_markdown(
        "Before.\n\n<table><tr><th>Bank</th><th>Use</th></tr>\n\n"
        "<tr><td>0</td><td>template <typename T></td></tr>\n\n</table>\n\nAfter.\n"
    )
    assert [e.kind for e in document.elements] == ["text", "table", "text"]
    table = document.elements[1].table
    assert table is not None
    assert table.header == (("Bank", "Use"),)
    assert table.rows == (("0", "template <typename T>"),)


def test_comments_images_and_data_uris_are_removed() -> None:
    document = parse_markdown(
        "Kept <!-- gone\nalso gone --> here.\n\n![A block diagram](x.png)\n\n![](y.png)\n\n"
        "Inline code `<!--` stays.\n"
    )
    assert kinds(document) == [
        ("text", "Kept \n here."),
        ("caption", "A block diagram"),
        ("text", "Inline code `<!--` stays."),
    ]


def test_myst_directives_are_normal_content() -> None:
    document = parse_markdown(
        "```{note} Watch out\n:class: x\n\nBanks conflict.\n```\n\n"
        "::::{tab-set}\n:::{tab-item} Linux\n- install it\n:::\n::::\n\n"
        "```{toctree}\nother\n```\n\n```{code-block} cpp\n:caption: c\nint x;\n```\n(label)=\n"
    )
    assert kinds(document) == [
        ("text", "Watch out"),
        ("text", "Banks conflict."),
        ("text", "Linux"),
        ("list", "- install it"),
        ("code", "int x;"),
    ]


def test_myst_list_table() -> None:
    table = only(
        ":::{list-table} Peaks\n:header-rows: 1\n\n* - Type\n  - TFLOPS\n* - fp16\n  - 383\n:::\n"
    ).table
    assert table is not None
    assert (table.caption, table.header, table.rows) == (
        "Peaks",
        (("Type", "TFLOPS"),),
        (("fp16", "383"),),
    )


def test_quotes_and_alerts_are_read_as_content() -> None:
    document = parse_markdown("> [!NOTE]\n> Use `vmcnt`.\n>\n> ```asm\n> s_waitcnt\n> ```\n")
    assert kinds(document) == [("text", "Use `vmcnt`."), ("code", "s_waitcnt")]


def test_unclosed_constructs_lose_no_text() -> None:
    for source in ("<table>\n\nWords stay.", ":::{note}\nWords stay.", "a <!-- b\n\nWords stay."):
        assert "Words stay." in " ".join(e.text for e in parse_markdown(source).elements)
