"""Does knowledge make the search reach a good kernel with fewer candidates?

Every point of the recipe spaces of twelve shipped problems is measured once on this CPU; the
search then goes over the stored evaluations with and without knowledge. Without --table the stored
table is replayed and nothing is measured.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api.cli.target import CommandTarget, read_settings
from benchmarks.report import ended, say, write_result
from benchmarks.search.replay.answers import Answers, load_answers, query_of, save_answers
from benchmarks.search.replay.arms import (
    ARMS,
    ASSUMING,
    DEFAULTS,
    DESCENT,
    KNOWLEDGE,
    RANDOM,
    UNSTARTED,
    Target,
    assuming,
    replay,
)
from benchmarks.search.replay.audit import Coverage, Step, coverage, plain_steps
from benchmarks.search.replay.measuring import measure, missing
from benchmarks.search.replay.reporting import (
    Comparison,
    Picked,
    arms_table,
    change_table,
    contrasts_table,
    coverage_table,
    load_earlier,
    moves_table,
    problems_table,
    reach_table,
    repeats_table,
    roles_table,
    steps_table,
)
from benchmarks.search.replay.spaces import CPP, Space, space_of
from benchmarks.search.replay.table import (
    Device,
    Table,
    load,
    load_device,
    rediagnosed,
    save,
    save_device,
)
from kb.errors import InvalidRequest
from optimizer.evaluation.collectors.probe import identify
from optimizer.evaluation.evaluate import choose_target, known_ceilings
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.settings import EvaluationSettings
from optimizer.evaluation.targets import AUTO, facts_of
from optimizer.search.goal import POLICIES
from optimizer.search.runs.knowledge import ServiceKnowledge, library_recipes
from optimizer.search.synthesizers.base import HardwareView
from optimizer.search.synthesizers.recipe.recipe import allowed

TITLE = "What knowledge saves the search, in candidates"
PROBLEMS = (
    "attention",
    "batched_matmul",
    "conv1d",
    "cross_entropy_loss",
    "cumulative_sum",
    "depthwise_conv2d",
    "factorization_machine",
    "jagged_sum",
    "max_pool3d",
    "rmsnorm_backward_2d",
    "skinny_matmul",
    "softmax",
)
# Drawn from a seed. The first half may be looked at while rules, moves and the search are written;
# the second is looked at in a result alone.
LOOKED_AT = frozenset(
    {
        "attention",
        "cumulative_sum",
        "depthwise_conv2d",
        "jagged_sum",
        "max_pool3d",
        "softmax",
    }
)
MOST = 36  # points of a recipe's space
SEED = 7
SEEDS = 20
ROUNDS = 2
STORED = Path(__file__).parents[1] / "results"
TABLE, ANSWERS = "knowledge_value_table.json.gz", "knowledge_value_answers.json.gz"
DEVICE, BEFORE = "knowledge_value_device.json", "knowledge_value_before.json"
METHOD = (
    "Each point (an allowed instance of the C++ recipe that fits the problem, on its main case) "
    "was measured by the product's evaluator, once in each round; a run sees the geometric mean of "
    "the rounds. Runs go through the real loop and the real recipe synthesizer over the stored "
    "evaluations; what the retriever says to a verdict was recorded from the real one. A run "
    "counts candidates until the lower bound of a speed-up is "
    "at least 95 % of the highest in the table; what does not get there counts with the size of "
    "the space, at most 40. Spaces of more than 36 points were thinned by leaving out values of "
    "parameters, drawn from a seed, never a default, so that neighbours stay neighbours.",
    "A recipe's defaults are knowledge, so the arms without it start at a point drawn from the "
    "seed: `random order` takes the whole space in a drawn order, `coordinate descent` is the "
    "search with its knowledge switched off. `defaults known` is the same with the recipe's own "
    "defaults. `knowledge` has defaults, facts, moves, documents and skills; `without X` lacks "
    "one. Without facts, limits of moves are unknown too. The base is the best arm without any "
    "knowledge, chosen on the same runs, which favours it. The last arm is no product: it asks "
    "about latency_bound wherever the verdict has no signal, to see what a better diagnosis could "
    "be worth.",
    "Verdicts are not those that were stored with the evaluations: they are made again, by "
    "`benchmarks/search/replay/table.py`, from the stored timings and compiler metrics, "
    "today's rules, and the ceilings and facts of the same machine as they were measured later "
    "(`knowledge_value_device.json`); `--record F` then asks the knowledge base of today about "
    "each. Rules, moves and the search were written with six of the problems in view "
    f"({', '.join(sorted(LOOKED_AT))}; drawn from a seed); the tables of the other six were only "
    "replayed at the end. That separation is weaker than it sounds: an earlier edition of this "
    "page, read by whoever wrote them, shows figures of all twelve, among them which kinds of "
    "steps paid.",
    "Intervals are 95 %, by a cluster bootstrap (problems, then seeds). The defaults were "
    "written by people who had seen these very problems and tried settings on their main case: "
    "their value here is what a curated default is worth on the problem that it was curated "
    "for, and says nothing about an unseen one. Excerpts are read by language models only; no "
    "proposer here reads them, so documents cannot matter in this comparison. One recipe fits "
    "each problem, so which skill is shown first cannot either.",
)
CONTRASTS = (
    ("defaults, nothing else", DEFAULTS.name, DESCENT.name),
    ("facts, moves and documents, on top of defaults", KNOWLEDGE.name, DEFAULTS.name),
    ("facts, moves and documents, from a random start", UNSTARTED.name, DESCENT.name),
    ("moves, on top of the rest", KNOWLEDGE.name, "knowledge without moves"),
    ("facts, on top of the rest", KNOWLEDGE.name, "knowledge without facts"),
    ("documents, on top of the rest", KNOWLEDGE.name, "knowledge without documents"),
    ("defaults, on top of the rest", KNOWLEDGE.name, UNSTARTED.name),
    ("a signal wherever there is none", ASSUMING.name, UNSTARTED.name),
)


@dataclass(frozen=True)
class Measured:
    """What a replay needs."""

    spaces: Sequence[Space]
    table: Table
    answers: Answers
    target: Target


@contextmanager
def _services(folder: Path) -> Iterator[CommandTarget]:
    """With this version's hardware and recipes."""
    local = CommandTarget(read_settings(folder))
    try:
        local.services.skills.sync_builtin(local.services.settings.skills_dir)
        yield local
    finally:
        local.close()


