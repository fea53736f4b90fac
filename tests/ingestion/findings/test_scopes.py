"""A heading that names another chip scopes its section to that chip, and to no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ingestion.findings.scopes import SectionScopes
from ingestion.findings.tags import SignalWords, Tagger

if TYPE_CHECKING:
    from tests.fixtures import Store


VENDOR = """# Tuning guide

## Shared memory

Every chip of the vendor has persimmon banks.

## Shared memory on A100

One block may take 163 KiB of tangerine memory.

### Carve-out

The tangerine carve-out is set per kernel.

## On H100s

One block may take 227 KiB of kumquat memory.
"""


@pytest.mark.parametrize(
    ("document", "path", "expected"),
    [
        (("nvidia",), ("Guide", "On A100"), ("a100",)),
        (("nvidia",), ("Guide", "On A100", "Carve-out"), ("a100",)),
        (("nvidia",), ("Guide", "A100", "but H100 here"), ("h100",)),
        (("nvidia",), ("Guide", "Hopper and Ampere"), ("ampere", "hopper")),
        (("nvidia",), ("Guide", "Shared memory"), None),
        (("nvidia",), ("Guide", "The NVIDIA way"), None),
        (("h100",), ("H100 manual", "Numbers"), None),
        (("h100",), ("On H200",), ("h200",)),
        (("h100",), ("On A100",), ("a100",)),  # a sibling is another chip too
        (("hopper",), ("On A100",), ("a100",)),
        (("hopper",), ("H100 numbers",), ("h100",)),
        (("h100",), ("The Hopper SM",), None),  # parent headings never widen a scope
        (("h100",), ("H100: a cousin of Ampere", "Numbers"), None),  # a description
        (("h100",), ("H100 compared with A100",), ("a100", "h100")),
        (("h100",), ("Migrating from A100",), ("a100", "h100")),
        (("h100",), ("On MI300X",), None),  # a chip of another vendor
        (("a100", "h100"), ("Both chips", "On A100"), ("a100",)),  # in a manual about two chips
        (("a100", "h100"), ("H100 and A100",), None),
        (("a100", "h100"), ("H100 compared with A100",), None),
        ((), ("On A100",), ("a100",)),
        ((), ("Faster than A100",), None),
        ((), ("General advice",), None),
    ],
)
def test_headings_give_scopes(
    store: Store, document: tuple[str, ...], path: tuple[str, ...], expected: tuple[str, ...] | None
) -> None:
    assert SectionScopes(document, store.registry.all()).of(path) == expected


def test_section_about_one_chip_is_not_returned_for_another(store: Store) -> None:
    store.ingest("guide.md", VENDOR, hardware=("nvidia",))

    def found(chip: str) -> str:
        query = "how much memory may one block take"
        both = store.by_words(f"{query} tangerine kumquat persimmon", chip)
        return " ".join(p.text for p in [*both, *store.by_meaning(query, chip)])

    assert "tangerine" in found("a100") and "kumquat" not in found("a100")
    assert "kumquat" in found("h100") and "tangerine" not in found("h100")
    for chip in ("a100", "h100", "h200"):
        assert "persimmon" in found(chip)
    assert found("mi300x") == ""
    assert "tangerine" not in found("h200") and "kumquat" not in found("h200")


# -- A heading or a phrase gives a tag, a common word in a sentence does not

VOCABULARY = {
    "low_occupancy": SignalWords(
        ("occupancy", "resident warps"), ("too few warps are resident to hide latency",)
    ),
    "memory_bound": SignalWords(("memory bandwidth",), ()),
}


def tags(path: tuple[str, ...], text: str) -> set[tuple[str, str]]:
    return set(Tagger(VOCABULARY).tags(path, text))


def test_topic_in_heading_gives_tag() -> None:
    assert ("topic", "occupancy") in tags(("Manual", "Occupancy and registers"), "Some text.")


def test_single_word_in_sentence_gives_no_tag() -> None:
    assert tags(("Manual",), "The occupancy of the car park is high.") == set()


def test_phrase_of_several_words_gives_tag() -> None:
    found = tags(("Manual",), "It is limited by memory bandwidth.")
    assert found == {("topic", "memory bandwidth"), ("signal", "memory_bound")}


def test_most_words_of_a_phrase_give_signal() -> None:
    text = "With few warps resident there is not enough work to hide the latency."
    assert ("signal", "low_occupancy") in tags((), text)
    assert tags((), "Few people hide.") == set()


def test_only_innermost_heading_gives_tags() -> None:
    assert tags(("Occupancy", "Clocks"), "Text.") == set()


def test_topic_of_function_words_gives_no_tag() -> None:
    tagger = Tagger({"odd": SignalWords(("it is", "to be"), ())})
    assert tagger.tags(("It is",), "to be or not") == ()


def test_fingerprint_changes_with_vocabulary() -> None:
    fewer = {"memory_bound": VOCABULARY["memory_bound"]}
    assert Tagger(VOCABULARY).fingerprint == Tagger(dict(VOCABULARY)).fingerprint
    assert Tagger(VOCABULARY).fingerprint != Tagger(fewer).fingerprint
