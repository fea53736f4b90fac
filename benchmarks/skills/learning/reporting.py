"""What was learned and what it saves, as Markdown: figures with n, failures and intervals."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import table as markdown
from benchmarks.search.replay.reporting import (
    Comparison,
    Picked,
    arms_table,
    contrasts_table,
    problems_table,
)
from benchmarks.search.replay.spaces import Space
from benchmarks.search.replay.statistics import Ratio, ratio
from benchmarks.search.replay.table import Table
from benchmarks.skills.learning.arms import (
    CURATED,
    NOTHING,
    POLICY,
    Knows,
    applies,
    learned_recipes,
)
from benchmarks.skills.learning.method import method
from benchmarks.skills.learning.plan import Plan
from benchmarks.skills.learning.standing import standing_table, told_start
from benchmarks.skills.learning.teaching import Lesson
from kb.catalog.skills import SkillRow
from optimizer.search.runs.skill_moves import remedies_of

AIM = 0.5  # times the candidates
# What names of learned skills begin with.
OWNERS = ("x86-64", "cpp", "nvidia", "hopper", "h100", "h200", "triton")
KINDS = {
    "unseen": "Cases that nobody learned from, of the problems that were learned from",
    "others": "Problems that nobody learned from",
    "seen": "The very cases that the runs searched, for comparison",
}


@dataclass(frozen=True)
class Part:
    """One set of spaces. asked: all that there are; whole: those that were measured and hold
    something to find; idle: measured, and nothing there is faster than the reference."""

    asked: Sequence[Space]
    whole: Sequence[Space]
    table: Table
    compared: Comparison | None
    share: float
    idle: Sequence[Space] = ()

    def told(self) -> str:
        """What is there, in a sentence or two."""
        measured = len(self.whole) + len(self.idle)
        sentence = f"{measured} of {len(self.asked)} spaces are measured."
        if self.idle:
            names = ", ".join(space.problem.name.partition(",")[0] for space in self.idle)
            sentence += (
                f" In {len(self.idle)} of them no point is certainly faster than the reference"
                f" ({names}): there is nothing to find, and they are left out of the comparison."
            )
        return sentence


@dataclass(frozen=True)
class Findings:
    """Everything that is reported. trials: by skill, as the verifier told them. parts: by kind;
    `seen` only where there is such a table. base: the arm that ratios are to."""

    plan: Plan
    lessons: Sequence[Lesson]
    skills: Sequence[SkillRow]
    trials: Mapping[str, Mapping[str, Any]]
    parts: Mapping[str, Part]
    arms: Sequence[Knows]
    base: Picked


def report(findings: Findings) -> list[str]:
    """The parts of the result."""
    parts = [
        *method(findings.plan, measured_on(findings), rounds(findings)),
        "## What it shows",
        *conclusions(findings),
    ]
    parts += ["## What the runs taught", lessons_table(findings.lessons)]
    parts += ["Why changes were refused:", refusals_table(findings.lessons)]
    parts += ["## The learned skills", skills_table(findings)]
    for kind, part in findings.parts.items():
        title = KINDS[kind]
        parts += [f"## {title}", part.told()]
        if part.compared is not None:
            parts += _tables(findings, part, part.compared)
    return [*parts, "## Left out", *left_out(findings)]


def measured_on(findings: Findings) -> list[str]:
    """Device and toolchain of every row of what this folder measured."""
    rows = [row.evaluation for kind, part in findings.parts.items() if kind != "seen"
            for row in part.table.rows]  # fmt: skip
    return sorted({f"{row.device} ({row.toolchain})" for row in rows if row.language != "torch"})


def rounds(findings: Findings) -> int:
    """Of the point of this folder that was measured least often; 1 where there is none."""
    parts = [part for kind, part in findings.parts.items() if kind != "seen"]
    return min((n for part in parts for n in Counter(r.key for r in part.table.rows).values()),
               default=1)  # fmt: skip


def _tables(findings: Findings, part: Part, compared: Comparison) -> list[str]:
    columns = [(arm.name, POLICY) for arm in findings.arms]
    contrasts = [
        (f"{arm.name} against curated", arm.name, CURATED.name)
        for arm in findings.arms
        if arm.name not in (NOTHING.name, CURATED.name)
    ]
    return [
        arms_table(compared, findings.base),
        contrasts_table(compared, contrasts),
        "Where a search stands after so many candidates, as a share of the best in the table:",
        standing_table(compared),
        "Candidates are geometric means over seeds.",
        problems_table(compared, part.whole, part.table, columns, part.share),
    ]


# -- in sentences


def conclusions(findings: Findings) -> list[str]:
    """From the figures alone."""
    lines = [_learned(findings), _verified(findings)]
    for kind, part in findings.parts.items():
        if part.compared is not None:
            lines += _compared(findings, kind, part, part.compared)
    return [*lines, _reach(findings)]


def _learned(findings: Findings) -> str:
    gates = [d for lesson in findings.lessons for d in lesson.decisions if d["stage"] == "gate"]
    passed = sum(bool(d["passed"]) for d in gates)
    kinds = Counter(kind_of(skill) for skill in findings.skills)
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
    tried = sum(lesson.candidates for lesson in findings.lessons)
    return (
        f"- {len(findings.lessons)} runs made {tried} candidates; {passed} of {len(gates)} judged"
        f" changes passed the gate, and {len(findings.skills)} skills were drafted: {listed}."
    )


def _verified(findings: Findings) -> str:
    states = Counter(skill.state for skill in findings.skills)
    tried = [report for report in findings.trials.values() if report["trials"]]
    listed = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "none"
    return (
        f"- Trials were run for {len(tried)} of {len(findings.skills)}; their states now: {listed}."
        f" {len(findings.trials) - len(tried)} more had nothing that could be tried, and"
        f" {len(findings.skills) - len(findings.trials)} were not reached in the time."
    )


def _compared(findings: Findings, kind: str, part: Part, compared: Comparison) -> list[str]:
    curated = compared.ratio((CURATED.name, POLICY), findings.base)
    lines = [
        f"- {KINDS[kind]} ({len(part.whole)}): curated knowledge takes {curated} times the"
        f" candidates of none: {_aim(curated)}. {_at_once(compared)} {_least(findings, compared)}"
    ]
    for arm in findings.arms[2:]:
        over_none = compared.ratio((arm.name, POLICY), findings.base)
        over_curated = compared.ratio((arm.name, POLICY), (CURATED.name, POLICY))
        same, pairs = _same(compared, arm.name)
        lines.append(
            f"- There, {arm.name} ({len(arm.skills)} skills) takes {over_none} times those of none"
            f" and {over_curated} times those of curated knowledge; {same} of {pairs} runs take as"
            f" many as with it. {told_start(compared, arm.name)}"
        )
    return lines


def _at_once(compared: Comparison) -> str:
    """Where there is nothing left to save."""
    runs = compared.of(CURATED.name, POLICY)
    first = sum(run.reached and run.candidates == 1 for run in runs)
    return f"It is there with the first candidate in {first} of {len(runs)} runs."


def _least(findings: Findings, compared: Comparison) -> str:
    """What no arm can be better than."""
    base = compared.counts(findings.base)
    once = {problem: [1.0] * len(values) for problem, values in base.items()}
    least = ratio(once, base, compared.seed)
    return f"An arm that is always there with the first candidate would take {least.value:.2f}."


def _aim(figure: Ratio) -> str:
    if figure.high <= AIM:
        return f"at most {AIM:g}, for certain"
    if figure.low > AIM:
        return f"more than {AIM:g}, for certain"
    return f"whether at most {AIM:g} is not certain"


def _same(compared: Comparison, arm: str) -> tuple[int, int]:
    pairs = [
        (a.candidates, b.candidates)
        for a, b in zip(compared.of(arm, POLICY), compared.of(CURATED.name, POLICY), strict=True)
    ]
    return sum(a == b for a, b in pairs), len(pairs)


def _reach(findings: Findings) -> str:
    """Where a learned skill could have any effect, measured or not."""
    skills, spaces = findings.skills, findings.parts["others"].asked
    usable = [skill for skill in skills if remedies_of(skill) or skill.recipe is not None]
    reached = {space.problem.name for space in spaces for s in usable if _may_act(s, space)}
    named = ", ".join(sorted(reached)) or "none"
    return (
        f"- Of {len(skills)} learned skills {len(usable)} have moves, a recipe or a step to put"
        " last, which is what a search without a language model can use. On the"
        f" {len(spaces)} problems that nobody learned from, one of them can act at all on"
        f" {len(reached)} ({named}): a precondition names the operator that was measured, and a"
        " learned recipe fits where the curated one that it tunes does. On the other"
        f" {len(spaces) - len(reached)} a learned skill changes nothing by construction, measured"
        " or not."
    )


def _may_act(skill: SkillRow, space: Space) -> bool:
    """Its recipe fits, or a move of a role that a recipe here has may be offered."""
    if learned_recipes(space, [skill]):
        return True
    roles = {p.role for recipe in space.recipes for p in recipe.parameters}
    return bool(_named(skill) & roles) and _offered(skill, space)


def _named(skill: SkillRow) -> set[str]:
    """Roles of parameters that it would change, or not change."""
    changes = [remedy.change for remedy in remedies_of(skill)]
    steps = [step for change in changes for step in (change, *change.get("avoid", ()))]
    return {str(step["role"]) for step in steps if "role" in step}


def _offered(skill: SkillRow, space: Space) -> bool:
    """With the signals that it asks for."""
    view = space.view
    signals = set(skill.scopes.signals)
    language = space.ground.language
    return applies(skill, view.op, view.main.dtype, language, signals)


# -- tables


def kind_of(skill: SkillRow) -> str:
    if skill.polarity == "avoid":
        return "to avoid"
    if skill.recipe is not None:
        return "tuned recipes"
    return "moves" if skill.moves else "advice in words"


def lessons_table(lessons: Sequence[Lesson]) -> str:
    rows = []
    for lesson in lessons:
        gates = [d for d in lesson.decisions if d["stage"] == "gate"]
        operations = Counter(str(s["operation"]) for s in lesson.stored)
        changes = ", ".join(f"{n} {name}" for name, n in sorted(operations.items()))
        rows.append(
            [lesson.problem, lesson.candidates, lesson.correct, f"{lesson.best:.2f}",
             f"{sum(bool(d['passed']) for d in gates)} of {len(gates)}", changes or "none",
             lesson.tuned]
        )  # fmt: skip
    header = ["problem", "candidates", "correct", "best (lower bound)", "passed the gate"]
    return markdown([*header, "changes of the library", "tuned recipe"], rows)


def refusals_table(lessons: Sequence[Lesson]) -> str:
    """By stage and reason, figures left out."""
    refused = Counter(
        (d["stage"], _plain(d["reason"]))
        for lesson in lessons
        for d in lesson.decisions
        if not d["passed"]
    )
    rows = [[stage, reason, count] for (stage, reason), count in refused.most_common()]
    return markdown(["stage", "reason", "changes"], rows)


def _plain(reason: str) -> str:
    """Without what differs from change to change: intervals, nodes and names of skills."""
    reason = re.sub(r":? \[[^\]]*\]", "", reason)
    reason = re.sub(r"node \d+", "an earlier node", reason)
    reason = re.sub(r"case \w+: [\d.]+ times", "many times", reason)
    return re.sub(rf"\b(?:{'|'.join(OWNERS)})-[a-z0-9-]+", "a skill", reason)


def skills_table(findings: Findings) -> str:
    rows = []
    for skill in findings.skills:
        verification = findings.trials.get(skill.name)
        gain, n = "", 0
        if verification is not None:
            n = sum(trial["gain"] is not None for trial in verification["trials"])
            if verification["gain"]:
                g = verification["gain"]
                gain = f"{g['value']:.3f} [{g['low']:.3f}, {g['high']:.3f}]"
        why = (
            verification["reason"]
            if verification is not None
            else "not tried in the time there was"
        )
        why = why.removeprefix("not verified: ").replace(skill.name, "it")
        rows.append([skill.name, kind_of(skill), skill.state, n, gain, why])
    return markdown(["skill", "kind", "state", "trials with a figure", "gain", "why"], rows)


def _often(number: int) -> str:
    return "once" if number == 1 else f"{number} times, and its figure is their geometric mean"


def left_out(findings: Findings) -> list[str]:
    lines = []
    for kind, part in findings.parts.items():
        title = KINDS[kind]
        measured = {space.problem.name for space in (*part.whole, *part.idle)}
        gone = [s.problem.name for s in part.asked if s.problem.name not in measured]
        if gone or part.compared is None:
            lines.append(f"- {title}: not measured are {', '.join(gone) or 'all of them'}.")
    untried = [s.name for s in findings.skills if s.name not in findings.trials]
    if untried:
        lines.append(f"- Not tried: {', '.join(untried)}.")
    return [
        *lines,
        f"- Every point was measured {_often(rounds(findings))}: two measurements of one point"
        " differ more than its interval says (see the result of knowledge_value), which blurs what"
        " is within 95 %.",
        "- Thinned spaces are easier than whole ones, so the candidates that knowledge can save"
        " here are fewer.",
        "- A point that the machine was too busy to time is measured again up to twice; a space is"
        " compared only once all of its points are settled.",
        "- No language model took part: advice in words acts through one only.",
    ]
