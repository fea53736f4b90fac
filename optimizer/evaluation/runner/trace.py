"""Which torch operators a call runs, by the dispatcher itself, not by reading the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class _Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.seen[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def traced(call: Callable[[], Any]) -> dict[str, int]:
    """Operator names (aten.mm ...) to how often one call dispatched them."""
    with _Log() as log:
        call()
    return dict(sorted(log.seen.items()))
