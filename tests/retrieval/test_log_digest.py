"""Distinct messages of a log: the first of each with its count, within a limit."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.diagnose.log_digest import (
    MAX_LINE,
    contains_words,
    digest,
    first_error,
    fixed_words,
    log_messages,
    matching_keys,
    shared_words,
)

ROOT_CAUSE = "k.nv:3:14: error: E1042: tile `t9` does not fit into the scratchpad"
REPEATED = [f"k.nv:{n}:2: error: E2000: operand {n} is not declared" for n in range(4, 44)]
LOG = "\n".join(["novac 1.2", ROOT_CAUSE, *REPEATED, "41 errors, nothing was written"])


def test_each_message_once_with_count_and_first_line() -> None:
    messages = log_messages(LOG)
    assert [(m.line, m.count, m.failure) for m in messages] == [
        (2, 1, True),
        (3, 40, True),
        (1, 1, False),
        (43, 1, False),
    ]
    assert messages[0].text == ROOT_CAUSE and messages[1].text == REPEATED[0]


def test_quoted_names_distinguish_messages_and_places_do_not() -> None:
    names = [f"k.nv:{n}:1: error: unknown name `{name}`" for n, name in enumerate("aaba")]
    assert [(m.text, m.count) for m in log_messages("\n".join(names))] == [
        (names[0], 3),
        (names[2], 1),
    ]


def test_digest_has_first_messages_in_log_order() -> None:
    lines = digest(LOG, 2_000).splitlines()
    assert lines == [
        "novac 1.2",
        ROOT_CAUSE,
        f"{REPEATED[0]}   (40 times)",
        "41 errors, nothing was written",
    ]


def test_log_within_limit_is_unchanged() -> None:
    short = f"{ROOT_CAUSE}\n\n  note: the tile takes 4096 bytes\n"
    assert digest(short, 1_000) == short


def test_failures_precede_other_messages_when_space_is_short() -> None:
    chatter = [f"loading module number-{chr(97 + n)} from disk" for n in range(20)]
    text = digest("\n".join([*chatter, ROOT_CAUSE, *REPEATED]), 200)
    assert ROOT_CAUSE in text and "further messages left out" in text
    assert REPEATED[0] in text and text.count("loading") < 3


def test_exception_of_any_name_precedes_its_traceback() -> None:
    place = '  File "{0}.py", line 3, in f\n    g({0} + x)\n      ^^^^^\n'
    frames = "".join(map(place.format, "bcde"))
    raised = "pkg.errors.Exhausted: shared memory, required 9, limit 8"
    log = f"Traceback (most recent call last):\n{frames}{raised}\nsetup\n"
    assert raised in digest(log, 150) and "^^" not in digest(log, 200)


def test_very_long_line_keeps_its_ends() -> None:
    [message] = log_messages("error: " + "x" * 5_000 + " the tile is too large")
    assert message.text.startswith("error: x") and message.text.endswith("the tile is too large")
    assert len(message.text) <= MAX_LINE + 5


@pytest.mark.parametrize("log", ["", "\n\n", "\x00\x1b[31merror\x1b[0m: a"])
def test_malformed_logs(log: str) -> None:
    assert digest(log, 100) == log
    assert all(m.text for m in log_messages(log))


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=2_000), st.integers(60, 500))
def test_digest_stays_within_its_limit(log: str, limit: int) -> None:
    text = digest(log, limit)
    listed = [line for line in text.split("\n") if not line.endswith(" left out)")]
    assert len("\n".join(listed)) <= limit or text == log


def test_any_log_is_digested_in_bounded_time() -> None:
    began = time.process_time()
    for line in ("a:" * 50_000, "'" * 100_000, "/" * 100_000 + ":1:1:", "(1," * 40_000):
        log_messages("\n".join([line, "error"] * 5))
    assert time.process_time() - began < 5


# -- the fixed words of an error message, and matching them in a log

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
