"""Distinct messages of a log: the first of each with its count, within a limit."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.diagnose.log_digest import MAX_LINE, digest, log_messages

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
