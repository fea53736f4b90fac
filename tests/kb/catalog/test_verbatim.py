"""Quotations that occur in a source, and near misses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb.catalog.knowledge.symbols import ProposedCard, Source, check_proposal

TEXT = """Fences
`vsync` waits for at most 128 lanes; a scale of 1.5 is usual.
It is called as
  vsync lanes,
        mask
and vsyncall.f32 is something else. tl.load is dotted, std::move scoped."""


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        ("waits for at\n most 128 lanes", "waits for at most 128 lanes"),
        ("vsync lanes, mask", "vsync lanes,\n        mask"),
        ("scale of 1.5", "scale of 1.5"),
        ("It is", "It is"),
        ("at most 12", None),
        ("scale of 1", None),
        ("5 is usual", None),
        ("aits for at most", None),
        ("waits for lanes", None),
        ("Waits for at most", None),
        ("vsync waits", None),  # the ticks are part of the text
        ("", None),
        (" \n", None),
    ],
)
def test_quotation_matches_up_to_white_space(words: str, quoted: str | None) -> None:
    assert Source(TEXT).verbatim(words) == quoted


@pytest.mark.parametrize("name", ["vsync", "vsyncall.f32", "tl.load", "std::move"])
def test_whole_name_is_found_in_source(name: str) -> None:
    assert Source(TEXT).names(name)


@pytest.mark.parametrize("name", ["syn", "vsyncall", "f32", "load", "tl", "move", "std", ""])
def test_part_of_a_name_is_not_found(name: str) -> None:
    assert not Source(TEXT).names(name)


@pytest.mark.slow(seconds=5)
@given(st.text(max_size=60), st.text(max_size=200))
def test_verbatim_text_is_a_substring_of_source(words: str, text: str) -> None:
    quoted = Source(text).verbatim(words)
    if quoted is not None:
        assert quoted in text and quoted.split() == words.split()


def proposed(**fields: object) -> ProposedCard:
    empty = dict.fromkeys(("signature", "meaning", "example"), "")
    rest = {"operands": (), "limits": (), "origin": "model m", "path": ("Fences",)}
    card = {"name": "vsync", "kind": "instruction", "language": "", **empty, **rest, **fields}
    return ProposedCard(**card)  # type: ignore[arg-type]


def test_fields_missing_from_source_are_dropped_and_counted() -> None:
    card = proposed(
        signature="vsync lanes, mask",
        meaning="It is called as",
        operands=(("lanes", "how many"), ("mask", ""), ("bits", "")),
        limits=("waits for at most 128 lanes", "waits for at most 12"),
        example="tl.load is dotted",  # in the source, but about another name
    )
    result = check_proposal(card, Source(TEXT))
    assert result.card == proposed(
        signature="vsync lanes, mask",
        meaning="It is called as",
        operands=(("lanes", ""), ("mask", "")),
        limits=("waits for at most 128 lanes",),
    )
    expected = ["example", "limit", "meaning of an operand", "operand"]
    assert sorted(result.dropped) == expected and card.fields == 9
    assert result.card is not None and check_proposal(result.card, Source(TEXT)).card == result.card
    meant = check_proposal(
        proposed(signature="vsync lanes", meaning="stops every lane"), Source(TEXT)
    )
    assert meant.card == proposed(signature="vsync lanes") and meant.dropped == ("meaning",)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"name": "lane", "meaning": "It is called as"}, "its name is not in the section"),
        ({"meaning": "stops every lane"}, "neither its meaning nor its signature"),
        ({"signature": "vsync", "limits": ("It is called as",)}, "neither its meaning"),
        ({"signature": "std::move scoped"}, "neither its meaning"),
        ({"signature": "vsync lanes", "limits": ("It is unsupported",)}, "a limit of it is not"),
    ],
)
def test_card_without_remaining_fields_is_refused(fields: dict[str, object], reason: str) -> None:
    result = check_proposal(proposed(**fields), Source(TEXT))
    assert result.card is None and result.reason.startswith(reason)
