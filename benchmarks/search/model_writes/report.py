"""The tables of the comparison: by arm, by problem, and pairs of arms with bootstrap intervals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, median

from benchmarks.report import table
from benchmarks.search.model_writes.cells import ARMS, Cell

BOUNDS = (1, 4, 8)
RESAMPLES = 10_000


def by_arm(cells: Sequence[Cell]) -> str:
    """One row for each chip or family, size, seed and arm."""
    rows = []
    for key in sorted({(c.chip or c.family, c.size, c.seed, c.arm) for c in cells}):
        group = [c for c in cells if (c.chip or c.family, c.size, c.seed, c.arm) == key]
        rows.append([*key, len(group), *_figures(group)])
    header = ["chip", "size", "seed", "arm", "cells"]
    header += [f"compiled at {n}" for n in BOUNDS] + [f"right at {n}" for n in BOUNDS]
    header += [
        "attempts to the first right",
        "prompt tokens to the first right",
        "cost over the other kernel",
        "good kernel's names shown",
        "new lines a prompt",
    ]
    return table(header, rows)


def _figures(group: Sequence[Cell]) -> list[str]:
    figures = [_share(group, lambda c: c.first_compiled, bound) for bound in BOUNDS]
    figures += [_share(group, lambda c: c.first_right, bound) for bound in BOUNDS]
    right = [c for c in group if c.first_right is not None]
    figures.append(f"{mean(c.first_right or 0 for c in right):.1f}" if right else "-")
    figures.append(f"{median(tokens_to_right(c) for c in right):,.0f}" if right else "-")
    ratios = [r for c in right if (r := cost_ratio(c)) is not None]
    figures.append(f"{median(ratios):.2f}" if ratios else "-")
    shares = [a.symbols for c in group for a in c.attempts[:1] if a.symbols is not None]
    figures.append(f"{mean(shares):.0%}" if shares else "-")
    fresh = [a.fresh for c in group for a in c.attempts[1:]]
    figures.append(f"{mean(fresh):.0%}" if fresh else "-")
    return figures


def _share(group: Sequence[Cell], first: Callable[[Cell], int | None], bound: int) -> str:
    """Of the cells in which it happened within `bound` attempts. A cell that was ended earlier
    without a success counts as none.
    """
    done = sum((n := first(cell)) is not None and n <= bound for cell in group)
    return f"{done}/{len(group)}"


def tokens_to_right(cell: Cell) -> int:
    """Tokens of all prompts up to the first right kernel."""
    return sum(a.tokens for a in cell.attempts[: cell.first_right])


def cost_ratio(cell: Cell) -> float | None:
    """Cost of the first right kernel over that of the one to compare with."""
    if cell.first_right is None or not cell.good_cost:
        return None
    cost = cell.attempts[cell.first_right - 1].cost
    return cost / cell.good_cost if cost else None


def _cost_text(cell: Cell) -> str:
    cost = cell.attempts[cell.first_right - 1].cost if cell.first_right else None
    return f"{cost:,} {cell.unit}" if cost else "-"


def by_cell(cells: Sequence[Cell]) -> str:
    """One row for each cell."""
    rows = [
        [
            cell.chip or cell.family,
            cell.seed,
            cell.problem,
            cell.size,
            cell.arm,
            " ".join(attempt.validity for attempt in cell.attempts) or "no candidate",
            _cost_text(cell),
            f"{r:.2f}" if (r := cost_ratio(cell)) is not None else "-",
            f"{cell.attempts[0].tokens:,}" if cell.attempts else "-",
        ]
        for cell in cells
    ]
    header = ["chip", "seed", "problem", "size", "arm", "attempts", "cost", "over the other kernel"]
    return table([*header, "tokens of the first prompt"], rows)


def pairs(cells: Sequence[Cell], arm: str = "ours") -> str:
    """Our arm against each other one over the cells that both have: the difference of the shares
    that are right at 1 and at 4, with a bootstrap interval over cells.
    """
    rows = []
    keys = {(c.chip or c.family, c.seed, c.problem, c.size): c for c in cells if c.arm == arm}
    for other in (name for name in ARMS if name != arm):
        both = [
            (keys[key], c)
            for c in cells
            if c.arm == other and (key := (c.chip or c.family, c.seed, c.problem, c.size)) in keys
        ]
        if both:
            rows.append([other, len(both), *(_difference(both, bound) for bound in (1, 4))])
    if not rows:
        return "No pair of arms has common cells."
    return table([f"{arm} minus", "pairs", "right at 1", "right at 4"], rows)


def _difference(both: Sequence[tuple[Cell, Cell]], bound: int) -> str:
    def right(cell: Cell) -> int:
        return int(cell.first_right is not None and cell.first_right <= bound)

    values = [right(a) - right(b) for a, b in both]
    low, high = bootstrap(values)
    return f"{mean(values):+.2f} [{low:+.2f}, {high:+.2f}]"


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile interval of the mean, over resampled cells."""
    dice = random.Random(seed)
    means = sorted(mean(dice.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return means[int(0.025 * RESAMPLES)], means[int(0.975 * RESAMPLES) - 1]


def about_arms(names: Iterable[str]) -> str:
    """Descriptions of the arms."""
    return "\n".join(f"* `{name}`: {ARMS[name].about}" for name in names)
