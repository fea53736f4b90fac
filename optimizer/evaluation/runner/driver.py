"""Functions of NVIDIA's driver, looked up before the candidate is imported, and the first bytes of
those that timing depends on.

`LIBRARY`: None without this driver; nothing else here can be used then.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

PROLOGUE_BYTES = 16  # of a function; a jump needs fewer
# Functions that timing depends on, in the driver, in CUDA's runtime and in the system's library.
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


class Prologue(NamedTuple):
    """Address and first bytes of a function, or all bytes of the kernel's shared object."""

    address: int
    code: bytes


def prologues() -> tuple[Prologue, ...]:
    """Prologues of the functions that timing depends on, in the libraries that are loaded."""
    libraries: list[tuple[Any, Sequence[str]]] = [(ctypes.CDLL(None), IN_SYSTEM)]
    if LIBRARY is not None:
        libraries.append((LIBRARY, IN_DRIVER))
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    for path in sorted(set(re.findall(r"/\S*libcudart\S*", maps))):
        libraries.append((ctypes.CDLL(path), IN_RUNTIME))
    functions = (getattr(lib, name, None) for lib, names in libraries for name in names)
    addresses = (ctypes.cast(f, ctypes.c_void_p).value for f in functions if f is not None)
    found = [Prologue(at, _string_at(at, PROLOGUE_BYTES)) for at in addresses if at]
    vdso = re.search(r"^(\w+)-(\w+) r-xp .*\[vdso\]$", maps, re.M)
    if vdso is not None:  # clocks are read in it without a system call
        begin, end = (int(text, 16) for text in vdso.groups())
        found.append(Prologue(begin, _string_at(begin, end - begin)))
    return tuple(found)


def patched(before: Sequence[Prologue]) -> bool:
    """Whether a function begins with other bytes now."""
    return any(_string_at(address, len(code)) != code for address, code in before)


def elapsed_ms(start: int, end: int) -> float:
    """Milliseconds between two events, given by their handles. Raises RuntimeError."""
    ms = ctypes.c_float()
    code = _elapsed(_address(ms), start, end)
    if code:
        raise RuntimeError(f"no time between two events: error {code} of the driver")
    return ms.value


def context_recorder() -> Callable[[int], Any] | None:
    """A function that makes an event, given by its handle, wait for all work of the current
    context; None before CUDA 12.5."""
    function = getattr(LIBRARY, "cuCtxRecordEvent", None)
    if function is None:
        return None
    context = ctypes.c_void_p()
    if LIBRARY.cuCtxGetCurrent(_address(context)) or not context.value:
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    return lambda event: function(context, event)


def ptx(file: str, values: Mapping[str, object]) -> str:
    """The text of a PTX file of this package, with each `<name>` replaced by its value."""
    text = resources.files("optimizer.evaluation.runner").joinpath(file).read_text(encoding="ascii")
    for name, value in values.items():
        text = text.replace(f"<{name}>", str(value))
    return text


def loaded_kernel(source: str, name: str) -> tuple[ctypes.c_void_p | None, int]:
    """A PTX kernel, compiled by the driver and loaded into the current context; or None, and the
    driver's error."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    code = LIBRARY.cuModuleLoadData(_address(module), source.encode())
    code = code or LIBRARY.cuModuleGetFunction(_address(function), module, name.encode())
    return (None if code else function), int(code)


_launch: Any = getattr(LIBRARY, "cuLaunchKernel", None)  # before the candidate is imported


def launch(function: ctypes.c_void_p, size: Sequence[int], stream: int, arguments: Any) -> int:
    """Launch a kernel; `size` has three numbers for blocks and three for threads. Returns the
    driver's error, 0 for none."""
    return int(_launch(function, *size, 0, ctypes.c_void_p(stream), arguments, None))


_elapsed: Any = getattr(LIBRARY, "cuEventElapsedTime", None)
if _elapsed is not None:
    _elapsed.argtypes = (ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_void_p)
