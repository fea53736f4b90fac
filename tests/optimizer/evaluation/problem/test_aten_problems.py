"""Problems of torch's own operators, from the samples that torch ships."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from api.cli.main import main
from kb.errors import NotFound
from optimizer.evaluation.problem.aten import (
    AtenProblem,
    SkippedOperator,
    aten_problem,
    write_problems,
)
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase

pytestmark = pytest.mark.slow(seconds=8)

pytest.importorskip("expecttest")

NAMES = ("nn.functional.gelu", "gather", "cat")


def test_a_problem_computes_the_operator_on_small_and_on_real_sizes(tmp_path: Path) -> None:
    written = write_problems(NAMES, tmp_path, lambda _: None)
    assert [w.operator for w in written] == list(NAMES)
    for entry in written:
        assert entry.path is not None
        problem = load_problem(entry.path)
        small, real = (next(c for c in problem.cases if c.name == n) for n in ("small", "main"))
        assert real.timed and not small.timed
        elements = [
            sum(t.elements for t in OpenCase(problem, case).signature.of("input"))
            for case in (small, real)
        ]
        assert elements[1] > 1_000 * elements[0]


def test_whole_numbers_of_an_input_stay_places_of_another_at_every_size() -> None:
    made = aten_problem("gather")
    assert isinstance(made, AtenProblem)
    known: dict[str, object] = {}
    exec(compile(made.source, "problem", "exec"), known)
    inputs = known["get_inputs"]()  # type: ignore[operator]
    known["n10"] = 2 * int(known["n10"])  # type: ignore[call-overload]
    larger = known["get_inputs"]()  # type: ignore[operator]
    result = known["Model"]()(*larger)  # type: ignore[operator]
    assert result.dtype is torch.float32
    assert larger[1].max() > inputs[1].max()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bernoulli", "random"),
        ("fft.fft", "complex"),
        ("bitwise_and", "no sample"),
        ("new_empty_strided", "memory as it was"),
    ],
)
def test_what_cannot_be_a_problem_says_why(name: str, reason: str) -> None:
    made = aten_problem(name)
    assert isinstance(made, SkippedOperator)
    assert reason in made.reason


def test_a_problem_leaves_its_inputs_as_they_were() -> None:
    made = aten_problem("_native_batch_norm_legit")  # with running statistics it writes into them
    assert isinstance(made, AtenProblem)
    known: dict[str, object] = {}
    exec(compile(made.source, "problem", "exec"), known)
    inputs = known["get_inputs"]()  # type: ignore[operator]
    given = [value.clone() for value in inputs]
    known["Model"]()(*inputs)  # type: ignore[operator]
    assert all(torch.equal(old, new) for old, new in zip(given, inputs, strict=True))


def test_an_unknown_operator_is_refused_with_similar_ones(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        write_problems(["sofmax"], tmp_path, lambda _: None)
    assert "softmax" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_the_command_writes_and_exits_with_1_where_an_operator_has_no_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["problem", "aten", "sin", "bernoulli", "--dir", str(tmp_path)]
    assert main(arguments) == 1
    assert (tmp_path / "aten_sin" / "problem.toml").is_file()
    assert "its result is random" in capsys.readouterr().out


def test_results_are_made_where_the_inputs_are() -> None:
    made = aten_problem("new_full")
    assert isinstance(made, AtenProblem)
    assert "device" not in made.source


def test_an_operator_with_a_bound_of_its_own_has_a_smaller_case_for_a_gpu() -> None:
    made = aten_problem("nanquantile")  # torch takes no more than 16 million elements
    assert isinstance(made, AtenProblem)
    assert 'devices = ["cuda"]' in made.toml


@pytest.mark.parametrize(("name", "kinds"), [("sort", '["float", "index"]'), ("tanh", "")])
def test_places_of_equal_elements_are_compared_by_what_stands_there(name: str, kinds: str) -> None:
    made = aten_problem(name)
    assert isinstance(made, AtenProblem)
    assert (f"outputs = {kinds}" in made.toml) == bool(kinds)
    assert ("[policy]" in made.toml) == bool(kinds)
