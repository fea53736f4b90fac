"""Functions of NVIDIA's driver, taken before any candidate is there, and how the code of those that
tell times begins.

Without this driver nothing is available, and `LIBRARY` is None.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

BEGINNING = 16  # bytes of a function: a jump needs fewer
# What times hang on, in the driver, in CUDA's runtime and in the system's library.
IN_DRIVER = (
    "cuEventElapsedTime",
    "cuEventElapsedTime_v2",
    "cuEventRecord",
    "cuCtxRecordEvent",
    "cuCtxSynchronize",
    "cuLaunchKernel",
)
IN_RUNTIME = (
    "cudaEventElapsedTime",
    "cudaEventElapsedTime_v2",
    "cudaEventRecord",
    "cudaEventRecordWithFlags",
    "cudaDeviceSynchronize",
)
IN_SYSTEM = ("clock_gettime",)
_string_at, _address = ctypes.string_at, ctypes.byref


def _loaded() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


LIBRARY = _loaded()


class Beginning(NamedTuple):
    """Where a function stands and how it begins."""

    address: int
    code: bytes


def beginnings() -> tuple[Beginning, ...]:
    """Of the functions that times hang on, as far as their libraries are loaded."""
    libraries: list[tuple[Any, Sequence[str]]] = [(ctypes.CDLL(None), IN_SYSTEM)]
    if LIBRARY is not None:
        libraries.append((LIBRARY, IN_DRIVER))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    for path in sorted(set(re.findall(r"/\S*libcudart\S*", maps))):
        libraries.append((ctypes.CDLL(path), IN_RUNTIME))
    functions = (getattr(lib, name, None) for lib, names in libraries for name in names)
    places = (ctypes.cast(f, ctypes.c_void_p).value for f in functions if f is not None)
    return tuple(Beginning(at, _string_at(at, BEGINNING)) for at in places if at)


def diverted(begun: Sequence[Beginning]) -> bool:
    """Whether one of the functions begins otherwise now."""
    return any(_string_at(address, BEGINNING) != code for address, code in begun)


def elapsed_ms(start: int, end: int) -> float:
    """The time between two events, by their handles, in milliseconds. Raises RuntimeError."""
    ms = ctypes.c_float()
    code = _elapsed(_address(ms), start, end)
    if code:
        raise RuntimeError(f"no time between two events: error {code} of the driver")
    return ms.value


def recorder() -> Callable[[int], Any] | None:
    """What lets an event, by its handle, wait for all work of the current context; None where the
    driver is too old for that (before CUDA 12.5)."""
    function = getattr(LIBRARY, "cuCtxRecordEvent", None)
    if function is None:
        return None
    context = ctypes.c_void_p()
    if LIBRARY.cuCtxGetCurrent(_address(context)) or not context.value:
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return lambda event: function(context, event)


def loaded_kernel(source: str, name: str) -> tuple[ctypes.c_void_p | None, int]:
    """A kernel in PTX, compiled by the driver and loaded into the current context; or None, and the
    error of the driver."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    code = LIBRARY.cuModuleLoadData(_address(module), source.encode())
    code = code or LIBRARY.cuModuleGetFunction(_address(function), module, name.encode())
    return (None if code else function), int(code)


_launch: Any = getattr(LIBRARY, "cuLaunchKernel", None)  # before any candidate is there


def launch(function: ctypes.c_void_p, size: Sequence[int], stream: int, given: Any) -> int:
    """Launch a kernel of ours with blocks and threads of this size, three numbers each; the error
    of the driver."""
    return int(_launch(function, *size, 0, ctypes.c_void_p(stream), given, None))


_elapsed: Any = getattr(LIBRARY, "cuEventElapsedTime", None)
if _elapsed is not None:
    _elapsed.argtypes = (ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_void_p)
