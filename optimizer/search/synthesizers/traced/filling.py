"""Products of 16-bit numbers whose sides are filled up to a multiple: tensor cores want rows that
begin at multiples of 16 bytes. A block of two products with odd sides takes 2.4 times as long
without (benchmarks/results/foreign_problems.md).

What a kernel of our own writes for such a product, and reads of it, lies in rows of that length at
once, so that nothing is copied. Standard library only.

https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from optimizer.search.synthesizers.traced.launches import Launch, every_load, read_of_call
from optimizer.search.synthesizers.traced.program import Buffer, Call, View
from optimizer.search.synthesizers.traced.triton_products import Product, Step, is_whole

# The place of the left matrix among the arguments.
FILLED = {"aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1}
FILLED_DTYPES = ("float16", "bfloat16")
LEAST_FILLED = 1 << 30  # multiplications; filling up a small product costs more than it saves
FILL = '''\
def filled(multiple, left, right, added=None):
    """The product with sides filled up with zeros to a multiple, in which `added` is added; `left`
    may be filled already."""
    columns = right.shape[-1]
    pad = torch.nn.functional.pad
    missing, outer = -left.shape[-1] % multiple, -columns % multiple
    left = pad(left, (0, missing)) if missing else left
    inner = left.shape[-1] - right.shape[-2]
    if right.stride(-2) == 1:  # a transposed weight keeps its order
        right = pad(right.mT, (0, inner, 0, outer)).mT if inner or outer else right
    else:
        right = pad(right, (0, outer, 0, inner)) if inner or outer else right
    if added is None:
        result = torch.matmul(left, right)
    else:
        result = torch.addmm(pad(added, (0, outer)) if outer else added, left, right)
    return result[..., :columns]
'''


def is_filled(step: Call, buffers: Mapping[str, Buffer], multiple: int) -> bool:
    """Whether it is a product that is worth filling up: large, of 16-bit numbers, with a side of
    its matrices in memory that is no multiple."""
    first = FILLED.get(step.operator)
    if first is None or step.kwargs or step.outs[0] is None:
        return False
    left, right = step.args[first : first + 2]
    kinds = {buffers[of.buffer].dtype for of in (left, right)}
    if not kinds <= set(FILLED_DTYPES) or (first and step.args[0].shape[-1] != right.shape[-1]):
        return False
    odd = left.shape[-1] % multiple or right.shape[-1] % multiple
    return bool(odd) and prod(left.shape) * right.shape[-1] >= LEAST_FILLED


def call_of(
    step: Call, buffers: Mapping[str, Buffer], multiple: int, text: Callable[[Any], str]
) -> str:
    """The line of the host for a product that is filled up; `text` writes its other arguments."""
    first = FILLED[step.operator]
    left, right = step.args[first : first + 2]
    buffer = buffers[left.buffer]
    own = text(left)
    if buffer.pitch:
        own = f"{buffer.name}.view({[*left.shape[:-1], buffer.pitch]})"
    sides = ", ".join([own, text(right), *map(text, step.args[:first])])
    (out,) = step.outs
    assert out is not None
    dense = "" if buffers[out.name].pitch else ".contiguous()"
    return f"{out.name} = filled({multiple}, {sides}){dense}"


def with_pitch(
    steps: Sequence[Step], buffers: Mapping[str, Buffer], multiple: int
) -> dict[str, Buffer]:
    """The buffers, those with a pitch that only such products and kernels of our own touch."""
    products = [s for s in steps if isinstance(s, Call) and is_filled(s, buffers, multiple)]
    written = {name for step in steps if isinstance(step, Launch) for name in step.stored}
    lefts = {_left(step).buffer for step in products} & written
    results = {step.outs[0].name for step in products if step.outs[0] and _is_matrix(step, buffers)}
    others = {name for step in steps for name in _touched(step, buffers, products)}
    return {
        name: _pitched(buffer, multiple)
        if name in (lefts | results) - others and buffer.number is None and not buffer.hidden
        else buffer
        for name, buffer in buffers.items()
    }


def _left(step: Call) -> View:
    view = step.args[FILLED[step.operator]]
    assert isinstance(view, View)
    return view


def _is_matrix(step: Call, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the last dimension of the result's buffer is that of its columns."""
    (out,) = step.outs
    assert out is not None
    right = step.args[FILLED[step.operator] + 1]
    assert isinstance(right, View)
    return buffers[out.name].shape[-1:] == right.shape[-1:] != (1,)


def _pitched(buffer: Buffer, multiple: int) -> Buffer:
    length = buffer.shape[-1]
    return replace(buffer, pitch=length + -length % multiple) if length % multiple else buffer


def _touched(step: Step, buffers: Mapping[str, Buffer], products: Sequence[Call]) -> Iterator[str]:
    """The buffers of a step that must lie as they are."""
    if isinstance(step, Launch):
        (part, *more) = step.placed
        if not more and part.body.name == "load":  # may become another name for what it copies
            yield str(part.body.value)
    elif isinstance(step, Product):
        yield from (view.buffer for view in (step.left, step.right, step.added) if view)
        yield step.out.name
        for part in step.after:
            yield part.out.name
            yield from (str(element.value) for element in every_load(part.body))
    elif any(step is product for product in products):
        first = FILLED[step.operator]
        left = _left(step)
        yield from read_of_call(replace(step, args=(*step.args[:first], *step.args[first + 1 :])))
        buffer = buffers[left.buffer]
        if not is_whole(left, buffer) or left.shape[-1] != buffer.shape[-1]:
            yield left.buffer
    else:
        yield from read_of_call(step)
