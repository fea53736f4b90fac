"""How high the arms start: where their searches stand after a few candidates."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.report import table as markdown
from benchmarks.search.replay.arms import Replayed
from benchmarks.search.replay.reporting import Comparison
from benchmarks.search.replay.statistics import Ratio, geometric_mean, ratio
from benchmarks.skills.learning.arms import CURATED, NOTHING, POLICY

AFTER = (1, 2, 4, 8)  # candidates

Shares = dict[str, list[float]]  # problem -> by seed


def shares(runs: Sequence[Replayed], after: int) -> Shares:
    """Of the best in the table. A run that ended earlier keeps what it had."""
    by_problem: Shares = {}
    for run in sorted(runs, key=lambda run: run.seed):
        stood = run.standings[min(after, len(run.standings) - 1)]
        by_problem.setdefault(run.problem, []).append(stood)
    return by_problem


def told_start(compared: Comparison, arm: str) -> str:
    """Of the first candidate, in a sentence."""
    mine, curated, none = (_mean(_shares(compared, name, 1)) for name in (arm, *_BASES))
    over = _over(compared, arm, CURATED.name, 1)
    return (
        f"With its first candidate {arm} stands at {mine:.0%} of the best in the table, curated"
        f" knowledge at {curated:.0%} and none at {none:.0%}: {_figure(over)} times as high as"
        " curated knowledge."
    )


def standing_table(compared: Comparison) -> str:
    """Every arm after so many candidates, and how much higher than without knowledge."""
    rows = []
    for arm, _ in compared.picked:
        cells = []
        for after in AFTER:
            cells.append(f"{_mean(_shares(compared, arm, after)):.0%}")
            over = _over(compared, arm, NOTHING.name, after)
            cells.append("" if arm == NOTHING.name else _figure(over))
        rows.append([arm, *cells])
    header = [name for n in AFTER for name in (f"after {n}", "times none")]
    return markdown(["arm", *header], rows)


_BASES = (CURATED.name, NOTHING.name)


def _shares(compared: Comparison, arm: str, after: int) -> Shares:
    return shares(compared.of(arm, POLICY), after)


def _over(compared: Comparison, arm: str, base: str, after: int) -> Ratio:
    mine, other = (_shares(compared, name, after) for name in (arm, base))
    return ratio(mine, other, compared.seed)


def _mean(by_problem: Shares) -> float:
    return geometric_mean(geometric_mean(values) for values in by_problem.values())


def _figure(figure: Ratio) -> str:
    return f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]"
