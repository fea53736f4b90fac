"""Cards of manuals that put the syntax of an instruction after a label."""

from __future__ import annotations

import io

import docx
import pytest

from ingestion.elements import Element
from ingestion.formats import parse
from ingestion.passages import ParsedSection, split_sections
from ingestion.symbols.cards import cards_of
from ingestion.symbols.headings import headings_without_card
from kb.catalog.knowledge.symbols import Card

INSTRUCTIONS = {
    "vld": ("VR, SRC, OFFSET", "Loads a vector register from the roost."),
    "vmix": ("VD, VA, VB", "Mixes two vectors lane by lane."),
    "carry.in": ("DST, SRC", "Carries a tile into the roost."),
    "fence": ("", "Waits for all transfers."),
    "add": ("D, A, B", "Adds."),
}


def sections_of(data: bytes, name: str) -> list[ParsedSection]:
    return split_sections(parse(data, name).elements)


def cards(data: bytes, name: str) -> dict[str, Card]:
    return {card.name: card for card in cards_of(sections_of(data, name))}


def word_manual(*, summary: bool) -> bytes:
    document = docx.Document()
    document.add_heading("Manual of an invented chip", 0)
    for name, (operands, meaning) in INSTRUCTIONS.items():
        document.add_heading(name, 2)
        document.add_paragraph(f"Syntax: {name} {operands}".strip())
        document.add_paragraph(meaning)
        table = document.add_table(2, 2)
        for number, text in enumerate(("Latency", "Throughput", "4", "1")):
            table.cell(number // 2, number % 2).text = text
    if summary:
        document.add_heading("Summary", 1)
        table = document.add_table(1 + len(INSTRUCTIONS), 2)
        table.cell(0, 0).text, table.cell(0, 1).text = "Instruction", "Meaning"
        for number, name in enumerate(INSTRUCTIONS, 1):
            table.cell(number, 0).text, table.cell(number, 1).text = name, "see its section above"
    stored = io.BytesIO()
    document.save(stored)
    return stored.getvalue()


def assert_whole(read: dict[str, Card]) -> None:
    assert set(read) == set(INSTRUCTIONS)
    for name, (operands, meaning) in INSTRUCTIONS.items():
        card = read[name]
        assert card.kind == "instruction"
        assert card.signature == f"{name} {operands}".strip()
        assert [operand for operand, _ in card.operands] == [o for o in operands.split(", ") if o]
        assert card.meaning.startswith(meaning)


@pytest.mark.parametrize("summary", [False, True])
def test_word_manual_gives_complete_cards(summary: bool) -> None:
    assert_whole(cards(word_manual(summary=summary), "manual.docx"))


@pytest.mark.parametrize(
    "label", ["Syntax:", "<b>Format:</b>", "<b>Usage</b>:", "<i>Assembly:</i>"]
)
def test_html_gives_complete_cards(label: str) -> None:
    entries = [
        f"<h3>{n}</h3><p>{label} {n} {o}</p><p>{m}</p>" for n, (o, m) in INSTRUCTIONS.items()
    ]
    assert_whole(cards(f"<html><h1>Chip</h1>{''.join(entries)}</html>".encode(), "manual.html"))


@pytest.mark.parametrize(
    "entry",
    [
        "## {n}\n\n**Syntax:** `{n} {o}`\n\n{m}\n\n- Latency: 4\n\n",
        "## {n}\n\n**Usage**: {n} {o}\n{m}\n\n",
        "## {n}\n\nSyntax:\n\n```\n{n} {o}\n```\n\n{m}\n\n",
        "## {n}\n\nLatency: 4 cycles\n\nDescription: {m}\n\nSyntax: {n} {o}\n\n",
        "## {n}\n\n- Format: {n} {o}\n- {m}\n\n",
    ],
)
def test_markdown_gives_complete_cards(entry: str) -> None:
    text = "".join(entry.format(n=n, o=o, m=m) for n, (o, m) in INSTRUCTIONS.items())
    assert_whole(cards(f"# Chip\n\n{text}".encode(), "manual.md"))


def test_sentence_after_label_is_not_syntax() -> None:
    text = "# Chip\n\n## cache\n\nUsage: the cache is filled by every load that misses it\n"
    assert "cache" not in cards(text.encode(), "manual.md")


def test_instruction_headings_without_card_are_reported() -> None:
    entries = "### vld\n\nLoads.\n\n### vst\n\nStores.\n\n"
    text = f"# Chip\n\n## Instructions\n\n{entries}## Memory\n\nText.\n"
    sections = sections_of(text.encode(), "manual.md")
    assert headings_without_card(sections, set()) == ["vld", "vst"]
    assert headings_without_card(sections, {"vld", "vst"}) == []


def test_heading_next_to_headings_with_cards_is_reported() -> None:
    headings = [Element("title", name, level=2) for name in ("vld", "vst", "vmix")]
    sections = split_sections([Element("title", "Chip", level=1), *headings])
    assert headings_without_card(sections, {"vld", "vst"}) == ["vmix"]
    assert headings_without_card(sections, set()) == []


def test_fields_in_bold_are_no_meaning() -> None:
    text = (
        "## `VSUM` (Sum of a row)\n\n**Summary:** Adds the lanes of a row.\n\n"
        "**Execution unit:** [Vector unit](v.md)\n\n## `VMAX` (Largest of a row)\n\n"
        "**Summary:**\n\n**Execution unit:** [Vector unit](v.md)\n\n"
        "```c\nVSUM(1);\nVMAX(1);\n```\n"
    )
    read = cards(text.encode(), "a.md")
    assert read["VSUM"].meaning == "Adds the lanes of a row."
    assert read["VMAX"].meaning == "Largest of a row"


# -- error codes of plain-text lists and of tables, with message and remedy

CODES = {f"K2E-03{n}": f"tag {n} out of range" for n in range(31, 41)}
WHY = "It lies outside the ring. Use a smaller tag."


def cards_of_text(text: str, name: str) -> dict[str, Card]:
    return {c.name: c for c in cards_of(split_sections(parse(text.encode(), name).elements))}


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("{code}  {message}\n    {why}\n\n", "errors.txt"),
        ("{code}  {message}\n  {why}\n", "errors.txt"),
        ("{code}: {message}\n\n{why}\n\n", "errors.txt"),
        ("{code}\t{message}\n\n    {why}\n\n", "errors.txt"),
        ("**{code}** - {message}\n\n{why}\n\n", "errors.md"),
        ("- {code}: {message}\n  {why}\n", "errors.md"),
    ],
)
def test_each_code_of_a_list_gives_card(entry: str, name: str) -> None:
    listed = (entry.format(code=code, message=output, why=WHY) for code, output in CODES.items())
    read = cards_of_text(f"Messages of the assembler\n\n{''.join(listed)}", name)
    assert {name for name, card in read.items() if card.kind == "error"} == set(CODES)
    for code, message in CODES.items():
        assert read[code].meaning == f"{message}. {WHY}"


