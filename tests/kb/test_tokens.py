"""Names are found whole and by their parts; documents and queries are tokenised alike."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
