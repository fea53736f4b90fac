"""What a library that began empty learns from a few runs, and what that saves later searches.

Works in a folder and goes on where it stopped: runs, distilling, trials, small tables of unseen
cases and of other shipped problems, each for at most --seconds. With --report it writes what the
folder has so far. Runs and tables of some problems (--only) can be made in copies of the folder
side by side: the runs' folders and the tables' lines are put together afterwards. What is learned
from, on which device and in which language is chosen with the folder's first call and kept in it;
--prepare makes a folder that a machine with a GPU and few packages can go on with.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from api.services import Services
from benchmarks.report import ended, say, write_result
from benchmarks.search import knowledge_value
from benchmarks.search.replay.answers import Answers, query_of
from benchmarks.search.replay.arms import Target
from benchmarks.search.replay.measuring import measure, missing
from benchmarks.search.replay.reporting import Comparison
from benchmarks.search.replay.spaces import CPP, GROUNDS, Ground, Space
from benchmarks.search.replay.table import Table, load
from benchmarks.skills.learning.arms import CURATED, NOTHING, POLICY, Knows, replay
from benchmarks.skills.learning.method import title
from benchmarks.skills.learning.opened import opened
from benchmarks.skills.learning.plan import Plan, plan_of
from benchmarks.skills.learning.reporting import Findings, Part, report
from benchmarks.skills.learning.spaces import small_space, unseen_space
from benchmarks.skills.learning.teaching import (
    SEED,
    curated_recipes,
    distil_all,
    learned,
    problems_named,
    run_all,
    run_id,
    trials,
    verify_all,
)
from benchmarks.skills.learning.views import Views
from kb.catalog.skills import SkillRow
from kb.errors import InvalidRequest
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.knowledge import Knowledge, Query
from optimizer.search.runs.knowledge import ServiceKnowledge
from optimizer.search.store import FileStore
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.recipe.recipe import Value
from optimizer.search.tree import Tree

SEEDS = 20
PROBLEMS = ("taught", "others")  # of a plan
STAGES = ("runs", "distil", "unseen", "trials", "others")


# -- spaces


def unseen_spaces(services: Services, folder: Path, plan: Plan) -> list[Space]:
    """One case of each problem that was learned from, in the order in which they are measured."""
    recipes, views = curated_recipes(services, plan.language), Views(folder, plan.ground)
    spaces = []
    for problem in problems_named(plan.taught):
        kept = _winner(folder, problem.name)
        space = unseen_space(problem, recipes, plan.unseen_points, SEED + 1, kept, views)
        if space is not None:
            spaces.append(space)
    return spaces


def _winner(folder: Path, problem: str) -> dict[str, Value]:
    """Values of the run's best candidate: what a learned recipe begins with."""
    best = Tree(FileStore(folder / "runs").nodes(run_id(problem))).best
    return dict(best.proposal.values) if best is not None and best.proposal is not None else {}


def other_spaces(services: Services, folder: Path, plan: Plan) -> list[Space]:
    """Those whose operator was learned about first: only there can a precondition hold."""
    ops = {problem.op for problem in problems_named(plan.taught)}
    problems = sorted(problems_named(plan.others), key=lambda p: (p.op not in ops, p.name))
    recipes, views = curated_recipes(services, plan.language), Views(folder, plan.ground)
    points, ground = plan.other_points, plan.ground
    return [
        small_space(problem, recipes, points, SEED, ground=ground, seen=views.view(problem))
        for problem in problems
    ]


def look_at(folder: Path, plan: Plan) -> None:
    """At every problem that will be measured, once: a report needs no device then."""
    views = Views(folder, plan.ground)
    for problem in (*unseen_problems(views, plan), *problems_named(plan.others)):
        views.view(problem)


def unseen_problems(views: Views, plan: Plan) -> list[Problem]:
    """Those that were learned from, each with a case that nobody learned from."""
    problems = (views.unseen(problem, SEED + 1) for problem in problems_named(plan.taught))
    return [problem for problem in problems if problem is not None]


# -- going on


def go_on(
    services: Services,
    folder: Path,
    plan: Plan,
    stages: Sequence[str],
    seconds: float,
    rounds: int = 1,
) -> bool:
    """Whether the stages are done; they stop after so many seconds. rounds: of the tables."""
    ends = time.monotonic() + seconds
    if {"unseen", "others"} & set(stages):
        look_at(folder, plan)
    if "runs" in stages and not run_all(services, folder, plan, ends, say):
        return False
    if "distil" in stages:
        distil_all(services, folder, plan.taught, say)
    if "unseen" in stages and not _measured(
        services, unseen_spaces(services, folder, plan), folder / "unseen.jsonl", ends, rounds
    ):
        return False
    if "trials" in stages and not verify_all(services, folder, plan, ends, say):
        return False
    return "others" not in stages or _measured(
        services, other_spaces(services, folder, plan), folder / "others.jsonl", ends, rounds
    )


