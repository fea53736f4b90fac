"""What the reference returns, as one list of tensors, and what a candidate's outputs could not be
held against. Knows no case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kb.errors import InvalidRequest
from optimizer.evaluation.abi import TensorSpec
from optimizer.evaluation.problem.convention import check_value
from optimizer.evaluation.problem.spec import Problem


def keys_of(result: Any) -> tuple[str, ...]:
    """The keys by which outputs are told apart; none where they have no names."""
    if isinstance(result, dict) and all(isinstance(key, str) for key in result):
        return tuple(result)
    return ()


def outputs_of(problem: Problem, result: Any) -> list[torch.Tensor]:
    """The outputs in the order of the result. Raises InvalidRequest for what is no tensor."""
    values = [result]
    if isinstance(result, dict):
        values = list(result.values())
    elif isinstance(result, tuple | list):
        values = list(result)
    for number, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            raise InvalidRequest(
                f"{problem.path.name}: output {number} is {type(value).__name__}",
                hint="forward returns a tensor, or one flat tuple, list or dict of tensors.",
            )
        check_value(problem, f"output {number}", value)
    return [value.detach() for value in values]


class Untouched:
    """Inputs of one call of the reference, to see afterwards what it has done to them."""

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self._inputs = [
            (name, value, value._version)
            for name, value in zip(names, values, strict=True)
            if isinstance(value, torch.Tensor)
        ]

    def check(self, problem: Problem, outputs: Sequence[torch.Tensor]) -> None:
        """Raises InvalidRequest where forward changed an input in place and does not return it: a
        candidate is judged by what it returns, and may not change its inputs.
        """
        returned = {_storage(output) for output in outputs}
        lost = [
            name
            for name, value, version in self._inputs
            if value._version != version and _storage(value) not in returned
        ]
        if lost:
            names = ", ".join(lost)
            raise InvalidRequest(
                f"{problem.path.name}: forward changes its input {names} in place and does not"
                " return it, so no candidate would be held against the change",
                hint=f"Return {names} as well, where the change matters. Where it is only room to"
                f" work in, work on a copy ({lost[0]} = {lost[0]}.clone()).",
            )


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def check_shapes(
    problem: Problem, declared: Sequence[TensorSpec], outputs: Sequence[torch.Tensor]
) -> None:
    """Raises InvalidRequest where outputs have other shapes than for the first values: a candidate
    gets arrays of fixed shapes to write to.
    """
    for spec, output in zip(declared, outputs, strict=False):
        if tuple(spec.shape) != tuple(output.shape):
            raise InvalidRequest(
                f"{problem.path.name}: the shape of {spec.name} depends on the values of the"
                f" inputs: {tuple(spec.shape)} for some, {tuple(output.shape)} for others",
                hint="Return arrays of one shape: a mask in place of the places that it has, or an"
                " array of the largest size with a count beside it.",
            )
    if len(declared) != len(outputs):
        raise InvalidRequest(
            f"{problem.path.name}: forward returns {len(declared)} outputs for some values of the"
            f" inputs and {len(outputs)} for others",
            hint="Return the same outputs for all values.",
        )
