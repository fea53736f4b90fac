"""Searches replayed over a small table whose answers are known, and the statistics of arms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.search.replay.answers import Answers, load_answers, query_of, save_answers
from benchmarks.search.replay.arms import (
    ARMS,
    DEFAULTS,
    DESCENT,
    KNOWLEDGE,
    RANDOM,
    Arm,
    Target,
    proposer_of,
    replay,
    search_of,
)
from benchmarks.search.replay.audit import coverage, effect, plain_steps, repeat
from benchmarks.search.replay.measuring import ATTEMPTS, measure, missing
from benchmarks.search.replay.reporting import roles_table
from benchmarks.search.replay.spaces import Space, space_of
from benchmarks.search.replay.table import (
    REFERENCE,
    Device,
    Row,
    Table,
    append,
    load,
    load_device,
    rediagnosed,
    save,
    save_device,
)
from kb.errors import InvalidRequest, NotFound
from kb.hardware.table_reader import Problems
from optimizer.evaluation.collectors.ceilings import Ceilings, Figure, Point
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import CaseTiming, Evaluation, Interval, verdict_from_json
from optimizer.search.goal import POLICIES
from optimizer.search.knowledge import Excerpt, Knowledge, Move, Query, ShownSkill
from optimizer.search.records import Proposal
from optimizer.search.synthesizers.base import Context, HardwareView
from optimizer.search.synthesizers.recipe.recipe import Recipe, Value, parse_recipe
from optimizer.search.synthesizers.recipe.synthesizer import RecipeSynthesizer
from tests.catalogs import fresh_data_dir
from tests.known_device import store_ceilings

pytestmark = pytest.mark.slow(seconds=25)

KERNEL = """
#include "kernlore_abi.h"
KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
#pragma omp parallel for schedule(static, @{chunk})
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) y[i * cols + j] = x[i * cols + j] * 1.5f;
  (void)@{tile};
  return 0;
}
"""
RECIPE: dict[str, Any] = {
    "format": 1,
    "language": "cpp",
    "template": "references/kernel.cpp",
    "ops": ["elementwise"],
    "tensors": [
        {"name": "x", "role": "input", "dtypes": ["float32"], "dims": ["rows", "cols"]},
        {"name": "y", "role": "output", "dtypes": ["float32"], "dims": ["rows", "cols"]},
    ],
    "parameters": [
        {"name": "chunk", "role": "block", "values": [1, 4, 16], "default": 4},
        {"name": "tile", "role": "tile_m", "values": [8, 16, 32, 64], "default": 32},
    ],
    "constraints": ["tile * cols * 4 <= facts.l1d_size"],
}
PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x * 1.5

def get_inputs():
    return [torch.randn(512, 96)]
"""
TOML = 'op = "elementwise"\n'
FACTS = {"l1d_size": 16_384}  # forbids a tile of 64
HARDWARE = HardwareView("x86-64", ("x86-64",), "cpu", ("cpp",), FACTS)
SMALLER = Move("mv_1", "smaller", {"role": "tile_m", "direction": "decrease"}, None, None, "", True)
BEST = {"chunk": 4, "tile": 16}  # one step of `tile` from the defaults


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Space:
    file = tmp_path_factory.mktemp("problem") / "scale.py"
    file.write_text(PROBLEM, encoding="utf-8")
    file.with_suffix(".toml").write_text(TOML, encoding="utf-8")
    return space_of(load_problem(file), [scale()], 100, 1)


def scale(**changed: Any) -> Recipe:
    problems = Problems("test")
    files = {"references/kernel.cpp": KERNEL}
    found = parse_recipe("scale", {**RECIPE, **changed}, files, problems)
    problems.raise_if_any()
    assert found is not None
    return found


def evaluation(merit: float | None, signals: tuple[str, ...] = ("poor_reuse",)) -> Evaluation:
    """merit None: it was wrong."""
    return Evaluation(
        key="", problem="scale", candidate="", language="cpp", hardware="x86-64", device="cpu",
        toolchain="", harness="",
        validity="correct" if merit is not None else "incorrect",
        timing="measured" if merit is not None else "none",
        reached="diagnose",
        speedup=Interval(merit, merit, merit, 6) if merit is not None else None,
        verdict=verdict_from_json({"signals": [{"id": signal} for signal in signals]}),
    )  # fmt: skip


