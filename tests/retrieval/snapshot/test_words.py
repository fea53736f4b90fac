"""The word index of a snapshot equals SQLite's FTS5 for any division into segments."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence

import numpy as np
import pytest

from retrieval.snapshot.words import LevelRow, Postings, WordIndex, index_words, merge_words

WORDS = [f"w{n}" for n in range(60)]
WEIGHT = 2.0


def drawn_rows(count: int, seed: int) -> list[LevelRow]:
    rng = random.Random(seed)
    return [
        LevelRow(
            rng.randint(3, 6),
            " ".join(rng.choices(WORDS, k=rng.randint(0, 4))),
            " ".join(rng.choices(WORDS, [1 / (n + 1) for n in range(60)], k=rng.randint(1, 40))),
        )
        for _ in range(count)
    ]


def postings(rows: Sequence[LevelRow], seqs: Sequence[int], dead: Sequence[int] = ()) -> Postings:
    arrays = index_words("passage", rows, WEIGHT)
    return Postings.of("passage", arrays, np.array(seqs), np.array(dead, np.int64))


def searched(index: WordIndex, tokens: Sequence[str]) -> dict[int, float]:
    everything = [np.array([0, len(segment.seqs)]) for segment in index.segments]
    return index.search(tokens, everything, 1000)


def by_fts5(rows: Sequence[LevelRow], tokens: Sequence[str]) -> dict[int, float]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE t USING fts5(scope, heading, body)")
    connection.executemany(
        "INSERT INTO t(rowid, scope, heading, body) VALUES (?, ?, ?, ?)",
        [
            (seq, " ".join(["s"] * row.scope_tokens), row.heading, row.body)
            for seq, row in enumerate(rows, 1)
        ],
    )
    match = " OR ".join(f'"{token}"' for token in tokens)
    found = connection.execute(
        "SELECT rowid, -bm25(t, 0.0, ?, 1.0) AS score FROM t WHERE t MATCH ?"
        " ORDER BY score DESC, rowid",
        (WEIGHT, f"{{heading body}} : ({match})"),
    )
    return dict(found.fetchall())


@pytest.mark.parametrize("tokens", [["w0"], ["w3", "w17"], ["w1", "w2", "w59", "absent"]])
def test_scores_equal_fts5(tokens: list[str]) -> None:
    rows = drawn_rows(300, seed=1)
    index = WordIndex.of([postings(rows, range(1, 301))])
    expected = by_fts5(rows, tokens)
    found = searched(index, tokens)
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-9)


def test_segments_and_deleted_rows_do_not_change_scores() -> None:
    rows, gone = drawn_rows(200, seed=2), drawn_rows(40, seed=3)
    whole = WordIndex.of([postings(rows, range(200))])
    first = postings([*gone[:10], *rows[:50]], range(-10, 50), dead=range(10))
    second = postings([*rows[50:], *gone[10:]], range(50, 230), dead=range(150, 180))
    divided = WordIndex.of([first, second])
    for tokens in (["w0", "w5"], ["w31"], ["w59", "w2", "w8"]):
        assert searched(divided, tokens) == pytest.approx(searched(whole, tokens))
        assert list(searched(divided, tokens)) == list(searched(whole, tokens))


def test_rows_that_are_not_counted_change_no_score() -> None:
    rows, gone, hidden = drawn_rows(200, 2), drawn_rows(40, 3), drawn_rows(60, 4)
    whole = WordIndex.of([postings(rows, [*range(10, 60), *range(80, 230)])])
    mixed = [*gone[:10], *rows[:50], *hidden[:20], *rows[50:], *hidden[20:], *gone[10:]]
    segment = postings(mixed, range(300), dead=[*range(10), *range(270, 300)])
    visible = [np.array([0, 60, 80, 230, 270, 300])]
    counted = WordIndex.of([segment]).counted_over(visible)
    for tokens in (["w0", "w5"], ["w31"], ["w59", "w2", "w8"]):
        assert counted.search(tokens, visible, 1000) == pytest.approx(searched(whole, tokens))


def test_search_in_some_runs_equals_search_in_all() -> None:
    rows = drawn_rows(400, seed=4)
    index = WordIndex.of([postings(rows, range(400))])
    runs = [np.array([3, 20, 100, 140, 399, 400])]
    admitted = {*range(3, 20), *range(100, 140), 399}
    everywhere = {s: v for s, v in searched(index, ["w1", "w4"]).items() if s in admitted}
    assert index.search(["w1", "w4"], runs, 1000) == pytest.approx(everywhere)
    assert list(index.search(["w1", "w4"], runs, 5)) == list(everywhere)[:5]


def test_merged_index_equals_index_of_remaining_rows() -> None:
    rows = drawn_rows(90, seed=5)
    parts = [index_words("passage", rows[:40], WEIGHT), index_words("passage", rows[40:], WEIGHT)]
    stored = [np.array([0, 2, 39]), np.array([1, 49])]
    left = [rows[0], rows[2], rows[39], rows[41], rows[89]]
    order = [4, 1, 0, 2, 3]  # the segment of each row
    merged = merge_words("passage", list(zip(parts, stored, strict=True)), np.array(order))
    placed = [left[order.index(n)] for n in range(5)]
    anew = index_words("passage", placed, WEIGHT)
    assert merged.keys() == anew.keys()
    for name, array in anew.items():
        assert np.array_equal(merged[name], array), name