def _measured(
    services: Services, spaces: Sequence[Space], path: Path, ends: float, rounds: int
) -> bool:
    """Again while there is time: a pass leaves out what the machine was too busy to time."""
    while True:
        left = ends - time.monotonic()
        if measure(services, spaces, load(path), path, left, say, rounds):
            return True
        if left <= 0:
            return False


# -- replaying


@dataclass(frozen=True)
class Place:
    """What a replay needs, of whole spaces only."""

    spaces: Sequence[Space]
    table: Table
    answers: Answers
    target: Target


def arms_of(skills: Sequence[SkillRow]) -> list[Knows]:
    active = tuple(skill for skill in skills if skill.state == "active")
    drafted = tuple(s for s in skills if s.state in ("active", "candidate"))
    return [
        NOTHING,
        CURATED,
        Knows("curated + learned", skills=active),
        Knows("curated + all drafts, unverified", skills=drafted, offered=True),
        Knows(
            "curated + all drafts, preconditions ignored",
            skills=drafted,
            offered=True,
            conditions=False,
        ),
    ]


def measured_spaces(spaces: Sequence[Space], table: Table) -> list[Space]:
    """Those that are whole: a point without a figure would look slow."""
    return [
        space
        for space in spaces
        if not missing(space, table)
        and not any(row.unsettled for row in table.points(space.problem.name))
    ]


def idle_spaces(spaces: Sequence[Space], table: Table) -> list[Space]:
    """Measured ones without a point that is certainly faster than the reference: no arm can find
    anything there, so they tell nothing of what finds it sooner."""
    whole = measured_spaces(spaces, table)
    return [s for s in whole if all(r.merit <= 1 for r in table.points(s.problem.name))]


def place_of(services: Services, spaces: Sequence[Space], table: Table) -> Place | None:
    """Of the measured spaces with something to find; None where there is none."""
    idle = idle_spaces(spaces, table)
    whole = [space for space in measured_spaces(spaces, table) if space not in idle]
    if not whole:
        return None
    target = target_of(services, table, whole[0].ground)
    return Place(whole, table, answers_of(services, whole, table), target)


def answers_of(services: Services, spaces: Sequence[Space], table: Table) -> Answers:
    """What the library says now to every point."""
    answers, source = Answers(), WithoutExcerpts(ServiceKnowledge(services))
    for space in spaces:
        name = space.problem.name
        for row in (table.reference(name), *table.points(name)):
            if row is not None:
                answers.record(source, query_of(space, row))
    return answers


