"""Outputs out of the candidate's hands: real tensors only, copied into the supervisor's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from optimizer.evaluation.runner.memory.arrays import dtype_name


class OutputRefused(Exception):
    """What was returned is no output that can be compared; the message says why."""


def listed(result: Any) -> list[Any]:
    """The outputs of a call: one tensor, or a tuple, list or mapping of them."""
    if isinstance(result, dict):
        return list(result.values())
    if isinstance(result, tuple | list):
        return list(result)
    return [result]


def check(
    result: Any, expected: Sequence[tuple[str, Sequence[int]]], plain: bool = True
) -> list[torch.Tensor]:
    """The outputs as plain tensors of the expected dtypes and shapes, or OutputRefused.

    A tensor subclass could compute when it is looked at, that is after the clock has stopped;
    plain=False lets it (`--without 3`).
    """
    values = listed(result)
    if len(values) != len(expected):
        raise OutputRefused(f"{len(values)} outputs instead of {len(expected)}")
    for number, (value, (dtype, shape)) in enumerate(zip(values, expected, strict=True)):
        where = f"output {number}"
        if type(value) is torch.nn.Parameter:
            value = value.data
        if not plain and isinstance(value, torch.Tensor):
            continue
        if type(value) is not torch.Tensor:
            raise OutputRefused(f"{where} is {type(value).__name__}, not a plain torch.Tensor")
        if value.layout is not torch.strided or value.is_meta:
            raise OutputRefused(f"{where} has no storage of its own")
        if tuple(value.shape) != tuple(shape):
            raise OutputRefused(f"{where} has shape {tuple(value.shape)}, expected {tuple(shape)}")
        if dtype_name(value.dtype) != dtype:
            raise OutputRefused(f"{where} is {dtype_name(value.dtype)}, expected {dtype}")
        if value.numel() and (value.untyped_storage().size() == 0 or value.data_ptr() == 0):
            raise OutputRefused(f"{where} has no memory behind it")
    return values


def store(values: Sequence[torch.Tensor], into: Sequence[torch.Tensor]) -> None:
    """Copy the outputs into shared memory."""
    for value, place in zip(values, into, strict=True):
        place.copy_(value.detach())
