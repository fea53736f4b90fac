"""Stand-ins for a GPU that is not there: Triton's driver, torch.cuda and the place of tensors.

Used only in the process that compiles and launches nothing; what is computed there is never looked
at. Needs torch.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class CompileOnly:
    """Stands in for Triton's driver of a device."""

    def __init__(self, target: Any, facts: Mapping[str, Any]) -> None:
        self._target = target
        self.utils = SimpleNamespace(get_device_properties=lambda device: facts)

    def get_current_target(self) -> Any:
        """The pretended chip."""
        return self._target

    def get_current_device(self) -> int:
        """The only device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """Does nothing: there is one device."""

    def get_current_stream(self, device: int = 0) -> int:
        """The default stream."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """Major and minor number of the chip."""
        return _capability(self._target)

    def get_active_torch_device(self) -> Any:
        """The device that tensors claim to be on."""
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        """The patched `torch.cuda`."""
        import torch

        return torch.cuda

    def map_python_to_cpp_type(self, kind: str) -> str:
        """Unchanged: nothing is launched."""
        return kind


def _capability(target: Any) -> tuple[int, int]:
    if target.backend == "cuda":
        return divmod(int(target.arch), 10)
    digits = "".join(c for c in str(target.arch).removeprefix("gfx") if c.isdigit())
    return int(digits[0]), int(digits[1])


def properties_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Device properties from facts of the chip, under every name that Triton and torch use."""
    units = int(facts.get("compute_units", 128))
    shared = int(facts.get("shared_memory_per_block", 65_536))
    return {
        "max_shared_mem": shared,
        "multiprocessor_count": units,
        "multi_processor_count": units,
        "max_num_regs": int(facts.get("registers_per_unit", 65_536)),
        "warpSize": int(facts.get("warp_size", 32)),
        "warp_size": int(facts.get("warp_size", 32)),
        "shared_memory_per_block_optin": shared,
        "shared_memory_per_multiprocessor": int(facts.get("shared_memory_per_unit", shared)),
        "total_memory": int(facts.get("memory_size", 80 << 30)),
        "name": str(facts.get("name", "")),
    }


def pretend_cuda(facts: Mapping[str, Any], target: Any) -> None:
    """Answer for the target what candidates ask torch about the device."""
    import torch

    properties = SimpleNamespace(
        **facts, major=_capability(target)[0], minor=_capability(target)[1]
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: _capability(target),
        "get_device_name": lambda device=None: facts["name"],
        "current_stream": lambda device=None: SimpleNamespace(cuda_stream=0),
        "device": lambda device: contextlib.nullcontext(),
        "device_of": lambda tensor: contextlib.nullcontext(),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    # Compiling torch's own operators would take a minute and say nothing about these kernels.
    torch.compile = _not_compiled


def _not_compiled(model: Any = None, **options: Any) -> Any:
    """`torch.compile`, as a call and as a decorator with options."""
    return model if model is not None else lambda function: function


@contextlib.contextmanager
def pretending(home: str) -> Iterator[None]:
    """Tensors claim to be on the GPU, and are on `home`: "meta", where they have a shape and no
    contents, or "cpu"."""
    import torch
    from torch.overrides import TorchFunctionMode

    torch_files = str(Path(torch.__file__).parent)
    where = operator.attrgetter("device.__get__")(torch.Tensor)
    is_cuda = operator.attrgetter("is_cuda.__get__")(torch.Tensor)

    def at_home(value: Any) -> Any:
        if isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu"):
            return home
        if isinstance(value, torch.device) and value.type in ("cuda", "cpu"):
            return torch.device(home)
        return value

    class Pretending(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func == is_cuda:
                return True
            # torch itself must see where they really are
            asking = sys._getframe(1).f_code.co_filename
            if func == where and not asking.startswith(torch_files):
                return torch.device("cuda", 0)
            if func is torch.device:
                return func(*args, **(kwargs or {}))
            if func is torch.Tensor.get_device:
                return 0
            if func in (torch.Tensor.cuda, torch.Tensor.cpu):
                return args[0]
            moved = {key: at_home(value) for key, value in (kwargs or {}).items()}
            return func(*(at_home(value) for value in args), **moved)

    with torch.device(home), Pretending():
        yield
