"""A catalog with many runs of the optimizer, which grows from size to size: what it holds, and how
long the lists, the metrics and a warm start take.

    python -m benchmarks.scale.runs --sizes 10000 30000 100000
    python -m benchmarks.scale.runs --catalog postgresql+psycopg://USER@/scale --sizes 10000
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection

from benchmarks.report import say, table, write_result
from benchmarks.scale.plans import plan_of
from benchmarks.scale.synthetic import insert
from kb import clock
from kb.catalog import Catalog, open_catalog
from kb.catalog.figures import figures_of
from kb.catalog.runs import Runs, RunWhere
from kb.ids import derived_id

TITLE = "A catalog with many runs"
PROBLEMS, NODES = 200, 5
# Bytes of JSON of a node and of an evaluation: about those of recorded runs without a model.
RECORD, RESULT = 2_000, 1_500
FAMILIES = ("matmul", "softmax", "reduction", "attention", "norm", "elementwise", "conv", "scan")
DTYPES = ("float32", "float16", "bfloat16")
CHIPS = 1_000
AT_ONCE = 500  # runs of a transaction
TIMES = 5


@dataclass
class Measured:
    """Of one size: seconds to fill from the one before, MiB on disk, milliseconds by question (the
    median), query plans."""

    runs: int
    filled: float = 0.0
    disk: float = 0.0
    milliseconds: dict[str, float] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 30_000, 100_000])
    parser.add_argument("--catalog", help="URL of an empty database; default: SQLite")
    parser.add_argument("--folder", type=Path, help="where to put the store; removed afterwards")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="kernlore-scale-", dir=options.folder) as folder:
        catalog = open_catalog(Path(folder), options.catalog)
        try:
            with catalog.write() as connection:
                _add_problems(connection)
            done = 0
            for runs in options.sizes:
                results.append(_grown(catalog, Path(folder), done, runs))
                say(str(results[-1]))
                done = runs
        finally:
            catalog.close()
    write_result(options.output, TITLE, _shown(results, options.catalog))


def _grown(catalog: Catalog, folder: Path, first: int, last: int) -> Measured:
    chance, began = random.Random(last), time.monotonic()
    for start in range(first, last, AT_ONCE):
        with catalog.write() as connection:
            _add_runs(connection, start, min(start + AT_ONCE, last), chance)
    with catalog.write() as connection:
        connection.exec_driver_sql("ANALYZE")
    result = Measured(last, filled=time.monotonic() - began)
    result.disk = disk_of(catalog, folder)
    for name, ask in _questions(catalog).items():
        result.milliseconds[name] = _median(ask)
        result.plans[name] = _plan(catalog, ask)
    return result


def disk_of(catalog: Catalog, folder: Path) -> float:
    """What a catalog takes on disk, in MiB."""
    if not catalog.on_server:
        return sum(file.stat().st_size for file in folder.glob("catalog.sqlite*")) / 2**20
    with catalog.read() as connection:
        size = connection.exec_driver_sql("SELECT pg_database_size(current_database())")
        return float(size.scalar_one()) / 2**20


def _questions(catalog: Catalog) -> dict[str, Callable[[], object]]:
    runs = Runs(catalog)
    lineage = tuple(f"chip{number}" for number in range(3))
    sha = f"{0:064x}"
    return {
        "newest 50 runs (GET /runs)": runs.latest,
        "runs 5,001 to 5,050": partial(runs.latest, 50, 5_000),
        "newest 50 of one chip": partial(runs.latest, 50, 0, RunWhere(hardware="chip7")),
        "newest 50 with a word": partial(runs.latest, 50, 0, RunWhere(words="problem17")),
        "count of runs": runs.count,
        "count of runs with a word": partial(runs.count, RunWhere(words="problem17")),
        "nodes of one run": partial(runs.nodes, "run_7"),
        "winners for a warm start": partial(runs.winners, "matmul", "float16", lineage, sha, 60),
        "figures of /metrics": partial(figures_of, catalog),
    }


def _median(ask: Callable[[], object]) -> float:
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - began)
    return float(np.median(taken)) * 1000


def _plan(catalog: Catalog, ask: Callable[[], object]) -> str:
    """Of what it asks, over connections of its own."""
    with catalog.read() as connection:
        return plan_of(connection, ask)


# -- rows


def _add_problems(connection: Connection) -> None:
    now = clock.now()
    problems = [
        {
            "id": derived_id("prb", f"{number:064x}"),
            "name": f"problem{number}",
            "sha256": f"{number:064x}",
            "provider": "file",
            "op_family": FAMILIES[number % len(FAMILIES)],
            "blob_key": f"{number:064x}",
            "policy": "{}",
            "created_at": now,
        }
        for number in range(PROBLEMS)
    ]
    insert(connection, "problems", problems)
    cases = [
        {
            "id": f"cas_{number}",
            "problem_id": problem["id"],
            "name": "main",
            "dtype": DTYPES[number % len(DTYPES)],
            "shapes": "[]",
            "shape_bucket": "2^20",
            "distribution": "normal",
            "weight": 1.0,
            "held_out": False,
        }
        for number, problem in enumerate(problems)
    ]
    insert(connection, "problem_cases", cases)


def _add_runs(connection: Connection, first: int, last: int, chance: random.Random) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("runs", "candidates", "evaluations", "evaluation_cases", "nodes")
    }
    now = clock.now()
    for number in range(first, last):
        problem, chip = chance.randrange(PROBLEMS), f"chip{chance.randrange(CHIPS)}"
        when = clock.after(number)  # in the order in which they began
        rows["runs"].append(_run(number, problem, chip, when))
        for place in range(NODES):
            key = number * NODES + place
            speedup = chance.lognormvariate(0.2, 0.4)
            rows["candidates"].append(_candidate(key, now))
            rows["evaluations"].append(_evaluation(key, problem, speedup, now))
            rows["evaluation_cases"].append(_case(key, problem, chip, speedup))
            rows["nodes"].append(_node(number, place, key, now))
    for name, listed in rows.items():
        insert(connection, name, listed)


def _run(number: int, problem: int, chip: str, when: str) -> dict[str, Any]:
    return {
        "id": f"run_{number}",
        "problem_id": derived_id("prb", f"{problem:064x}"),
        "hardware_id": chip,
        "state": "running" if number % 1_000 == 0 else "finished",
        "policy": "best-first",
        "seed": 0,
        "goal": "{}",
        "settings": json.dumps({"problem": f"/problems/problem{problem}.py", "x": "s" * 600}),
        "summary": "{}",
        "cost_usd": 0.1,
        "created_at": when,
        "finished_at": when,
    }


def _candidate(key: int, now: str) -> dict[str, Any]:
    return {
        "id": f"cnd_{key}",
        "bundle_sha256": f"{key:064x}",
        "language": "triton",
        "entry": "kernel.py",
        "origin": "recipe",
        "parameters": json.dumps({"tile_m": 128, "tile_n": 64, "stages": 3}),
        "blob_key": f"{key:064x}",
        "created_at": now,
    }


def _evaluation(key: int, problem: int, speedup: float, now: str) -> dict[str, Any]:
    return {
        "id": f"evl_{key}",
        "key": f"{key:064x}",
        "problem_id": derived_id("prb", f"{problem:064x}"),
        "candidate_id": f"cnd_{key}",
        "harness_version": "10",
        "stage": "diagnose",
        "state": "finished",
        "validity": "correct" if key % 4 else "incorrect",
        "timing": "wall",
        "speedup": speedup,
        "speedup_low": speedup * 0.97,
        "speedup_high": speedup * 1.03,
        "isolation": "{}",
        "metrics": json.dumps({"m": "x" * (RESULT // 3)}),
        "verdict": json.dumps({"v": "x" * (RESULT // 3)}),
        "stages": json.dumps({"s": "x" * (RESULT // 3)}),
        "created_at": now,
        "finished_at": now,
    }


def _case(key: int, problem: int, chip: str, speedup: float) -> dict[str, Any]:
    return {
        "id": f"evc_{key}",
        "evaluation_id": f"evl_{key}",
        "case_id": f"cas_{problem}",
        "op_family": FAMILIES[problem % len(FAMILIES)],
        "dtype": DTYPES[problem % len(DTYPES)],
        "shape_bucket": "2^20",
        "hardware_id": chip,
        "candidate_id": f"cnd_{key}",
        "correct": bool(key % 4),
        "baseline_us": 100.0,
        "candidate_us": 100.0 / speedup,
        "speedup": speedup,
        "speedup_low": speedup * 0.97,
        "errors": "{}",
    }


def _node(run: int, place: int, key: int, now: str) -> dict[str, Any]:
    return {
        "id": f"nod_{key}",
        "run_id": f"run_{run}",
        "number": place,
        "parent_id": f"nod_{key - 1}" if place else None,
        "island": 0,
        "memory": "both",
        "synthesizer": "recipe",
        "state": "evaluated",
        "candidate_id": f"cnd_{key}",
        "evaluation_id": f"evl_{key}",
        "shown": "{}",
        "claimed": "[]",
        "attributed": "[]",
        "usage": "{}",
        "record": json.dumps({"number": place, "x": "r" * RECORD}),
        "created_at": now,
    }


# -- what is shown


def _shown(results: Sequence[Measured], url: str | None) -> list[str]:
    names = list(results[0].milliseconds)
    rows = [
        ["seconds to fill, from the size before", *(f"{r.filled:,.0f}" for r in results)],
        ["disk, MiB", *(f"{r.disk:,.0f}" for r in results)],
        *[[f"{name}, ms", *(f"{r.milliseconds[name]:,.1f}" for r in results)] for name in names],
    ]
    plans = [
        f"**{name}** with {result.runs:,} runs:\n\n```text\n{plan}\n```"
        for result in (results[0], *results[1:][-1:])
        for name, plan in result.plans.items()
        if result is results[0] or plan != results[0].plans.get(name)
    ]
    return [
        f"Runs of {NODES} nodes each with a candidate, an evaluation and a case, over {CHIPS:,}"
        f" chips and {PROBLEMS} problems, on {'PostgreSQL' if url else 'SQLite'}."
        f" Medians of {TIMES}. `python -m benchmarks.scale.runs`.",
        table(("", *(f"{r.runs:,} runs" for r in results)), rows),
        "## Query plans\n\nOf the largest catalog where they are others than of the smallest.",
        *plans,
    ]


if __name__ == "__main__":
    main()
