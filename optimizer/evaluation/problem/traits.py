"""Numbers that a problem's code holds and no tensor shows: strides, windows, epsilons, limits.

Found by running the reference once and looking at the operators that it dispatches, so it does not
matter how the file spells them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from optimizer.evaluation.problem.tensors import OpenCase

Trait = int | float | bool | str


def traits_of(case: OpenCase, device: str = "cpu") -> dict[str, Trait]:
    """By name: `convolution.stride[0]` is an argument of the first such operator, `add#2.other` of
    the second; `model.limit` an attribute of the Model.

    Operators are those of torch's dispatcher (`native_layer_norm`, not `LayerNorm`).
    """
    # Building the model runs operators too; it must be built before anything is watched.
    own, inputs, state = case.attributes(), case.inputs(0), case.state(0)
    with _Arguments() as seen:
        case.reference(inputs, state, device=device)
    return {**own, **seen.found}


class _Arguments(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers every argument that is a number, a word or a list of numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[str, Trait] = {}
        self._counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        name = func._schema.name.split("::")[-1]
        self._counts[name] += 1
        count = self._counts[name]
        label = name if count == 1 else f"{name}#{count}"
        for argument, value in zip(func._schema.arguments, args, strict=False):
            given[argument.name] = value
        for key, value in given.items():
            self._keep(f"{label}.{key}", value)
        return func(*args, **(kwargs or {}))

    def _keep(self, name: str, value: Any) -> None:
        if isinstance(value, bool | int | float | str):
            self.found[name] = value
        elif isinstance(value, list | tuple):
            for place, item in enumerate(value):
                if isinstance(item, bool | int | float):
                    self.found[f"{name}[{place}]"] = item
