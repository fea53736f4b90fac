"""The scorer is the script; paired intervals are over its rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.retrieval.corpus import MANIFEST, load_corpus
from benchmarks.retrieval.latency import HEADER, Heading, Timing, compose, measure, split
from benchmarks.retrieval.scoring import Scorer, bootstrap, gold_of, read_jsonl, write_answers
from kb.errors import InvalidRequest, Unavailable
from tests.benchmarks.conftest import Small

HIT = [{"text": "it holds 96 KiB", "hardware": ["zeta-1"]}]
MISS = [{"text": "nothing of it", "hardware": ["omega-2"]}]


def test_requests_equal_those_of_script(small: Small) -> None:
    requests = Scorer(small.scorer, small.gold).requests()
    assert list(requests) == ["g1", "g2", "g3"]
    assert requests["g3"]["signal"] == "memory_bound"


def test_scores_follow_rows_and_kinds(small: Small) -> None:
    scorer = Scorer(small.scorer, small.gold)
    good, bad = scorer.scores({"g1": HIT}), scorer.scores({"g1": MISS})
    assert good.kinds == ("question", "error", "signal")
    assert good.mean("ndcg@10", "question") == 1.0
    assert good.mean("ndcg@10", "error") == 0.0  # unanswered
    assert bad.mean("foreign@10", "question") == 1.0
    difference = good.minus(bad, "ndcg@10")
    assert difference.mean == pytest.approx(1 / 3)
    assert difference.low <= difference.mean <= difference.high


def test_table_is_the_output_of_script(small: Small) -> None:
    scorer = Scorer(small.scorer, small.gold)
    write_answers(small.answers, {"g1": HIT, "g2": MISS, "g3": MISS})
    assert scorer.table(small.answers).strip() == "rows 3 ndcg@10 0.333"


def test_failing_script_is_quoted(small: Small) -> None:
    scorer = Scorer(small.scorer, small.gold)
    write_answers(small.answers, {"g1": HIT})
    with pytest.raises(InvalidRequest, match="KeyError"):
        scorer.table(small.answers)


def test_gold_rows_by_hardware(small: Small) -> None:
    target = small.gold.with_name("part.jsonl")
    assert gold_of(small.gold, frozenset(), target) == small.gold
    assert read_jsonl(gold_of(small.gold, {"omega-2"}, target)) == []
    with pytest.raises(InvalidRequest, match="no rows"):
        Scorer(small.scorer, target)


def test_interval_is_deterministic_and_contains_its_mean() -> None:
    values = np.random.default_rng(3).normal(0.5, 1, 400)
    first, again = bootstrap(values), bootstrap(values)
    assert first == again
    assert first.low < first.mean < first.high
    # The standard error is .05, so the interval is about .2 wide.
    assert 0.15 < first.high - first.low < 0.25
    assert bootstrap(np.full(9, 0.25)).low == 0.25


# -- selection of the documents of a benchmark, and the report of the others


def test_manifest_gives_hardware_and_relative_paths(small: Small) -> None:
    corpus = load_corpus(small.corpus)
    assert corpus.hardware == ("omega-2", "zeta-1")
    names = {(file.hardware, file.name) for file in corpus.files}
    assert (("zeta-1",), "zeta_one/guide/memory.md") in names
    assert (corpus.missing, corpus.extra) == ((), ())


def test_missing_and_unlisted_files_are_reported(small: Small) -> None:
    (small.corpus / "omega/overview.md").unlink()
    (small.corpus / "LICENSE.txt").write_text("do as you like", encoding="utf-8")
    corpus = load_corpus(small.corpus)
    assert corpus.missing == ("omega/overview.md",)
    assert corpus.extra == ("LICENSE.txt",)
    message = "\n".join(corpus.lines())
    assert "1 files listed but missing: omega/overview.md" in message
    assert "1 files not listed: LICENSE.txt" in message


def test_top_folder_is_the_hardware_without_manifest(small: Small) -> None:
    (small.corpus / MANIFEST).unlink()
    (small.corpus / "LICENSES").mkdir()
    (small.corpus / "LICENSES/omega.txt").write_text("do as you like", encoding="utf-8")
    corpus = load_corpus(small.corpus)
    assert corpus.hardware == ("omega", "zeta_one")
    assert {file.name for file in corpus.files} == {"guide/memory.md", "errors.md", "overview.md"}
    assert corpus.extra == ("LICENSES/omega.txt",)


def test_part_of_corpus_by_hardware(small: Small) -> None:
    assert len(load_corpus(small.corpus).only({"zeta-1"}).files) == 2
    with pytest.raises(InvalidRequest, match="nothing about gamma"):
        load_corpus(small.corpus).only({"gamma"})


def test_invalid_manifest_line_is_named(small: Small) -> None:
    (small.corpus / MANIFEST).write_text('{"path": "a.md"}\n', encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"MANIFEST\.jsonl, line 1"):
        load_corpus(small.corpus)


def test_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no documents"):
        load_corpus(tmp_path)


# -- latency is measured with requests that no cache has seen

ROWS = {
    f"r{n}": {"query": f"how many registers has lane {n} of the chip", "hardware": "zeta-1"}
    for n in range(30)
} | {"s": {"signal": "memory_bound", "hardware": "zeta-1", "categories": ["hardware"]}}
HEADINGS = [Heading("zeta-1", f"Section {n}") for n in range(30)] + [Heading(None, "Anywhere")]


def test_all_requests_differ() -> None:
    bodies = compose(ROWS, ["memory_bound", "compute_bound"], HEADINGS, 600)
    assert len({json.dumps(body, sort_keys=True) for body in bodies}) == 600
    assert bodies == compose(ROWS, ["memory_bound", "compute_bound"], HEADINGS, 600)
    assert any("signal" in body and "query" in body for body in bodies)


def test_fewer_requests_from_small_vocabulary() -> None:
    assert len(compose({}, [], [Heading(None, "Only this")], 100)) == 5  # one per depth


def test_measurements_share_no_request() -> None:
    bodies = compose(ROWS, ["memory_bound"], HEADINGS, 240)
    portions = list(split(bodies, 4))
    assert [len(portion) for portion in portions] == [60] * 4
    seen = [json.dumps(body) for portion in portions for body in portion]
    assert len(set(seen)) == len(seen)


def test_failed_requests_are_counted() -> None:
    def send(body: object) -> None:
        if body == {"k": 1}:
            raise Unavailable("no answer", hint="Look.")

    for clients in (1, 4):
        timing = measure("x", send, [{"k": n} for n in range(8)], clients)
        assert len(timing.milliseconds) == 7
        assert timing.failures == ['no answer: {"k": 1}']
        assert len(timing.row()) == len(HEADER)
    assert Timing("x", [], 1.0, ["all"]).row()[:3] == ["x", "0", "1"]
