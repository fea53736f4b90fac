"""A packed session runs: every problem searched on this machine's device, rows and results into a
folder that `kernlore runs import` reads.

`python session.zip [--out FOLDER] [--minutes M] [--candidates N]
[--finalists N] [--language NAME] [--only NAME ...]`
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kb.errors import KernloreError
from kb.hardware.checks import Problems
from optimizer.evaluation.collectors.ceilings import Ceilings, from_json, measure_ceilings
from optimizer.evaluation.collectors.probe import identify
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import Target
from optimizer.evaluation.toolchains.registry import EVERYWHERE, usable_toolchain
from optimizer.search.bench.local import LocalBench, Place
from optimizer.search.bench.problem_view import problem_view
from optimizer.search.confirm import FINALISTS, confirm
from optimizer.search.context import HardwareView
from optimizer.search.goal import Goal, goal_from_json
from optimizer.search.loop import Search
from optimizer.search.portable.snapshot import SnapshotKnowledge
from optimizer.search.records import Node
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import Synthesizer
from optimizer.search.synthesizers.compiler.synthesizer import CompilerSynthesizer
from optimizer.search.synthesizers.recipe.recipe import Recipe, parse_recipe
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer
from optimizer.search.tree import Tree

SESSION = "session.json"
RESULTS = "results.zip"
CEILINGS = "ceilings.json"


class Lines:
    """A line for every candidate."""

    def __init__(self, name: str) -> None:
        self._name = name

    def node(self, node: Node, tree: Tree) -> None:
        found = node.evaluation
        said = "reference" if node.proposal is None else node.proposal.plan[:60]
        verdict = node.state if found is None else f"{found.validity} {found.speedup or ''}"
        print(f"{self._name} {node.number}: {verdict} {said}", flush=True)

    def said(self, message: str) -> None:
        print(f"{self._name}: {message}", flush=True)


def main(folder: Path, arguments: Sequence[str]) -> int:
    """folder: where the session was unpacked."""
    given = _arguments(arguments)
    told = json.loads((folder / SESSION).read_text(encoding="utf-8"))
    store = FileStore(given.out)
    ceilings = _ceilings(told, given.out)
    until = time.monotonic() + 60 * given.minutes if given.minutes else None
    failed = 0
    for entry in told["problems"]:
        if given.only and entry["name"] not in given.only:
            continue
        left = None if until is None else (until - time.monotonic()) / 60
        if left is not None and left <= 0:
            print(f"{entry['name']}: not begun, the time is over", flush=True)
            continue
        try:
            goal = _goal(told, given, left)
            _search(folder, told, entry, store, ceilings, goal, given.finalists)
        except (KernloreError, OSError) as problem:
            failed += 1
            print(f"{entry['name']}: {problem}", flush=True)
        _zip(given.out)
    return 1 if failed else 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="session.zip", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("kernlore-results"))
    parser.add_argument("--minutes", type=float, help="start nothing after these")
    parser.add_argument("--candidates", type=int, help="for each problem")
    parser.add_argument("--finalists", type=int, default=FINALISTS, help="measured anew in the end")
    parser.add_argument("--language", help="of candidates")
    parser.add_argument("--only", nargs="*", help="names of problems")
    return parser.parse_args(arguments)


def _goal(told: Mapping[str, Any], given: argparse.Namespace, left: float | None) -> Goal:
    goal = goal_from_json(told["goal"])
    if given.candidates:
        goal = replace(goal, candidates=given.candidates)
    if given.language:
        goal = replace(goal, language=given.language)
    limits = [minutes for minutes in (goal.minutes, left) if minutes is not None]
    return replace(goal, minutes=min(limits, default=None))


def _ceilings(told: Mapping[str, Any], out: Path) -> Ceilings:
    """Measured once and kept beside the rows."""
    threads, kind = EvaluationSettings().threads, told["target"]["device"]
    kept = out / CEILINGS
    found = _kept_ceilings(kept)
    here = identify(kind).id
    if found is None or not found.trusted or (found.device, found.threads) != (here, threads):
        found = measure_ceilings(kind, threads)
        out.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found.as_json()), encoding="utf-8")
    return found


def _kept_ceilings(kept: Path) -> Ceilings | None:
    """None where there are none, or in another form."""
    try:
        return from_json(json.loads(kept.read_text(encoding="utf-8")))
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return None


def _search(
    folder: Path,
    told: Mapping[str, Any],
    entry: Mapping[str, Any],
    store: FileStore,
    ceilings: Ceilings,
    goal: Goal,
    most: int,
) -> None:
    problem = load_problem(folder / entry["path"])
    places = _places(told)
    target = next(iter(places.values())).target
    settings = EvaluationSettings()
    level_for(settings.isolation, target.device or "cpu")  # refuse before anything is measured
    run = RunRow(
        id=f"{told['id']}_{problem.name}",
        problem=entry["known_as"],
        problem_sha256=problem.sha256,
        hardware=target.hardware,
        goal=goal,
        started_at=time.time(),
        environment={name: place.toolchain.version() for name, place in places.items()},
    )
    if (store.folder / run.id / "run.json").exists():
        run = replace(store.run(run.id), state="running", goal=goal)
    else:
        store.begin(run)
    with LocalBench(problem, places, settings, ceilings=ceilings) as bench:
        view = problem_view(problem, bench.device)
        facts = told["target"]["facts"]
        search = Search(
            run=run,
            store=store,
            bench=bench,
            synthesizers=_synthesizers(told, goal, places),
            knowledge=SnapshotKnowledge(told["knowledge"], problem.op, facts),
            problem=view,
            hardware=HardwareView(
                target.hardware, target.lineage, target.device, tuple(places), facts
            ),
            listener=Lines(problem.name),
        )
        ended = search.go()
        outcome = confirm(search.tree, bench, most=most)
    store.update(replace(ended, result=outcome.as_json()))
    print(f"{problem.name}: {outcome.gain or outcome.reason} ({ended.ended})", flush=True)


def _places(told: Mapping[str, Any]) -> dict[str, Place]:
    target = told["target"]
    places = {}
    for language, builtin in {**target["languages"], **EVERYWHERE}.items():
        here = Target(
            target["hardware"],
            tuple(target["lineage"]),
            target["arch"].get(language),
            target["device"],
            target["facts"],
        )
        places[language] = Place(here, usable_toolchain(language, here, builtin))
    return places


def _synthesizers(
    told: Mapping[str, Any], goal: Goal, places: Mapping[str, Place]
) -> list[Synthesizer]:
    wanted = [goal.language] if goal.language else list(places)
    found: list[Synthesizer] = [RecipeSynthesizer(_recipes(told), wanted)]
    if "torch" in wanted:
        found.append(CompilerSynthesizer())
    return found


def _recipes(told: Mapping[str, Any]) -> list[Recipe]:
    recipes = []
    for row in told["recipes"]:
        problems = Problems(f"recipe {row['name']}")
        recipe = parse_recipe(row["name"], row["recipe"], row["files"], problems)
        problems.raise_if_any()
        if recipe is not None:
            recipes.append(recipe)
    return recipes


def _zip(out: Path) -> None:
    """Everything in one file, as it stands now."""
    scratch = out / f"{RESULTS}.new"
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(out.rglob("*.json*")):
            packed.write(path, path.relative_to(out))
    scratch.replace(out / RESULTS)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
