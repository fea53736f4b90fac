"""AsciiDoc as instruction-set manuals write it."""

from __future__ import annotations

import time

import pytest

from ingestion.elements import Element, ParsedDocument
from ingestion.formats import Format, detect, parse
from ingestion.formats.asciidoc import MAX_EXPANDED, parse_asciidoc
from ingestion.passages import split_sections
from ingestion.symbols.cards import cards_of

MANUAL = """\
= Quill Instruction Set
A. Writer <a@example.org>
:unit: KiB
:sectnums:
// not shown

[[engine]]
== Matrix engine

The engine of _Quill_ has eight *tile* registers of 2 {unit} each (see <<tiles>>, `csr:qstat[]`).
{undefined} stays.(((registers,tile)))

[NOTE]
====
Tiles are [#norm:cleared]#cleared# at reset.

[source,asm]
----
  tzero t0 // {unit}
----
====

[[tiles]]
=== Tile registers

.Instructions of tiles
[cols="1,2,1",options="header"]
|===
| Instruction | Meaning | Latency

| `tmul.h td, ts1` | Multiplies two tiles. | 16
.2+| `tld td, (rs1)` | Loads a tile. | 40
2+| The address is a multiple of 64 \\| 128.
|===

==== insn:tzero[]

Mnemonic:: `tzero td`
Encoding::
[wavedrom, , svg]
....
{reg: [{bits: 7, name: 'OP'}, {bits: 5, name: 'td', attr: ['dest']}, {bits: 1, name: 'm'}]}
....
Description:: Clears a tile.
Two lines of it.

* one
** two
+
----
code of two
----
. first
. second

ifdef::draft[]
a draft
endif::[]
include::missing.adoc[]

[appendix]
== History
"""


def kinds(document: ParsedDocument) -> list[tuple[str, str]]:
    return [(element.kind, element.text) for element in document.elements]


def test_asciidoc_manual() -> None:
    document = parse(MANUAL.encode(), "quill.adoc")
    titles = [(e.text, e.level) for e in document.elements if e.kind == "title"]
    assert titles == [
        ("Quill Instruction Set", 1),
        ("1. Matrix engine", 2),
        ("1.1. Tile registers", 3),
        ("1.1.1. tzero", 4),
        ("Appendix A: History", 2),
    ]
    assert document.title == "Quill Instruction Set"
    shown = kinds(document)
    assert ("text", "A. Writer <a@example.org>") in shown
    first = (
        "The engine of Quill has eight tile registers of 2 KiB each (see Tile registers, `qstat`)."
    )
    assert ("text", f"{first}\n{{undefined}} stays.") in shown
    assert ("text", "NOTE: Tiles are cleared at reset.") in shown
    assert Element("code", "  tzero t0 // {unit}", language="asm") in document.elements
    assert ("text", "Mnemonic: `tzero td`") in shown
    assert ("text", "Description: Clears a tile.\nTwo lines of it.") in shown
    assert shown.index(("list", "- one\n  - two")) + 1 == shown.index(("code", "code of two"))
    assert ("list", "1. first\n2. second") in shown
    assert "not shown" not in str(shown) and "a draft" not in str(shown)
    assert len(document.warnings) == 2 and "missing.adoc" in document.warnings[1]


def test_tables_with_spans_and_drawn_encodings() -> None:
    tables = [e.table for e in parse_asciidoc(MANUAL).elements if e.table is not None]
    instructions, encoding = tables
    assert instructions.caption == "Instructions of tiles"
    assert instructions.header == (("Instruction", "Meaning", "Latency"),)
    assert instructions.rows == (
        ("`tmul.h td, ts1`", "Multiplies two tiles.", "16"),
        ("`tld td, (rs1)`", "Loads a tile.", "40"),
        ("`tld td, (rs1)`", "The address is a multiple of 64 | 128.", ""),
    )
    assert encoding.header == (("12", "11:7", "6:0"),)
    assert encoding.rows == (("m", "td dest", "OP"),)


def test_instructions_become_cards() -> None:
    cards = {card.name: card for card in cards_of(split_sections(parse_asciidoc(MANUAL).elements))}
    assert {"tmul.h", "tld", "tzero"} <= cards.keys()
    assert cards["tzero"].signature == "tzero td"


def test_page_with_underlined_titles_is_recognised() -> None:
    page = "qprof(1)\n========\n\nNAME\n----\nqprof - samples\n\nOPTIONS\n-------\n"
    page += "-e::\n--event=::\n\tThe event.\n"
    assert detect(page.encode(), "qprof.txt") is Format.ASCIIDOC
    document = parse_asciidoc(page)
    levels = [(e.text, e.level) for e in document.elements if e.kind == "title"]
    assert levels == [("qprof(1)", 1), ("NAME", 2), ("OPTIONS", 2)]
    assert ("text", "--event=\nThe event.") in kinds(document)


def test_wrong_nesting_loses_no_text() -> None:
    document = parse_asciidoc("== A\n\n----\nnever closed\n\n== B\n\n====\n____\nin\n====\n\nend\n")
    assert [e.text for e in document.elements] == ["A", "never closed", "B", "in", "end"]
    assert any("not closed" in warning for warning in document.warnings)
    deep = "".join("=" * (4 + n) + "\n" for n in range(200))
    nested = parse_asciidoc(deep + "inside\n" + "\n".join(deep.split("\n")[::-1]))
    assert "inside" in nested.elements[0].text


def test_a_table_of_delimited_text() -> None:
    long = "y" * 200_000
    (table,) = [e.table for e in parse_asciidoc(f',===\nA,B\n"1,2",{long}\n,===').elements]
    assert table is not None and table.rows == (("A", "B"), ("1,2", long))


@pytest.mark.slow(seconds=5)
def test_attribute_bombs_are_bounded() -> None:
    attributes = ":a0: " + "x" * 100 + "\n"
    attributes += "".join(f":a{n}: {{a{n - 1}}}{{a{n - 1}}}\n" for n in range(1, 60))
    started = time.process_time()
    document = parse_asciidoc(attributes + "\n{a59} end\n" * 10_000)
    assert sum(len(e.text) for e in document.elements) < 2 * MAX_EXPANDED
    assert any("by name" in warning for warning in document.warnings)
    for text in ("|===\n" + "64.64+|x " * 20_000 + "\n|===", "*a " * 100_000, "<<" * 100_000):
        parse_asciidoc(text)
    assert time.process_time() - started < 20


def test_style_of_a_cell_is_no_text() -> None:
    text = "= A\n\n|===\n^d|Name\nd|Reset Value\nh|Head\n\n|a\n|b\n|c\n|===\n"
    tables = [e.table for e in parse(text.encode(), "a.adoc").elements if e.table is not None]
    cells = [cell for row in (*tables[0].header, *tables[0].rows) for cell in row]
    assert cells[:3] == ["Name", "Reset Value", "Head"]
