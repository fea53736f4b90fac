"""Answers from the built-in knowledge to forty questions about nine shipped chips.

A regression check: constraints, guidance and hardware documents compete for every row, and the run
fails when nDCG@10 falls below the recorded value. The rows were written from the documents, so the
result says nothing about questions that no document answers.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import ended, say, table, write_result
from benchmarks.retrieval.latency import request_of
from benchmarks.retrieval.quality import unrestricted
from benchmarks.retrieval.scoring import Answers, Scorer, Scores, write_answers, write_jsonl
from benchmarks.service import builtin_services
from kb.errors import InvalidKnowledge, InvalidRequest

QUESTIONS = Path(__file__).with_name("builtin_questions.jsonl")
ROOT = Path(__file__).resolve().parents[2]
TITLE = "Retrieval over the built-in knowledge"
LEAST = 0.741  # the recorded value, less 0.03
NEAR = 5  # units of text that a reader is expected to read
SHORTEST = 40  # characters of a quote: shorter ones turn up by chance
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
SECTION_OR_FENCE = re.compile(r"^(?:#+ |```).*$", re.MULTILINE)

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Options:
    scorer: Path
    data_dir: Path | None
    results: Path | None
    least: float


# -- the rows


def plain(text: str) -> str:
    """Letters and digits only, lower case, so that wrapping and markup do not matter."""
    return re.sub(r"[\W_]+", "", text.lower())


def quote_problem(document: str, quote: str) -> str | None:
    """A problem with a quote of this document, or None."""
    body, wanted = FRONT_MATTER.sub("", document), plain(quote)
    if len(quote) < SHORTEST:
        return f"is shorter than {SHORTEST} characters"
    occurrences = plain(body).count(wanted)
    if occurrences != 1:
        return f"is there {occurrences} times" if occurrences else "is not there"
    if not any(wanted in plain(part) for part in SECTION_OR_FENCE.split(body)):
        return "crosses a heading or the edge of a code block"
    return None


def row_problems(row: Row, root: Path = ROOT) -> list[str]:
    """One sentence per quote of the row that its file does not hold as it should."""
    problems = []
    for item in row["relevant"]:
        path = root / item["path"]
        if not path.is_file():
            problems.append(f"row {row['id']}: there is no file {item['path']}")
            continue
        problem = quote_problem(path.read_text(encoding="utf-8"), item["evidence"])
        if problem:
            problems.append(f"row {row['id']}: '{item['evidence']}' {problem} in {item['path']}")
    return problems


def check_rows(rows: Sequence[Row], root: Path = ROOT) -> None:
    problems = [problem for row in rows for problem in row_problems(row, root)]
    if problems:
        raise InvalidRequest(
            "; ".join(problems), hint=f"Quote the document as it reads now in {QUESTIONS.name}."
        )


def best_only(row: Row) -> Row:
    """The row with nothing but its evidence of the highest grade."""
    top = max(item["grade"] for item in row["relevant"])
    return {**row, "relevant": [item for item in row["relevant"] if item["grade"] == top]}


# -- asking and judging


@dataclass(frozen=True)
class Answered:
    """outside: number of excerpts about neither the requested chip nor its family."""

    answers: Answers
    outside: int


def ask(scorer: Scorer, data_dir: Path | None) -> Answered:
    answers: dict[str, list[dict[str, Any]]] = {}
    outside = 0
    with builtin_services(data_dir) as services:
        say("the built-in knowledge is loaded")
        for row, body in unrestricted(scorer.requests()).items():
            answer = services.retriever.retrieve(request_of(body))
            answers[row] = [asdict(excerpt) for excerpt in answer.excerpts]
            if answer.hardware is not None:
                own = set(answer.hardware["lineage"])
                outside += sum(
                    bool(occurrences.hardware) and own.isdisjoint(occurrences.hardware)
                    for occurrences in answer.excerpts
                )
    return Answered(answers, outside)


def far_rows(rows: Sequence[Row], best: Scores) -> list[list[str]]:
    """Rows whose best evidence is not near the top: id, kind, hardware, place, text."""
    far = []
    for row, reciprocal in zip(rows, best.column("mrr@10"), strict=True):
        if reciprocal < 1 / NEAR:
            place = f"unit {round(1 / reciprocal)}" if reciprocal else "not in the first 10"
            text = " ".join(row["query"].split()).replace("|", "/")
            far.append([row["id"], row["kind"], row["hardware"] or "any", place, text[:110]])
    return far


def by_category(rows: Sequence[Row], scores: Scores) -> str:
    """The same scores by where the first quote of a row is: hw_manuals/<category>/..."""
    by_category_rows: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        by_category_rows.setdefault(row["relevant"][0]["path"].split("/")[1], []).append(number)
    metrics = ("recall@5", "ndcg@10")
    cells = [
        [name, len(numbers), *(f"{scores.column(m)[numbers].mean():.3f}" for m in metrics)]
        for name, numbers in sorted(by_category_rows.items())
    ]
    return table(["answered in", "rows", *metrics], cells)


def judge(ndcg: float, least: float) -> None:
    if ndcg < least:
        raise InvalidKnowledge(
            f"nDCG@10 over the built-in knowledge is {ndcg:.3f}, below the least of {least:.3f}",
            hint="Look at the rows above: a document or the ranking has become worse for them.",
        )


# -- the run


def run(options: Options) -> None:
    scorer = Scorer(options.scorer, QUESTIONS)
    check_rows(scorer.rows)
    answered = ask(scorer, options.data_dir)
    answers = answered.answers
    with tempfile.TemporaryDirectory(prefix="kernlore-builtin-") as folder:
        written = write_answers(Path(folder) / "answers.jsonl", answers)
        best_gold = write_jsonl(Path(folder) / "best.jsonl", list(map(best_only, scorer.rows)))
        shown = scorer.table(written)
        best = Scorer(options.scorer, best_gold).scores(answers)
    scores = scorer.scores(answers)
    far = far_rows(scorer.rows, best)
    parts = [
        "`python -m benchmarks.retrieval.builtin --scorer score.py`",
        f"{len(scorer.rows)} rows; every category competes. The run fails below nDCG@10"
        f" {options.least:.3f}.",
        f"```\n{shown}```",
        "`foreign@10` counts documents of a chip's own family as foreign, since the scorer knows no"
        f" families. Excerpts about neither the chip nor its family: {answered.outside}.",
        by_category(scorer.rows, scores),
        f"Rows whose best evidence is not within the first {NEAR} units: {len(far)}.",
    ]
    if far:
        parts.append(table(["row", "kind", "hardware", "best evidence", "answered"], far))
    write_result(options.results, TITLE, parts)
    judge(scores.mean("ndcg@10"), options.least)


def options_of(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.builtin", description=__doc__
    )
    parser.add_argument("--scorer", type=Path, required=True, help="The scoring script, score.py.")
    parser.add_argument("--data-dir", type=Path, help="A store to use; default a fresh one.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    parser.add_argument("--least", type=float, default=LEAST, help="nDCG@10 that must be reached.")
    given = parser.parse_args(arguments)
    return Options(given.scorer, given.data_dir, given.results, given.least)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
