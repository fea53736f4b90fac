"""The search of one packed problem, in the process that `launch` starts for it.

Importing this module imports everything that a search needs. Nothing here looks for a device.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from kb.errors import KernloreError
from kb.hardware.table_reader import Problems
from kb.plain import from_json
from optimizer.evaluation.collectors.ceilings import Ceilings, from_file, measure_ceilings
from optimizer.evaluation.collectors.probe import identify
from optimizer.evaluation.isolation.launch import ForkServer
from optimizer.evaluation.isolation.levels import level_for
from optimizer.evaluation.problem.check import distrust
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.user_code import NO_MEMORY
from optimizer.evaluation.settings import GIB, EvaluationSettings, settings_of_search
from optimizer.evaluation.toolchains.base import EvaluationTarget
from optimizer.evaluation.toolchains.python import prepare as prepare_triton
from optimizer.evaluation.toolchains.registry import EVERYWHERE, usable_toolchain
from optimizer.search.bench.local import LocalBench, TargetToolchain, problem_view
from optimizer.search.confirm import FINALISTS, confirm
from optimizer.search.goal import Goal
from optimizer.search.knowledge import SnapshotKnowledge
from optimizer.search.loop import Listener, Search, evaluate_all, why_untried
from optimizer.search.portable.launch import (
    CEILINGS,
    FAILED,
    SEARCHED,
    SESSION,
    TRIAL,
    WHY_FAILED,
    read_arguments,
    run_id,
)
from optimizer.search.portable.skill_trial import (
    ROUNDS,
    RecipeTrials,
    TrialRecord,
    planned_from_json,
)
from optimizer.search.records import IN_FLIGHT, REFERENCE, Node, node_from_json
from optimizer.search.store import FileStore, RunRow
from optimizer.search.synthesizers.base import HardwareView, ModelCall, Synthesizer
from optimizer.search.synthesizers.compiler.synthesizer import CompilerSynthesizer
from optimizer.search.synthesizers.recipe.recipe import Recipe, parse_recipe
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer
from optimizer.search.synthesizers.traced.synthesizer import LANGUAGES, TracedSynthesizer
from optimizer.search.tree import Tree
from retrieval.diagnose.linear_patterns import trust_patterns

MEASURED = "the drafts were measured"


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

    def asking(self, asking: ModelCall) -> None: ...

    def log(self, message: str) -> None:
        print(f"{self._name}: {message}", flush=True)


def prepare(device: str) -> None:
    """Start the interpreters that runners of a GPU are forked from and that Triton compiles in,
    since their imports take seconds. Not on a CPU, where they would disturb measurements. If the
    isolation of the settings is unavailable, the search reports that."""
    settings = EvaluationSettings()
    if device == "cpu" or not sys.platform.startswith("linux"):  # elsewhere nothing is forked
        return
    with suppress(KernloreError, OSError):
        ForkServer.shared(settings.threads, level_for(settings.isolation, device), device)
        prepare_triton()


def search(arguments: Sequence[str]) -> int:
    """Search a problem; returns the exit code. The arguments are the folder of the unpacked session
    and options that name one problem. An error is written to `<name>.failed.txt`."""
    trust_patterns()
    folder, options = Path(arguments[0]), read_arguments(arguments[1:])
    session = json.loads((folder / SESSION).read_text(encoding="utf-8"))
    (name,) = options.only
    (entry,) = (e for e in session["problems"] if e["name"] == name)
    options.out.mkdir(parents=True, exist_ok=True)
    if session["target"]["device"] == "cpu":
        limit_memory(options.memory)
    try:
        ceilings = _ceilings(session, options.out)
        goal = _goal(session, options, options.minutes)
        if "trial" in entry:
            _try_recipe(folder, session, entry, options.out, ceilings, goal)
            return SEARCHED
        _search(
            folder,
            session,
            entry,
            FileStore(options.out),
            ceilings,
            goal,
            options.finalists or FINALISTS,
        )
    # The reference is foreign code; this is the boundary of its process.
    except Exception as error:
        known = isinstance(error, KernloreError)
        sentence = _sentence(error)
        text = sentence if known else f"{sentence}\n\n{traceback.format_exc()}"
        (options.out / f"{name}{WHY_FAILED}").write_text(text, encoding="utf-8")
        return FAILED
    return SEARCHED


def limit_memory(gib: float | None) -> None:
    """Limit the memory that this process maps from now on, by default to nine tenths of the
    machine's, so that a larger allocation raises an error. Child processes may raise the limit."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page
    mapped = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * page
    beyond = int(gib * GIB) if gib is not None else total * 9 // 10
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped + beyond
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def _sentence(error: Exception) -> str:
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or NO_MEMORY in str(error):
        return (
            "it needs more memory than this machine has; make its sizes smaller, or run it on a"
            " larger machine"
        )
    if isinstance(error, KernloreError):
        return " ".join(f"{error.message}. {error.hint}".split())
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"{type(error).__name__}: {first[:300]}"


