"""Means over rows, and how figures of a row are told. Standard library only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks.report import table
from benchmarks.search.gains.rows import Row

NOT_UNSEEN = (
    "These are no unseen problems: the recipes were written for their families by people who had "
    "read them and tried settings on their main case, so the figures say what the loop and its "
    "library reach here, not what to expect of a problem that nobody has looked at. Most "
    "candidates are instances of the one recipe that fits."
)


def geomean(values: Iterable[float]) -> str:
    """With its 95 % interval over the problems."""
    logs = [math.log(value) for value in values]
    if not logs:
        return "none"
    mean = sum(logs) / len(logs)
    if len(logs) < 2:
        return f"{math.exp(mean):.3f} n=1"
    spread = math.sqrt(sum((x - mean) ** 2 for x in logs) / (len(logs) - 1) / len(logs))
    low, high = math.exp(mean - 1.96 * spread), math.exp(mean + 1.96 * spread)
    return f"{math.exp(mean):.3f} [{low:.3f}, {high:.3f}] n={len(logs)}"


def over_eager(row: Row) -> float:
    return row.gain[0] if row.gain else 1.0  # dispatch goes to the reference


def over_compiled(row: Row) -> float:
    assert row.compiled is not None
    return over_eager(row) / row.compiled[0]


def means(rows: Sequence[Row]) -> str:
    """The table of geometric means."""
    no_config = [replace(r, gain=None) if r.origin == "config" else r for r in rows]
    lines = {
        "all problems": rows,
        "winners of origin config counted as the reference": no_config,
        "without elementwise chains": [row for row in rows if row.op != "elementwise"],
    }
    header = ["", "geometric mean over eager", "over torch.compile default"]
    return table(header, [[name, *both(chosen)] for name, chosen in lines.items()])


def both(rows: Sequence[Row]) -> list[str]:
    """Geometric means over eager, and over torch.compile's default where the run has a figure."""
    return [
        geomean(over_eager(row) for row in rows),
        geomean(over_compiled(row) for row in rows if row.compiled),
    ]


def origins(rows: Sequence[Row]) -> str:
    counts = Counter(row.origin or "no gain" for row in rows)
    return "Winners by origin: " + ", ".join(f"{k} {v}" for k, v in counts.most_common())


def interval_text(interval: tuple[float, float, float, int] | None) -> str:
    return (
        ""
        if interval is None
        else f"{interval[0]:.3f} [{interval[1]:.3f}, {interval[2]:.3f}] n={interval[3]}"
    )
