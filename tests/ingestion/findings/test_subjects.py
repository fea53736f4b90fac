"""The subject of a value: the chip, its family, another chip, or unclear."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ingestion.findings.facts import propose_facts
from ingestion.findings.subjects import (
    DocumentSubjects,
    FactSource,
    FactSubject,
    contradicting,
    proposals,
)
from ingestion.formats import parse
from ingestion.passages import split_sections
from kb.catalog.facts import Fact
from kb.hardware.spec import HardwareSpec

REGISTRY = {
    spec.id: spec
    for spec in (
        HardwareSpec("acme", "Acme GPUs", "acme", kind="vendor"),
        HardwareSpec("dune2", "Acme Dune 2", "acme", "acme", ("qx90a",), kind="family"),
        HardwareSpec("mi250x", "Acme Magic MI250X", "acme", "dune2"),
        HardwareSpec("granite", "Stone Granite", "stone"),
    )
}


def subject(
    header: str = "",
    sentence: str = "",
    sections: Sequence[str] = (),
    titles: Sequence[str] = (),
    texts: Sequence[str] = (),
    hardware: Sequence[str] = ("mi250x",),
) -> FactSubject | None:
    return DocumentSubjects(hardware, REGISTRY, titles, texts).of(header, sentence, (), sections)


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("MI250X", "chip"),
        ("Acme Magic MI250X GPU", "chip"),
        ("mi-250x", "chip"),
        ("MI250X PCIe", "unclear"),
        ("MI250X / MI100", "unclear"),
        ("Compute mode 1", "unclear"),
        ("Dune 2", "family"),
        ("Value", "chip"),
        ("", "chip"),
        ("MI100", None),
        ("MI 300A", None),
        ("Dune 3", None),
        ("qx908", None),
        ("V100", None),
        ("RTX 4090", None),
        ("Granite", None),
    ],
)
def test_subject_of_a_table_header(header: str, kind: str | None) -> None:
    named = subject(header)
    assert (named.kind if named else None) == kind


def test_nearest_text_that_names_chip_decides() -> None:
    title = ("Acme MI100 guide",)
    assert subject(titles=title) is None
    assert subject(titles=("mi100.md",)) is None
    in_section = subject(sections=("Chips", "The MI250X", "Memory"), titles=title)
    assert in_section == FactSubject("mi250x", "Acme Magic MI250X", "chip")
    assert subject(sentence="On the MI100 it is 4.", sections=("The MI250X",)) is None
    assert subject(sentence="The MI250X has what the MI100 has.") is None
    both = subject(sections=("MI100 and MI250X",))
    assert both is not None and both.kind == "unclear"
    of_family = subject(sections=("Dune 2 cards",), titles=title)
    assert of_family is not None and of_family.kind == "family"
    mode = subject("Mode 1", sections=("The MI250X",))
    assert mode == FactSubject("mi250x", "Mode 1", "unclear")


def test_board_variant_is_unclear() -> None:
    card = subject(sentence="The MI250X PCIe card has 64 GB.")
    assert card is not None and (card.kind, card.text) == ("unclear", "PCIe")
    bus = subject(sentence="The MI250X is attached by PCIe Gen 4.")
    assert bus is not None and bus.kind == "chip"


def test_declared_chip_is_the_default_subject_of_its_document() -> None:
    assert subject() == FactSubject("mi250x", "", "chip")
    crowded = subject(texts=["The MI100 is old.", "The MI300 is new.", "The MI250X is here."])
    assert crowded == FactSubject("mi250x", "", "unclear")
    own = subject(texts=["The MI250X is here.", "The MI250X is good.", "The MI100 is old."])
    assert own == FactSubject("mi250x", "", "chip")
    several = subject(hardware=("mi250x", "granite"))
    assert several is not None and several.kind == "unclear"
    second = subject("Granite", hardware=("mi250x", "granite"))
    assert second == FactSubject("granite", "Granite", "chip")


@pytest.mark.parametrize("text", ["FP16", "INT8", "HBM128", "ISO-8601", "the 1024 threads", "A4"])
def test_texts_without_chip_name_are_unclear(text: str) -> None:
    assert subject(text) == FactSubject("mi250x", text, "unclear")


TABLE = """
| Model  | Compute units | L2 cache (MiB) |
|--------|---------------|----------------|
| MI100  | 120           | 8              |
| MI250X | 220           | 16             |
| Rubble | 60            | 4              |
"""


def rows(text: str, title: str = "Chips", hardware: Sequence[str] = ("mi250x",)) -> list[Fact]:
    sections = split_sections(parse(text.encode(), "a.md").elements)
    located = [f for s in sections for f in propose_facts(s.elements, (), s.path)]
    source = FactSource("doc_1", "ver_1", title, "a.md")
    return proposals(located, source, hardware, REGISTRY, [text])


def test_only_own_row_of_a_chip_table_is_proposed() -> None:
    assert [(f.key, f.number, f.subject, f.subject_kind) for f in rows(TABLE)] == [
        ("compute_units", 220, "MI250X", "chip"),
        ("l2_size", 16 * 2**20, "MI250X", "chip"),
    ]


def test_rows_of_products_in_other_tables_are_left_out() -> None:
    text = "# Cards\n\n| Model | LDS (KiB) |\n|--|--|\n| MI250X | 64 |\n\n"
    text += "# Consumer cards\n\n| Model | LDS (KiB) |\n|--|--|\n| Granola VII | 32 |\n"
    assert [fact.number for fact in rows(text)] == [64 * 1024]


def test_rows_of_other_products_are_left_out_beside_an_unread_own_row() -> None:
    table = "| Model | L2 cache |\n|---|---|\n| Grand-LP | 16 MB |\n| {} | 4 MB + 2 MB |\n"
    assert rows(table.format("MI250X")) == []
    assert [fact.subject for fact in rows(table.format("Grand-HP"))] == ["Grand-LP"]


def test_total_of_parts_that_are_devices_is_unclear() -> None:
    text = "| Model | Compute Units | L2 cache (MiB) |\n|--|--|--|\n"
    text += "| MI250X | 220 (110 per GCD) | 16 |\n"
    kinds = {fact.key: (fact.subject_kind, fact.subject) for fact in rows(text)}
    assert kinds["compute_units"] == ("unclear", "the whole card: 220 (110 per GCD)")
    assert kinds["l2_size"][0] == "chip"


def test_document_about_another_chip_proposes_nothing() -> None:
    text = "# Acme MI100\n\n| Property | Value |\n|---|---|\n| L2 cache | 8 MB |\n"
    assert rows(text, "Acme MI100") == []
    assert rows("# Limits\n\nThe L2 cache is 8 MB.\n", "Acme MI100") == []


def test_fact_of_a_sentence_has_document_section_and_quotation() -> None:
    text = "# Guide\n\n## Memory of the MI250X\n\nThe L2 cache is 16 MB.\n"
    [fact] = rows(text, "Acme guide")
    assert (fact.key, fact.number, fact.text) == ("l2_size", 16 * 2**20, "16 MB")
    assert (fact.origin, fact.status, fact.title) == ("sentence", "proposed", "Acme guide")
    assert fact.locator == "Guide > Memory of the MI250X: 'The L2 cache is 16 MB.'"
    assert fact.cell == {"sentence": "The L2 cache is 16 MB."}
    assert fact.holds_for_owner


def test_enumeration_before_a_measurement_is_unclear() -> None:
    text = "On one MI250X with 47.9 TFLOPS double precision peak performance the code reached 9 %."
    [fact] = rows(text, "Guide")
    assert (fact.key, fact.subject_kind) == ("peak_fp64", "unclear")


@pytest.mark.parametrize("title", ["Guide, rev. 2", "guide,  Rev. 2"])
def test_locator_does_not_repeat_document_title(title: str) -> None:
    text = "# Guide, rev. 2\n\n## Memory\n\nThe L2 cache is 16 MB.\n"
    assert [fact.locator for fact in rows(text, title)] == ["Memory: 'The L2 cache is 16 MB.'"]


def test_repeated_and_contradicting_sentences() -> None:
    again = "# MI250X\n\nThe L2 cache is 16 MB.\n\nIt has an L2 cache of 16 MB.\n"
    assert len(rows(again)) == 1
    against = "# MI250X\n\nThe L2 cache is 16 MB.\n\nIt has an L2 cache of 8 MB.\n"
    assert rows(against) == []
    sections = split_sections(parse(against.encode(), "a.md").elements)
    facts = [f for s in sections for f in propose_facts(s.elements, (), s.path)]
    assert contradicting(facts, ("Chips",), ("mi250x",), REGISTRY, [against]) == [
        "The L2 cache is 16 MB. (perhaps l2_size, but not clearly)",
        "It has an L2 cache of 8 MB. (perhaps l2_size, but not clearly)",
    ]


def test_document_without_hardware_proposes_nothing() -> None:
    assert rows(TABLE, hardware=()) == []
