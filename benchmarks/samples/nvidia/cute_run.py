"""Runs the CuTe DSL product that `cute_build.py` built, on a machine with a Hopper GPU and torch.

    python benchmarks/samples/nvidia/cute_run.py FOLDER

Compares with float64 at shapes with and without ragged edges and for equal bits in 20 launches,
then times CUDA graphs of rotating inputs in turn with cuBLAS. Needs no CuTe DSL. Decoding has
`cute_decode_run.py`, which takes the loading and the timing from here.
"""

import ctypes
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

SHAPES = ((128, 256, 64), (256, 512, 512), (1000, 1304, 776), (65, 8, 8), (3000, 4096, 1024))
TIMED = ((4096, 4096, 4096), (8192, 8192, 8192))
BOUND = 4e-3  # relative error in the 2-norm: half a step of bf16 is 2e-3 to 4e-3 of a value
ROTATION, REPLAYS = 3, 15

Multiply = Callable[..., torch.Tensor]


def library(path: Path) -> ctypes.CDLL:
    """A library that leaves the CUDA runtime's symbols to this process."""
    torch.zeros(1, device="cuda")  # loads the CUDA runtime and makes a context
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    names = [line.split()[-1] for line in maps if "libcudart" in line]
    if names:  # its symbols have to be global before the library below is loaded
        ctypes.CDLL(names[0], mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(path.resolve()))


def product(folder: Path) -> Multiply:
    """A function of two torch matrices and one for the result."""
    loaded = library(folder / "gemm.so")
    pointer, integer = ctypes.c_void_p, ctypes.c_int
    loaded.gemm.argtypes = [pointer] * 3 + [integer] * 4 + [pointer]
    loaded.load()
    units = torch.cuda.get_device_properties(0).multi_processor_count

    def multiply(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        sizes = (a.shape[0], b.shape[0], a.shape[1])
        addresses = (a.data_ptr(), b.data_ptr(), c.data_ptr())
        stream = torch.cuda.current_stream().cuda_stream
        failed = loaded.gemm(*addresses, *sizes, units, stream)
        if failed:
            raise RuntimeError(f"the launch failed with CUDA error {failed}")
        return c

    return multiply


def compare(multiply: Multiply) -> None:
    """Raise SystemExit for a wrong value or for bits that differ between launches."""
    for m, n, k in SHAPES:
        a = torch.randn(m, k, device="cuda").bfloat16()
        b = torch.randn(n, k, device="cuda").bfloat16()
        guarded = torch.full((m + 2, n), 7.0, device="cuda", dtype=torch.bfloat16)
        c = multiply(a, b, guarded[1 : m + 1])
        expected = a.double() @ b.double().T
        error = ((c.double() - expected).norm() / expected.norm()).item()
        again = all(torch.equal(multiply(a, b, torch.empty_like(c)), c) for _ in range(20))
        untouched = bool((guarded[0] == 7).all() and (guarded[-1] == 7).all())
        row = {
            "shape": [m, n, k],
            "error": error,
            "equal_bits": again,
            "neighbours_kept": untouched,
        }
        print(json.dumps(row), flush=True)
        if not (error <= BOUND and again and untouched):
            raise SystemExit(f"wrong at {m} x {n} x {k}")


def graph_of(function: Callable[..., Any], sets: Sequence[tuple[Any, ...]]) -> Any:
    """A CUDA graph that calls the function once for each set of inputs."""
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        for inputs in sets:
            function(*inputs)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for inputs in sets:
            function(*inputs)
    return graph


def medians(graphs: Mapping[str, Any], calls: int) -> dict[str, float]:
    """Median seconds of a call of each graph, replayed in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(REPLAYS + 3):
        for name, graph in graphs.items():
            start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            seconds[name].append(start.elapsed_time(end) / 1e3 / calls)
    return {name: statistics.median(times[3:]) for name, times in seconds.items()}


def timed(multiply: Multiply) -> None:
    """Median TFLOP/s of both, replayed in turn."""
    for m, n, k in TIMED:
        sets = [
            tuple(
                torch.randn(rows, columns, device="cuda").bfloat16()
                for rows, columns in ((m, k), (n, k), (m, n))
            )
            for _ in range(ROTATION)
        ]
        cublas = graph_of(lambda a, b, c: torch.mm(a, b.T, out=c), sets)
        seconds = medians({"sample": graph_of(multiply, sets), "cublas": cublas}, ROTATION)
        rates = {name: 2 * m * n * k / time / 1e12 for name, time in seconds.items()}
        print(json.dumps({"shape": [m, n, k], "tflops": rates}), flush=True)


if __name__ == "__main__":
    print(torch.cuda.get_device_name(), torch.__version__)
    multiplied = product(Path(sys.argv[1]))
    compare(multiplied)
    timed(multiplied)