def table_of(space: Space, merits: Mapping[tuple[Value, Value], float | None]) -> Table:
    """Merit 1.0 where none is given."""
    reference = replace(evaluation(1.0), language="torch")
    rows = [Row("scale", REFERENCE, {}, "", reference)]
    for _, values in space.points():
        merit = merits.get((values["chunk"], values["tile"]), 1.0)
        rows.append(Row("scale", "scale", values, "", evaluation(merit)))
    return Table(rows)


@pytest.fixture(scope="module")
def table(space: Space) -> Table:
    """One summit beside the defaults."""
    return table_of(space, {(4, 32): 1.5, (4, 16): 2.0})


def answers_of(space: Space, table: Table, knowledge: Knowledge) -> Answers:
    found = Answers()
    for row in table.rows:
        found.record(_Always(knowledge), query_of(space, row))
    return found


@dataclass
class _Always:
    """One answer to everything, and how often it was asked for."""

    knowledge: Knowledge
    asked: int = 0

    def consult(self, query: Query) -> Knowledge:
        self.asked += 1
        return self.knowledge

    def report(self, retrieval_id: str, used: tuple[str, ...], node: Any) -> None:
        """Nothing to do."""


EVERYTHING = Knowledge(
    "",
    (Excerpt("ex_1", "A title", "text"),),
    (replace(SMALLER, limit=64.0, limit_name="l1d_size"),),
    (ShownSkill("scale", "summary", "text", 1.0),),
    FACTS,
)


@dataclass
class _Watching:
    """A synthesizer that keeps what it was shown."""

    inner: Any
    seen: list[Context] = field(default_factory=list)
    name: str = "recipe"
    first_tries: int = 3

    def propose(self, context: Context) -> Proposal | None:
        self.seen.append(context)
        found: Proposal | None = self.inner.propose(context)
        return found


def watched(space: Space, table: Table, arm: Arm, seed: int) -> tuple[list[Context], _Always, Any]:
    source = _Always(EVERYTHING)
    inner = proposer_of(space, arm, seed)
    watching = _Watching(inner, first_tries=inner.first_tries)
    search = search_of(
        space, table, arm, "best-first", seed, source, Target(HARDWARE), proposer=watching
    )
    search.run()
    return watching.seen, source, search


# -- arms


@pytest.mark.parametrize("policy", POLICIES)
def test_a_move_to_the_summit_takes_two_candidates(space: Space, table: Table, policy: Any) -> None:
    answers = answers_of(space, table, EVERYTHING)
    for seed in range(5):
        found = replay(space, table, KNOWLEDGE, policy, seed, answers, Target(HARDWARE))
        assert (found.candidates, found.reached) == (2, True)


def test_without_moves_the_same_summit_takes_longer(space: Space, table: Table) -> None:
    answers = answers_of(space, table, EVERYTHING)
    blind = Arm("knowledge without moves", moves=False)
    took = [
        replay(space, table, blind, "best-first", seed, answers, Target(HARDWARE)).candidates
        for seed in range(20)
    ]
    # The way up (chunk; a larger tile is forbidden) is tried before both ways down.
    assert set(took) == {3, 4}


def test_a_random_order_reaches_the_summit_at_its_place(space: Space, table: Table) -> None:
    took = [
        replay(space, table, RANDOM, "best-first", seed, Answers(), Target(HARDWARE)).candidates
        for seed in range(60)
    ]
    assert set(took) <= set(range(1, 13)) and len(set(took)) > 6


@pytest.mark.parametrize("arm", [DESCENT, RANDOM], ids=lambda arm: arm.name)
def test_an_arm_without_knowledge_sees_none(space: Space, table: Table, arm: Arm) -> None:
    starts = set()
    for seed in range(12):
        seen, source, search = watched(space, table, arm, seed)
        starts.add(tuple(search.tree[1].proposal.values.values()))
        assert source.asked == 0
        for context in seen:
            assert context.knowledge == Knowledge()
            assert not context.with_knowledge
            assert dict(context.hardware.facts) == {}
    assert len(starts) > 4  # not where the recipe's author would start
    inner = search.synthesizers[0].inner
    if isinstance(inner, RecipeSynthesizer):
        defaults = inner.fitting(seen[0])[0].recipe.defaults
        assert dict(defaults) == dict(search.tree[1].proposal.values)


