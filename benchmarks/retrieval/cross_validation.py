"""What of the ranking's constants generalises to chips that took no part in choosing them.

    python -m benchmarks.retrieval.cross_validation --data-dir STORE --gold gold_dev.jsonl

Every split of the hardware ids into those that choose and those that are left out: the variant that
is best on the rows of the first is scored on the rows of the others. Where what is chosen is no
better on chips left out than the constants as they are, choosing again would be tuning to rows.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from api.cli.target import read_settings
from api.services import open_services
from benchmarks.report import ended, say, table, write_result
from benchmarks.retrieval.ablation import FULL, Asker, Variant, answers_of
from benchmarks.retrieval.scoring import Scorer, gold_of, listed, scorer_beside
from retrieval.ranking import WEIGHTS

TITLE = "Retrieval on chips that took no part in choosing the constants"
LEFT_OUT = 4  # hardware ids of a split
METRIC_NAMES = ("ndcg@10", "recall@5")
GRID: Mapping[str, Sequence[float]] = {
    "passage": (0.5, 2.0),
    "section": (1.0, 1.75, 3.5),
    "heading": (1.0, 3.0),
    "dense": (0.6, 1.2, 1.6),
    "neighbour": (0.0, 0.8),
    "prose": (0.0, 0.4),
    "code": (0.65, 1.0),
}

Column = NDArray[np.float64]


def candidates() -> list[Variant]:
    """The constants as they are, and each of them changed."""
    changed = [
        Variant(f"{name} = {value}", replace(WEIGHTS, **{name: value}))
        for name, values in GRID.items()
        for value in values
    ]
    return [Variant(FULL), *changed]


@dataclass(frozen=True)
class Validated:
    """Means over all splits, on the rows left out: of the variant that the other rows chose, and of
    the constants as they are. `chosen` counts how often each variant was chosen.
    """

    splits: int
    chosen_score: float
    full_score: float
    train_score: float
    chosen: Mapping[str, int]


def validate(
    hardware: Sequence[str], scores: Mapping[str, Column], left_out: int = LEFT_OUT
) -> Validated:
    """`hardware` is the id of each row, `scores` one value a row for each variant, with FULL among
    them.
    """
    ids = sorted(set(hardware))
    places = {i: np.array([h == i for h in hardware]) for i in ids}
    chosen: Counter[str] = Counter()
    picked, full, train = [], [], []
    for out in itertools.combinations(ids, left_out):
        test = np.any([places[i] for i in out], axis=0)
        best = max(scores, key=lambda name: (scores[name][~test].mean(), name == FULL))
        chosen[best] += 1
        picked.append(scores[best][test].mean())
        full.append(scores[FULL][test].mean())
        train.append(scores[best][~test].mean())
    return Validated(
        splits=len(picked),
        chosen_score=float(np.mean(picked)),
        full_score=float(np.mean(full)),
        train_score=float(np.mean(train)),
        chosen=dict(chosen.most_common()),
    )


def run(options: argparse.Namespace) -> None:
    services = open_services(read_settings(options.data_dir))
    scores: dict[str, dict[str, Column]] = {name: {} for name in METRIC_NAMES}
    try:
        with tempfile.TemporaryDirectory(prefix="kernlore-gold-") as folder:
            gold = gold_of(options.gold, listed(""), Path(folder) / "gold.jsonl")
            scorer = Scorer(options.scorer or scorer_beside(options.gold), gold)
            requests, rows = scorer.requests(), scorer.rows
        asker = Asker(services)
        for variant in candidates():
            scored = scorer.scores(answers_of(asker, requests, variant))
            for metric in METRIC_NAMES:
                scores[metric][variant.name] = scored.column(metric)
            say(f"{variant.name}: ndcg@10 {scored.mean('ndcg@10'):.3f}")
    finally:
        services.close()
    with_chip = np.array([bool(row.get("hardware")) for row in rows])
    hardware = [str(row["hardware"]) for row in rows if row.get("hardware")]
    parts = ["`python -m benchmarks.retrieval.cross_validation`"]
    for metric in METRIC_NAMES:
        kept = {name: column[with_chip] for name, column in scores[metric].items()}
        parts += report(metric, validate(hardware, kept), kept)
    write_result(options.results, TITLE, parts)


def report(metric: str, validated: Validated, scores: Mapping[str, Column]) -> list[str]:
    rows = [
        [name, f"{column.mean():.3f}", validated.chosen.get(name, 0)]
        for name, column in scores.items()
    ]
    return [
        f"{metric}: {validated.splits} splits. What the other chips choose reaches"
        f" {validated.chosen_score:.3f} on those left out ({validated.train_score:.3f} where it was"
        f" chosen); the constants as they are reach {validated.full_score:.3f}.",
        table(["variant", f"{metric}, all rows with a chip", "times chosen"], rows),
    ]


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval.cross_validation",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="A loaded store.")
    parser.add_argument("--gold", type=Path, required=True, help="Gold rows, JSON lines.")
    parser.add_argument("--scorer", type=Path, help="Default: score.py beside the gold rows.")
    parser.add_argument("--results", type=Path, help="Also write the result as Markdown.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    ended(lambda: run(options_of()))
