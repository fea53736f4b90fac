"""A portable session: packed here as one zip, run on a machine that has torch and triton only.

The zip holds problems, the knowledge that they need and the parts of this program that the search
needs. `python session.zip [--out FOLDER] [--minutes M] [--candidates N] [--finalists N]
[--language NAME] [--only NAME ...]` searches every problem on that machine's device and writes rows
and results into a folder that `kernlore runs import` reads.
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
from optimizer.evaluation.problem.load import SHIPPED, load_problem
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.toolchains.base import Target
from optimizer.evaluation.toolchains.registry import EVERYWHERE, usable_toolchain
from optimizer.search.bench.local import LocalBench, Place, problem_view
from optimizer.search.confirm import FINALISTS, confirm
from optimizer.search.goal import Goal, goal_from_json
from optimizer.search.loop import Search
from optimizer.search.portable.snapshot import Snapshot, SnapshotKnowledge
from optimizer.search.records import Node
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import HardwareView, Synthesizer
from optimizer.search.synthesizers.compiler.synthesizer import CompilerSynthesizer
from optimizer.search.synthesizers.recipe.recipe import Recipe, parse_recipe
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer
from optimizer.search.tree import Tree

ROOT = Path(__file__).resolve().parents[3]
# Packages whose files travel. Modules of theirs that need more than torch are never imported there.
PACKAGES = ("kb", "retrieval", "optimizer")
SUFFIXES = (".py", ".toml", ".md", ".json")
LEFT_OUT = ("optimizer/problems", "kb/catalog/migrations")
_MAIN = '''\
"""Unpacks itself and searches; see --help."""

import sys
import tempfile
import zipfile
from pathlib import Path

with tempfile.TemporaryDirectory(prefix="kernlore-session-") as folder:
    with zipfile.ZipFile(Path(__file__).parent) as packed:
        packed.extractall(folder)
    sys.path[0] = folder
    from optimizer.search.portable.session import main
    from retrieval.diagnose.linear_patterns import trust_patterns

    trust_patterns()  # there is no RE2 on a machine that has only torch
    code = main(Path(folder), sys.argv[1:])
raise SystemExit(code)
'''
SESSION = "session.json"
RESULTS = "results.zip"
CEILINGS = "ceilings.json"
DESCRIPTION = (
    "Search every packed problem on this machine's device and write the results to a folder."
)


def write_session(
    path: Path,
    *,
    session_id: str,
    goal: Mapping[str, Any],
    target: Mapping[str, Any],
    problems: Sequence[Problem],
    knowledge: Snapshot,
    recipes: Sequence[Mapping[str, Any]],
) -> Path:
    """Write the session to `path`.

    `target` is {hardware, lineage, device, arch (by language), languages (to toolchains), facts}.
    Each of `recipes` is {name, recipe, files}.
    """
    session = {
        "id": session_id,
        "goal": dict(goal),
        "target": dict(target),
        "recipes": list(recipes),
        "knowledge": knowledge.as_json(),
        "problems": [
            {"name": p.name, "path": f"problems/{p.name}", "known_as": _known_as(p)}
            for p in problems
        ],
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("__main__.py", _MAIN)
        packed.writestr(SESSION, json.dumps(session))
        for source in _sources():
            packed.write(source, source.relative_to(ROOT))
        for problem in problems:
            _add_problem(packed, problem)
    return path


def _known_as(problem: Problem) -> str:
    """The name that identifies the problem where the results are imported: that of a shipped
    problem, or the path of its file."""
    shipped = problem.path.is_relative_to(SHIPPED)
    return problem.path.parent.name if shipped else str(problem.path)


def _sources() -> list[Path]:
    sources = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            travels = path.suffix in SUFFIXES and "__pycache__" not in path.parts
            if travels and not name.startswith(LEFT_OUT):
                sources.append(path)
    return sources


def _add_problem(packed: zipfile.ZipFile, problem: Problem) -> None:
    folder = f"problems/{problem.name}"
    packed.writestr(f"{folder}/problem.py", problem.source)
    toml = problem.path.with_name("problem.toml")
    if not toml.is_file():
        toml = problem.path.with_suffix(".toml")
    if problem.declared and toml.is_file():
        packed.writestr(f"{folder}/problem.toml", toml.read_text(encoding="utf-8"))


class Lines:
    """A listener that prints a line for every candidate."""

    def __init__(self, name: str) -> None:
        self._name = name

    def node(self, node: Node, tree: Tree) -> None:
        """Print the node's verdict and plan."""
        evaluation = node.evaluation
        plan = "reference" if node.proposal is None else node.proposal.plan[:60]
        verdict = (
            node.state
            if evaluation is None
            else f"{evaluation.validity} {evaluation.speedup or ''}"
        )
        print(f"{self._name} {node.number}: {verdict} {plan}", flush=True)

    def log(self, message: str) -> None:
        """Print a message."""
        print(f"{self._name}: {message}", flush=True)


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Search every problem of the session unpacked in `folder`; returns the exit code, 1 where a
    problem failed."""
    options = _arguments(arguments)
    session = json.loads((folder / SESSION).read_text(encoding="utf-8"))
    store = FileStore(options.out)
    ceilings = _ceilings(session, options.out)
    until = time.monotonic() + 60 * options.minutes if options.minutes else None
    failed = 0
    for entry in session["problems"]:
        if options.only and entry["name"] not in options.only:
            continue
        left = None if until is None else (until - time.monotonic()) / 60
        if left is not None and left <= 0:
            print(f"{entry['name']}: not begun, the time is over", flush=True)
            continue
        try:
            goal = _goal(session, options, left)
            _search(folder, session, entry, store, ceilings, goal, options.finalists)
        except (KernloreError, OSError) as problem:
            failed += 1
            print(f"{entry['name']}: {problem}", flush=True)
        _zip(options.out)
    return 1 if failed else 0


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="session.zip", description=DESCRIPTION)
    parser.add_argument("--out", type=Path, default=Path("kernlore-results"))
    parser.add_argument("--minutes", type=float, help="start no problem after this many minutes")
    parser.add_argument("--candidates", type=int, help="at most this many for each problem")
    parser.add_argument(
        "--finalists", type=int, default=FINALISTS, help="number measured again in the end"
    )
    parser.add_argument("--language", help="language of the candidates")
    parser.add_argument("--only", nargs="*", help="names of the problems to search, all by default")
    return parser.parse_args(arguments)


def _goal(session: Mapping[str, Any], options: argparse.Namespace, left: float | None) -> Goal:
    goal = goal_from_json(session["goal"])
    if options.candidates:
        goal = replace(goal, candidates=options.candidates)
    if options.language:
        goal = replace(goal, language=options.language)
    limits = [minutes for minutes in (goal.minutes, left) if minutes is not None]
    return replace(goal, minutes=min(limits, default=None))


def _ceilings(session: Mapping[str, Any], out: Path) -> Ceilings:
    """The device's ceilings, measured once and stored beside the rows."""
    threads, kind = EvaluationSettings().threads, session["target"]["device"]
    kept = out / CEILINGS
    ceilings = _kept_ceilings(kept)
    here = identify(kind).id
    if (
        ceilings is None
        or not ceilings.trusted
        or (ceilings.device, ceilings.threads) != (here, threads)
    ):
        ceilings = measure_ceilings(kind, threads)
        out.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(ceilings.as_json()), encoding="utf-8")
    return ceilings


