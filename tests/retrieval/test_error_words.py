"""The fixed words of an error message, and matching them in a log."""

from __future__ import annotations

import pytest

from retrieval.diagnose.error_words import (
    contains_words,
    first_error,
    fixed_words,
    matching_keys,
    shared_words,
)

TRACE = """Traceback (most recent call last):
  File "a.py", line 3, in run
    raise ValueError("no")
ValueError: shape mismatch of 3 and 4
"""


@pytest.mark.parametrize(
    ("log", "codes", "first"),
    [
        ("", (), ""),
        ("note: building\nk.cpp:3:1: error: a\nk.cpp:9:1: error: b", (), "k.cpp:3:1: error: a"),
        ("k:3: E7 odd line\nk:9: E8 undefined label", ("E7", "E8"), "k:3: E7 odd line"),
        (TRACE, (), "ValueError: shape mismatch of 3 and 4"),
    ],
)
def test_first_error_of_a_log(log: str, codes: tuple[str, ...], first: str) -> None:
    assert first_error(log, codes) == first


@pytest.mark.parametrize(
    ("message", "source", "mended", "code", "words"),
    [
        ("k.nv:3:14: error: `foo` has 12 banks", "", "", "", "error: <name> has <n> banks"),
        ("k.nv:3: E7: no op: vaddq; use vadd", "vaddq x", "vadd x", "E7", "E7: no op: <name>"),
        ("k:9: VB-271 bad operand 2 at x", "", "", "VB-271", "VB-271 bad operand <n>"),
        ("error: tile_x is too large", "tile_x y", "tile_x y", "", "error: <name> is too large"),
        ("error: register is set", "register r", "register r", "", "error: register is set"),
    ],
)
def test_names_numbers_and_places_are_replaced(
    message: str, source: str, mended: str, code: str, words: str
) -> None:
    assert fixed_words(message, source, mended, code) == words


def test_words_match_in_order_and_whole() -> None:
    words = "error: <name> has <n> banks"
    assert contains_words("x\nk.nv:9:2: error: `bar` has 3 banks", words)
    assert not contains_words("k.nv:9:2: error: 3 banks has `bar`", words)
    assert not contains_words("k.nv:9:2: error: `bar` has 3 bankers", words)
    assert not contains_words("error: E72: no op: a", "error: E7: no op: <name>")
    assert not contains_words("anything at all", "<name>: <n>")
    assert matching_keys("error: E7: no op: a", {"a": "E7: no op: <name>", "b": words}) == {"a"}
    assert matching_keys("", {"a": words}) == frozenset()


def test_words_shared_by_two_messages() -> None:
    assert shared_words(["E7: no op: <name>", "E7: no op: <name> x"]) == "E7: no op: <name>"
    assert shared_words(["E7: no op: <name>", "E7: no label"]) == "E7: no"
    assert shared_words(["E7: a", "E8: a"]) == ""
