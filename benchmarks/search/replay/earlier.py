"""The figures of an earlier replay of the same table, beside those of today.

They are kept as they were printed, rounded to a tenth of a candidate, since the search and the
verdicts of then cannot be run any more.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import table as markdown
from benchmarks.search.replay.audit import Coverage
from benchmarks.search.replay.reporting import Comparison
from benchmarks.search.replay.statistics import geometric_mean
from optimizer.search.goal import POLICIES


@dataclass(frozen=True)
class Earlier:
    """told: what was different. problems: candidates by problem and arm, first policy. candidates:
    by arm and policy, over all problems. points: how far moves reached."""

    told: str
    candidates: Mapping[str, Mapping[str, float]]
    problems: Mapping[str, Mapping[str, float]]
    points: Mapping[str, int]


def load_earlier(path: Path) -> Earlier:
    return Earlier(**json.loads(path.read_text(encoding="utf-8")))


def change_table(
    earlier: Earlier,
    comparison: Comparison,
    arms: Sequence[str],
    parts: Sequence[tuple[str, Collection[str]]],
) -> str:
    """Candidates before and after, and what an arm takes for each of the first arm's. parts: names
    of groups of problems, with their problems."""
    base, rows = arms[0], []
    for name, problems in parts:
        before = {arm: _before(earlier, arm, problems) for arm in arms}
        after = {arm: _after(comparison, arm, problems) for arm in arms}
        rows += [
            [name, arm, f"{before[arm]:.1f}", f"{after[arm]:.1f}",
             f"{before[arm] / before[base]:.2f}", f"{after[arm] / after[base]:.2f}"]
            for arm in arms
        ]  # fmt: skip
    share = f"of {base}"
    return markdown(
        ["problems", "arm", "before", "after", f"before, share {share}", f"after, share {share}"],
        rows,
    )


def _before(earlier: Earlier, arm: str, problems: Collection[str]) -> float:
    return geometric_mean(earlier.problems[problem][arm] for problem in problems)


def _after(comparison: Comparison, arm: str, problems: Collection[str]) -> float:
    counts = comparison.counts((arm, POLICIES[0]))
    return geometric_mean(geometric_mean(counts[problem]) for problem in problems)


def reach_table(earlier: Earlier, covered: Sequence[Coverage], forbidden: int) -> str:
    """How far verdicts, moves and facts reached before and now, in points."""
    now = {
        "with a signal": sum(coverage.diagnosed for coverage in covered),
        "with a move": sum(coverage.advised for coverage in covered),
        "with a move of a role that the recipe has": sum(coverage.matching for coverage in covered),
        "with a move that leads to another point": sum(coverage.leading for coverage in covered),
        "forbidden by facts": forbidden,
    }
    rows = [[name, earlier.points[name], count] for name, count in now.items()]
    return markdown(["points", "before", "after"], rows)
