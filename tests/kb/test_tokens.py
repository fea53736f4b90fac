"""Names are found whole and by their parts; documents and queries are tokenised alike."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb import prompt_tokens
from kb.errors import Unavailable
from kb.prompt_tokens import count_tokens, fits, least_tokens
from kb.tokens import STOP_WORDS, shadow, stem, tokenize


@pytest.mark.parametrize(
    ("text", "whole", "parts"),
    [
        ("cp.async.bulk", "cp_async_bulk", {"cp", "async", "bulk"}),
        ("s_waitcnt vmcnt(0)", "s_waitcnt", {"waitcnt", "vmcnt", "0"}),
        ("__launch_bounds__", "launch_bounds", {"launch", "bound"}),
        ("NCC_EVRF031", "ncc_evrf031", {"ncc", "evrf031", "evrf", "031"}),
        ("tensorCoreUtil", "tensorcoreutil", {"tensor", "core", "util"}),
        ("std::max_align", "std_max_align", {"std", "max_align"}),
        ("sm__throughput.avg", "sm_throughput_avg", {"sm_throughput", "throughput", "avg"}),
    ],
)
def test_name_gives_whole_and_its_parts(text: str, whole: str, parts: set[str]) -> None:
    tokens = tokenize(text)
    assert whole in tokens
    assert parts <= set(tokens)


def test_words_are_stemmed_and_function_words_dropped() -> None:
    assert tokenize("the registers are spilled") == ["regist", "spill"]
    assert tokenize("The of and") == []


def test_overlong_token_is_indexed_only_by_parts() -> None:
    tokens = tokenize("x" * 40 + "_" + "y" * 60)
    assert all(len(token) <= 80 for token in tokens)


@given(st.text(max_size=200))
def test_shadow_text_passes_engine_unchanged(text: str) -> None:
    tokens = tokenize(text)
    assert all(re.fullmatch(r"[a-z0-9_]+", token) for token in tokens)
    assert not STOP_WORDS & set(tokens)
    assert shadow(text).split() == tokens


def test_stemming_is_thread_safe() -> None:
    """A service answers in several threads; a wrong stem would stay cached until its end."""
    ends = ("ations", "ingly", "ed", "fulness", "izers", "ability", "ements", "ously")
    words = [f"{a}{b}lor{end}" for a in "bcdfghklmnprst" for b in "aeiou" for end in ends]
    alone = [stem.__wrapped__(word) for word in words]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda _: [stem.__wrapped__(word) for word in words], range(8)))
    assert all(stems == alone for stems in together)


# -- tokens are counted by a real tokenizer, offline


def test_known_counts() -> None:
    assert count_tokens("") == 0
    assert count_tokens("hello world") == 2
    assert 3 <= count_tokens("vadd.f32 %r1, %r2, %r3") <= 20


def test_control_token_text_is_counted_as_plain_text() -> None:
    assert count_tokens("<|endoftext|>") > 1


def test_sum_of_parts_is_at_least_whole() -> None:
    parts = ["## Heading", "A sentence. Another one.", "```c\nint x = 3;\n```", "| a | b |"]
    assert count_tokens("\n\n".join(parts)) <= sum(count_tokens(part) + 1 for part in parts)


def test_line_counts_add_up_to_whole() -> None:
    """Counting line by line gives the number of tokens of the whole text."""
    pieces = "\n|\n\n| |  |\t|\r\n|\x0b|\x85|\u2028|a|Foo|don't|'s|12345|/|#|```|<|>|é|漢|😀|.|);"
    draw = random.Random(7)
    whole = prompt_tokens._encoding()
    for _ in range(5_000):
        text = "".join(draw.choices(pieces.split("|"), k=draw.randint(1, 14)))
        assert count_tokens(text) == len(whole.encode_ordinary(text)), repr(text)


def test_no_token_spans_two_words() -> None:
    """Hence a text has at least as many tokens as words."""
    encoding = prompt_tokens._encoding()
    for token in encoding.token_byte_values():
        assert len(token.decode("utf-8", "ignore").split()) <= 1, token


def test_text_fits_exactly_from_its_size() -> None:
    for text in ("", "a b c", "vadd.f32 %r1, %r2, %r3", "| a | b |\n| --- | --- |\n" * 9):
        tokens = count_tokens(text)
        assert least_tokens(text) <= tokens
        assert [fits(text, most) for most in (tokens - 1, tokens, tokens + 1)] == [0, 1, 1]


def test_counting_needs_no_network() -> None:
    script = (
        "import socket\n"
        "def refuse(*a, **k): raise OSError('no network')\n"
        "socket.socket.connect = refuse\n"
        "from kb.prompt_tokens import count_tokens\n"
        "print(count_tokens('hello world'))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "2", done.stderr


def test_missing_tokenizer_error_names_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    prompt_tokens._encoding.cache_clear()
    try:
        with pytest.raises(Unavailable) as caught:
            count_tokens("a text that was never counted before")
        assert "pip install kernlore" in caught.value.hint
    finally:
        prompt_tokens._encoding.cache_clear()
