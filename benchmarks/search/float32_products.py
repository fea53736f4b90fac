"""What a product of float32 matrices takes on a GPU, and how exact it is: torch's, and as traced
kernels compute it, in three products of TF32.

    python -m benchmarks.search.float32_products        (on the machine with the GPU)

Needs torch and triton alone.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.search.synthesizers.traced import triton
from optimizer.search.synthesizers.traced.program import Buffer, Call, Program, View

SHAPES = ((4096, 4096, 4096), (6304, 3072, 768), (6304, 768, 3072), (16384, 2048, 2048))
TILES = ("128x64", "64x128", "64x64", "128x128")
CALLS = 15
REFERENCE = "import torch\n\n\nclass Model(torch.nn.Module):\n    pass\n"


def main() -> None:
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}", flush=True)
    print("| rows, columns, terms | how | us | TFLOP/s | root of mean square error | worst error |")
    print("| --- | --- | --- | --- | --- | --- |")
    torch.backends.cuda.matmul.allow_tf32 = False
    for rows, columns, terms in SHAPES:
        left = torch.randn(rows, terms, device="cuda")
        weight = torch.randn(columns, terms, device="cuda") * terms**-0.5
        golden = left.double() @ weight.double().T
        show(f"{rows}, {columns}, {terms}", "torch", lambda: left @ weight.T, golden, terms)  # noqa: B023
        for tile in TILES:
            run = own(rows, columns, terms, tile).run
            call = lambda run=run: run(left, weight)  # noqa: E731, B023
            show(f"{rows}, {columns}, {terms}", tile, call, golden, terms)


def own(rows: int, columns: int, terms: int, tile: str) -> ModuleType:
    """The module that traced kernels are written to, with a product of a matrix and a transposed
    one."""
    shapes = {"in0": (rows, terms), "in1": (columns, terms), "out0": (rows, columns)}
    buffers = {
        name: Buffer(name, shape, "float32", n) for n, (name, shape) in enumerate(shapes.items())
    }
    views = [
        View("in0", (rows, terms), (terms, 1), 0),
        View("in1", (terms, columns), (1, terms), 0),
    ]
    call = Call("aten.mm.default", tuple(views), (), (buffers["out0"],), 0)
    specs = [
        TensorSpec(name, "output" if name == "out0" else "input", "float32", shape)
        for name, shape in shapes.items()
    ]
    values = {**triton.START_WITH_TF32, "product_tile": tile}
    program = Program(buffers, (), (call,))
    text = triton.written([(Signature(tuple(specs)), program)], REFERENCE, values).text
    path = Path(tempfile.mkdtemp()) / "product.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def show(shape: str, how: str, call: Callable[[], Any], golden: torch.Tensor, terms: int) -> None:
    """A line of the table; times are medians of calls between events."""
    call()
    pairs = []
    for _ in range(CALLS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(500_000)  # type: ignore[no-untyped-call]
        first.record()
        result = call()
        last.record()
        pairs.append((first, last))
    torch.cuda.synchronize()
    took = sorted(first.elapsed_time(last) for first, last in pairs)[CALLS // 2] * 1e3
    apart = result.double() - golden
    rate = 2 * golden.numel() * terms / took / 1e6
    square, worst = apart.square().mean().sqrt().item(), apart.abs().max().item()
    print(f"| {shape} | {how} | {took:.0f} | {rate:.0f} | {square:.2g} | {worst:.2g} |", flush=True)


if __name__ == "__main__":
    main()
