"""Tokens are counted by a real tokenizer, offline."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from kb import prompt_tokens
from kb.errors import Unavailable
from kb.prompt_tokens import count_tokens, fits, least_tokens


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
