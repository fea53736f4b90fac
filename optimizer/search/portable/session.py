"""A portable session: packed here as one zip, run on a machine that has torch and triton only.

The zip holds problems, the knowledge that they need and the parts of this program that the search
needs. `python session.zip [--out FOLDER] [--minutes M] [--candidates N] [--finalists N]
[--language NAME] [--only NAME ...]` searches every problem on that machine's device and writes rows
and results into a folder that `kernlore runs import` reads.

Every problem has a process of its own: whatever its reference does to memory, to the device or to
the process ends with a sentence about that problem, and the next one begins.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
import traceback
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from optimizer.search.portable.drafts import evaluate_drafts
from optimizer.search.portable.snapshot import Snapshot, SnapshotKnowledge
from optimizer.search.records import Node
from optimizer.search.store import FileStore, RunRow, run_from_json
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
_ALONE = """\
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from optimizer.search.portable.session import search_alone
from retrieval.diagnose.linear_patterns import trust_patterns

trust_patterns()
raise SystemExit(search_alone(Path(sys.argv[1]), sys.argv[2:]))
"""
SEARCHED, FAILED = 0, 1  # exit codes of a problem's process; any other is a crash
WHY_FAILED = ".failed.txt"
HANG_MINUTES = 30.0  # beyond twice its time, after which a problem's process is killed
SESSION = "session.json"
RESULTS = "results.zip"
CEILINGS = "ceilings.json"
DESCRIPTION = (
    "Search every packed problem on this machine's device and write the results to a folder."
)


@dataclass(frozen=True)
class Drafted:
    """A run of which a session evaluates candidates that were proposed elsewhere: its row, and its
    nodes, of which the last are in flight.
    """

    problem: Problem
    run: RunRow
    nodes: Sequence[Node]

    def as_json(self) -> dict[str, Any]:
        """The entry of a session: named by the run, as two runs may be of one problem."""
        return {
            "name": self.run.id,
            "path": f"problems/{self.problem.name}",
            "known_as": _known_as(self.problem),
            "run": self.run.as_json(),
            "nodes": [node.as_json() for node in self.nodes],
        }


def write_session(
    path: Path,
    *,
    session_id: str,
    goal: Mapping[str, Any],
    target: Mapping[str, Any],
    problems: Sequence[Problem] = (),
    drafted: Sequence[Drafted] = (),
    knowledge: Snapshot,
    recipes: Sequence[Mapping[str, Any]],
) -> Path:
    """Write the session to `path`: `problems` are searched there, candidates of `drafted` runs are
    evaluated.

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
            *(
                {"name": p.name, "path": f"problems/{p.name}", "known_as": _known_as(p)}
                for p in problems
            ),
            *(run.as_json() for run in drafted),
        ],
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("__main__.py", _MAIN)
        packed.writestr(SESSION, json.dumps(session))
        for source in _sources():
            packed.write(source, source.relative_to(ROOT))
        used = {p.name: p for p in [*problems, *(run.problem for run in drafted)]}
        for problem in used.values():
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
    """Search every problem of the session unpacked in `folder`, each in a process of its own;
    returns the exit code, 1 where a problem failed.
    """
    options = _arguments(arguments)
    session = json.loads((folder / SESSION).read_text(encoding="utf-8"))
    until = time.monotonic() + 60 * options.minutes if options.minutes else None
    failed = 0
    for entry in session["problems"]:
        if options.only and entry["name"] not in options.only:
            continue
        left = None if until is None else (until - time.monotonic()) / 60
        if left is not None and left <= 0:
            print(f"{entry['name']}: not begun, the time is over", flush=True)
            continue
        ended = _in_own_process(folder, options, entry["name"], _goal(session, options, left))
        if ended:
            failed += 1
            print(f"{entry['name']}: {ended}", flush=True)
            _store_failure(options.out, _run_id(session, entry), ended)
        _zip(options.out)
    return 1 if failed else 0


def _run_id(session: Mapping[str, Any], entry: Mapping[str, Any]) -> str:
    """Of an entry's run: its own where it was begun elsewhere."""
    return str(entry["run"]["id"]) if "run" in entry else f"{session['id']}_{entry['name']}"


def _in_own_process(folder: Path, options: argparse.Namespace, name: str, goal: Goal) -> str | None:
    """Search one problem in a process of its own; returns why it failed, or None."""
    command = [sys.executable, "-c", _ALONE, str(folder), "--out", str(options.out.resolve())]
    command += ["--only", name, "--finalists", str(options.finalists)]
    for option, value in (
        ("--minutes", goal.minutes),
        ("--candidates", options.candidates),
        ("--language", options.language),
    ):
        if value is not None:
            command += [option, str(value)]
    limit = None if goal.minutes is None else 60 * (2 * goal.minutes + HANG_MINUTES)
    reason: Path = options.out / f"{name}{WHY_FAILED}"
    reason.unlink(missing_ok=True)
    try:
        code = subprocess.run(command, timeout=limit, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"its process was killed after {limit or 0:.0f} seconds: it did not end by itself"
    if code == SEARCHED:
        return None
    if code == FAILED and reason.exists():
        return reason.read_text(encoding="utf-8").splitlines()[0]
    by = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    memory = "; the usual cause is a lack of memory" if code == -signal.SIGKILL else ""
    return f"its process ended by {by}{memory}"


def _store_failure(out: Path, run_id: str, reason: str) -> None:
    """The row of a run that ended before its search did."""
    store = FileStore(out)
    if (store.folder / run_id / "run.json").exists():
        row = store.run(run_id)
        seconds = time.time() - row.started_at
        store.update(replace(row, state="failed", ended=reason, seconds=seconds))


def search_alone(folder: Path, arguments: Sequence[str]) -> int:
    """Search the one problem that the arguments name, in this process; returns the exit code. Why
    it failed is printed, and written to `<name>.failed.txt` with the place in the code.
    """
    options = _arguments(arguments)
    session = json.loads((folder / SESSION).read_text(encoding="utf-8"))
    (name,) = options.only
    (entry,) = (e for e in session["problems"] if e["name"] == name)
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        ceilings = _ceilings(session, options.out)
        goal = _goal(session, options, options.minutes)
        _search(folder, session, entry, FileStore(options.out), ceilings, goal, options.finalists)
    # The reference is foreign code, and this is the border of its process.
    except Exception as error:
        known = isinstance(error, KernloreError)
        sentence = _sentence(error)
        text = sentence if known else f"{sentence}\n\n{traceback.format_exc()}"
        (options.out / f"{name}{WHY_FAILED}").write_text(text, encoding="utf-8")
        return FAILED
    return SEARCHED


def _sentence(error: Exception) -> str:
    if isinstance(error, KernloreError):
        return " ".join(f"{error.message}. {error.hint}".split())
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {first[:300]}"


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
    environment = {name: place.toolchain.version() for name, place in places.items()}
    if "run" in entry:
        run = replace(run_from_json(entry["run"]), environment=environment, state="running")
        with LocalBench(problem, places, settings, ceilings=ceilings) as bench:
            evaluate_drafts(store, run, entry["nodes"], bench, Lines(problem.name), most)
        return
    run = RunRow(
        id=_run_id(session, entry),
        problem=entry["known_as"],
        problem_sha256=problem.sha256,
        hardware=target.hardware,
        goal=goal,
        started_at=time.time(),
        environment=environment,
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
        for path in sorted([*out.rglob("*.json*"), *out.glob(f"*{WHY_FAILED}")]):
            packed.write(path, path.relative_to(out))
    scratch.replace(out / RESULTS)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), sys.argv[2:]))