def _kept_ceilings(kept: Path) -> Ceilings | None:
    """The stored ceilings; None where there are none or their form differs."""
    try:
        return from_json(json.loads(kept.read_text(encoding="utf-8")))
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return None


def _search(
    folder: Path,
    session: Mapping[str, Any],
    entry: Mapping[str, Any],
    store: FileStore,
    ceilings: Ceilings,
    goal: Goal,
    most: int,
) -> None:
    problem = load_problem(folder / entry["path"])
    places = _places(session)
    target = next(iter(places.values())).target
    settings = EvaluationSettings()
    level_for(settings.isolation, target.device or "cpu")  # refuse before anything is measured
    run = RunRow(
        id=f"{session['id']}_{problem.name}",
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
        facts = session["target"]["facts"]
        search = Search(
            row=run,
            store=store,
            bench=bench,
            synthesizers=_synthesizers(session, goal, places),
            knowledge=SnapshotKnowledge(session["knowledge"], problem.op, facts),
            problem=view,
            hardware=HardwareView(
                target.hardware, target.lineage, target.device, tuple(places), facts
            ),
            listener=Lines(problem.name),
        )
        ended = search.run()
        outcome = confirm(search.tree, bench, most=most)
    store.update(replace(ended, result=outcome.as_json()))
    print(f"{problem.name}: {outcome.gain or outcome.reason} ({ended.ended})", flush=True)


def _places(session: Mapping[str, Any]) -> dict[str, Place]:
    target = session["target"]
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
    session: Mapping[str, Any], goal: Goal, places: Mapping[str, Place]
) -> list[Synthesizer]:
    wanted = [goal.language] if goal.language else list(places)
    synthesizers: list[Synthesizer] = [RecipeSynthesizer(_recipes(session), wanted)]
    if "torch" in wanted:
        synthesizers.append(CompilerSynthesizer())
    return synthesizers


def _recipes(session: Mapping[str, Any]) -> list[Recipe]:
    recipes = []
    for row in session["recipes"]:
        problems = Problems(f"recipe {row['name']}")
        recipe = parse_recipe(row["name"], row["recipe"], row["files"], problems)
        problems.raise_if_any()
        if recipe is not None:
            recipes.append(recipe)
    return recipes


def _zip(out: Path) -> None:
    """Pack all rows and results so far into one file."""
    scratch = out / f"{RESULTS}.new"
    with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(out.rglob("*.json*")):
            packed.write(path, path.relative_to(out))
    scratch.replace(out / RESULTS)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
