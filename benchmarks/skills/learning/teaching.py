"""The runs that are learned from, what the curator makes of them, and its trials.

Rows of runs are files, so that a run which was cut off goes on; the curator reads them from the
catalog, as it reads any run.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.services import Services
from benchmarks.search.replay.measuring import places_on
from benchmarks.skills.learning.plan import Plan
from kb.catalog import skills as store
from kb.catalog.skills import SkillRow
from kb.errors import Conflict, NotFound
from kb.scope import ALL_ACCESS
from optimizer.evaluation.problem.load import SHIPPED, load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.search.bench.local import problem_view
from optimizer.search.goal import Goal
from optimizer.search.loop import Search
from optimizer.search.records import Node
from optimizer.search.runs.knowledge import ServiceKnowledge
from optimizer.search.runs.optimize import hardware_view_of
from optimizer.search.runs.places import bench_for
from optimizer.search.runs.portable import adopt
from optimizer.search.runs.skill_moves import recipe_of
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import Asking
from optimizer.search.synthesizers.recipe.recipe import Recipe
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer
from optimizer.search.tree import Tree
from skills.curator.distil import distil_source
from skills.trials.verification import Verifier, waiting

SEED = 7
ACTOR = "benchmark"
Said = Callable[[str], None]


@dataclass(frozen=True)
class Lesson:
    """A run, and what the curator said of it. decisions, stored: as `Distilled.as_json` has them;
    tuned: the recipe that the run tuned, or why there is none."""

    problem: str
    candidates: int
    correct: int
    best: float
    decisions: Sequence[dict[str, Any]]
    stored: Sequence[dict[str, Any]]
    tuned: str


@dataclass(frozen=True)
class Quiet:
    """A listener of runs that are told of when they end."""

    def node(self, node: Node, tree: Tree) -> None:
        """The store has it."""

    def asking(self, asking: Asking) -> None: ...

    def log(self, message: str) -> None:
        """The node has it."""


def run_id(problem: str) -> str:
    return f"run_learning_{problem}"


def curated_recipes(services: Services, language: str) -> list[Recipe]:
    """Recipes in the language that came with this version."""
    with services.catalog.read() as connection:
        rows = store.listed(connection, states=("active",), access_scope=ALL_ACCESS)
    recipes = (recipe_of(row) for row in rows if row.tier == "curated")
    return [recipe for recipe in recipes if recipe is not None and recipe.language == language]


# -- runs


def run_all(
    services: Services,
    folder: Path,
    plan: Plan,
    ends: float,
    log: Said,
) -> bool:
    """Go on with the runs until `ends` on the monotonic clock; whether all are done."""
    kept = FileStore(folder / "runs")
    for name in plan.taught:
        if ended(kept, name):
            continue
        if time.monotonic() >= ends:
            return False
        run = _run(services, kept, name, plan)
        log(f"{name}: {run.ended}, {run.seconds:.0f} s")
    return True


def ended(kept: FileStore, problem: str) -> bool:
    try:
        return kept.run(run_id(problem)).state == "finished"
    except NotFound:
        return False


def _run(services: Services, kept: FileStore, name: str, plan: Plan) -> RunRow:
    problem, language = load_problem(Path(name)), plan.language
    goal = Goal(language=language, candidates=plan.candidates, seed=SEED)
    places = places_on(services, plan.ground)
    target = next(iter(places.values())).target
    run = RunRow(
        id=run_id(name),
        problem=name,  # shipped; the place differs from one machine to the next
        problem_sha256=problem.sha256,
        hardware=target.hardware,
        goal=goal,
        started_at=time.time(),
    )
    try:
        kept.run(run.id)
    except NotFound:
        kept.begin(run)
    with bench_for(services, problem, places) as bench:
        search = Search(
            row=run,
            store=kept,
            bench=bench,
            synthesizers=[RecipeSynthesizer(curated_recipes(services, language), [language])],
            knowledge=ServiceKnowledge(services),
            problem=problem_view(problem, bench.device),
            hardware=hardware_view_of(target, places, language),
            listener=Quiet(),
        )
        run = search.run()
    kept.update(run)
    return run


# -- distilling


def distil_all(
    services: Services, folder: Path, problems: Sequence[str], log: Said
) -> list[Lesson]:
    """Each run once, in the order of the problems; what was distilled before is read again."""
    kept, lessons = FileStore(folder / "runs"), []
    for name in problems:
        path = folder / "lessons" / f"{name}.json"
        if not path.is_file():
            _into_catalog(services, kept, name)
            report = distil_source(services, run_id(name)).as_json()
            _write(path, report)
            log(f"{name}: {len(report['stored'])} changes of the library")
        lessons.append(_lesson(kept, name, json.loads(path.read_text(encoding="utf-8"))))
    return lessons


def _into_catalog(services: Services, kept: FileStore, name: str) -> None:
    """With its evaluations, which another copy of the folder may have made."""
    with suppress(Conflict):  # a call that was cut off did it
        adopt(services, kept, kept.run(run_id(name)))


def _lesson(kept: FileStore, name: str, report: dict[str, Any]) -> Lesson:
    tree = Tree(kept.nodes(run_id(name)))
    best = tree.best
    return Lesson(
        name,
        len(tree) - 1,
        sum(node.correct for node in tree.nodes[1:]),
        best.merit if best is not None else 0.0,
        report["decisions"],
        report["stored"],
        report["tuned"],
    )


def _write(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text(json.dumps(row, indent=1), encoding="utf-8")
    scratch.replace(path)


# -- verifying


def verify_all(services: Services, folder: Path, plan: Plan, ends: float, log: Said) -> bool:
    """Trials of every candidate that has something to leave out, recipes first, then moves, then
    what to avoid; whether all are done.

    Only problems that were learned from are tried: the others are what is measured afterwards.
    """
    verifier = Verifier(services, _problem_folder(folder, plan.taught))
    candidates = set(waiting(services, queued=False))
    rows = sorted(learned(services), key=lambda row: (row.recipe is None, not row.moves, row.name))
    names = [row.name for row in rows if row.name in candidates]
    for name in names:
        path = folder / "trials" / f"{name}.json"
        with _claimed(path) as mine:
            if not mine or path.is_file():
                continue
            if time.monotonic() >= ends:
                return False
            began = time.monotonic()
            report = verifier.verify(name, plan.budget, ACTOR)
            _write(path, report)
        log(f"{name}: {report['state']}, {report['reason']} ({time.monotonic() - began:.0f} s)")
    return all((folder / "trials" / f"{name}.json").is_file() for name in names)


@contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Whether nobody else makes this file now: several processes may share a folder's trials."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _problem_folder(folder: Path, problems: Sequence[str]) -> Path:
    """Copies of these shipped problems; one is known by its text, not by its place."""
    copies = folder / "problems"
    for name in problems:
        shutil.copytree(SHIPPED / name, copies / name, dirs_exist_ok=True)
    return copies


def trials(folder: Path) -> dict[str, dict[str, Any]]:
    """What was found of each skill that was tried."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((folder / "trials").glob("*.json"))
    }


def learned(services: Services) -> list[SkillRow]:
    """All of the learned tier, by name."""
    with services.catalog.read() as connection:
        rows = store.listed(connection, tier="learned", access_scope=ALL_ACCESS)
    return sorted(rows, key=lambda row: row.name)


def problems_named(names: Sequence[str]) -> list[Problem]:
    return [load_problem(Path(name)) for name in names]
