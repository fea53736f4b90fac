"""Error codes of plain-text lists and of tables, with message and remedy."""

from __future__ import annotations

import pytest

from ingestion.formats import parse
from ingestion.passages import split_sections
from ingestion.symbols.cards import cards_of
from kb.catalog.knowledge.symbols import Card

CODES = {f"K2E-03{n}": f"tag {n} out of range" for n in range(31, 41)}
WHY = "It lies outside the ring. Use a smaller tag."


def cards(text: str, name: str) -> dict[str, Card]:
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
    read = cards(f"Messages of the assembler\n\n{''.join(listed)}", name)
    assert {name for name, card in read.items() if card.kind == "error"} == set(CODES)
    for code, message in CODES.items():
        assert read[code].meaning == f"{message}. {WHY}"


def test_labelled_remedy_is_stored_with_meaning() -> None:
    listed = (
        f"{code}  {output}\n    Why.\n    Remedy: shrink it.\n\n" for code, output in CODES.items()
    )
    read = cards("".join(listed), "errors.txt")
    assert read["K2E-0331"].meaning == "tag 31 out of range. Why."
    assert read["K2E-0331"].further == ("Remedy: shrink it.",)


def test_table_gives_message_and_remedy() -> None:
    rows = "".join(
        f"| {code} | {output} | Use a smaller tag. |\n" for code, output in CODES.items()
    )
    read = cards(f"# Errors\n\n| Code | Message | Remedy |\n|---|---|---|\n{rows}", "errors.md")
    assert read["K2E-0340"].meaning == "tag 40 out of range. Use a smaller tag."


def test_single_line_with_code_is_not_an_error_list() -> None:
    text = "RFC-2119: key words\n\nISO-8601  dates\n\nUse both.\n"
    assert not any(card.kind == "error" for card in cards(text, "notes.txt").values())