@dataclass(frozen=True)
class WithoutExcerpts:
    """No proposer that is replayed reads excerpts, and finding them is most of an answer's time."""

    inner: ServiceKnowledge

    def consult(self, query: Query) -> Knowledge:
        return self.inner.remedies(query)

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Nothing is used while answers are recorded."""


def target_of(services: Services, table: Table, ground: Ground) -> Target:
    """The hardware that the table was measured on, as it is registered."""
    identity = table.rows[0].evaluation.hardware
    registry = services.registry
    facts = dict(registry.values(identity))
    lineage = registry.lineage(identity)
    return Target(HardwareView(identity, lineage, ground.device, (ground.language,), facts))


def compare(place: Place, arms: Sequence[Knows], names: frozenset[str], seeds: int) -> Comparison:
    """Every arm on every space. names: of all learned skills."""
    runs = [
        replay(space, place.table, arm, seed, place.answers, place.target, names)
        for arm in arms
        for space in place.spaces
        for seed in range(seeds)
    ]
    return Comparison(runs, SEED)


def _seen(services: Services) -> Place | None:
    """The cases that the runs themselves searched, from the stored table of another benchmark."""
    try:
        rows = knowledge_value.stored()
    except InvalidRequest as problem:
        say(f"without the cases that were learned from: {problem.message}")
        return None
    answers = answers_of(services, rows.spaces, rows.table)
    return Place(rows.spaces, rows.table, answers, rows.target)


def findings(services: Services, folder: Path, plan: Plan, seeds: int) -> Findings:
    """What the folder has."""
    done = [n for n in plan.taught if (folder / "lessons" / f"{n}.json").is_file()]
    lessons = distil_all(services, folder, done, say)
    skills = learned(services)
    names = frozenset(skill.name for skill in skills)
    arms = arms_of(skills)
    spaces_by_kind = {
        "unseen": unseen_spaces(services, folder, plan),
        "others": other_spaces(services, folder, plan),
    }
    parts = {}
    for kind, spaces in spaces_by_kind.items():
        table = load(folder / f"{kind}.jsonl")
        place = place_of(services, spaces, table)
        parts[kind] = _part(place, spaces, arms, names, seeds, idle_spaces(spaces, table))
    if plan.ground == CPP and plan.taught == knowledge_value.PROBLEMS:
        seen = _seen(services)
        parts["seen"] = _part(seen, seen.spaces if seen else (), arms, names, seeds)
    return Findings(plan, lessons, skills, trials(folder), parts, arms, (NOTHING.name, POLICY))


def _part(
    place: Place | None,
    spaces: Sequence[Space],
    arms: Sequence[Knows],
    names: frozenset[str],
    seeds: int,
    idle: Sequence[Space] = (),
) -> Part:
    if place is None:
        return Part(spaces, (), Table(), None, Target.share, idle)
    say(f"replaying {len(place.spaces)} spaces")
    compared = compare(place, arms, names, seeds)
    return Part(spaces, place.spaces, place.table, compared, place.target.share, idle)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="what it works in")
    add("--seconds", type=float, default=200, help="of this call")
    add("--stage", choices=STAGES, action="append", help="default: all of them")
    add("--rounds", type=_positive, default=1, help="of measuring each point of the tables")
    add("--only", nargs="+", metavar="NAME", help="runs and tables of these problems")
    add("--prepare", action="store_true", help="only what needs no device")
    add("--report", action="store_true", help="report what there is")
    add("--seeds", type=int, default=SEEDS)
    add("--results", type=Path)
    chosen = parser.add_argument_group("with a folder's first call, kept in it")
    add = chosen.add_argument
    add("--device", choices=[g.device for g in GROUNDS])
    add("--language", choices=[g.language for g in GROUNDS])
    add("--taught", nargs="+", metavar="NAME", help="problems that are learned from")
    add("--others", nargs="+", metavar="NAME", help="problems that nobody learns from")
    add("--candidates", type=_positive, help="of each run that is learned from")
    add("--budget", type=_positive, help="candidates of each side of a trial")
    add("--points", nargs=2, type=_positive, metavar=("U", "O"), help="of unseen and other spaces")
    add(
        "--documents",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="excerpts in answers, and embeddings in the curator; needs every package",
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def asked_for(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of a plan that the command names."""
    names = ("device", "language", "candidates", "budget", "documents")
    options = {name: getattr(arguments, name) for name in names}
    options |= {
        name: tuple(getattr(arguments, name))
        for name in ("taught", "others")
        if getattr(arguments, name)
    }
    if arguments.points:
        options["unseen_points"], options["other_points"] = arguments.points
    return {name: value for name, value in options.items() if value is not None}


def part_of(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan with these problems alone."""
    unknown = sorted(set(names) - {*plan.taught, *plan.others})
    if unknown:
        known = ", ".join((*plan.taught, *plan.others))
        raise InvalidRequest(
            f"{', '.join(unknown)} is not in this folder's plan", hint=f"It has {known}."
        )
    chosen: dict[str, Any] = {
        kind: tuple(n for n in getattr(plan, kind) if n in names) for kind in PROBLEMS
    }
    return replace(plan, **chosen)


def main() -> None:
    arguments = _parser().parse_args()

    def run() -> None:
        plan = plan_of(arguments.folder, asked_for(arguments))
        with opened(arguments.folder / "data", plan.documents) as services:
            if arguments.prepare:
                unseen = unseen_problems(Views(arguments.folder, plan.ground), plan)
                say(f"prepared; nobody learns from {'; '.join(problem.name for problem in unseen)}")
                return
            if not arguments.report:
                part = part_of(plan, arguments.only) if arguments.only else plan
                stages, seconds = arguments.stage or STAGES, arguments.seconds
                done = go_on(services, arguments.folder, part, stages, seconds, arguments.rounds)
                say("done; report it with --report" if done else "call it again to go on")
                return
            parts = report(findings(services, arguments.folder, plan, arguments.seeds))
        options = f"--folder F --report --seeds {arguments.seeds}"
        command = f"`python -m benchmarks.skills.learned_skills {options}`"
        if plan.options():
            command += f", over a folder that was begun with `{plan.options()}`"
        write_result(arguments.results, title(plan), [command, *parts])

    ended(run)


if __name__ == "__main__":
    main()
