"""Repeated texts of an answer: exactly those that the definition on sets of words gives."""

from __future__ import annotations

import random
import re
import sys

from kb.tokens import STOP_WORDS
from retrieval.compose.excerpts import BITS, DUPLICATE, Repeats, words_of

VOCABULARY = [f"word{n}" for n in range(3 * BITS)]  # enough words to share bits


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[^\W_]+", text.lower())) - STOP_WORDS


def _by_sets(texts: list[str]) -> list[bool]:
    stored: list[frozenset[str]] = []
    new = []
    for text in texts:
        words = _words(text)
        new.append(
            all(len(words & other) <= DUPLICATE * min(len(words), len(other)) for other in stored)
        )
        if new[-1]:
            stored.append(words)
    return new


def test_repeats_equal_those_by_sets_of_words() -> None:
    rng = random.Random(7)
    texts: list[str] = ["", "word1", ""]
    for size in (3, 40, 400, 2000):
        for _ in range(12):
            words = rng.sample(VOCABULARY, size)
            texts.append(" ".join(words))
            stored = rng.uniform(0.8, 0.9)  # around the share from which a text is a repeat
            changed = [w if rng.random() < stored else rng.choice(VOCABULARY) for w in words]
            texts.append(" ".join(changed))
    repeats = Repeats()
    expected = _by_sets(texts)
    assert [repeats.is_new(text) for text in texts] == expected
    assert 5 < expected.count(False) < len(texts) - 5


def test_markup_between_words_does_not_matter() -> None:
    text = "Call `cp.async.wait_group` before the barrier: else shared memory holds old values."
    marked = (
        "call CP ASYNC wait group, before (the) barrier; else **shared** memory holds OLD values"
    )
    other = "Call `cp.async.bulk` after the barrier: then global memory holds all new results."
    assert words_of(text).size == words_of(marked).size
    repeats = Repeats()
    assert [repeats.is_new(t) for t in (text, marked, other)] == [True, False, True]


def test_text_takes_less_memory_than_its_set_of_words() -> None:
    text = " ".join(random.Random(3).sample(VOCABULARY, 300))
    stored, words = words_of(text), _words(text)
    taken = stored.hashes.nbytes + sys.getsizeof(stored.mask)
    as_set = sys.getsizeof(words) + sum(map(sys.getsizeof, words))
    assert stored.size == len(words) and taken * 9 < as_set
