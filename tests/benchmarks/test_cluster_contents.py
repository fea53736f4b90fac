"""Losses that `make cluster` reports, on planted differences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cluster.losses import ComparableAnswer, Contents, comparable, differences
from retrieval.compose.hints import NO_INDEX

ANSWER = ComparableAnswer("context", (("psg_1", "text"),), by_words=False)
BEFORE = Contents({"doc_1": "Manual a1 current"}, {"run_1": "b2"}, {"0 at one": ANSWER})


def test_equal_or_additional_contents_are_no_loss() -> None:
    more = replace(BEFORE, documents={**BEFORE.documents, "doc_2": "new"}, runs={"run_1": "b2"})
    assert differences(BEFORE, more) == []


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (replace(BEFORE, documents={}), "document doc_1 is gone"),
        (replace(BEFORE, documents={"doc_1": "Manual a2 current"}), "document doc_1 was"),
        (replace(BEFORE, runs={}), "run run_1 is gone"),
        (
            replace(BEFORE, answers={"0 at one": replace(ANSWER, context="other")}),
            "answer 0 at one is different",
        ),
        (
            replace(BEFORE, answers={"0 at one": ComparableAnswer("other", (), by_words=True)}),
            "answer 0 at one is by words",
        ),
    ],
)
def test_missing_or_changed_contents_are_named(after: Contents, message: str) -> None:
    (line,) = differences(BEFORE, after)
    assert line.startswith(message)


def test_lexical_answer_is_reported() -> None:
    body = {"context": "c", "excerpts": [{"id": "psg_1", "text": "t"}], "hints": [NO_INDEX]}
    answer = comparable(body)
    assert answer.by_words and answer.against(answer) == "same"
    assert answer.against(ANSWER) == "by words"
    assert ANSWER.against(answer) == "different"