def _spaces(services: Any) -> list[Space]:
    recipes = [r for r in library_recipes(services) if r.language == CPP.language]
    return [space_of(load_problem(Path(name)), recipes, MOST, SEED, CPP) for name in PROBLEMS]


def _target(services: Any, table: Table, device: Device) -> Target:
    """The hardware that the table was measured on, as it is registered and as it states itself."""
    identity = table.rows[0].evaluation.hardware
    registry = services.registry
    facts = {**registry.values(identity), **device.facts}
    lineage = registry.lineage(identity)
    return Target(HardwareView(identity, lineage, CPP.device, (CPP.language,), facts))


def stored(record: Path | None = None) -> Measured:
    """The table of the results folder, diagnosed anew. record: a folder for the knowledge of this
    version, which is asked about every point; the answers are stored. Raises InvalidRequest where
    the recipes have changed."""
    table, device = load(STORED / TABLE), load_device(STORED / DEVICE)
    with (
        tempfile.TemporaryDirectory(prefix="kernlore-replay-") as folder,
        _services(record or Path(folder)) as local,
    ):
        spaces = _spaces(local.services)
        lacking = [s.problem.name for s in spaces if missing(s, table)]
        if lacking:
            raise InvalidRequest(
                f"the stored table is of other recipes than those of {', '.join(lacking)}",
                hint="Measure again: give a folder with --table.",
            )
        target = _target(local.services, table, device)
        hardware = target.hardware
        table = rediagnosed(table, spaces, device, hardware.facts, hardware.lineage)
        answers = load_answers(STORED / ANSWERS)
        if record is not None:
            answers = _recorded(local, spaces, table)
            save_answers(STORED / ANSWERS, answers)
        return Measured(spaces, table, answers, target)


def _recorded(local: CommandTarget, spaces: Sequence[Space], table: Table) -> Answers:
    """What the knowledge base says about every point."""
    local.load_knowledge(say)
    answers, source = Answers(), ServiceKnowledge(local.services)
    for space in spaces:
        name = space.problem.name
        for row in (table.reference(name), *table.points(name)):
            if row is not None:
                query = query_of(space, row)
                answers.record(source, query)
                answers.record(source, assuming(query, ASSUMING.assumed))
    return answers


