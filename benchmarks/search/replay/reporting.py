"""Tables of a comparison of arms, as Markdown. Every figure has its n, failures and interval.

The figures of an earlier replay of the same table stand beside those of today. They are kept as
they were printed, rounded to a tenth of a candidate, since the search and the verdicts of then
cannot be run any more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import table as markdown
from benchmarks.search.replay.arms import Arm, Replayed
from benchmarks.search.replay.audit import Coverage, Effect, Repeat, Step, effect, repeat
from benchmarks.search.replay.spaces import Space
from benchmarks.search.replay.statistics import (
    Counts,
    Ratio,
    counts,
    geometric_mean,
    ratio,
    summary,
)
from benchmarks.search.replay.table import Table
from optimizer.search.goal import POLICIES, PolicyName

Picked = tuple[str, PolicyName]  # name of an arm and its policy


@dataclass(frozen=True)
class Comparison:
    """All runs, and the seed of the bootstrap."""

    runs: Sequence[Replayed]
    seed: int

    def of(self, arm: str, policy: PolicyName) -> list[Replayed]:
        return [run for run in self.runs if run.arm == arm and run.policy == policy]

    def counts(self, picked: Picked) -> Counts:
        return counts(self.of(*picked))

    def ratio(self, first: Picked, other: Picked) -> Ratio:
        return ratio(self.counts(first), self.counts(other), self.seed)

    @property
    def picked(self) -> list[Picked]:
        return list(dict.fromkeys((run.arm, run.policy) for run in self.runs))

    def best_of(self, arms: Sequence[Arm]) -> Picked:
        """The arm and policy with the fewest candidates."""
        names = {arm.name for arm in arms}
        candidates = [picked for picked in self.picked if picked[0] in names]
        return min(candidates, key=lambda picked: summary(self.of(*picked)).candidates)


def arms_table(comparison: Comparison, base: Picked) -> str:
    """Every arm and policy against one of them."""
    rows = []
    for arm, policy in comparison.picked:
        runs = comparison.of(arm, policy)
        totals = summary(runs)
        effect = comparison.ratio((arm, policy), base)
        same = (arm, policy) == base
        rows.append(
            [arm, "any" if arm == "random order" else policy, f"{totals.candidates:.1f}",
             f"{totals.median:g}", "1 (it is the base)" if same else str(effect),
             "" if same else f"{effect.worse} of {effect.n}", totals.runs, totals.failures]
        )  # fmt: skip
    header = [
        "arm",
        "policy",
        "candidates, geometric mean",
        "median",
        "ratio to the base",
        "problems with more",
        "runs",
        "not reached",
    ]
    return markdown(header, rows)


def contrasts_table(comparison: Comparison, contrasts: Sequence[tuple[str, str, str]]) -> str:
    """Pairs of arms under every policy. contrasts: what a pair tells, arm, the other."""
    rows = []
    for title, first, second in contrasts:
        for policy in dict.fromkeys(p for arm, p in comparison.picked if arm == first):
            effect = comparison.ratio((first, policy), (second, policy))
            rows.append(
                [title, policy, first, second, str(effect), f"{effect.worse} of {effect.n}"]
            )
    header = ["what it tells", "policy", "arm", "against", "ratio", "problems with more"]
    return markdown(header, rows)


def problems_table(
    comparison: Comparison,
    spaces: Sequence[Space],
    table: Table,
    columns: Sequence[Picked],
    share: float,
) -> str:
    """What each problem is, and candidates of the arms on it."""
    by_column = [comparison.counts(picked) for picked in columns]
    rows: list[list[object]] = []
    for space in spaces:
        name = space.problem.name
        points, enough = table.points(name), len(table.within(name, share))
        best = max(points, key=lambda row: row.merit).evaluation.speedup
        wrong = sum(not row.evaluation.correct for row in points)
        untimed = sum(row.unsettled for row in points)
        default = max(
            row.merit
            for fitting in space.fittings
            if (row := table.find(name, fitting.recipe.name, fitting.recipe.defaults)) is not None
        )
        rows.append(
            [name, space.problem.op, len(points), space.whole, f"{wrong} / {untimed}", str(best),
             enough, f"{(len(points) + 1) / (enough + 1):.1f}",
             f"{100 * default / table.best(name):.0f} %",
             *(f"{geometric_mean(column[name]):.1f}" for column in by_column)]
        )  # fmt: skip
    header = [
        "problem",
        "op",
        "points",
        "of",
        "wrong / not timed",
        "best speed-up",
        f"points within {share:.0%}",
        "mean of a random order",
        "defaults reach",
        *(f"{arm}" for arm, _ in columns),
    ]
    return markdown(header, rows)


def repeats_table(table: Table, problems: Sequence[str]) -> str:
    """How well rounds agree, by problem and over all."""
    named: list[tuple[str, Sequence[str]]] = [(name, [name]) for name in problems]
    rows: list[list[object]] = []
    for name, chosen in [*named, ("all", problems)]:
        repeated: Repeat | None = repeat(table, chosen)
        cells = ["0", "", ""]
        if repeated is not None:
            cells = [str(repeated.n), f"{repeated.typical:.3f}", f"{repeated.apart:.0%}"]
        rows.append([name, *cells])
    return markdown(["problem", "pairs", "median factor between them", "intervals apart"], rows)


def coverage_table(coverages: Sequence[Coverage]) -> str:
    rows = [
        [c.problem, c.points, c.signals, c.diagnosed, c.advised, c.matching, c.leading]
        for c in coverages
    ]
    header = [
        "problem",
        "correct points",
        "signals (points)",
        "with a signal",
        "with a move",
        "with a move of a role that the recipe has",
        "with a move that leads to another point",
    ]
    return markdown(header, rows)


def steps_table(named: Sequence[tuple[str, Sequence[Step]]]) -> str:
    """What kinds of steps lead to."""
    rows = [[name, *_effect_text(effect(steps))] for name, steps in named]
    return markdown(["steps", "n", "better", "worse", "geometric mean of the change"], rows)


def roles_table(steps: Sequence[Step], covered: Sequence[Coverage]) -> str:
    """What plain steps of each role lead to, and how many steps of it moves asked for."""
    reached = Counter(step.role for coverage in covered for step in coverage.steps)
    roles = Counter(step.role for step in steps)
    rows = [
        [role, *_effect_text(effect([step for step in steps if step.role == role])), reached[role]]
        for role, _ in roles.most_common()
    ]
    header = ["role", "n", "better", "worse", "geometric mean", "steps that moves asked for"]
    return markdown(header, rows)


def moves_table(coverages: Sequence[Coverage]) -> str:
    """Moves that led to another point, the most frequent first."""
    steps: dict[tuple[str, str, bool], list[Step]] = {}
    for step in (step for coverage in coverages for step in coverage.steps):
        steps.setdefault((step.why, step.parameter, step.holds), []).append(step)
    rows = [
        [why, parameter, "holds" if holds else "not decided", *_effect_text(effect(own))]
        for (why, parameter, holds), own in sorted(steps.items(), key=lambda item: -len(item[1]))
    ]
    header = ["move", "parameter", "its predicate", "n", "better", "worse", "geometric mean"]
    return markdown(header, rows)


def _effect_text(effect: Effect | None) -> list[str]:
    if effect is None:
        return ["0", "", "", ""]
    return [str(effect.n), f"{effect.better:.0%}", f"{effect.worse:.0%}", f"{effect.mean:.3f}"]


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
