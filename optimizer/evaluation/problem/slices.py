"""Float64 results that do not fit into a device's memory, computed by slices of the leading
dimension and proven by the reference itself.

Whether a reference treats rows (or batch entries) separately is decided at full size: its results
in the case's own dtype, whole and by slices, must agree everywhere. Knows tensors, not problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from kb.errors import InvalidRequest
from optimizer.evaluation.problem.bounds import allowed, compare

PIECES = (4, 16, 64)  # numbers of slices that are tried, as memory runs out
# Share of the elements of a 16-bit output that may be rounded otherwise in a slice. A dependence
# that its coarse rounding hides in each element would show in many.
ROUNDED = 0.01
Run = Callable[[Sequence[torch.Tensor], torch.dtype | None], list[torch.Tensor]]


class Sliced(NamedTuple):
    """Goldens, and the slice that their computation may be repeated on: `cut` are the numbers of
    the inputs that are cut after `rows`."""

    goldens: list[torch.Tensor]
    cut: tuple[int, ...]
    rows: int


def golden_in_slices(
    run: Run, inputs: Sequence[torch.Tensor], whole: Sequence[torch.Tensor], terms: int
) -> Sliced | None:
    """The float64 outputs of `run`, or None if they are not those of slices side by side.

    `run` takes inputs and a dtype for all floating values, None for their own; `whole` are its
    outputs in their own dtype, on the device; `terms` is the number of terms in a sum. Raises
    OutOfMemoryError if the device is too small for the smallest slices.
    """
    counts = {output.shape[0] if output.dim() else 0 for output in whole}
    if len(counts) != 1 or (count := counts.pop()) < PIECES[0]:
        return None
    long = tuple(n for n, v in enumerate(inputs) if v.dim() and v.shape[0] == count)
    # A square second factor of a product has as many rows as the first.
    for cut in dict.fromkeys((long, long[:1])):
        sliced = _with_less_memory(run, inputs, whole, terms, cut) if cut else None
        if sliced is not None:
            return sliced
    return None


def first_rows(
    inputs: Sequence[torch.Tensor], cut: Sequence[int], begin: int, end: int
) -> list[torch.Tensor]:
    """The inputs; those numbered in `cut` are reduced to these rows."""
    return [value[begin:end] if n in cut else value for n, value in enumerate(inputs)]


def _with_less_memory(
    run: Run,
    inputs: Sequence[torch.Tensor],
    whole: Sequence[torch.Tensor],
    terms: int,
    cut: tuple[int, ...],
) -> Sliced | None:
    count = whole[0].shape[0]
    for pieces in PIECES:
        rows = -(-count // pieces)
        try:
            return _joined(run, inputs, whole, terms, cut, rows)
        except torch.OutOfMemoryError:
            if pieces == PIECES[-1]:
                raise
            torch.cuda.empty_cache()
        except InvalidRequest:  # its shapes are fixed
            return None
    return None


def _joined(
    run: Run,
    inputs: Sequence[torch.Tensor],
    whole: Sequence[torch.Tensor],
    terms: int,
    cut: tuple[int, ...],
    rows: int,
) -> Sliced | None:
    goldens: list[torch.Tensor] = []
    for begin, end in _pieces(whole[0].shape[0], rows):
        part = first_rows(inputs, cut, begin, end)
        own = run(part, None)
        expected = [output[begin:end] for output in whole]
        if len(own) != len(whole) or not all(map(_same, own, expected, [terms] * len(own))):
            return None
        exact = run(part, torch.float64)
        if not goldens:
            shapes = [(whole[0].shape[0], *value.shape[1:]) for value in exact]
            goldens = [v.new_empty(shape) for v, shape in zip(exact, shapes, strict=True)]
        for golden, value in zip(goldens, exact, strict=True):
            golden[begin:end] = value
    return Sliced(goldens, cut, rows)


def _pieces(count: int, rows: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, count, rows):
        yield begin, min(count, begin + rows)


def _same(own: torch.Tensor, expected: torch.Tensor, terms: int) -> bool:
    """Whether a slice's output is that of the whole, but for the order of its sums."""
    if own.shape != expected.shape or own.dtype != expected.dtype:
        return False
    if not own.is_floating_point():
        return torch.equal(own, expected)
    if own.element_size() <= 2 and own.numel():
        apart = (own != expected) & ~(own.isnan() & expected.isnan())
        if int(apart.sum()) > max(1, ROUNDED * own.numel()):
            return False
    name = str(own.dtype).removeprefix("torch.")
    golden = expected.double()
    return compare(own, golden, allowed(golden, expected, "float", name, terms)).ok
