"""Writes a lowered graph as Triton: one kernel for every launch, and a host function that launches
them in order and calls torch's operators between them.

One host function per case; `run` selects it by the shapes that it gets and rejects other shapes.
Runs without a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.evaluation.abi import Signature
from optimizer.search.records import Value
from optimizer.search.synthesizers.traced import triton_operators as operators
from optimizer.search.synthesizers.traced.expression import (
    Buffer,
    Call,
    ElementExpression,
    NotWritten,
    Program,
    View,
)
from optimizer.search.synthesizers.traced.graph import ATTENTION, ATTENTION_OPTIONS
from optimizer.search.synthesizers.traced.launches import KernelLaunch, launches, place_of
from optimizer.search.synthesizers.traced.triton_kernel import KernelText, write_kernel
from optimizer.search.synthesizers.traced.triton_products import (
    AUTO,
    LIBRARY,
    PADDING_FUNCTION,
    TENSOR_CORES,
    WINDOWS_TOO,
    ProductLaunch,
    is_padded,
    laid_out,
    padded_call,
    view_text,
    with_pitch,
    with_products,
    write_product,
)

# Choices of a kernel: elements per program without and with a reduction, elements per warp, the
# longest row that stays in registers, the chunk of a longer row, the multiple to which the sides of
# a product are padded (1: not at all), which implementation computes products of float32, and the
# rows and columns of a tile of these.
DEFAULTS: Mapping[str, Value] = {
    "block": 1024,
    "row_block": 4096,
    "warp_elements": 256,
    "resident": 32768,
    "chunk": 4096,
    "product_multiple": 8,
    "products": LIBRARY,
    "product_tile": AUTO,
}
ALTERNATIVES: Mapping[str, tuple[Value, ...]] = {
    "product_tile": ("128x64", "64x128", "64x64", "128x128"),
    "products": (LIBRARY, WINDOWS_TOO),
    "row_block": (1024, 8192, 2048),
    "warp_elements": (512, 128, 1024),
    "chunk": (2048, 8192),
    "block": (512, 2048, 4096),
    "resident": (16384, 4096),
    "product_multiple": (1,),
}
# Defaults for chips whose tensor cores support TF32.
DEFAULTS_WITH_TF32: Mapping[str, Value] = {**DEFAULTS, "products": TENSOR_CORES}
_FUSED = "scaled_dot_product_attention"
# must be the first statement of a file
_FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)
_HEAD = '''\
"""Written from the traced graph of the problem: {about}."""
{future}
import torch
import triton
import triton.language as tl

'''
_TAIL = '''

{reference}


class ModelNew(Model):
    """The reference's weights with these kernels."""

    def forward(self, *inputs):
        return run(*inputs, *self.state_dict(keep_vars=True).values(){hidden})