def test_defaults_known_means_nothing_else_is(space: Space, table: Table) -> None:
    seen, source, search = watched(space, table, DEFAULTS, 3)
    assert source.asked == 0
    assert search.tree[1].proposal.values == {"chunk": 4, "tile": 32}
    assert all(context.knowledge == Knowledge() and not context.hardware.facts for context in seen)


@pytest.mark.parametrize("arm", [a for a in ARMS if a.knowledge], ids=lambda arm: arm.name)
def test_what_is_left_out_is_not_seen(space: Space, table: Table, arm: Arm) -> None:
    seen, source, search = watched(space, table, arm, 3)
    assert source.asked > 0
    for context in seen:
        known = context.knowledge
        assert bool(known.moves) is arm.moves
        assert bool(known.excerpts) is arm.documents
        assert bool(known.skills) is arm.defaults
        assert bool(known.facts) is bool(context.hardware.facts) is arm.facts
        assert all((remedy.limit is not None) is arm.facts for remedy in known.moves)
    tried = {node.proposal.values["tile"] for node in search.tree.nodes[1:]}
    assert 64 not in tried or not arm.facts


def test_facts_keep_a_run_out_of_what_they_forbid(space: Space) -> None:
    """The summit lies where a fact says no kernel fits: with facts it is never reached."""
    table = table_of(space, {(16, 64): 2.0})
    answers = answers_of(space, table, Knowledge(facts=FACTS))
    for arm, reached in ((KNOWLEDGE, False), (Arm("blind", facts=False), True)):
        found = replay(space, table, arm, "best-first", 1, answers, Target(HARDWARE))
        assert found.reached is reached
        if not reached:
            assert found.candidates == 12  # the whole space, not the nine that were tried


def test_a_run_that_cannot_go_on_counts_as_cut_off(space: Space) -> None:
    table = table_of(space, {(4, 32): None, (1, 8): 2.0})
    found = replay(space, table, DEFAULTS, "best-first", 1, Answers(), Target(HARDWARE, most=9))
    assert (found.candidates, found.reached) == (9, False)
    assert found.ended == "nothing is left to try"


def test_the_same_seed_gives_the_same_run(space: Space, table: Table) -> None:
    answers = answers_of(space, table, EVERYTHING)
    for arm in ARMS:
        first, second, other = (
            [replay(space, table, arm, "mcts", seed, answers, Target(HARDWARE)) for seed in seeds]
            for seeds in (range(8), range(8), range(8, 16))
        )
        assert first == second
        if arm is DESCENT:
            assert [run.candidates for run in first] != [run.candidates for run in other]


def test_a_point_outside_the_table_ends_the_replay(space: Space, table: Table) -> None:
    holed = Table(row for row in table.rows if row.values.get("tile") != 8)
    with pytest.raises(NotFound, match="not in the table"):
        for seed in range(20):
            replay(space, holed, RANDOM, "best-first", seed, Answers(), Target(HARDWARE))


# -- the table, the space, the answers


def test_a_table_is_read_back_and_the_later_row_holds(tmp_path: Path, table: Table) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    for row in table.rows:
        append(path, row)
    again = replace(table.rows[3], evaluation=evaluation(9.0), attempts=2)
    append(path, again)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(again.as_json())[:40])  # a crash
    read = load(path)
    assert len(read) == len(table)
    assert read.best("scale") == 9.0
    append(path, again)
    assert load(path).rows == read.rows
    save(tmp_path / "a.json.gz", read)
    save(tmp_path / "b.json.gz", load(tmp_path / "a.json.gz"))
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert load(tmp_path / "b.json.gz").rows == read.rows


