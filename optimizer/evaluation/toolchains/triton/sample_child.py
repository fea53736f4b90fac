"""Compiles the kernels of one Python sample with Triton, Gluon or the CuTe DSL, for a chip that
need not be in this machine, and prints one line of JSON for each:

    python sample_child.py REQUEST.json

The request has `file`, `tool` (triton or cute-dsl), `target` and `calls` of a row of samples.toml.
Does not import Kernlore: its interpreter may be another one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

_DESCRIPTOR = re.compile(
    r"tensordesc<(?P<dtype>\w+)\[(?P<box>[\d, ]+)\](?:,(?P<form>plain|pair))?>"
)
_TENSOR = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d?, ]+)\]")
ALIGNMENT = 16  # bytes of one vector access


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("sample", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _triton(module: ModuleType, call: Mapping[str, Any], target: list[Any]) -> dict[str, Any]:
    runtime = import_module("triton.experimental.gluon._runtime")
    kernel = getattr(module, call["kernel"])
    gluon = isinstance(kernel, runtime.GluonJITFunction)
    types = {name: _type(text, gluon) for name, text in call["signature"].items()}
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    plain = import_module("triton.compiler.compiler").ASTSource
    source = (runtime.GluonASTSource if gluon else plain)(
        kernel, signature, dict(call["constants"])
    )
    chip = import_module("triton.backends.compiler").GPUTarget(*target)
    options = dict(call["options"])
    compiled = import_module("triton").compile(source, target=chip, options=options)
    return {"shared_bytes": compiled.metadata.shared}


def _type(text: str, gluon: bool) -> str:
    """Complete a Gluon descriptor with its layout: the default for its box, unswizzled rows for
    `plain`, the default split in two along the first dimension for `pair`."""
    match = _DESCRIPTOR.fullmatch(text)
    if match is None or not gluon:
        return text
    gl = import_module("triton.experimental.gluon.language")
    names = {"bf16": gl.bfloat16, "fp16": gl.float16, "fp32": gl.float32}
    names |= {"fp8e4nv": gl.float8e4nv, "u8": gl.uint8}
    box, dtype = [int(size) for size in match["box"].split(",")], names[match["dtype"]]
    if match["form"] == "plain":
        layout = gl.NVMMASharedLayout(0, dtype.primitive_bitwidth, rank=len(box))
    else:
        split = [[1] + [0] * (len(box) - 1)] if match["form"] == "pair" else None
        layout = gl.NVMMASharedLayout.get_default_for(box, dtype, cga_layout=split)
    return f"tensordesc<{match['dtype']}[{match['box']}],{layout!r}>"


def _cute(module: ModuleType, call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = [_argument(text) for text in call["arguments"]]
    import_module("cutlass.cute").compile(getattr(module, call["kernel"]), *arguments)
    return {}


def _argument(text: str) -> Any:
    """`bf16[?, 4096]` is a row-major tensor (bf16, fp16, fp32, i32); `?` is a size known at run
    time, `?8` one divisible by 8. `f32 1e-6` is a number."""
    cutlass, cute = import_module("cutlass"), import_module("cutlass.cute")
    fake = import_module("cutlass.cute.runtime")
    names = {"bf16": cutlass.BFloat16, "fp16": cutlass.Float16, "fp32": cutlass.Float32}
    names["i32"] = cutlass.Int32
    if text == "stream":
        return fake.make_fake_stream()
    match = _TENSOR.fullmatch(text)
    if match is None:
        name, _, value = text.partition(" ")
        return {"f32": cutlass.Float32, "i32": cutlass.Int32}[name](float(value))
    sizes = [part.strip() for part in match["sizes"].split(",")]
    shape = tuple(
        cute.sym_int(divisibility=int(size[1:] or 1)) if size[0] == "?" else int(size)
        for size in sizes
    )
    order = tuple(reversed(range(len(shape))))
    return fake.make_fake_compact_tensor(
        names[match["dtype"]], shape, stride_order=order, assumed_align=ALIGNMENT
    )


def main() -> None:
    """Compile the kernels of the request; a failure ends the program with its traceback."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if request["tool"] == "cute-dsl":
        os.environ["CUTE_DSL_ARCH"] = request["target"]
    module = _module(Path(request["file"]))
    for call in request["calls"]:
        if request["tool"] == "cute-dsl":
            report = _cute(module, call)
        else:
            report = _triton(module, call, request["target"])
        print(json.dumps({"kernel": call["kernel"], **report}), flush=True)


if __name__ == "__main__":
    main()
