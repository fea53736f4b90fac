"""What Triton's operators compute on the device, where they differ from PyTorch or may change."""

import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl


def report(name: str, measure: Callable[[], float]) -> None:
    """Print what a function measures, or its error."""
    try:
        print(f"probe {name} {measure()!r}", flush=True)
    except Exception as error:  # of the compiler or the device; other probes go on
        print(f"probe {name} ! {' '.join(str(error).split())[:200]}", flush=True)


def answer(name: str, holds: Callable[[], object]) -> None:
    """Print whether something holds, or the error."""
    try:
        print(f"probe {name} = {'yes' if holds() else 'no'}", flush=True)
    except Exception as error:  # of the compiler or the device; other probes go on
        print(f"probe {name} ! {' '.join(str(error).split())[:200]}", flush=True)


@triton.jit
def elementwise(x_ptr, y_ptr, out_ptr, WHAT: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    if WHAT == "maximum":
        out = tl.maximum(x, y)
    elif WHAT == "propagate":
        out = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif WHAT == "divide":
        out = x // y
    elif WHAT == "remainder":
        out = x % y
    elif WHAT == "exp2":
        out = tl.exp2(x)
    elif WHAT == "literal":
        out = tl.maximum(x, -1e300)
    elif WHAT == "scaled":
        out = x * y
    tl.store(out_ptr + at, out)


@triton.jit
def converted(x_ptr, out_ptr, KIND: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out_ptr + at, tl.load(x_ptr + at).to(KIND).to(out_ptr.dtype.element_ty))


def conversion(
    x: list[float], kind: tl.dtype, out_kind: torch.dtype = torch.float32
) -> list[float]:
    """The values as another type, and back as float32 where `out_kind` does not say otherwise."""
    a = torch.tensor(x * 16, device="cuda")
    out = torch.empty_like(a, dtype=out_kind)
    converted[(1,)](a, out, kind, len(a))
    return out[: len(x)].tolist()


def element(what: str, x: list, y: list | None = None, kind: torch.dtype = torch.float32):
    """The results of an operator, and the compiled kernel."""
    a = torch.tensor(x * 16, device="cuda", dtype=kind)
    b = torch.tensor((y or x) * 16, device="cuda", dtype=kind)
    out = torch.empty_like(a)
    compiled = elementwise[(1,)](a, b, out, what, len(a))
    return out[: len(x)].tolist(), compiled


@triton.jit
def product(a_ptr, b_ptr, out_ptr, PRECISION: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    out = tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision=PRECISION)
    tl.store(out_ptr + at, out)


def dot(precision: str) -> float:
    """One element of a product of a diagonal of 1 + 1.5 2^-11 with ones on a diagonal."""
    a = torch.eye(32, device="cuda") * (1 + 1.5 * 2**-11)
    out = torch.empty_like(a)
    product[(1,)](a, torch.eye(32, device="cuda"), out, precision, 32)
    return out[3, 3].item()


@triton.jit
def total(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, N))))


@triton.jit
def large_block(out_ptr, N: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, N), tl.zeros((N,), tl.float32))


def refused(length: int) -> bool:
    try:
        large_block.warmup(torch.float32, length, grid=(1,))
    except Exception as error:  # the class differs between versions
        return "numel" in str(error) or "power of" in str(error)
    return False


@triton.jit
def old_value(counter_ptr, out_ptr):
    tl.store(out_ptr, tl.atomic_add(counter_ptr, 5))


@triton.jit
def copy(from_ptr, to_ptr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(to_ptr + at, tl.load(from_ptr + at))


def half_sum() -> float:
    ones = torch.full((4096,), 1.0, device="cuda", dtype=torch.float16)
    ones[0] = 2048.0
    out = torch.empty(1, device="cuda", dtype=torch.float16)
    total[(1,)](ones, out, 4096)
    return out.item()


def byte_sum() -> int:
    small = torch.full((512,), 100, device="cuda", dtype=torch.int8)
    out = torch.empty(1, device="cuda", dtype=torch.int32)
    total[(1,)](small, out, 512)
    return out.item()


def atomic_returns_old() -> bool:
    counter = torch.full((1,), 7, device="cuda", dtype=torch.int32)
    before = torch.empty_like(counter)
    old_value[(1,)](counter, before)
    return before.item() == 7 and counter.item() == 12


def copy_rate(left: torch.Tensor, right: torch.Tensor) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    grid = (left.numel() // 2048,)
    copy[grid](left, right, 2048)
    begin.record()
    copy[grid](left, right, 2048)
    end.record()
    torch.cuda.synchronize()
    return 2 * left.numel() * left.element_size() / (begin.elapsed_time(end) * 1e-3)


nan, infinity, exact = math.nan, math.inf, 1 + 1.5 * 2**-11
answer("triton_maximum_drops_nan", lambda: element("maximum", [nan], [1.0])[0] == [1.0])
answer(
    "triton_propagate_nan_keeps_nan", lambda: math.isnan(element("propagate", [nan], [1.0])[0][0])
)
answer(
    "triton_integer_division_truncates",
    lambda: element("divide", [-7], [2], torch.int32)[0] == [-3],
)
answer(
    "triton_remainder_follows_c", lambda: element("remainder", [-7], [2], torch.int32)[0] == [-1]
)
report("triton_e4m3_of_large", lambda: conversion([1e6], tl.float8e4nv)[0])
report("triton_e4m3_of_infinity", lambda: conversion([infinity], tl.float8e4nv)[0])
report("triton_e5m2_of_large", lambda: conversion([1e6], tl.float8e5)[0])
answer(
    "triton_bfloat16_ties_to_even",
    lambda: conversion([1 + 2**-8, 1 + 3 * 2**-8], tl.bfloat16) == [1.0, 1 + 2**-6],
)
report("triton_int_of_nan", lambda: conversion([nan], tl.int32, torch.int32)[0])
answer("triton_subnormals_are_kept", lambda: element("scaled", [2.0**-140], [1.0])[0][0] != 0)
answer("triton_exp2_flushes_subnormals", lambda: element("exp2", [-130.0])[0][0] == 0)
answer("triton_large_literal_is_fp64", lambda: ".f64" in element("literal", [1.0])[1].asm["ptx"])
answer("triton_tf32_truncates", lambda: dot("tf32") == 1.0)
answer("triton_ieee_dot_is_exact", lambda: dot("ieee") == exact)
answer("triton_tf32x3_is_close", lambda: abs(dot("tf32x3") - exact) < 2**-20)
report("triton_half_sum", half_sum)  # 6143 exactly, 6144 as the nearest half
answer("triton_sum_widens_int8", lambda: byte_sum() == 51200)
answer("triton_atomic_add_returns_old", atomic_returns_old)
answer("triton_block_of_2_20_is_accepted", lambda: not refused(1 << 20))
answer("triton_block_of_2_21_is_refused", lambda: refused(1 << 21))
answer("triton_block_of_48_is_refused", lambda: refused(48))
arrays = torch.ones(2, 1 << 28, device="cuda")
for _ in range(9):
    report("triton_copy_rate", lambda: copy_rate(arrays[0], arrays[1]))
