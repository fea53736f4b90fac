"""Counts that depend on comparisons of computed floats: elements decided only by rounding may equal
any rounding of the reference; no other element may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from optimizer.evaluation.correctness.prepared import OtherRoundings, PreparedCase, settled
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.records import OutputError
from tests.problem_files import model_text

INPUTS = "torch.randn(300, 19), torch.randn(80, 19)"
DISTANCES = "(points[:, None, :] - centres[None, :, :]).abs().sum(-1)"
COUNTS = f"return ({DISTANCES} < 14.0).sum(-1)"
SEED = 5
ORDERS = [list(range(19)), list(range(18, -1, -1)), [*range(0, 19, 2), *range(1, 19, 2)]]


def prepared(folder: Path, forward: str) -> PreparedCase:
    path = folder / "problem.py"
    path.write_text(model_text(forward, INPUTS, takes="points, centres"))
    problem = load_problem(path)
    return PreparedCase(problem, problem.cases[0], "cpu")


def on_the_limit(case: PreparedCase, count: int) -> list[torch.Tensor]:
    """Values with this many distances equal to the limit in float64, up to rounding."""
    points, centres = (t.clone() for t in case.values(SEED).tensors)
    for n in range(count):
        apart = (points[n].double() - centres[n].double()).abs()
        scaled = centres[n].double() + (points[n].double() - centres[n].double()) * (
            14.0 / apart.sum()
        )
        points[n] = scaled.float()
    return [points, centres]


def distances(values: list[torch.Tensor], order: list[int]) -> torch.Tensor:
    """Sums in this order, in float32."""
    points, centres = values
    total = torch.zeros(len(points), len(centres))
    for k in order:
        total += (points[:, None, k] - centres[None, :, k]).abs()
    return total


def counted(values: list[torch.Tensor], order: list[int], limit: float = 14.0) -> torch.Tensor:
    return (distances(values, order) < limit).sum(-1)


def rounded_otherwise(values: list[torch.Tensor], reference: torch.Tensor) -> torch.Tensor:
    outputs = (counted(values, order) for order in ORDERS)
    return next(output for output in outputs if not torch.equal(output, reference))


def judged(case: PreparedCase, output: torch.Tensor, values: list[torch.Tensor]) -> OutputError:
    (error,) = case.errors([output], SEED, values)
    return error


@pytest.mark.slow
def test_count_in_another_summation_order_is_correct(tmp_path: Path) -> None:
    case = prepared(tmp_path, COUNTS)
    values = on_the_limit(case, 3)
    golden = (distances([v.double() for v in values], list(range(19))) < 14.0).sum(-1)
    outputs = [golden, *(counted(values, order) for order in ORDERS)]
    (reference,) = case.reference(values, {})
    errors = [judged(case, output, values) for output in outputs]
    assert all(error.ok for error in errors), [error.in_words() for error in errors]
    apart = [int((output != reference).sum()) for output in outputs]
    assert [error.undecided for error in errors] == apart
    assert 0 < max(apart) <= 3


@pytest.mark.slow
def test_wrong_count_stays_wrong(tmp_path: Path) -> None:
    case = prepared(tmp_path, COUNTS)
    values = on_the_limit(case, 3)
    order = list(range(19))
    right = counted(values, order)
    far = right.clone()
    far[1] += 2  # at the limit, but impossible by rounding
    inner = right.clone()
    inner[200] += 1
    narrower = counted(values, order, 14.0 - 1e-2)
    coarse = counted([v.bfloat16().float() for v in values], order)
    nothing = torch.zeros_like(right)
    for wrong in (far, inner, narrower, coarse, nothing):
        assert not judged(case, wrong, values).ok
    assert "0.00333 of its elements" in judged(case, inner, values).in_words()


def test_comparison_of_inputs_is_decided(tmp_path: Path) -> None:
    case = prepared(tmp_path, "return (points[:, None, 0] < centres[None, :, 0]).sum(-1)")
    values = [t.clone() for t in case.values(SEED).tensors]
    values[0][:3, 0] = torch.nextafter(values[1][:3, 0], torch.tensor(torch.inf))
    (reference,) = case.reference(values, {})
    wrong = reference.clone()
    wrong[0] += 1
    assert judged(case, reference, values).ok and not judged(case, wrong, values).ok
    assert all(torch.equal(o, reference) for o in OtherRoundings(case, values, "cpu").of(0))


def test_exact_sums_are_decided(tmp_path: Path) -> None:
    case = prepared(tmp_path, "return ((points > 0).float().sum(-1) > 9.0).long()")
    values = case.values(SEED).tensors
    (reference,) = case.reference(values, {})
    assert all(torch.equal(o, reference) for o in OtherRoundings(case, values, "cpu").of(0))


def test_output_of_rounding_only_must_equal_reference(tmp_path: Path) -> None:
    case = prepared(tmp_path, "return ((points * 0.1 + 0.2 - points / 10) > 0.2).sum(-1)")
    values = list(case.values(SEED).tensors)
    assert not judged(case, torch.full((300,), 19), values).ok


@pytest.mark.slow
def test_choice_between_nearly_equal_values_may_be_either(tmp_path: Path) -> None:
    case = prepared(tmp_path, f"return {DISTANCES}.argmin(-1)")
    points, centres = (t.clone() for t in case.values(SEED).tensors)
    centres[7] = centres[3].roll(1)
    points[0] = points[0].mean()  # equally far from both, up to the order of summation
    centres[3:8:4] = centres[3:8:4] * 0.1 + points[0]
    values = [points, centres]
    reference = case.reference(values, {})[0]
    assert reference[0] in (3, 7)
    for other in (3, 7):
        output = reference.clone()
        output[0] = other
        assert judged(case, output, values).ok
    output[0] = 5
    assert not judged(case, output, values).ok


@pytest.mark.parametrize("differing", [2, 1])
def test_too_many_elements_are_not_undecided(differing: int) -> None:
    reference = torch.zeros(60, dtype=torch.int64)
    output = reference.clone()
    output[:differing] = 1
    wrong, undecided = settled(output, reference, iter([output]))
    assert (int(wrong.sum()), undecided) == ((2, 0) if differing == 2 else (0, 1))


@pytest.mark.slow
def test_timed_calls_are_compared_equally(tmp_path: Path) -> None:
    case = prepared(tmp_path, COUNTS)
    values = on_the_limit(case, 3)
    (reference,) = case.reference(values, {})
    output = rounded_otherwise(values, reference)
    wrong = output.clone()
    wrong[200] += 1

    def compared(ours: torch.Tensor) -> tuple[str | None, int]:
        undecided: Counter[str] = Counter()
        message = case.disagreement(
            candidate=[ours],
            baseline=[reference],
            tensors=lambda: values,
            seed=SEED,
            undecided=undecided,
        )
        return message, undecided["output0"]

    assert compared(output) == (None, int((output != reference).sum()))
    assert "output0 of a timed call is wrong" in str(compared(wrong)[0])


@pytest.mark.slow
def test_sampled_elements_are_compared_with_inputs_of_their_call(tmp_path: Path) -> None:
    case = prepared(tmp_path, COUNTS)
    values = on_the_limit(case, 3)
    others = case.values(SEED).tensors
    (reference,) = case.reference(values, {})
    output = rounded_otherwise(values, reference)
    edge = int((output != reference).nonzero()[0])
    at = torch.tensor([[7, 200], [edge, 200]])

    def right(mine: torch.Tensor, held: Sequence[torch.Tensor] | None) -> bool:
        return case._samples_rounded(0, at, mine, reference[at], lambda call: held)

    assert right(output[at], values)
    assert not right(output[at], others) and not right(output[at], None)
    far = output[at].clone()
    far[1, 1] += 1
    assert not right(far, values)
    assert not case._samples_rounded(
        0,
        at.repeat(5, 1),
        output[at].repeat(5, 1) + 1,
        reference[at].repeat(5, 1),
        lambda call: values,
    )
