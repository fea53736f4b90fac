"""The questions on the built-in knowledge: each is well formed, and quotes an existing text."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.knowledge.answers import Row, load_targets, report, torn
from benchmarks.retrieval.builtin import (
    QUESTIONS,
    ROOT,
    best_only,
    check_rows,
    far_rows,
    judge,
    options_of,
    quote_problem,
    row_problems,
)
from benchmarks.retrieval.scoring import METRICS, Scorer, Scores, read_jsonl
from benchmarks.service import CHIPS
from kb.answers import DocumentRef, Excerpt
from kb.errors import InvalidKnowledge, InvalidRequest
from retrieval.diagnose.metrics import load_metrics
from retrieval.diagnose.signals import load_signals

SCORER = Path(os.environ.get("KERNLORE_SCORER", ROOT.parent / "shared/retrieval/score.py"))
ROWS = read_jsonl(QUESTIONS)
QUOTE = "Row 1 of the tile starts at byte 4,004,\nwhich is no multiple of 16"
DOCUMENT = f"""---
title: {QUOTE.replace(chr(10), " ")}
---
# Tiles

## Starts

{QUOTE}. The next line follows.

```
load(tile, start, 4, check=True)
```

It ends here.
"""


def test_forty_rows_of_three_kinds() -> None:
    assert len(ROWS) == len({row["id"] for row in ROWS}) == 40
    assert len({row["query"] for row in ROWS}) == 40
    assert Counter(row["kind"] for row in ROWS) == {"question": 20, "signal": 10, "error": 10}


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_every_quote_is_in_its_file_once(row: Mapping[str, Any]) -> None:
    assert row_problems(row) == []
    own = [item for item in row["relevant"] if not item.get("pool")]
    assert 1 <= len(own) <= 3
    assert max(item["grade"] for item in own) == 3
    assert all(item["grade"] in (1, 2, 3) for item in row["relevant"])


def test_rows_cover_exactly_shipped_chips() -> None:
    assert {row["hardware"] for row in ROWS if row["hardware"]} == set(CHIPS)
    for chip in CHIPS:
        assert (ROOT / "hw_manuals" / "hardware" / chip / "hardware.toml").is_file()


def test_every_part_of_knowledge_answers_row() -> None:
    where = Counter(item["path"].split("/")[1] for row in ROWS for item in row["relevant"])
    assert set(where) == {"constraints", "guidance", "hardware"}
    constraints = {
        i["path"] for row in ROWS for i in row["relevant"] if "/constraints/" in i["path"]
    }
    assert len(constraints) >= 3


def test_signals_and_metrics_are_known() -> None:
    signals, metrics = set(load_signals().ids), set(load_metrics().metrics)
    assert {row["signal"] for row in ROWS if row.get("signal")} <= signals
    for row in (row for row in ROWS if row["kind"] == "signal"):
        given = json.loads(row["query"])
        assert (given["signal"], given["hardware"]) == (row["signal"], row["hardware"])
        assert set(given.get("metrics", {})) <= metrics


# -- the check of quotes


def test_quote_may_differ_in_wrapping_and_markup() -> None:
    assert quote_problem(DOCUMENT, QUOTE.replace("\n", " ").replace("tile", "`tile`")) is None


@pytest.mark.parametrize(
    ("quote", "problem"),
    [
        ("Row 2 of the tile starts at byte 8,008, which is none", "is not there"),
        ("which is no multiple of 16", "is shorter"),
        ("The next line follows. load(tile, start, 4, check=True)", "crosses"),
    ],
)
def test_quote_longer_than_excerpt_is_refused(quote: str, problem: str) -> None:
    assert problem in (quote_problem(DOCUMENT, quote) or "")


def test_ambiguous_quote_is_refused() -> None:
    assert quote_problem(DOCUMENT + QUOTE, QUOTE) == "is there 2 times"


def test_error_names_row_and_file(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(DOCUMENT, encoding="utf-8")
    good = {"id": "t1", "relevant": [{"path": "a.md", "evidence": QUOTE, "grade": 3}]}
    check_rows([good], tmp_path)
    lost = {"id": "t2", "relevant": [{"path": "a.md", "evidence": QUOTE + " no", "grade": 3}]}
    gone = {"id": "t3", "relevant": [{"path": "b.md", "evidence": QUOTE, "grade": 3}]}
    with pytest.raises(
        InvalidRequest, match=r"(?s)row t2: .* is not there in a\.md; row t3: .*b\.md"
    ):
        check_rows([good, lost, gone], tmp_path)


# -- scores


def test_far_rows_use_only_best_evidence() -> None:
    items = [{"path": "a.md", "evidence": QUOTE, "grade": grade} for grade in (3, 2, 3)]
    assert [i["grade"] for i in best_only({"id": "t", "relevant": items})["relevant"]] == [3, 3]
    rows = [
        {"id": f"t{n}", "kind": "error", "hardware": None, "query": "a | b\nc"} for n in range(4)
    ]
    values = np.zeros((4, len(METRICS)))
    values[:, METRICS.index("mrr@10")] = [1.0, 1 / 5, 1 / 6, 0.0]
    far = far_rows(rows, Scores(("error",) * 4, values))
    assert [row[0] for row in far] == ["t2", "t3"]
    assert [row[3] for row in far] == ["unit 6", "not in the first 10"]
    assert far[0][4] == "a / b c"


def test_score_below_minimum_fails() -> None:
    judge(0.5, 0.5)
    with pytest.raises(InvalidKnowledge, match=r"0\.499, below the least of 0\.500"):
        judge(0.499, 0.5)
    assert 0 < options_of(["--scorer", "score.py"]).least < 1


@pytest.mark.skipif(
    not SCORER.is_file(),
    reason="the scorer is not part of the repository; say where it is with KERNLORE_SCORER",
)
def test_scorer_reads_rows() -> None:
    scorer = Scorer(SCORER, QUESTIONS)
    requests = scorer.requests()
    assert list(requests) == [row["id"] for row in ROWS]
    perfect = {row["id"]: [{"text": i["evidence"]} for i in row["relevant"]] for row in ROWS}
    assert scorer.scores(perfect).mean("ndcg@10") == pytest.approx(1.0)
    assert scorer.scores({}).mean("ndcg@10") == 0.0


# -- scoring of an excerpt and of a set of answers in the benchmark of first answers

ROW = Row("memory_bound", "h100", True, True, 5, 5, 0, 3, 3, (), 1, (), 4000)


def excerpt(heading: str, text: str) -> Excerpt:
    document = DocumentRef("doc_1", "Manual", 1)
    return Excerpt("psg_1", "hardware", (), text, document, f"Manual > {heading}", None, 1.0, {})


@pytest.mark.parametrize(
    ("heading", "text", "hit"),
    [
        ("HBM3 needs many bytes in flight", "", True),
        ("Notes", "HBM is fast. DRAM is not.", True),
        ("Notes", "HBM is fast.", False),
        ("Shared memory bandwidth", "HBM, DRAM and global memory", False),
    ],
)
def test_excerpt_is_on_target_by_heading_or_text(heading: str, text: str, hit: bool) -> None:
    targets, _ = load_targets()
    assert targets["memory_bound"].hit(excerpt(heading, text)) is hit


def test_every_signal_but_unknown_has_target() -> None:
    assert set(load_targets()[0]) == set(load_signals().ids) - {"unknown"}


@pytest.mark.parametrize(
    ("text", "begun"), [("The bus", False), ("and so on", True), ("**Bold**", False), ("", False)]
)
def test_text_that_starts_in_mid_sentence(text: str, begun: bool) -> None:
    assert torn(text) is begun


def test_report_names_misses_and_inapplicable_excerpts() -> None:
    foreign = ("mfma",)
    other = replace(ROW, hardware="a100", on_target=False, sections=3, foreign_moves=foreign)
    _, table, missed, cannot = report([ROW, other])
    assert "| all | 2 | 50% | 100% | 4.00 | 0.0% |" in table
    assert missed.endswith("memory_bound/a100.") and "mfma (1)" in cannot
