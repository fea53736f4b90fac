"""Gold rows, their requests, and the scorer: a script given by its path.

Tables are the script's output; scores per row, for paired intervals, come from its `score_row`.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kb.errors import InvalidRequest

METRICS = ("recall@5", "recall@10", "mrr@10", "ndcg@10", "foreign@10")
KINDS = ("all", "question", "signal", "error")
ROUNDS = 4000

Request = Mapping[str, Any]  # a body of POST /retrieve
Excerpts = Sequence[Mapping[str, Any]]
Answers = Mapping[str, Excerpts]  # by the id of the gold row


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % bootstrap interval over rows."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True)
class Scores:
    """Scores per gold row, in the order of the rows. `values` is (rows, METRICS)."""

    kinds: tuple[str, ...]
    values: NDArray[np.float64]

    def column(self, metric: str, kind: str = "all") -> NDArray[np.float64]:
        rows = [n for n, of in enumerate(self.kinds) if kind in ("all", of)]
        return np.asarray(self.values[rows, METRICS.index(metric)])

    def mean(self, metric: str, kind: str = "all") -> float:
        column = self.column(metric, kind)
        return float(column.mean()) if len(column) else float("nan")

    def minus(self, other: Scores, metric: str, kind: str = "all") -> Interval:
        """The difference on the same rows."""
        return bootstrap(self.column(metric, kind) - other.column(metric, kind))


def bootstrap(values: NDArray[np.float64], rounds: int = ROUNDS) -> Interval:
    if not len(values):
        return Interval(float("nan"), float("nan"), float("nan"))
    drawn = np.random.default_rng(0).integers(0, len(values), (rounds, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), (0.025, 0.975))
    return Interval(float(values.mean()), float(low), float(high))


class Scorer:
    """The scoring script and a gold set."""

    def __init__(self, script: Path, gold: Path) -> None:
        for path, option in ((script, "--scorer"), (gold, "--gold")):
            if not path.is_file():
                raise InvalidRequest(f"no file {path}", hint=f"Give its path with {option} FILE.")
        self._script = script
        self._module = _imported(script)
        self.gold = gold
        self.rows: list[Mapping[str, Any]] = read_jsonl(gold)
        if not self.rows:
            raise InvalidRequest(f"no rows in {gold}", hint="Give a gold set with --gold FILE.")

    def requests(self) -> dict[str, Request]:
        """The bodies as the script prints them."""
        lines = self._run("requests", str(self.gold)).splitlines()
        return {row["id"]: row["body"] for row in map(json.loads, lines)}

    def table(self, answers: Path) -> str:
        return self._run("score", str(self.gold), str(answers))

    def scores(self, answers: Answers) -> Scores:
        rows = [self._module.score_row(row, answers.get(row["id"], [])) for row in self.rows]
        values = np.array([[row[metric] for metric in METRICS] for row in rows], np.float64)
        return Scores(tuple(str(row["kind"]) for row in self.rows), values)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, str(self._script), *arguments], capture_output=True, text=True
        )
        if done.returncode:
            raise InvalidRequest(
                f"the scorer failed on {arguments[0]}: {done.stderr.strip()[-300:]}",
                hint="Check that --scorer and --gold belong together.",
            )
        return done.stdout


def _imported(script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("retrieval_scorer", script)
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"{script} is not a Python file", hint="Give score.py with --scorer.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gold_of(gold: Path, hardware: Collection[str], target: Path) -> Path:
    """The rows about these ids, written to `target`; the file itself when no id is given."""
    if not hardware:
        return gold
    rows = [row for row in read_jsonl(gold) if row.get("hardware") in hardware]
    return write_jsonl(target, rows)


def listed(ids: str) -> frozenset[str]:
    """An option's comma-separated hardware ids."""
    return frozenset(part.strip() for part in ids.split(",") if part.strip())


def scorer_beside(gold: Path) -> Path:
    return gold.absolute().parent / "score.py"


def read_jsonl(path: Path) -> list[Mapping[str, Any]]:
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_answers(path: Path, answers: Answers) -> Path:
    return write_jsonl(path, [{"id": i, "excerpts": list(e)} for i, e in answers.items()])