'''


@dataclass(frozen=True)
class CandidateText:
    """The source of a candidate, its number of kernels, and the operators that torch computes."""

    text: str
    kernels: int
    left: tuple[str, ...]


def write_candidate(
    programs: Sequence[tuple[Signature, Program]], reference: str, values: Mapping[str, Value]
) -> CandidateText:
    """The source of a candidate that serves these cases; `reference` is the problem's own file.
    Raises NotWritten."""
    hosts, kernels, left, tests = [], [], [], []
    hidden = sorted({b.hidden for _, p in programs for b in p.buffers.values() if b.hidden})
    for number, (signature, program) in enumerate(programs):
        case = _case(number, signature, program, hidden, values)
        hosts.append(case.host)
        kernels += case.kernels
        left += case.left
        tests.append(_dispatch_branch(number, signature, hidden))
    if not kernels:
        raise NotWritten(f"no kernel to write: all operators stay with torch: {', '.join(left)}")
    used = sorted({helper for kernel in kernels for helper in kernel.helpers})
    others = tuple(dict.fromkeys(left))
    count = f"{len(kernels)} kernel" + ("s" if len(kernels) > 1 else "")
    about = count + (f"; torch's {', '.join(others)}" if others else "")
    fill = PADDING_FUNCTION if any(" = filled(" in host for host in hosts) else ""
    parts = [operators.helpers(used), fill, *(k.text for k in kernels), *hosts]
    parts.append(_run(tests, len(hidden)))
    future = "".join(f"\n{line}\n" for line in _FUTURE.findall(reference))
    head = _HEAD.format(about=about, future=future) + "\n\n" + "\n\n".join(p for p in parts if p)
    more = "".join(f', self.get_buffer("{path}")' for path in hidden)
    tail = _TAIL.format(reference=_FUTURE.sub("", reference), hidden=more)
    return CandidateText(head + tail, len(kernels), others)


@dataclass(frozen=True)
class _HostFunction:
    host: str
    kernels: list[KernelText]
    left: list[str]


def _case(
    number: int,
    signature: Signature,
    program: Program,
    hidden: Sequence[str],
    values: Mapping[str, Value],
) -> _HostFunction:
    """The host function and kernels of one case. `hidden` are the Model's paths of all buffers that
    are passed after the interface's tensors, including those that this case does not read."""
    given = len(signature.of("input", "parameter", "buffer"))
    if not given:
        raise NotWritten("a problem without tensors to read")
    names = [f"in{n}" for n in range(given)]
    own = {buffer.hidden: buffer.name for buffer in program.buffers.values()}
    names += [own.get(path, f"unused{n}") for n, path in enumerate(hidden)]
    lines: list[str] = []
    kernels: list[KernelText] = []
    left: list[str] = []
    alias: dict[str, str] = {}
    steps = launches(program)
    called = {out.name for s in steps if isinstance(s, Call) for out in s.outs if out is not None}
    buffers = {**program.buffers, **_new_buffers(steps)}
    multiple = int(values.get("product_multiple", 1))
    with_own_products = with_products(steps, buffers, values)
    buffers = with_pitch(with_own_products, buffers, multiple)
    for step in with_own_products:
        if isinstance(step, Call):
            left.append(_FUSED if step.operator == ATTENTION else _short(step.operator))
            lines += _call_lines(step, buffers, multiple)
            continue
        same = _aliased_result(step, called, buffers) if isinstance(step, KernelLaunch) else None
        if same is not None and isinstance(step, KernelLaunch):
            alias[step.placed[0].out.name] = same
            continue
        name = f"traced_{number}_{len(kernels)}"
        if isinstance(step, ProductLaunch):
            product = laid_out(step, name, buffers)
            kernel = write_product(name, product, buffers, values)
            stored = step.elementwise_stored | ({step.out.name} if step.stored else set())
            lines += product.prepared
        else:
            kernel = write_kernel(name, step, buffers, values)
            stored = step.stored
        kernels.append(kernel)
        lines += [line for name in sorted(stored) for line in _allocated(buffers[name])]
        meta = f"num_warps={kernel.warps}"
        meta += f", num_stages={kernel.stages}" if kernel.stages else ""
        lines.append(f"{kernel.name}[({kernel.programs},)]({', '.join(kernel.arguments)}, {meta})")
    outputs = [f"out{n}" for n in range(len(signature.of("output")))]
    results = [alias.get(name, name) for name in outputs]
    lines.append(f"return {results[0]}" if len(results) == 1 else f"return ({', '.join(results)})")
    body = "\n".join(f"    {line}" for line in lines)
    host = f"def traced_case{number}({', '.join(names)}):\n    device = in0.device\n{body}\n"
    return _HostFunction(host, kernels, left)


def _short(operator: str) -> str:
    return operator.removesuffix(".default")


def _new_buffers(steps: Sequence[KernelLaunch | Call]) -> dict[str, Buffer]:
    """The buffers that splitting into launches added, with their shapes."""
    return {
        part.out.name: part.out
        for step in steps
        if isinstance(step, KernelLaunch)
        for part in step.placed
        if part.out.number is None
    }


def _aliased_result(
    launch: KernelLaunch, called: set[str], buffers: Mapping[str, Buffer]
) -> str | None:
    """The result of a call that a launch would only copy, as a Python expression."""
    if len(launch.placed) != 1 or launch.placed[0].role != "point":
        return None
    (part,) = launch.placed
    body: ElementExpression = part.body
    if body.name != "load" or str(body.value) not in called:
        return None
    source = buffers[str(body.value)]
    result = buffers[part.out.name]
    same = place_of(body, source) == part.place and source.elements == result.elements
    if not same or source.dtype != result.dtype:
        return None
    return source.name if source.shape == result.shape else f"{source.name}.view({result.shape})"


def _allocated(buffer: Buffer) -> list[str]:
    kind = f"torch.{buffer.dtype}"
    lines = [f"{buffer.name} = torch.empty({buffer.memory_shape}, dtype={kind}, device=device)"]
    if buffer.pitch:
        lines.append(f"{buffer.name}[..., {buffer.shape[-1]}:] = 0")
    return lines


def _call_lines(step: Call, buffers: Mapping[str, Buffer], multiple: int) -> list[str]:
    if is_padded(step, buffers, multiple):
        return [padded_call(step, buffers, multiple, lambda arg: _argument_text(arg, buffers))]
    called, named, turned = f"torch.ops.{step.operator}", dict(step.kwargs), ""
    args = [_argument_text(arg, buffers) for arg in step.args]
    if step.operator == ATTENTION:
        called = f"torch.nn.functional.{_FUSED}"
        named |= zip(ATTENTION_OPTIONS, step.args[3:], strict=False)
        args = args[:3]
        (out,) = step.outs
        turned = ".transpose(1, 2)" if out is not None and len(out.shape) == 4 else ""
    args += [f"{key}={_argument_text(arg, buffers)}" for key, arg in named.items()]
    call = f"{called}({', '.join(args)})"
    if len(step.outs) == 1 and step.outs[0] is not None:
        return [f"{step.outs[0].name} = {call}{turned}.contiguous()"]
    wanted = [(n, out.name) for n, out in enumerate(step.outs) if out is not None]
    return [
        f"results = {call}",
        *(f"{name} = results[{number}].contiguous()" for number, name in wanted),
    ]


def _argument_text(of: Any, buffers: Mapping[str, Buffer]) -> str:
    """An argument of a call as Python source. Raises NotWritten."""
    if isinstance(of, View):
        return view_text(of, buffers[of.buffer])
    if isinstance(of, list):
        return f"[{', '.join(_argument_text(part, buffers) for part in of)}]"
    if isinstance(of, float) and (of != of or of in (float("inf"), float("-inf"))):
        return f'float("{of}")'
    if of is None or isinstance(of, bool | int | float | str):
        return repr(of)
    text = str(of)
    if text.startswith("torch."):
        return text
    if type(of).__name__ == "device":
        return "device"
    raise NotWritten(f"a call with an argument {text[:60]}")


def _dispatch_branch(number: int, signature: Signature, hidden: Sequence[str]) -> str:
    given = signature.of("input", "parameter", "buffer")
    shapes = ", ".join(str(t.shape) for t in given)
    kinds = ", ".join(f"torch.{t.dtype}" for t in given)
    return (
        f"    if shapes == [{shapes}] and kinds == [{kinds}]:\n"
        f"        return traced_case{number}(*tensors{', *hidden' if hidden else ''})\n"
    )


def _run(tests: Sequence[str], hidden: int) -> str:
    apart = f"    tensors, hidden = tensors[:-{hidden}], tensors[-{hidden}:]\n" if hidden else ""
    return (
        f"def run(*tensors):\n{apart}"
        "    shapes = [tuple(t.shape) for t in tensors]\n"
        "    kinds = [t.dtype for t in tensors]\n"
        f"{''.join(tests)}"
        '    raise ValueError("a shape that these kernels were not written for")\n'
    )
