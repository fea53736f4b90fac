"""The forms that the KernelBench convention takes in files as users have them.

What a file's functions return becomes positional arguments; values that a kernel could not be
handed are refused here. Knows no case.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from kb.errors import InvalidRequest
from optimizer.evaluation.abi import ITEM_BYTES
from optimizer.evaluation.problem.spec import Problem


def positional(function: Any, returned: Any, source: str, skip: int) -> list[Any]:
    """Arguments of `function` as a list, from a list, a dict, [args, kwargs] or a single value.
    `source` names what returned them; the first `skip` parameters are left out. Raises
    InvalidRequest for keyword-only arguments, TypeError for arguments that do not fit."""
    if isinstance(returned, dict):
        args, kwargs = [], returned
    elif isinstance(returned, tuple | list) and _is_args_kwargs(returned):
        args, kwargs = list(returned[0]), returned[1]
    elif isinstance(returned, tuple | list):
        return list(returned)
    else:
        return [returned]
    bound = inspect.signature(function).bind(*[None] * skip, *args, **kwargs)
    bound_names = [name in bound.arguments for name in bound.signature.parameters]
    bound.apply_defaults()
    if bound.kwargs:
        raise InvalidRequest(
            f"{source} names keyword-only arguments: {', '.join(bound.kwargs)}",
            hint="Let the function take them by position too.",
        )
    last = max((n for n, known in enumerate(bound_names, 1) if known), default=skip)
    return list(bound.args[skip : max(last, skip + len(args))])


def _is_args_kwargs(returned: Sequence[Any]) -> bool:
    return (
        len(returned) == 2
        and isinstance(returned[0], tuple | list)
        and isinstance(returned[1], dict)
    )


def argument_names(forward: Any, count: int) -> list[str]:
    """Names of forward's first `count` arguments; `inputN` where it has no name."""
    known = [
        p.name
        for p in inspect.signature(forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ][1:]
    return [known[n] if n < len(known) else f"input{n}" for n in range(count)]


def check_value(problem: Problem, label: str, value: Any) -> None:
    """Raises InvalidRequest for what is neither a number nor a dense tensor of a known dtype."""
    if isinstance(value, bool | int | float):
        return
    if not isinstance(value, torch.Tensor):
        raise InvalidRequest(
            f"{problem.path.name}: {label} is {type(value).__name__}, not a tensor or a number",
            hint="get_inputs() returns one flat list of tensors and numbers; pass what else Model "
            "needs through get_init_inputs().",
        )
    name = str(value.dtype).removeprefix("torch.")
    if value.layout is not torch.strided or name not in ITEM_BYTES:
        raise InvalidRequest(
            f"{problem.path.name}: {label} is {name}, {value.layout}",
            hint=f"Use dense tensors of {', '.join(ITEM_BYTES)}; give a sparse one by its parts.",
        )


def hidden_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that a model keeps outside its state_dict, by their path."""
    hidden: dict[str, torch.Tensor] = {}
    kept = model.state_dict()
    for prefix, module in model.named_modules():
        dot = f"{prefix}." if prefix else ""
        parts = {**module._buffers, **vars(module)}
        hidden |= {
            f"{dot}{name}": value
            for name, value in parts.items()
            if isinstance(value, torch.Tensor) and f"{dot}{name}" not in kept
        }
    return hidden
