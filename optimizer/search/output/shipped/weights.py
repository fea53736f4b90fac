"""Weights of a model by the names of its state_dict, found anew at every call, so that what was
loaded, moved or replaced since is what the kernel gets.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def find(model: torch.nn.Module, names: Sequence[str]) -> list[torch.Tensor] | None:
    """In this order; None where one of them is no plain parameter or buffer."""
    found = []
    for name in names:
        place = _place(model, name)
        value = place.get(name.rpartition(".")[2]) if place is not None else None
        if value is None:
            return None
        found.append(value)
    return found


def share(model: torch.nn.Module, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> None:
    """Make these very tensors the model's own. It has all of the names."""
    for name, tensor in zip(names, tensors, strict=True):
        place, last = _place(model, name), name.rpartition(".")[2]
        assert place is not None
        if place.get(last) is not tensor:
            place[last] = tensor


def _place(model: torch.nn.Module, name: str) -> dict[str, torch.Tensor | None] | None:
    *path, last = name.split(".")
    at: torch.nn.Module | None = model
    for part in path:
        at = at._modules.get(part) if at is not None else None
    if at is None:
        return None
    parameters: dict[str, torch.Tensor | None] = at._parameters  # type: ignore[assignment]
    return parameters if last in parameters else at._buffers
