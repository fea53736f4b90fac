"""The benchmark commands on three documents: a real service, a real store, real vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.knowledge import ingestion
from benchmarks.retrieval import ablation, latency, quality
from benchmarks.retrieval.scoring import read_jsonl
from tests.benchmarks.conftest import Small

pytestmark = pytest.mark.slow(seconds=25)


@pytest.fixture(scope="module")
def scored(shared_small: Small, without_builtin: None) -> str:
    """The result of a quality run that keeps its store."""
    small = shared_small
    result = small.answers.with_name("result.md")
    options = ["--corpus", small.corpus, "--gold", small.gold, "--answers", small.answers]
    options += ["--scorer", small.scorer, "--data-dir", small.data, "--results", result]
    quality.run(quality.options_of([*map(str, options), "--no-baselines"]))
    return result.read_text(encoding="utf-8")


def test_quality_loads_queries_and_scores(scored: str, shared_small: Small) -> None:
    assert "uploads: 3 created" in scored
    assert "jobs: 3 ready" in scored
    assert "rows 3 ndcg@10" in scored
    assert "foreign@10 is exactly 0." in scored
    answers = {row["id"]: row["excerpts"] for row in read_jsonl(shared_small.answers)}
    assert any("holds 96 KiB" in excerpt["text"] for excerpt in answers["g1"])
    assert {h for rows in answers.values() for e in rows for h in e["hardware"]} == {"zeta-1"}
    everything = shared_small.answers.with_name("answers.all-categories.jsonl")
    assert len(read_jsonl(everything)) == 3


def test_ablation_runs_on_existing_store(
    scored: str, shared_small: Small, capsys: pytest.CaptureFixture[str]
) -> None:
    small = shared_small
    options = ["--data-dir", small.data, "--gold", small.gold, "--scorer", small.scorer]
    ablation.run(ablation.options_of([*map(str, options)]))
    message = capsys.readouterr().out
    for variant in ablation.variants():
        assert f"| {variant.name} |" in message
    assert "differs from the product's own answers on 0 rows" in message


def test_latency_runs_on_existing_store(
    scored: str, shared_small: Small, without_builtin: None, capsys: pytest.CaptureFixture[str]
) -> None:
    small = shared_small
    options = ["--data-dir", small.data, "--gold", small.gold, "--scorer", small.scorer]
    few = ["--requests", "12", "--warm-up", "4"]
    given = latency.options_of([*map(str, options), *few])
    latency.run(given)
    message = capsys.readouterr().out
    assert "| HTTP, 4 clients at once | 6 | 0 |" in message
    assert "| in process, one thread | 6 | 0 |" in message
    assert "Memory of the service:" in message


def test_ingestion_embeds_each_text_once(small: Small) -> None:
    result = small.answers.with_name("ingestion.md")
    options = ["--corpus", small.corpus, "--results", result]
    ingestion.run(ingestion.options_of([*map(str, options)]))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in result.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    first, again, changed = (dict(zip(rows[0], row, strict=True)) for row in rows[-3:])
    embedded = "passages embedded"
    assert first[embedded] == first["passages in the store"] != "0"
    assert (again["uploads"], again[embedded]) == ("3 unchanged", "0")
    assert changed["uploads"] == "3 new_version"
    assert 0 < int(changed[embedded]) <= 2 * ingestion.EDITED


def test_baselines_answer_within_hardware(small: Small, tmp_path: Path) -> None:
    pytest.importorskip("bm25s")
    from benchmarks.retrieval.baselines import (
        METHODS,
        VECTOR,
        VectorCache,
        fixed_answers,
        llama_answers,
        read_texts,
    )
    from benchmarks.retrieval.corpus import load_corpus
    from benchmarks.retrieval.scoring import Scorer

    requests = Scorer(small.scorer, small.gold).requests()
    texts = read_texts(load_corpus(small.corpus), tmp_path / "texts")
    cache = VectorCache(tmp_path / "vectors.sqlite")
    answers = fixed_answers(requests, texts, cache) | llama_answers(requests, texts, cache)
    cache.close()
    assert {*METHODS, VECTOR} <= set(answers)
    for found in answers.values():
        assert found["g1"]
        assert not any("omega" in e["text"] for rows in found.values() for e in rows)
    assert "split the loop" in answers["BM25"]["g2"][0]["text"]
