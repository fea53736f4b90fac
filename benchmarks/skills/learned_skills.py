"""What a library that began empty learns from twelve runs, and what that saves later searches.

Works in a folder and goes on where it stopped: runs, distilling, trials, small tables of unseen
cases and of the other shipped problems, each for at most --seconds. With --report it writes what
the folder has so far.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.cli.backends import read_settings
from api.cli.backends.local import LocalTarget
from api.optimization.knowledge import ServiceKnowledge
from api.services import Services
from benchmarks.report import ended, say, write_result
from benchmarks.search import knowledge_value
from benchmarks.search.replay.answers import LANGUAGE, Answers, query_of
from benchmarks.search.replay.arms import Target
from benchmarks.search.replay.measuring import measure, missing
from benchmarks.search.replay.reporting import Comparison
from benchmarks.search.replay.spaces import Space
from benchmarks.search.replay.table import Table, load
from benchmarks.skills.learning.arms import CURATED, NOTHING, POLICY, Knows, replay
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
from kb.catalog.skills import SkillRow
from kb.errors import InvalidRequest
from optimizer.problem.load import shipped_problems
from optimizer.search.context import HardwareView
from optimizer.search.knowledge import Knowledge, Query
from optimizer.search.store import FileStore
from optimizer.search.tree import Tree
from skills.recipes.recipe import Value

TITLE = "What a library learns from twelve runs"
TAUGHT = knowledge_value.PROBLEMS
OTHERS = tuple(name for name in shipped_problems() if name not in TAUGHT)
CANDIDATES = 8  # of each run that is learned from
BUDGET = 3  # candidates of each side of a trial
UNSEEN_POINTS, OTHER_POINTS = 12, 8
SEEDS = 20
STAGES = ("runs", "distil", "unseen", "trials", "others")


@contextmanager
def _opened(folder: Path) -> Iterator[LocalTarget]:
    """With this version's hardware, documents and recipes."""
    local = LocalTarget(read_settings(folder))
    try:
        local.services.skills.sync_builtin(local.services.settings.skills_dir)
        if not local.services.documents.find():
            local.load_knowledge(say)
        yield local
    finally:
        local.close()


# -- spaces


def unseen_spaces(services: Services, folder: Path) -> list[Space]:
    """One case of each problem that was learned from, in the order in which they are measured."""
    recipes, found = curated_recipes(services), []
    for problem in problems_named(TAUGHT):
        kept = _winner(folder, problem.name)
        space = unseen_space(problem, recipes, UNSEEN_POINTS, SEED + 1, kept)
        if space is not None:
            found.append(space)
    return found


def _winner(folder: Path, problem: str) -> dict[str, Value]:
    """Values of the run's best candidate: what a learned recipe begins with."""
    best = Tree(FileStore(folder / "runs").nodes(run_id(problem))).best
    return dict(best.proposal.values) if best is not None and best.proposal is not None else {}


def other_spaces(services: Services) -> list[Space]:
    """Those whose operator was learned about first: only there can a precondition hold."""
    ops = {problem.op for problem in problems_named(TAUGHT)}
    problems = sorted(problems_named(OTHERS), key=lambda p: (p.op not in ops, p.name))
    recipes = curated_recipes(services)
    return [small_space(problem, recipes, OTHER_POINTS, SEED) for problem in problems]


# -- going on


def go_on(services: Services, folder: Path, stages: Sequence[str], seconds: float) -> bool:
    """Whether the stages are done; they stop after so many seconds."""
    ends = time.monotonic() + seconds
    if "runs" in stages and not run_all(services, folder, TAUGHT, CANDIDATES, ends, say):
        return False
    if "distil" in stages:
        distil_all(services, folder, TAUGHT, say)
    if "unseen" in stages and not _measured(
        services, unseen_spaces(services, folder), folder / "unseen.jsonl", ends
    ):
        return False
    if "trials" in stages and not verify_all(services, folder, TAUGHT, BUDGET, ends, say):
        return False
    return "others" not in stages or _measured(
        services, other_spaces(services), folder / "others.jsonl", ends
    )


def _measured(services: Services, spaces: Sequence[Space], path: Path, ends: float) -> bool:
    return measure(services, spaces, load(path), path, ends - time.monotonic(), say)


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


def place_of(services: Services, spaces: Sequence[Space], path: Path) -> Place | None:
    """None where no space is measured as a whole: a point without a figure would look slow."""
    table = load(path)
    whole = [
        space
        for space in spaces
        if not missing(space, table)
        and not any(row.unsettled for row in table.points(space.problem.name))
    ]
    if not whole:
        return None
    return Place(whole, table, answers_of(services, whole, table), target_of(services, table))


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


def target_of(services: Services, table: Table) -> Target:
    """The hardware that the table was measured on, as it is registered."""
    identity = table.rows[0].evaluation.hardware
    registry = services.registry
    facts = dict(registry.values(identity))
    return Target(HardwareView(identity, registry.lineage(identity), "cpu", (LANGUAGE,), facts))


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
        found = knowledge_value.stored()
    except InvalidRequest as problem:
        say(f"without the cases that were learned from: {problem.message}")
        return None
    answers = answers_of(services, found.spaces, found.table)
    return Place(found.spaces, found.table, answers, found.target)


def findings(services: Services, folder: Path, seeds: int) -> Findings:
    """What the folder has."""
    done = [n for n in TAUGHT if (folder / "lessons" / f"{n}.json").is_file()]
    lessons = distil_all(services, folder, done, say)
    skills = learned(services)
    names = frozenset(skill.name for skill in skills)
    arms = arms_of(skills)
    asked = {
        "unseen": unseen_spaces(services, folder),
        "others": other_spaces(services),
    }
    parts = {}
    for kind, spaces in asked.items():
        place = place_of(services, spaces, folder / f"{kind}.jsonl")
        parts[kind] = _part(place, spaces, arms, names, seeds)
    seen = _seen(services)
    parts["seen"] = _part(seen, seen.spaces if seen else (), arms, names, seeds)
    return Findings(lessons, skills, trials(folder), parts, arms, (NOTHING.name, POLICY))


def _part(
    place: Place | None,
    spaces: Sequence[Space],
    arms: Sequence[Knows],
    names: frozenset[str],
    seeds: int,
) -> Part:
    if place is None:
        return Part(spaces, (), Table(), None, Target.share)
    say(f"replaying {len(place.spaces)} spaces")
    compared = compare(place, arms, names, seeds)
    return Part(spaces, place.spaces, place.table, compared, place.target.share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--folder", type=Path, required=True, help="what it works in")
    parser.add_argument("--seconds", type=float, default=200, help="of this call")
    parser.add_argument("--stage", choices=STAGES, action="append", help="default: all of them")
    parser.add_argument("--report", action="store_true", help="report what there is")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()

    def run() -> None:
        with _opened(given.folder / "data") as local:
            if not given.report:
                done = go_on(local.services, given.folder, given.stage or STAGES, given.seconds)
                say("done; report it with --report" if done else "call it again to go on")
                return
            parts = report(findings(local.services, given.folder, given.seeds))
        asked = f"--folder F --report --seeds {given.seeds}"
        command = f"`python -m benchmarks.skills.learned_skills {asked}`"
        write_result(given.results, TITLE, [command, *parts])

    ended(run)


if __name__ == "__main__":
    main()
