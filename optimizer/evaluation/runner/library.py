"""Takes torch's operators, and the linear algebra in its libraries, out of a runner whose problem
forbids libraries.

An operator is replaced in the dispatcher, so it fails however it is reached: by Python, by a C++
extension, by a compiled module. Functions of BLAS are replaced by an instruction that ends the
process. This lasts for the life of the process, and whether a call is watched cannot be seen.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import platform
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

# Operators that move, allocate or inspect data; any other is work done by a library.
MOVEMENT = frozenset(
    f"aten.{name}"
    for name in [
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "zeros",
        "zeros_like",
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "t",
        "transpose",
        "permute",
        "expand",
        "squeeze",
        "unsqueeze",
        "select",
        "slice",
        "as_strided",
        "detach",
        "alias",
        "clone",
        "copy_",
        "fill_",
        "zero_",
        "_to_copy",
        "contiguous",
        "lift_fresh",
        "_local_scalar_dense",
    ]
)
REFUSED = "is an operator of torch, and the problem forbids libraries"
_KEYS = ("CPU", "MkldnnCPU", "SparseCPU", "SparseCsrCPU", "QuantizedCPU")
# Operators for views, sizes and constants, and those with which the runner writes fresh values.
_ALSO_ALLOWED = frozenset(
    [
        "as_strided_",
        "resize_",
        "set_",
        "set_data",
        "unfold",
        "split",
        "split_with_sizes",
        "chunk",
        "unbind",
        "narrow",
        "view_as_real",
        "is_set_to",
        "equal",
        "is_nonzero",
        "item",
        "arange",
        "ones",
        "full",
        "scalar_tensor",
        "is_pinned",
        "pin_memory",
        "_pin_memory",
        "record_stream",
        "_foreach_copy_",
        "random_",
        "take",
    ]
)
_OVERLOADS = frozenset(("aten::add.out", "aten::mul.out", "aten::add_.Tensor"))
_OVERLOADS |= {"aten::index_select.out", "aten::index_select"}
_BLAS = re.compile(r"/\S*(?:torch_cpu|blas|mkl|blis|lapack)\S*\.so\S*")
_LEVELS = [
    "gemm",
    "gemv",
    "ger",
    "geru",
    "gerc",
    "symm",
    "hemm",
    "symv",
    "hemv",
    "syrk",
    "herk",
    "syr2k",
    "her2k",
    "trmm",
    "trmv",
    "trsm",
    "trsv",
    "gbmv",
    "sbmv",
    "spmv",
    "dot",
    "dotu",
    "dotc",
    "axpy",
    "scal",
    "nrm2",
    "asum",
]
_TRAPS = {"x86_64": b"\x0f\x0b", "aarch64": bytes(4)}  # ud2, udf
_held: list[Any] = []  # a library that is collected takes its operators back


def forbid_library() -> int:
    """Replace them in this process. Returns the number of operators."""
    if _held:
        return 0
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _held.append(library)
    replacements: Any = library.m  # twice as fast as the method of `library`
    count = 0
    with warnings.catch_warnings(), _without_collection():
        warnings.simplefilter("ignore")  # each replaced kernel causes one
        for key in _KEYS:
            # Asking for each operator and key takes seven times as long as the replacements.
            for name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
                namespace, _, own = name.partition("::")
                plain = own.partition(".")[0]
                allowed = f"aten.{plain}" in MOVEMENT or plain in _ALSO_ALLOWED
                if namespace == "aten" and not allowed and name not in _OVERLOADS:
                    replacements.impl(own, key, _refusal(plain), False)
                    count += 1
    _trap_blas()
    return count


@contextmanager
def _without_collection() -> Iterator[None]:
    """In a fork, a collection writes to every object of the interpreter, and so copies its pages:
    that takes three times as long as the replacements."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _refusal(name: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{name} {REFUSED}")

    return refuse


def _trap_blas() -> None:
    """Put a trap at the beginning of each function of BLAS in the libraries that are loaded."""
    trap = _TRAPS.get(platform.machine())
    if trap is None:
        return
    mprotect = ctypes.CDLL(None).mprotect  # one: each CDLL makes a class
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    for path in sorted(set(_BLAS.findall(mapped))):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name in _blas_names():
            function = getattr(library, name, None)
            if function is not None:
                _overwrite(mprotect, ctypes.cast(function, ctypes.c_void_p).value or 0, trap)


def _blas_names() -> list[str]:
    typed = [f"{kind}{level}" for kind in "sdcz" for level in _LEVELS]
    forms = ("{}_", "{}", "{}_64_", "cblas_{}", "cblas_{}64_")
    return [f"{p}{f.format(name)}" for name in typed for f in forms for p in ("", "scipy_", "mkl_")]


def _overwrite(mprotect: Any, address: int, code: bytes) -> None:
    begin = address & ~(mmap.PAGESIZE - 1)
    size = ctypes.c_size_t(address + len(code) - begin)
    if mprotect(ctypes.c_void_p(begin), size, 7) == 0:
        ctypes.memmove(address, code, len(code))
        mprotect(ctypes.c_void_p(begin), size, 5)
