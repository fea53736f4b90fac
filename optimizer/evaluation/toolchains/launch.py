"""What a program of a chip's own toolchain is handed beside the files: the names of its arguments
and its scalars, by `[toolchains.LANG.arguments]` and `[toolchains.LANG.scalars]` of hardware.toml.

The manifest and the prompt take both from here, so they agree. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from kb.errors import InvalidRequest
from kb.hardware.spec import ScalarSpec, ToolchainSpec
from kb.hardware.toolchains import ScalarFormula, argument_name, compile_scalar
from optimizer.evaluation.abi import Role, Signature, TensorSpec

Number = int | float
ROLES: Mapping[Role, str] = {
    "input": "input",
    "parameter": "weight",
    "buffer": "weight",
    "output": "output",
}
_OF_TENSOR = re.compile(r"(.+)\.(shape\[(-?\d+)\]|ndim|elements)")
_PLACE = re.compile(r"(input|weight|output)\[(\d+)\]")
SHOWN = 12  # names in a message


def argument_names(signature: Signature, toolchain: ToolchainSpec) -> tuple[str, ...]:
    """The name of each tensor in the program, in the order of the interface; its own where the
    toolchain has no pattern for its role. Empty for a toolchain without patterns.

    Raises InvalidRequest where two tensors get the same name.
    """
    patterns = toolchain.arguments
    if not patterns:
        return ()
    names = []
    for role, index, tensor, count in _by_role(signature):
        pattern = patterns.get(f"single_{role}") if count == 1 else None
        pattern = pattern or patterns.get(role)
        names.append(argument_name(pattern, index, tensor.name) if pattern else tensor.name)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidRequest(
            f"two tensors of this problem are called {twice[0]!r} in the program",
            hint="Use {index} in the patterns of [toolchains.LANGUAGE.arguments] in hardware.toml.",
            details={"names": names},
        )
    return tuple(names)


def _by_role(signature: Signature) -> Iterator[tuple[str, int, TensorSpec, int]]:
    """(role, index in the role, tensor, tensors of the role), in the order of the interface."""
    grouped = tensors_by_role(signature)
    seen = dict.fromkeys(grouped, 0)
    for tensor in signature.tensors:
        role = ROLES[tensor.role]
        yield role, seen[role], tensor, len(grouped[role])
        seen[role] += 1


def tensors_by_role(signature: Signature) -> dict[str, list[TensorSpec]]:
    """The tensors under `input`, `weight` and `output`."""
    grouped: dict[str, list[TensorSpec]] = {"input": [], "weight": [], "output": []}
    for tensor in signature.tensors:
        grouped[ROLES[tensor.role]].append(tensor)
    return grouped


def scalar_values(
    signature: Signature, toolchain: ToolchainSpec, constants: Mapping[str, object]
) -> dict[str, Number]:
    """The scalars of one case by name. `constants` are numbers of the reference, by plain names
    (`eps`) and by names of traits (`model.eps`, `convolution.stride[0]`).

    Raises InvalidRequest for a scalar that has no value and is not optional; it names the scalar,
    its expression and what there is.
    """
    values = {}
    for name, scalar in toolchain.scalars.items():
        value = _scalar(name, scalar, signature, constants)
        if value is not None:
            values[name] = value
    return values


def _scalar(
    name: str, scalar: ScalarSpec, signature: Signature, constants: Mapping[str, object]
) -> Number | None:
    formula = compile_scalar(scalar.value)
    values = {
        r: v for r in formula.references if (v := _value(r, signature, constants)) is not None
    }
    result = formula.compute(values)
    if isinstance(result.value, int | float) and not isinstance(result.value, bool):
        return result.value
    if scalar.optional and result.missing:
        return None
    raise InvalidRequest(
        f"the scalar {name} = {scalar.value!r} has no value for this problem: "
        + _why(formula, result.missing, result.reasons),
        hint=f"There are {_what_exists(signature, constants)}. Correct {name} under "
        "[toolchains.LANGUAGE.scalars] in hardware.toml, or write "
        f'{name} = {{value = "{scalar.value}", optional = true}}.',
        details={"scalar": name, "expression": scalar.value, "missing": list(result.missing)},
    )


def _why(formula: ScalarFormula, missing: Sequence[str], reasons: Sequence[str]) -> str:
    if missing:
        return f"there is no {', no '.join(missing)}"
    return "; ".join(reasons) or f"{formula.text} is no number"


def _value(reference: str, signature: Signature, constants: Mapping[str, object]) -> Number | None:
    match = _OF_TENSOR.fullmatch(reference)
    tensor = _tensor(match[1], signature) if match else None
    if match is None or tensor is None:
        return _constant(reference, constants)
    if match[2] == "ndim":
        return len(tensor.shape)
    if match[2] == "elements":
        return prod(tensor.shape)
    index = int(match[3])
    return tensor.shape[index] if -len(tensor.shape) <= index < len(tensor.shape) else None


def _tensor(name: str, signature: Signature) -> TensorSpec | None:
    """By its own name, else by role and position."""
    own = next((tensor for tensor in signature.tensors if tensor.name == name), None)
    place = _PLACE.fullmatch(name)
    if own is not None or place is None:
        return own
    group = tensors_by_role(signature)[place[1]]
    return group[int(place[2])] if int(place[2]) < len(group) else None


def _constant(name: str, constants: Mapping[str, object]) -> Number | None:
    """By its whole name; else by the last part of the names of traits, where all of them agree:
    `eps` for `native_layer_norm.eps`."""
    if name in constants:
        return _number(constants[name])
    same = {_number(value) for key, value in constants.items() if key.rpartition(".")[2] == name}
    return next(iter(same)) if len(same) == 1 else None


def _number(value: object) -> Number | None:
    if isinstance(value, bool):
        return int(value)
    return value if isinstance(value, int | float) else None


def _what_exists(signature: Signature, constants: Mapping[str, object]) -> str:
    tensors = [f"{tensor.name} {list(tensor.shape)}" for tensor in signature.tensors]
    numbers = sorted(name for name, value in constants.items() if _number(value) is not None)
    numbers.sort(key=lambda name: name.count("."))
    more = f" and {len(numbers) - SHOWN} more" if len(numbers) > SHOWN else ""
    known = f"the constants {', '.join(numbers[:SHOWN])}{more}" if numbers else "no constants"
    return f"the tensors {', '.join(tensors[:SHOWN])}, and {known}"
