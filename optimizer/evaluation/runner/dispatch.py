"""Watching which operators torch's dispatcher is given. Knows nothing of who asks and why."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class DispatchWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that does not import torch's compiler.

    torch marks every mode as nothing to compile, and imports its compiler for that at the first
    operator: 1.5 s of processor time in each process that evaluates, and again in each runner. What
    nobody has imported compiles nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # `__torch_dispatch__` does it

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        watched = self.dispatched
        if "torch._dynamo" in sys.modules:
            watched = torch.compiler.disable(watched)  # type: ignore[no-untyped-call]
        return watched(func, args, kwargs or {})

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of the operator."""
        return func(*args, **kwargs)
