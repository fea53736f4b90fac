"""Text that came out of the store is found again."""

from __future__ import annotations

import random

import pytest

from skills.curator.reading.echo import Shown, strip
from tests.skills.curator.planted import SEEDS

WORDS = [f"word{n}" for n in range(200)]


@pytest.mark.parametrize("seed", SEEDS)
def test_spans_of_eight_words_are_dropped_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    stored = chance.sample(WORDS, 60)
    own = [f"own{n}" for n in range(30)]
    start, length = chance.randrange(40), chance.randrange(8, 20)
    echo, short = stored[start : start + length], stored[:7]
    mixed = " ".join([*own[:10], *echo, *own[10:20], *short, *own[20:]])
    found = strip(mixed, Shown({"sk_1": " ".join(stored)}))
    assert found.text.split() == [*own[:20], *short, *own[20:]]
    assert found.share == pytest.approx(len(echo) / (30 + len(echo) + 7))


def test_case_and_punctuation_hide_nothing() -> None:
    stored = Shown({"a": "Load a row once, keep it on the chip, then write."})
    assert strip("load A row once keep it ON the chip then write", stored).text == ""
    assert strip("Something else entirely, in other words than those.", stored).share == 0


def test_code_is_traced_to_the_text_that_has_most_of_it() -> None:
    code = "for (int i = 0; i < n; i++) y[i] = a * x[i] + y[i];"
    shown = Shown({"one": f"## Before\n{code}\nmore();", "two": "nothing of the kind at all here"})
    assert shown.source_of(code) == ("one", 1.0)
    assert shown.source_of("int other(void) { return strange(thing, with, names); }") == ("", 0.0)
