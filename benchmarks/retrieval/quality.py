"""Quality of answers, compared with plain retrievers.

Loads a corpus into a service over HTTP, posts the scorer's requests and scores the answers.
Baselines answer the same requests from the same texts. Nothing depends on one corpus.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import ended, say, table, write_result
from benchmarks.retrieval.corpus import Corpus, load_corpus
from benchmarks.retrieval.scoring import (
    KINDS,
    METRICS,
    Answers,
    Request,
    Scorer,
    Scores,
    gold_of,
    listed,
    write_answers,
)
from benchmarks.service import Service, load, service_at

OURS = "Kernlore"
TITLE = "Retrieval quality"


@dataclass(frozen=True)
class Options:
    corpus: Path
    gold: Path
    answers: Path
    scorer: Path
    url: str | None
    data_dir: Path | None
    hardware: frozenset[str]
    baselines: bool
    results: Path | None


def ask(service: Service, requests: Mapping[str, Request]) -> Answers:
    """The excerpts of each request, as POST /retrieve gives them."""
    answers: dict[str, list[dict[str, Any]]] = {}
    for number, (row, body) in enumerate(requests.items(), 1):
        answers[row] = service.call("POST", "/retrieve", json=dict(body))["excerpts"]
        if number % 50 == 0:
            say(f"sent {number} of {len(requests)}")
    return answers


def unrestricted(requests: Mapping[str, Request]) -> dict[str, Request]:
    """The same questions with every category allowed: built-in advice competes with the manuals."""
    return {
        row: {name: value for name, value in body.items() if name != "categories"}
        for row, body in requests.items()
    }


# -- tables


def score_table(scores: Mapping[str, Scores]) -> str:
    kinds = KINDS[1:]
    rows = [
        [
            name,
            *(f"{s.mean(metric):.3f}" for metric in METRICS),
            " / ".join(f"{s.mean('ndcg@10', kind):.2f}" for kind in kinds),
            " / ".join(f"{s.mean('recall@5', kind):.2f}" for kind in kinds),
        ]
        for name, s in scores.items()
    ]
    split = " / ".join(kinds)
    return table(["method", *METRICS, f"ndcg@10 {split}", f"recall@5 {split}"], rows)


def difference_table(ours: Scores, others: Mapping[str, Scores], metric: str) -> str:
    rows = [[name, *(ours.minus(s, metric, kind) for kind in KINDS)] for name, s in others.items()]
    return table([f"{metric}: {OURS} minus", *KINDS], rows)


def verdicts(ours: Scores, fusion: Scores | None) -> list[str]:
    """Whether the numbers show what they must, in sentences."""
    foreign = float(ours.column("foreign@10").sum())
    sentences = [
        f"foreign@10 is {'exactly 0' if foreign == 0 else f'NOT 0: {foreign} over all rows'}."
    ]
    if fusion is not None:
        for kind in KINDS[1:]:
            gain = ours.minus(fusion, "ndcg@10", kind)
            n = len(ours.column("ndcg@10", kind))
            if n:
                shown = "above 0" if gain.low > 0 else "NOT above 0"
                sentences.append(f"Gain over plain fusion, {kind} (n={n}): {gain}: {shown}.")
    return sentences


# -- the run


def run(options: Options) -> None:
    corpus = load_corpus(options.corpus).only(options.hardware)
    with tempfile.TemporaryDirectory(prefix="kernlore-gold-") as folder:
        gold = gold_of(options.gold, options.hardware, Path(folder) / "gold.jsonl")
        scorer = Scorer(options.scorer, gold)
        _check_rows(scorer, corpus)
        requests = scorer.requests()
        with service_at(options.url, options.data_dir) as service:
            loaded = load(service, corpus)
            answers = ask(service, requests)
            open_answers = ask(service, unrestricted(requests))
        write_answers(options.answers, answers)
        others = _baselines(requests, corpus, options) if options.baselines else {}
        scores = {OURS: scorer.scores(answers)}
        scores |= {name: scorer.scores(rows) for name, rows in others.items()}
        everything = options.answers.with_suffix(".all-categories.jsonl")
        write_answers(everything, open_answers)
        parts = [
            "\n".join(f"* {line}" for line in [*corpus.lines(), *loaded.lines()]),
            f"```\n{scorer.table(options.answers)}```",
            *_compared(scores),
            "Without the restriction to category `hardware`:",
            f"```\n{scorer.table(everything)}```",
            score_table({OURS: scorer.scores(open_answers)}),
            "\n".join(f"* {line}" for line in verdicts(scorer.scores(open_answers), None)),
        ]
    write_result(options.results, TITLE, parts)


def _compared(scores: Mapping[str, Scores]) -> Iterator[str]:
    from benchmarks.retrieval.baselines import PLAIN_FUSION

    ours = scores[OURS]
    others = {name: score for name, score in scores.items() if name != OURS}
    yield score_table(scores)
    if others:
        yield "Paired differences on the same rows, 95 % bootstrap intervals:"
        for metric in ("ndcg@10", "recall@5"):
            yield difference_table(ours, others, metric)
    yield "\n".join(f"* {line}" for line in verdicts(ours, scores.get(PLAIN_FUSION)))


def _check_rows(scorer: Scorer, corpus: Corpus) -> None:
    wanted = {row["hardware"] for row in scorer.rows if row.get("hardware")}
    absent = sorted(wanted - set(corpus.hardware))
    if absent:
        say(f"gold rows ask for hardware without documents: {', '.join(absent)}")


def _baselines(
    requests: Mapping[str, Request], corpus: Corpus, options: Options
) -> dict[str, Answers]:
    from benchmarks.retrieval.baselines import (
        VectorCache,
        fixed_answers,
        has_bm25,
        llama_answers,
        read_texts,
    )

    with _baseline_folder(options.data_dir) as folder:
        texts = read_texts(corpus, folder / "texts")
        for line in texts.unread:
            say(f"not in the baselines: {line}")
        cache = VectorCache(folder / "vectors.sqlite")
        try:
            answers = fixed_answers(requests, texts, cache)
            answers |= llama_answers(requests, texts, cache)
        finally:
            cache.close()
    if not has_bm25():
        say("no llama-index fusion: its package llama-index-retrievers-bm25 is not installed")
    return answers


@contextmanager
def _baseline_folder(data_dir: Path | None) -> Iterator[Path]:
    """Where baselines keep texts and vectors between runs."""
    if data_dir is not None:
        yield data_dir / "baselines"
        return
    with tempfile.TemporaryDirectory(prefix="kernlore-baselines-") as folder:
        yield Path(folder)


def options_of(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.quality", description=__doc__
    )
    parser.add_argument("--corpus", type=Path, required=True, help="Folder of documents.")
    parser.add_argument("--gold", type=Path, required=True, help="Gold rows, JSON lines.")
    parser.add_argument("--answers", type=Path, required=True, help="Where answers are written.")
    parser.add_argument("--scorer", type=Path, help="Default: ../retrieval/score.py of the corpus.")
    parser.add_argument("--url", help="A running service; default: one is started.")
    parser.add_argument("--data-dir", type=Path, help="Keeps store and baselines between runs.")
    parser.add_argument("--hardware", default="", help="Only these ids, comma-separated.")
    parser.add_argument("--no-baselines", action="store_true")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    given = parser.parse_args(arguments)
    return Options(
        corpus=given.corpus,
        gold=given.gold,
        answers=given.answers,
        scorer=given.scorer or default_scorer(given.corpus),
        url=given.url,
        data_dir=given.data_dir,
        hardware=listed(given.hardware),
        baselines=not given.no_baselines,
        results=given.results,
    )


def default_scorer(corpus: Path) -> Path:
    return corpus.absolute().parent / "retrieval" / "score.py"


if __name__ == "__main__":
    ended(lambda: run(options_of()))
