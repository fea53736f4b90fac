"""Constructor arguments as plain values that can be stored and compared."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

UNKNOWN = "not comparable"


def constructor_arguments(
    cls: type, args: Sequence[Any], named: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Any]]:
    """Arguments by name as plain values, and in the order of their positions, defaults included."""
    bound = inspect.signature(cls).bind(*args, **named)
    bound.apply_defaults()
    return {name: plain(value) for name, value in bound.arguments.items()}, list(bound.args)


def plain(value: Any) -> Any:
    """As JSON holds it. What cannot be compared becomes {UNKNOWN: its type}."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    return {UNKNOWN: type(value).__name__}


def comparable(value: Any) -> bool:
    """Whether nothing in a plain value is unknown."""
    if isinstance(value, dict):
        return UNKNOWN not in value and all(map(comparable, value.values()))
    return not isinstance(value, list) or all(map(comparable, value))