def measured(folder: Path, seconds: float, rounds: int) -> Measured | None:
    """Goes on measuring in the folder; None where the time was over first."""
    path = folder / "rows.jsonl"
    with _services(folder / "data") as local:
        spaces, table = _spaces(local.services), load(path)
        if not measure(local.services, spaces, table, path, seconds, say, rounds):
            say(f"{len(table)} rows; call it again to go on")
            return None
        answers = _recorded(local, spaces, table)
        device = _device(local.services)
        save(folder / TABLE, table)
        save_answers(folder / ANSWERS, answers)
        save_device(folder / DEVICE, device)
        return Measured(spaces, table, answers, _target(local.services, table, device))


def _device(services: Any) -> Device:
    """The one that was measured on, with the ceilings that the verdicts were made by."""
    target = choose_target(services, AUTO, CPP.language).target
    ceilings = known_ceilings(services, target, EvaluationSettings().threads)
    if ceilings is None:
        raise InvalidRequest(
            "this machine's own device cannot be measured", hint="Run it where the table is made."
        )
    return Device(ceilings, facts_of(identify(CPP.device)))


def compare(measured: Measured, seeds: int) -> Comparison:
    """Every arm under every policy; a random order has none."""
    runs = []
    for arm in ARMS:
        for policy in POLICIES[:1] if arm is RANDOM else POLICIES:
            say(f"replaying {arm.name}, {policy}")
            runs += [
                replay(space, measured.table, arm, policy, seed, measured.answers, measured.target)
                for space in measured.spaces
                for seed in range(seeds)
            ]
    return Comparison(runs, SEED)


def report(measured: Measured, comparison: Comparison) -> list[str]:
    """The parts of the result."""
    base = comparison.best_of((RANDOM, DESCENT))
    columns: list[Picked] = [
        (RANDOM.name, POLICIES[0]),
        *((arm.name, POLICIES[0]) for arm in (DESCENT, DEFAULTS, KNOWLEDGE)),
        (UNSTARTED.name, POLICIES[0]),
    ]
    facts = measured.target.hardware.facts
    covered = [coverage(s, measured.table, measured.answers, facts) for s in measured.spaces]
    guessed = [
        coverage(s, measured.table, measured.answers, facts, ASSUMING.assumed)
        for s in measured.spaces
    ]
    moved = [step for coverage in covered for step in coverage.steps]
    up, down = (
        [step for s in measured.spaces for step in plain_steps(s, measured.table, facts, [by])]
        for by in (1, -1)
    )
    advised = {coverage.problem for coverage in covered if coverage.steps}
    names = [space.problem.name for space in measured.spaces]
    halves = [
        ("all twelve", names),
        ("looked at", [name for name in names if name in LOOKED_AT]),
        ("not looked at", [name for name in names if name not in LOOKED_AT]),
    ]
    before = load_earlier(STORED / BEFORE)
    arms = (DESCENT.name, DEFAULTS.name, UNSTARTED.name, KNOWLEDGE.name)
    return [
        "## What it shows",
        *conclusions(measured, comparison, base, covered),
        "## Before and after",
        f"Candidates, geometric means over problems and seeds, with the policy {POLICIES[0]}."
        f" Before: {before.told}; the search took changes of one value in a drawn order. Coordinate"
        " descent is without knowledge in both, so its change is the search's own.",
        change_table(before, comparison, arms, halves),
        reach_table(before, covered, _pruned(measured)),
        *_halved(comparison, halves[1:]),
        "## Arms",
        arms_table(comparison, base),
        "## What each source adds",
        contrasts_table(comparison, CONTRASTS),
        "## Problems",
        "Candidates are geometric means over seeds, with the policy best-first.",
        problems_table(comparison, measured.spaces, measured.table, columns, measured.target.share),
        "## How well a measurement repeats",
        "Pairs of rounds of the same point: the factor between their speed-ups, and how often their"
        " 95 % intervals do not meet (independent ones should in 0.6 % of pairs).",
        "Rows by round: "
        + ", ".join(f"{n} in round {r}" for r, n in _rounds(measured.table))
        + ".",
        repeats_table(measured.table, [space.problem.name for space in measured.spaces]),
        "## How far the moves reach",
        coverage_table(covered),
        "What a step leads to, in the lower bound of the speed-up. Better and worse: by more than"
        " 3 %. Plain steps are all changes of one value to its neighbour; moves mostly ask for the"
        " next value.",
        steps_table(
            [
                ("plain, to the next value", up),
                ("plain, to the value before", down),
                ("plain, to the next value, problems with moves", _of(up, advised)),
                ("plain, to the value before, problems with moves", _of(down, advised)),
                ("by a move", moved),
                ("by a move whose predicate holds", [s for s in moved if s.holds]),
                ("by a move that lacks a value", [s for s in moved if not s.holds]),
            ]
        ),
        moves_table(covered),
        "Plain steps to the next value, by the parameter's role: where a move would pay.",
        roles_table(up, covered),
        f"## What {ASSUMING.assumed} would lead to, where a verdict says nothing",
        coverage_table(guessed),
        moves_table(guessed),
    ]