def test_rounds_of_a_point_are_one_figure(table: Table) -> None:
    point = replace(table.rows[3], evaluation=evaluation(2.0))
    two = Table([point, replace(point, evaluation=evaluation(8.0), round=2)])
    (found,) = two.points("scale")
    assert found.merit == pytest.approx(4.0) and len(two) == 2
    two.put(replace(point, evaluation=evaluation(2.0), round=2))
    assert two.points("scale")[0].merit == pytest.approx(2.0)
    untimed = replace(point.evaluation, timing="repeat", speedup=None)
    two.put(replace(point, evaluation=untimed, round=3))
    assert two.points("scale")[0].merit == pytest.approx(2.0)
    two.put(replace(point, evaluation=evaluation(None), round=4))
    assert two.points("scale")[0].merit == 0  # wrong once is wrong


def test_rounds_that_disagree_are_counted(table: Table) -> None:
    point = replace(table.rows[3], evaluation=evaluation(2.0))
    assert repeat(Table([point]), ["scale"]) is None
    near, far = Interval(2.0, 1.9, 2.2, 6), Interval(4.0, 3.9, 4.1, 6)
    other = replace(point.evaluation, speedup=far)
    rows = [point, replace(point, evaluation=other, round=2)]
    found = repeat(Table(rows), ["scale"])
    assert found is not None
    assert (found.n, found.typical, found.apart) == (1, pytest.approx(2.0), 1.0)
    same = replace(point.evaluation, speedup=near)
    found = repeat(Table([rows[0], replace(point, evaluation=same, round=2)]), ["scale"])
    assert found is not None and found.apart == 0


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"problem": "x"}\n', encoding="utf-8")
    with pytest.raises(InvalidRequest, match="is no table"):
        load(tmp_path / "rows.jsonl")


def test_thinning_keeps_the_defaults_and_neighbours(space: Space) -> None:
    thin = space_of(space.problem, [scale()], 6, 4)
    (recipe,) = thin.recipes
    assert thin.whole == 12 and len(thin.points()) <= 6
    assert recipe.defaults == {"chunk": 4, "tile": 32}
    sizes = [len(parameter.values) for parameter in recipe.parameters]
    assert len(thin.points()) == sizes[0] * sizes[1]  # still every combination
    for parameter in recipe.parameters:
        whole = scale().parameter(parameter.name).values
        assert [v for v in whole if v in parameter.values] == list(parameter.values)
    assert space_of(space.problem, [scale()], 6, 4).recipes == thin.recipes
    assert thin.points()[0][1] == recipe.defaults


def test_what_was_not_asked_is_not_answered(space: Space, table: Table, tmp_path: Path) -> None:
    answers = answers_of(space, table, EVERYTHING)
    save_answers(tmp_path / "answers.json.gz", answers)
    read = load_answers(tmp_path / "answers.json.gz")
    query = query_of(space, table.points("scale")[0])
    assert read.consult(query).moves == EVERYTHING.moves
    assert read.consult(query).excerpts[0].text == ""
    with pytest.raises(NotFound, match="register_spill"):
        read.consult(replace(query, signals=("register_spill",)))


def test_measuring_again_is_for_what_is_new_changed_or_untimed(space: Space) -> None:
    table = Table()
    wanted = missing(space, table)
    assert len(wanted) == 13  # with the reference
    for recipe, values, bundle, _ in wanted:
        table.put(Row("scale", recipe, values, bundle, evaluation(1.0)))
    assert missing(space, table) == []
    point = next(row for row in table.rows if row.values == {"chunk": 1, "tile": 32})
    busy = replace(point.evaluation, timing="repeat", speedup=None)
    table.put(replace(point, evaluation=busy))
    assert [one[1] for one in missing(space, table)] == [point.values]
    table.put(replace(point, evaluation=busy, attempts=ATTEMPTS))
    assert missing(space, table) == []
    table.put(replace(point, bundle="of an older template"))
    assert [one[1] for one in missing(space, table)] == [point.values]
    assert len(missing(space, table, 2)) == 13  # a round of its own


