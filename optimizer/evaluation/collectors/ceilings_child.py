"""`python -I THIS_FILE DEVICE THREADS LARGEST_BYTES`: measures the ceilings and prints them as one
JSON line.

A separate process, because the supervisor, whose runners are forked, must neither compute with
torch nor create a CUDA context. `ceilings` explains each rate.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

SECONDS_EACH = 0.1  # of repeats of one rate
MIN_REPEATS, MAX_REPEATS = 4, 400
MIB = 1 << 20
LONG_PRODUCT = 1.0  # seconds
FORK_REGIONS = 2_000
FMA_LOOPS = 200_000
CHAINS, VECTOR_BYTES = 12, 64  # enough independent chains to hide latency
# Called from Python. The compiler splits vectors that are wider than the chip's.
PROBES = """
#include <omp.h>
extern "C" void regions(int count) {
  for (int n = 0; n < count; n++) {
#pragma omp parallel
    { asm volatile("" ::: "memory"); }
  }
}
template <typename T> static inline void fma_chains(long loops, T *out) {
  typedef T vec __attribute__((vector_size(BYTES)));
#pragma omp parallel
  {
    vec sum[CHAINS], scale, step;
    for (unsigned lane = 0; lane < BYTES / sizeof(T); lane++) scale[lane] = 0.5, step[lane] = 1;
    for (int c = 0; c < CHAINS; c++) sum[c] = step + (T)c;
    for (long n = 0; n < loops; n++)
      for (int c = 0; c < CHAINS; c++) sum[c] = sum[c] * scale + step;
    for (int c = 1; c < CHAINS; c++) sum[0] += sum[c];
    out[omp_get_thread_num()] = sum[0][0];
  }
}
extern "C" void fma_float32(long loops, float *out) { fma_chains<float>(loops, out); }
extern "C" void fma_float64(long loops, double *out) { fma_chains<double>(loops, out); }
"""
Rate = dict[str, float]
Timer = Callable[[Callable[[], Any]], float]


def repeated(call: Callable[[], Any], seconds_of: Timer) -> list[float]:
    """Times of a call in seconds, after two warm-up calls."""
    for _ in range(2):
        seconds_of(call)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < MIN_REPEATS or (
        time.perf_counter() - began < SECONDS_EACH and len(times) < MAX_REPEATS
    ):
        times.append(seconds_of(call))
    return times


def rate(work: float, times: list[float]) -> Rate:
    """The best rate, which is the ceiling, and the relative distance of the median."""
    best, middle = min(times), statistics.median(times)
    return {"value": work / best, "spread": middle / best - 1, "n": len(times)}


def wall(call: Callable[[], Any]) -> float:
    """Seconds of one call by the wall clock."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def device_time(call: Callable[[], Any]) -> float:
    """Seconds of one call between two events on the stream."""
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def bandwidths(device: str, sizes: list[int], seconds_of: Timer) -> dict[str, list[Rate]]:
    """Bandwidth by footprint. All pages but those of `clone` are touched before timing."""
    rows: dict[str, list[Rate]] = {"copy": [], "clone": [], "read": [], "write": []}
    for footprint in sizes:
        half = torch.ones(footprint // 8, device=device)
        other = torch.zeros_like(half)
        whole = torch.ones(footprint // 4, device=device)
        calls: dict[str, Callable[[], Any]] = {
            "copy": partial(other.copy_, half),
            "clone": half.clone,
            "read": whole.sum,
            "write": partial(whole.fill_, 2.0),
        }
        for name, call in calls.items():
            row = rate(footprint, repeated(call, seconds_of))
            rows[name].append({"bytes": footprint, **row})
        del half, other, whole, calls
    return rows


def matmul(device: str, dtype: str, size: int, seconds_of: Timer) -> Rate:
    """2 n^3 over the time of one n x n x n product by torch's library."""
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    kind = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    a = torch.randn(size, size, device=device).to(kind)
    b = torch.randn(size, size, device=device).to(kind)
    out = torch.empty(size, size, device=device, dtype=kind)
    return rate(2.0 * size**3, repeated(lambda: torch.mm(a, b, out=out), seconds_of))


def affordable(dtype: str, size: int) -> int:
    """The size of a product on the CPU, or a third of it if the product would take long: a chip
    without bfloat16 instructions takes nine seconds for 1536, at the same rate."""
    small = size // 3
    one = torch.randn(small, small).to(getattr(torch, dtype))
    torch.mm(one, one)
    return small if wall(lambda: torch.mm(one, one)) > LONG_PRODUCT / 27 else size


def cost(times: list[float], calls: int) -> Rate:
    """Seconds per call, of times of `calls` calls."""
    each = [took / calls for took in times]
    best = min(each)
    return {"value": best, "spread": statistics.median(each) / best - 1, "n": len(each)}


def compiled_probes(threads: int) -> dict[str, Any]:
    """The cost of an empty OpenMP region in a running team, and the rate of independent
    multiply-adds by dtype; {} without g++."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probes.cpp"), Path(folder, "probes.so")
        source.write_text(PROBES)
        flags = ["-O3", "-march=native", "-shared", "-fPIC", "-fopenmp"]
        flags += [f"-DCHAINS={CHAINS}", f"-DBYTES={VECTOR_BYTES}"]
        command = ["g++", *flags, "-o", str(library), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.SubprocessError):
            return {}
        loaded = ctypes.CDLL(str(library))
        forks = repeated(lambda: loaded.regions(FORK_REGIONS), wall)
        return {
            "launch": cost(forks, FORK_REGIONS),
            "float32": multiply_adds(loaded.fma_float32, 4, threads),
            "float64": multiply_adds(loaded.fma_float64, 8, threads),
        }


def multiply_adds(call: Any, item_bytes: int, threads: int) -> Rate:
    """Flop/s of all threads: two for each multiply-add."""
    call.argtypes = [ctypes.c_long, ctypes.c_void_p]
    out = ctypes.create_string_buffer(item_bytes * threads)
    work = 2.0 * FMA_LOOPS * CHAINS * (VECTOR_BYTES // item_bytes) * threads
    return rate(work, repeated(lambda: call(FMA_LOOPS, out), wall))


def higher(library: Rate, loop: Rate | None) -> Rate:
    """The higher rate, because a library may not use the widest vectors of a chip."""
    return library if loop is None or library["value"] >= loop["value"] else loop


def waited_seconds() -> float:
    """Seconds that threads of this process waited for a processor, plus time stolen by the
    hypervisor; 0 if the kernel does not account for it."""
    total = 0.0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        total += int(task.read_text(encoding="ascii").split()[1]) * 1e-9
    stat = Path("/proc/stat")
    if stat.exists():
        stolen = stat.read_text(encoding="ascii").split("\n", 1)[0].split()[8]
        total += int(stolen) / os.sysconf("SC_CLK_TCK")
    return total


def on_cpu(largest: int, threads: int) -> dict[str, Any]:
    """The ceilings of this machine's processors."""
    # glibc's allocator never retains arrays above 32 MiB: 72 MiB are two arrays of 36.
    steps = (MIB, 8 * MIB, 32 * MIB, 72 * MIB, 192 * MIB)
    sizes = [size for size in steps if size < largest] + [largest]
    tiny = torch.zeros(1)
    probes = compiled_probes(threads)
    return {
        **bandwidths("cpu", sizes, wall),
        "matmul": {
            "float32": higher(matmul("cpu", "float32", 1536, wall), probes.get("float32")),
            "float64": higher(matmul("cpu", "float64", 1024, wall), probes.get("float64")),
            "bfloat16": matmul("cpu", "bfloat16", affordable("bfloat16", 1536), wall),
        },
        "launch": probes.get("launch"),
        "dispatch": cost(repeated(lambda: [tiny.add_(1) for _ in range(1000)], wall), 1000),
    }


def on_gpu(largest: int) -> dict[str, Any]:
    """The ceilings of the first GPU."""
    sizes = [16 * MIB, 128 * MIB, 512 * MIB]
    sizes = [size for size in sizes if size < largest] + [largest]
    scalar = torch.zeros(1, device="cuda")
    empty: Any = torch.cuda._sleep  # a kernel that spins for a given number of cycles
    return {
        **bandwidths("cuda", sizes, device_time),
        "matmul": {
            dtype: matmul("cuda", dtype, size, device_time)
            for dtype, size in (
                ("float32", 4096),
                ("tf32", 8192),
                ("float16", 8192),
                ("bfloat16", 8192),
                ("float64", 4096),
            )
        },
        "launch": cost(repeated(lambda: [empty(0) for _ in range(100)], device_time), 100),
        "dispatch": cost(repeated(lambda: [scalar.add_(1) for _ in range(100)], wall), 100),
    }


def main(arguments: list[str]) -> None:
    """Measure, and print one JSON line."""
    device, threads, largest = arguments[0], int(arguments[1]), int(arguments[2])
    torch.set_num_threads(threads)
    began, waited = time.perf_counter(), waited_seconds()
    with torch.no_grad():
        figures = on_cpu(largest, threads) if device == "cpu" else on_gpu(largest)
    seconds = time.perf_counter() - began
    waited = (waited_seconds() - waited) / (seconds * threads)
    print(json.dumps({**figures, "seconds": seconds, "waited": waited}))


if __name__ == "__main__":
    main(sys.argv[1:])
