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


def test_operator_problem_has_small_and_real_sizes(tmp_path: Path) -> None:
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


def test_index_inputs_stay_valid_at_every_size() -> None:
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
def test_operator_without_problem_has_reason(name: str, reason: str) -> None:
    made = aten_problem(name)
    assert isinstance(made, SkippedOperator)
    assert reason in made.reason


def test_problem_does_not_change_its_inputs() -> None:
    made = aten_problem("_native_batch_norm_legit")  # with running statistics it writes into them
    assert isinstance(made, AtenProblem)
    known: dict[str, object] = {}
    exec(compile(made.source, "problem", "exec"), known)
    inputs = known["get_inputs"]()  # type: ignore[operator]
    given = [value.clone() for value in inputs]
    known["Model"]()(*inputs)  # type: ignore[operator]
    assert all(torch.equal(old, new) for old, new in zip(given, inputs, strict=True))


def test_unknown_operator_is_refused_with_similar_ones(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as caught:
        write_problems(["sofmax"], tmp_path, lambda _: None)
    assert "softmax" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_command_exits_with_1_if_operator_has_no_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["problem", "aten", "sin", "bernoulli", "--dir", str(tmp_path)]
    assert main(arguments) == 1
    assert (tmp_path / "aten_sin" / "problem.toml").is_file()
    assert "its result is random" in capsys.readouterr().out


def test_results_are_made_on_device_of_inputs() -> None:
    made = aten_problem("new_full")
    assert isinstance(made, AtenProblem)
    assert "device" not in made.source


def test_operator_with_size_limit_has_smaller_gpu_case() -> None:
    made = aten_problem("nanquantile")  # torch takes at most 16 million elements
    assert isinstance(made, AtenProblem)
    assert 'devices = ["cuda"]' in made.toml


@pytest.mark.parametrize(("name", "kinds"), [("sort", '["float", "index"]'), ("tanh", "")])
def test_indices_of_equal_elements_are_compared_by_value(name: str, kinds: str) -> None:
    made = aten_problem(name)
    assert isinstance(made, AtenProblem)
    assert (f"outputs = {kinds}" in made.toml) == bool(kinds)
    assert ("[policy]" in made.toml) == bool(kinds)
