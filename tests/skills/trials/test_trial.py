"""Unseen cases: held-out ones first, then other sizes; their quantities and preconditions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kb.catalog import Catalog, open_catalog
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.problem.spec import Problem
from optimizer.evaluation.records import Interval
from optimizer.search.knowledge import ShownKnowledge, knowledge_from_json
from optimizer.search.portable.skill_trial import advantage, standings
from optimizer.search.records import REFERENCE, Node
from optimizer.search.runs.knowledge import remedies_of, skill_of
from optimizer.search.synthesizers.recipe.synthesizer import Knob, avoided
from skills.trials.trial import HeldOutCase, as_only, can_be_offered, case_sizes, held_out_cases
from tests.catalogs import fresh_data_dir
from tests.optimizer.search.landscape import evaluation, proposal
from tests.skills.trials.curated import TEMPLATE, problem_in, skill_in


def first_cases(
    problem: Problem, device: str, count: int, seed: int, known: Sequence[str] = ()
) -> list[HeldOutCase]:
    return list(islice(held_out_cases(problem, device, seed, known), count))


def test_held_out_cases_come_first_each_timed_alone(tmp_path: Path) -> None:
    problem = problem_in(tmp_path)
    cases = first_cases(problem, "cpu", 4, seed=0)
    assert [target.why for target in cases] == ["held out", *["other sizes"] * 3]
    for target in cases:
        assert target.problem.searched == (target.case,) and not target.problem.held_out
        assert target.case.timed and target.problem.sha256 == problem.sha256
    sizes = [target.case.constants for target in cases]
    searched = [case.constants for case in problem.searched]
    assert all(size not in searched for size in sizes)
    assert len({tuple(size.values()) for size in sizes}) == 4
    shapes = [OpenCase(target.problem, target.case).signature.tensors[0].shape for target in cases]
    assert shapes == [(size["rows"], size["cols"]) for size in sizes]


def test_equal_seeds_draw_equal_sizes_without_known_ones(tmp_path: Path) -> None:
    problem = problem_in(tmp_path)
    names = [target.case.name for target in first_cases(problem, "cpu", 4, seed=3)]
    assert names == [target.case.name for target in first_cases(problem, "cpu", 4, seed=3)]
    left = first_cases(problem, "cpu", 3, seed=3, known=names[:1])
    assert [target.case.name for target in left] == names[1:]


def test_case_names_distinguish_sizes(tmp_path: Path) -> None:
    """An evaluation is stored by the names of its cases, so two sizes must differ in name."""
    problem = problem_in(tmp_path)
    by_name: dict[str, Mapping[str, Any]] = {}
    for seed in range(6):
        for target in first_cases(problem, "cpu", 6, seed=seed):
            sizes = by_name.setdefault(target.case.name, target.case.constants)
            assert sizes == target.case.constants
    assert len(by_name) > 6


def test_sizes_that_fail_in_problem_are_not_cases(tmp_path: Path) -> None:
    path = tmp_path / "square.py"
    path.write_text(
        "import torch\nimport torch.nn as nn\nrows = 64\ncols = 64\n"
        "class Model(nn.Module):\n    def forward(self, x):\n        return x @ torch.ones(64)\n"
        "def get_inputs():\n    return [torch.randn(rows, cols)]\n",
        encoding="utf-8",
    )
    path.with_suffix(".toml").write_text(
        'name = "square"\nop = "matmul"\n[[cases]]\nname = "main"\n'
        "constants = {rows = 64, cols = 64}\n",
        encoding="utf-8",
    )
    cases = first_cases(load_problem(path), "cpu", 9, seed=0)
    assert cases and {target.case.constants["cols"] for target in cases} == {64}


def test_case_for_another_device_is_excluded(tmp_path: Path) -> None:
    problem = problem_in(tmp_path)
    cases = tuple(replace(case, devices=("cuda",)) for case in problem.cases)
    assert first_cases(replace(problem, cases=cases), "cpu", 3, seed=0) == []
    only = as_only(problem, problem.held_out[0], "held out")
    assert only.problem.cases == (only.case,) and not only.case.held_out


# -- sizes of a case in the terms of predicates, and whether a skill applies

FACTS = {"cores": 8}
BYTES = (96 * 1024 + 96) * 4  # the input once, and a sum for each row


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return problem_in(tmp_path / "problem")


def test_moved_bytes_and_reduction_length_of_a_case(problem: Problem) -> None:
    main = problem.cases[0]
    assert case_sizes(problem, main) == {"compulsory_bytes": BYTES, "reduction_length": 1024}
    broken = replace(main, constants={**main.constants, "rows": -1})
    assert case_sizes(problem, broken) == {}


@pytest.mark.parametrize(
    ("predicate", "offered"),
    [
        ("", True),
        ("problem.op in ['reduction'] and problem.reduction_length <= 4096", True),
        ("problem.op in ['softmax']", False),
        (f"problem.compulsory_bytes > {BYTES}", False),
        ("problem.dtype == 'float16'", False),
        ("problem.language == 'triton'", False),  # the skill is about C++
        ("facts.cores > 8", False),
        # Nothing has run yet: a verdict may have a signal, or lack it.
        ("signals.memory_bound and problem.op in ['reduction']", True),
        ("not signals.memory_bound and metrics.ipc < 1", True),
        ("signals.memory_bound and problem.reduction_length < 64", False),
    ],
)
def test_precondition_excludes_case_only_if_certainly_false(
    problem: Problem, tmp_path: Path, predicate: str, offered: bool
) -> None:
    catalog = open_catalog(fresh_data_dir(tmp_path / "data"))
    metadata = {"kb.languages": "cpp", **({"kb.predicate": predicate} if predicate else {})}
    skill = skill_in(catalog, tmp_path, TEMPLATE, metadata=metadata)
    catalog.close()
    assert can_be_offered(skill, problem, problem.cases[0], FACTS) is offered


# -- A skill as a proposer receives it: moves, or a last step


def test_avoid_skill_is_a_warning_without_role(catalog: Catalog, tmp_path: Path) -> None:
    metadata = {
        "kb.polarity": "avoid",
        "kb.transformation": "decrease-vector",
        "kb.predicate": "problem.op in ['reduction']",
    }
    skill = skill_in(catalog, tmp_path, "", name="avoid-narrow", files={}, metadata=metadata)
    (remedy,) = remedies_of(skill)
    assert (remedy.id, skill_of(remedy.id)) == ("avoid-narrow#0", "avoid-narrow")
    assert remedy.when == skill.predicate and remedy.change.get("role") is None
    assert avoided(remedy) == (Knob("vector", "decrease"),)
    assert remedies_of(replace(skill, transformation="set-dtype")) == ()
    again = knowledge_from_json(ShownKnowledge("ret_1", moves=(remedy,)).as_json())
    assert again.moves == (remedy,)  # as in a portable session


# -- the advantage of one search over another at every point of the budget

SPREAD = 1.1


def walk(*speeds: int) -> list[Node]:
    """Candidates of these speed-ups in order. Equal speed-ups are equal kernels."""
    return [candidate(number, speed) for number, speed in enumerate(speeds, 1)]


def candidate(number: int, speed: int) -> Node:
    made = proposal(speed, REFERENCE)
    return Node(number, REFERENCE, "evaluated", made, evaluation(made.bundle, float(speed)))


def measured(node: Node) -> Interval | None:
    assert node.speedup is not None
    value = node.speedup.value
    return Interval(value, value / SPREAD, value * SPREAD, 5)


def stand(ours: list[Node], theirs: list[Node], budget: int) -> tuple[Interval | None, ...]:
    ahead = advantage(standings(ours, budget), standings(theirs, budget), measured)
    return ahead.over, ahead.end


def test_best_after_each_candidate() -> None:
    stood = standings(walk(2, 1, 4), 4)
    assert [node.number if node else 0 for node in stood] == [1, 1, 3, 3]
    assert standings([], 2) == [None, None]


def test_faster_search_for_same_kernel_has_advantage() -> None:
    over, end = stand(walk(4, 2), walk(2, 4), 2)
    assert over is not None and end is not None
    assert over.value == pytest.approx(math.sqrt(2.0))  # twice the speed for half of the budget
    # Two independent figures, each with half the weight: their errors add as squares.
    assert over.high / over.value == pytest.approx(math.exp(math.hypot(0.5, 0.5) * math.log(1.1)))
    assert (end.low, end.value, end.high) == (1.0, 1.0, 1.0)


def test_time_with_equal_standings_is_not_measured() -> None:
    measured_nodes: list[int] = []

    def counted(node: Node) -> Interval | None:
        measured_nodes.append(node.number)
        return measured(node)

    ahead = advantage(standings(walk(2, 4), 2), standings(walk(2, 2), 2), counted)
    assert len(measured_nodes) == 2  # the better kernel and the one that it replaced
    again = advantage(standings(walk(2, 4), 2), standings(walk(2, 4), 2), counted)
    assert len(measured_nodes) == 2
    assert ahead.over is not None and ahead.over.value == pytest.approx(math.sqrt(2.0))
    assert again.over == again.end == Interval(1.0, 1.0, 1.0, 1)


def test_search_may_be_worse_at_end_than_over_budget() -> None:
    over, end = stand(walk(2, 2, 2), walk(1, 1, 4), 3)
    assert over is not None and end is not None
    assert over.value == pytest.approx((2 * 2 / 2) ** (1 / 3)) and end.value == pytest.approx(0.5)
    assert end.high < 1.0


def test_search_without_candidate_has_speed_of_reference() -> None:
    over, end = stand(walk(4), [], 2)
    assert over is not None and end is not None
    assert over.value == pytest.approx(4.0) and end.value == pytest.approx(4.0)


def test_unmeasured_kernel_gives_no_advantage() -> None:
    ahead = advantage(standings(walk(4), 1), standings(walk(2), 1), lambda node: None)
    assert ahead.over is None and ahead.end is None
