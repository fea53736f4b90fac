"""The measured cases of a package, from its dispatch.json, and the form of their calls: inputs, and
constructor arguments as comparable values.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch

UNKNOWN = "not comparable"
MOST_NESTED = 20  # levels of an argument
TABLE = "dispatch.json"
Key = tuple[Any, ...]


def constructor_arguments(
    cls: type, args: Sequence[Any], named: Mapping[str, Any]
) -> tuple[dict[str, Any], list[Any]]:
    """A constructor's arguments by name as plain values, and by position; includes defaults."""
    bound = inspect.signature(cls).bind(*args, **named)
    bound.apply_defaults()
    return {name: plain(value) for name, value in bound.arguments.items()}, list(bound.args)


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON; one that cannot be compared becomes {UNKNOWN: its type}."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth >= MOST_NESTED:
        return {UNKNOWN: type(value).__name__}
    if isinstance(value, tuple | list):
        return [plain(part, depth + 1) for part in value]
    if isinstance(value, dict):
        return {str(key): plain(part, depth + 1) for key, part in value.items()}
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if isinstance(value, torch.Tensor):
        return {UNKNOWN: type(value).__name__}
    if isinstance(value, torch.nn.Module):
        return _plain_module(value, depth + 1)
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if callable(value) or not hasattr(value, "__dict__") or not _by_attributes(type(value)):
        return {UNKNOWN: type(value).__name__}
    return {"type": type(value).__qualname__, "attributes": plain(vars(value), depth + 1)}


def _plain_module(module: torch.nn.Module, depth: int) -> Any:
    """A module by its class, attributes and parts; its weights are in the state_dict of the Model
    that it becomes a part of."""
    if module._forward_hooks or module._forward_pre_hooks:
        return {UNKNOWN: type(module).__name__}
    own = {k: v for k, v in vars(module).items() if not k.startswith("_") and k != "training"}
    return {
        "type": type(module).__qualname__,
        "attributes": plain(own, depth),
        "modules": plain(dict(module.named_children()), depth),
        "weights": [*module._parameters, *module._buffers],
    }


def _by_attributes(cls: type) -> bool:
    """Whether the attributes of an object are all of it: its class is Python's own and holds no
    data outside of them, like a subclass of a dict does."""
    bases = cls.__mro__[:-1]
    return all(
        base.__module__ != "builtins" and not getattr(base, "__slots__", ()) for base in bases
    )


def comparable(value: Any) -> bool:
    """Whether a plain value contains nothing unknown."""
    if isinstance(value, dict):
        return UNKNOWN not in value and all(map(comparable, value.values()))
    return not isinstance(value, list) or all(map(comparable, value))


@dataclass(frozen=True)
class Row:
    """A measured case. `wins`: the kernel takes its calls; `why` gives the reason.

    `key` holds dtype and shape of every input, the type's name for a Python number. `values` holds
    the constant values of Python numbers, None for all other inputs. `weights` are name, dtype and
    shape in state_dict order; `outputs` are dtype and shape; `container` is the type in which the
    reference returns them.
    """

    name: str
    wins: bool
    why: str
    key: Key
    values: tuple[Any, ...]
    weights: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    outputs: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    container: Mapping[str, Any]
    arguments: Mapping[str, Any]
    argument_count: int
    dtype: torch.dtype | None


@dataclass
class DispatchTable:
    """The dispatch table of a package. `kind` is `library`, `python`, or "" without a kernel, with
    the `reason`. `broken` is the reason why the kernel is unusable in this process."""

    folder: Path
    kind: str
    file: str
    entry: str
    device: str
    frozen: bool
    reason: str
    rows: Mapping[Key, tuple[Row, ...]]
    broken: str = ""


def read_table(folder: Path) -> DispatchTable:
    """Read the dispatch table of the package in this folder."""
    table = json.loads((folder / TABLE).read_text(encoding="utf-8"))
    rows: dict[Key, list[Row]] = {}
    for case in table["cases"]:
        if "inputs" in case:
            row = _row(case)
            rows.setdefault(row.key, []).append(row)
    kernel = table["kernel"] or {}
    return DispatchTable(
        folder=folder,
        kind=kernel.get("kind", ""),
        file=kernel.get("file", ""),
        entry=kernel.get("entry", ""),
        device=table["device"],
        frozen=table["frozen_weights"],
        reason=table["reason"],
        rows={key: tuple(matching) for key, matching in rows.items()},
    )


def _row(case: Mapping[str, Any]) -> Row:
    inputs = case["inputs"]
    return Row(
        name=case["case"],
        wins=case["wins"],
        why=case["why"],
        key=tuple(
            value["number"] if "number" in value else _form(value["dtype"], value["shape"])
            for value in inputs
        ),
        values=tuple(value.get("value") for value in inputs),
        weights=tuple((w["name"], *_form(w["dtype"], w["shape"])) for w in case["weights"]),
        outputs=tuple(_form(output["dtype"], output["shape"]) for output in case["outputs"]),
        container=case["container"],
        arguments=case["arguments"],
        argument_count=case["argument_count"],
        dtype=_dtype(case["dtype"]) if case["dtype"] else None,
    )


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _form(dtype: str, shape: Sequence[int]) -> tuple[torch.dtype, tuple[int, ...]]:
    return _dtype(dtype), tuple(shape)


def key_of(inputs: Sequence[Any]) -> Key:
    """The key of a call, equal for equal dtypes and shapes."""
    return tuple(
        (value.dtype, value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        for value in inputs
    )


def describe(inputs: Sequence[Any]) -> str:
    """The inputs in words: dtype and shape of tensors, the type of other values."""
    return ", ".join(
        f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        if isinstance(value, torch.Tensor)
        else type(value).__name__
        for value in inputs
    )