def _halved(comparison: Comparison, halves: Sequence[tuple[str, Collection[str]]]) -> Iterator[str]:
    """What each source adds, on each half of the problems."""
    chosen = [c for c in CONTRASTS if c[1] != ASSUMING.name]
    for name, problems in halves:
        runs = [run for run in comparison.runs if run.problem in problems]
        yield f"What each source adds, on the problems {name}:"
        yield contrasts_table(Comparison(runs, SEED), chosen)


def _rounds(table: Table) -> list[tuple[int, int]]:
    """Round and number of its rows."""
    return sorted(Counter(row.round for row in table.rows).items())


def _of(steps: Sequence[Step], problems: Collection[str]) -> list[Step]:
    return [step for step in steps if step.problem in problems]


def conclusions(
    measured: Measured, comparison: Comparison, base: Picked, covered: Sequence[Coverage]
) -> list[str]:
    """In sentences, from the figures alone."""
    policy = POLICIES[0]
    ratio = comparison.ratio((KNOWLEDGE.name, policy), base)
    defaults = comparison.ratio((DEFAULTS.name, policy), base)
    bare = comparison.ratio((UNSTARTED.name, policy), (DESCENT.name, policy))
    same, runs = _same(comparison, KNOWLEDGE.name, DEFAULTS.name)
    bare_same, bare_runs = _same(comparison, UNSTARTED.name, DESCENT.name)
    points = sum(coverage.points for coverage in covered)
    return [
        f"- The best arm without any knowledge is {base[0]} ({base[1]}), the base of the ratios.",
        f"- All of the knowledge ({policy}) takes {ratio} times its candidates; it takes more of"
        f" them on {ratio.worse} of {ratio.n} problems.",
        f"- The recipes' defaults alone take {defaults}. With facts, moves and documents added,"
        f" {same} of {runs} runs (problem, policy, seed) take as many candidates as before.",
        f"- From a random start, facts, moves and documents take {bare} times the candidates of the"
        f" same search without them; {bare_same} of {bare_runs} runs take as many.",
        f"- Of {points} correct points, {sum(c.diagnosed for c in covered)} have a verdict with a"
        f" signal, {sum(c.advised for c in covered)} get a move, {sum(c.matching for c in covered)}"
        " one of a role that their recipe has a parameter for, and"
        f" {sum(c.leading for c in covered)} one that leads to another point.",
        f"- Facts forbid {_pruned(measured)} of"
        f" {sum(len(s.points()) for s in measured.spaces)} points.",
    ]


def _same(comparison: Comparison, first: str, other: str) -> tuple[int, int]:
    """Pairs of runs with as many candidates, and pairs."""
    pairs = [
        (a.candidates, b.candidates)
        for policy in POLICIES
        for a, b in zip(comparison.of(first, policy), comparison.of(other, policy), strict=True)
    ]
    return sum(a == b for a, b in pairs), len(pairs)


def _pruned(measured: Measured) -> int:
    facts = measured.target.hardware.facts
    points = [(fitting, v) for space in measured.spaces for fitting, v in space.points()]
    return sum(not allowed(f.recipe, values, f.binding, facts) for f, values in points)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--table", type=Path, help="folder to measure in; default the stored table")
    parser.add_argument("--seconds", type=float, default=200, help="of measuring in this call")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measurements of each point")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--record", type=Path, help="folder of the knowledge to ask anew")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()

    def run() -> None:
        measurement = (
            stored(options.record)
            if options.table is None
            else measured(options.table, options.seconds, options.rounds)
        )
        if measurement is None:
            return
        command = (
            f"`python -m benchmarks.search.knowledge_value --seeds {options.seeds}`, over a table"
            f" of `--table F --rounds {options.rounds}` and answers of `--record F`"
        )
        parts = report(measurement, compare(measurement, options.seeds))
        write_result(options.results, TITLE, [command, *METHOD, *parts])

    ended(run)


if __name__ == "__main__":
    main()
