"""A heading or a phrase gives a tag, a common word in a sentence does not."""

from __future__ import annotations

from ingestion.findings.tags import SignalWords, Tagger

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