def _goal(session: Mapping[str, Any], options: argparse.Namespace, left: float | None) -> Goal:
    goal = from_json(Goal, session["goal"])
    if options.candidates:
        goal = replace(goal, candidates=options.candidates)
    if options.language:
        goal = replace(goal, language=options.language)
    limits = [minutes for minutes in (goal.minutes, left) if minutes is not None]
    return replace(goal, minutes=min(limits, default=None))


def _ceilings(session: Mapping[str, Any], out: Path) -> Ceilings:
    """The device's ceilings, measured once and stored in the folder of the rows."""
    threads, kind = EvaluationSettings().threads, session["target"]["device"]
    path = out / CEILINGS
    ceilings = from_file(path)
    here = identify(kind).id
    if (
        ceilings is None
        or not ceilings.trusted
        or (ceilings.device, ceilings.threads) != (here, threads)
    ):
        ceilings = measure_ceilings(kind, threads)
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(ceilings.as_json()), encoding="utf-8")
    return ceilings


def _search(
    folder: Path,
    session: Mapping[str, Any],
    entry: Mapping[str, Any],
    store: FileStore,
    ceilings: Ceilings,
    goal: Goal,
    most: int,
) -> None:
    began = time.monotonic()
    problem = load_problem(folder / entry["path"])
    places = _places(session)
    target = next(iter(places.values())).target
    settings = settings_of_search(goal.minutes)
    level_for(settings.isolation, target.device or "cpu")  # refuse before anything is measured
    environment = {name: place.toolchain.version() for name, place in places.items()}
    if "run" in entry:
        run = replace(from_json(RunRow, entry["run"]), environment=environment, state="running")
        with LocalBench(problem, places, settings, ceilings=ceilings) as bench:
            evaluate_drafts(store, run, entry["nodes"], bench, Lines(problem.name), most)
        return
    run = RunRow(
        id=run_id(session, entry),
        problem=entry["known_as"],
        problem_sha256=problem.sha256,
        hardware=target.hardware,
        goal=goal,
        started_at=time.time(),
        environment=environment,
    )
    if (store.folder / run.id / "run.json").exists():
        run = replace(store.run(run.id), state="running", goal=goal)
        store.update(run)
    else:
        store.begin(run)
    with LocalBench(problem, places, settings, ceilings=ceilings) as bench:
        for sentence in distrust(problem, bench.device):
            Lines(problem.name).log(sentence)
        view = problem_view(problem, bench.device)
        facts = session["target"]["facts"]
        search = Search(
            row=run,
            store=store,
            bench=bench,
            synthesizers=_synthesizers(session, goal, places, Lines(problem.name).log),
            knowledge=SnapshotKnowledge(session["knowledge"], problem.op, facts),
            problem=view,
            hardware=HardwareView(
                target.hardware, target.lineage, target.device, tuple(places), facts
            ),
            listener=Lines(problem.name),
            spent=time.monotonic() - began,
        )
        ended = search.run()
        untried = partial(why_untried, search, ended.ended, {})
        outcome = confirm(search.tree, bench, most=most, left=search.left, untried=untried)
    store.update(replace(ended, result=asdict(outcome)))


