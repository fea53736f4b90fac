"""Whether a recipe fits a case: its named dimensions must agree with the case's tensors.

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from kb.predicates import Bindings, compile_predicate
from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.search.synthesizers.recipe.recipe import Recipe, TensorPattern, Value

ROLE_OF = {"input": "input", "parameter": "weight", "buffer": "weight", "output": "output"}


@dataclass(frozen=True)
class Binding:
    """What a recipe's names stand for in one case. dims in elements."""

    dims: Mapping[str, int]
    traits: Mapping[str, Value]


@dataclass(frozen=True)
class Refusal:
    """Why a recipe does not fit."""

    reason: str


def match(
    recipe: Recipe,
    signature: Signature,
    traits: Mapping[str, Value],
    facts: Mapping[str, Value],
    op: str,
) -> Binding | Refusal:
    """The recipe's names bound to one case, or why that cannot be."""
    if recipe.ops and op not in recipe.ops:
        return Refusal(f"is for {', '.join(recipe.ops)}, not {op}")
    if len(recipe.tensors) != len(signature.tensors):
        return Refusal(f"has {len(recipe.tensors)} tensors, the case {len(signature.tensors)}")
    dims: dict[str, int] = {}
    for pattern, tensor in zip(recipe.tensors, signature.tensors, strict=True):
        reason = _unify(pattern, tensor, dims)
        if reason:
            return Refusal(reason)
    known: dict[str, Value] = {}
    for name, path in recipe.traits.items():
        if path not in traits:
            return Refusal(f"the problem has no {path}")
        known[name] = traits[path]
    bindings = Bindings(facts=facts, problem={"op": op}, parameters={**dims, **known})
    if recipe.when and compile_predicate(recipe.when).evaluate(bindings).value is False:
        return Refusal(f"its condition does not hold: {recipe.when}")
    return Binding(dims, known)


def _unify(pattern: TensorPattern, tensor: TensorSpec, dims: dict[str, int]) -> str:
    """Bind the pattern's dimensions; a reason where they cannot be."""
    if ROLE_OF[tensor.role] != pattern.role:
        return f"{tensor.name} is {tensor.role}, {pattern.name} is {pattern.role}"
    if tensor.dtype not in pattern.dtypes:
        return f"{tensor.name} is {tensor.dtype}, {pattern.name} is {' or '.join(pattern.dtypes)}"
    spread = _spread(pattern.dims, tensor.shape)
    if spread is None:
        return f"{tensor.name} has {len(tensor.shape)} dimensions, {pattern.name} others"
    for dim, size in zip(pattern.dims, spread, strict=True):
        name = dim.lstrip("*")
        wanted = int(name) if name.isdigit() else dims.setdefault(name, size)
        if wanted != size:
            return f"{name} is {wanted} and, in {tensor.name}, {size}"
    return ""


def _spread(dims: Sequence[str], shape: Sequence[int]) -> list[int] | None:
    """The sizes beside their names; `*name` takes the product of what the others leave."""
    starred = next((n for n, dim in enumerate(dims) if dim.startswith("*")), None)
    if starred is None:
        return list(shape) if len(dims) == len(shape) else None
    behind = len(dims) - starred - 1
    if len(shape) < len(dims) - 1:
        return None
    end = len(shape) - behind
    return [*shape[:starred], math.prod(shape[starred:end]), *shape[end:]]


def allowed(
    recipe: Recipe, values: Mapping[str, Value], binding: Binding, facts: Mapping[str, Value]
) -> bool:
    """Whether no constraint is broken; one that lacks a value (a fact nobody stated) holds."""
    names = {**binding.dims, **binding.traits, **values}
    bindings = Bindings(facts=facts, parameters=names)
    return all(
        compile_predicate(text).evaluate(bindings).value is not False for text in recipe.constraints
    )


def space(
    recipe: Recipe, binding: Binding, facts: Mapping[str, Value]
) -> Iterator[dict[str, Value]]:
    """Every allowed choice of values, in the order of the domains."""
    names = [parameter.name for parameter in recipe.parameters]
    for chosen in product(*(parameter.values for parameter in recipe.parameters)):
        values = dict(zip(names, chosen, strict=True))
        if allowed(recipe, values, binding, facts):
            yield values