@pytest.mark.usefixtures("quick_timing")
def test_measuring_goes_on_where_it_was_stopped(tmp_path: Path, space: Space) -> None:
    from api.cli.target import CommandTarget, read_settings

    path = tmp_path / "rows.jsonl"
    said: list[str] = []
    small = space_of(space.problem, [scale(parameters=SMALL)], 2, 1)
    local = CommandTarget(read_settings(store_ceilings(fresh_data_dir(tmp_path / "data"))))
    try:
        assert not measure(local.services, [small], Table(), path, 0, said.append)
        assert not path.exists()
        for _ in range(ATTEMPTS):  # a busy machine has to try again
            done = measure(local.services, [small], load(path), path, 60, said.append)
        assert done
        first = path.read_text(encoding="utf-8")
        assert measure(local.services, [small], load(path), path, 60, said.append)
    finally:
        local.close()
    assert path.read_text(encoding="utf-8") == first
    table = load(path)
    assert [row.evaluation.validity for row in table.points("scale")] == ["correct", "correct"]
    assert {row.attempts for row in table.rows} <= set(range(1, ATTEMPTS + 1))
    assert table.reference("scale") is not None


SMALL = [
    {"name": "chunk", "role": "block", "values": [1, 4], "default": 4},
    {"name": "tile", "role": "tile_m", "values": [8], "default": 8},
]


# -- where moves lead


def test_moves_are_followed_to_the_points_they_ask_for(space: Space, table: Table) -> None:
    found = coverage(space, table, answers_of(space, table, EVERYTHING), {})
    assert (found.points, found.diagnosed, found.advised, found.matching) == (12, 12, 12, 12)
    assert found.leading == 9  # a tile of 8 has none below it
    up = [step for step in found.steps if step.gain is not None and step.gain > 0.03]
    # From the defaults to the summit, and onto the defaults from the tile above them.
    assert len(found.steps) == 9 and len(up) == 2
    assert all(step.why == "smaller" and step.holds for step in found.steps)
    assert {(step.parameter, step.role) for step in found.steps} == {("tile", "tile_m")}
    by_role = roles_table(list(plain_steps(space, table, {}, [1])), [found])
    rows = [line.strip("| ").split(" | ") for line in by_role.splitlines()[2:]]
    # role, plain steps up, and how many steps of the role moves asked for
    assert {(row[0], row[1], row[-1]) for row in rows} == {
        ("tile_m", "9", "9"),
        ("block", "8", "0"),
    }
    measured = effect(found.steps)
    assert measured is not None and measured.better == pytest.approx(2 / 9)
    assert measured.worse == pytest.approx(1 / 9)  # off the summit again


def test_plain_steps_obey_the_facts(space: Space, table: Table) -> None:
    # Each of 12 points has steps along both parameters: 4 * 4 of chunk and 3 * 6 of tile.
    assert len(list(plain_steps(space, table, {}))) == 34
    # A tile of 64 may not be stepped to: nor from 32, nor along chunk.
    assert len(list(plain_steps(space, table, FACTS))) == 34 - 3 - 4


def test_nothing_known_of_steps_has_no_effect() -> None:
    assert effect([]) is None


def test_verdicts_are_made_again_from_what_was_measured(tmp_path: Path, space: Space) -> None:
    moved = 2 * 512 * 96 * 4
    rate = Point(moved, 1e9, 0.0, 9)
    ceilings = Ceilings("d", "cpu", 2, 0, (rate,), matmul={"float32": Figure(1e12, 0.0, 9)})
    save_device(tmp_path / "device.json", Device(ceilings, {"vector_bits": 256.0}))
    device = load_device(tmp_path / "device.json")
    assert device == Device(ceilings, {"vector_bits": 256.0})
    timing = CaseTiming(space.view.main.name, "measured", 1_000.0, moved / 1e9 * 1e6 / 0.7)
    right = replace(evaluation(2.0), timings=(timing,))
    rows = [
        Row("scale", "scale", {"chunk": 1, "tile": 8}, "a", right),
        Row("scale", "scale", {"chunk": 4, "tile": 8}, "b", evaluation(None)),
        Row("scale", REFERENCE, {}, "c", replace(right, language="torch")),
    ]
    found = rediagnosed(Table(rows), [space], device, device.facts, ("x86-64", "any")).rows
    verdict = found[0].evaluation.verdict
    assert verdict.primary == "memory_bound" and verdict.metrics["copy_bandwidth_pct"] == 70
    assert query_of(space, found[0]).metrics == verdict.metrics
    assert [row.evaluation for row in found[1:]] == [row.evaluation for row in rows[1:]]
    (tmp_path / "device.json").write_text('{"ceilings": {"form": 0}, "facts": {}}')
    with pytest.raises(InvalidRequest):
        load_device(tmp_path / "device.json")