def _try_recipe(
    folder: Path,
    session: Mapping[str, Any],
    entry: Mapping[str, Any],
    out: Path,
    ceilings: Ceilings,
    goal: Goal,
) -> None:
    """Run the trial of a recipe and write its row; a case outside is not searched."""
    planned = planned_from_json(entry["trial"], load_problem(folder / entry["path"]))
    places = _places(session)
    target = next(iter(places.values())).target
    identity = identify(target.device or "cpu")
    load = round(os.getloadavg()[0], 2)
    if planned.place == "outside":
        record = TrialRecord(planned, target.hardware, identity.name, note=planned.reason)
    else:
        languages = tuple(places)
        facts = session["target"]["facts"]
        view = HardwareView(target.hardware, target.lineage, target.device, languages, facts)
        lines = Lines(entry["name"])
        # Two processes of a GPU hardly differ (BETWEEN in the settings), so one round is enough.
        rounds = 1 if target.device == "cuda" else ROUNDS
        trials = RecipeTrials(_recipes(session), view, goal.candidates, rounds, lines.log)
        settings = EvaluationSettings()
        with LocalBench(planned.problem, places, settings, ceilings=ceilings) as bench:
            record = trials.run(planned, bench)
    row = {
        **record.as_json(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": dict(identity.versions),
        "load": load,
    }
    (out / f"{entry['name']}{TRIAL}").write_text(json.dumps(row, indent=1), encoding="utf-8")


def _places(session: Mapping[str, Any]) -> dict[str, TargetToolchain]:
    target = session["target"]
    places = {}
    for language, builtin in {**target["languages"], **EVERYWHERE}.items():
        here = EvaluationTarget(
            target["hardware"],
            tuple(target["lineage"]),
            target["arch"].get(language),
            target["device"],
            target["facts"],
        )
        places[language] = TargetToolchain(here, usable_toolchain(language, here, builtin))
    return places


def _synthesizers(
    session: Mapping[str, Any],
    goal: Goal,
    places: Mapping[str, TargetToolchain],
    log: Callable[[str], None],
) -> list[Synthesizer]:
    wanted = [goal.language] if goal.language else list(places)
    synthesizers: list[Synthesizer] = [RecipeSynthesizer(_recipes(session), wanted)]
    here = [name for name in LANGUAGES if name in wanted and name in places]
    if here:
        synthesizers.append(TracedSynthesizer(log))
    if "torch" in wanted:
        synthesizers.append(CompilerSynthesizer())
    if goal.synthesizers:
        return [s for s in synthesizers if s.name in goal.synthesizers]
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


def evaluate_drafts(
    store: FileStore,
    run: RunRow,
    rows: Sequence[Mapping[str, Any]],
    bench: LocalBench,
    listener: Listener,
    most: int,
) -> None:
    """Evaluate drafts that were proposed on another machine: the nodes of `rows` that are in flight
    and the reference if it has no evaluation. Skips nodes that a process before stored. Then
    measures at most `most` finalists again."""
    if not (store.folder / run.id / "run.json").exists():
        store.begin(run)
    tree = Tree(store.nodes(run.id))
    began = time.monotonic()
    waiting = [node_from_json(row) for row in rows[len(tree) :]]

    def clock() -> float:
        return run.seconds + time.monotonic() - began

    def add(node: Node) -> None:
        store.add(run.id, node)
        tree.add(node)
        listener.node(node, tree)

    while waiting:
        if _in_flight(waiting[0]):
            batch = list(takewhile(_in_flight, waiting[: bench.at_once]))
            nodes = evaluate_all(bench, batch, listener.log, clock)
        else:
            nodes = [_with_reference(waiting[0], bench)]
        for node in nodes:
            add(node)
        del waiting[: len(nodes)]
    outcome = confirm(tree, bench, most=most)
    ended = replace(run, state="finished", ended=MEASURED, seconds=round(clock(), 3))
    store.update(replace(ended, result=asdict(outcome)))
    listener.log(f"{outcome.gain or outcome.reason} ({MEASURED})")


def _in_flight(node: Node) -> bool:
    return node.state == IN_FLIGHT


def _with_reference(node: Node, bench: LocalBench) -> Node:
    """The node; the reference with its evaluation."""
    if node.number != REFERENCE or node.evaluation is not None:
        return node
    return replace(node, evaluation=bench.reference(), problem="")