def test_labelled_remedy_is_stored_with_meaning() -> None:
    listed = (
        f"{code}  {output}\n    Why.\n    Remedy: shrink it.\n\n" for code, output in CODES.items()
    )
    read = cards_of_text("".join(listed), "errors.txt")
    assert read["K2E-0331"].meaning == "tag 31 out of range. Why."
    assert read["K2E-0331"].further == ("Remedy: shrink it.",)


def test_table_gives_message_and_remedy() -> None:
    rows = "".join(
        f"| {code} | {output} | Use a smaller tag. |\n" for code, output in CODES.items()
    )
    read = cards_of_text(
        f"# Errors\n\n| Code | Message | Remedy |\n|---|---|---|\n{rows}", "errors.md"
    )
    assert read["K2E-0340"].meaning == "tag 40 out of range. Use a smaller tag."


def test_single_line_with_code_is_not_an_error_list() -> None:
    text = "RFC-2119: key words\n\nISO-8601  dates\n\nUse both.\n"
    assert not any(card.kind == "error" for card in cards_of_text(text, "notes.txt").values())


FORMATS = """# Matrix instructions

## Preloading

**Format:** `matmul.preload rs1, rs2`

- `rs1` = address in the scratchpad

## Running

**Usage:** `runner --size 3`

**Format:** `name value`
"""


def test_format_line_names_an_instruction_below_a_heading_in_words() -> None:
    found = cards(FORMATS.encode(), "formats.md")
    assert found["matmul.preload"].signature == "matmul.preload rs1, rs2"
    assert not {"runner", "name", "Preloading"} & set(found)


LINES = """\
# Bit operations

## `CL{O/Z}.{W/D}`

Instruction formats:

```
clo.w   rd, rj
clo.d   rd, rj
clz.w   rd, rj
```

The `CLO.W` instruction counts the leading ones of the low word of `rj`.

The `CLZ.W` instruction counts the leading zeros of the low word of `rj`.

## Loads

Instruction format:

```
ld.b    rd, rj, si12
ld.h    rd, rj, si12
```

Loads a value from memory and extends it.

## Setting up

Usage:

```
make all
make all
```
"""


def test_each_line_of_a_syntax_is_an_instruction() -> None:
    cards = cards_of_text(LINES, "isa.md")
    assert cards.keys() == {"clo.w", "clo.d", "clz.w", "ld.b", "ld.h"}
    assert "leading zeros" in cards["clz.w"].meaning
    assert "leading ones" in cards["clo.w"].meaning
    assert cards["ld.h"].signature == "ld.h rd, rj, si12"
    assert cards["ld.h"].meaning.startswith("Loads a value")
