"""How much of its inputs a result depends on, by trying: what a slice, a stride or a gather leaves
out, no kernel has to read.

A sector of an input is overwritten and the reference is called again; where no output differs, it
was not needed. NaN passes through nearly every operator; large values of both signs are tried after
it, for a comparison, which NaN does not change.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import torch

from optimizer.evaluation.problem.tensors import OpenCase

PROBES = 24  # sectors of each input
SECTOR = 64  # bytes, consecutive: a cache line
SMALL = 0.05  # of all bytes, below which an input is taken as needed whole
POISON = (math.nan, 1e4, -1e4)
Z = 1.645  # of the one-sided interval of 95 %


def needed_read_bytes(case: OpenCase, device: str, seed: int) -> int:
    """Bytes of inputs and weights that the outputs depend on: the lower end of an interval of 95 %,
    from PROBES sectors of each large input. Calls the reference some dozens of times.

    Integers index and choose, so they count whole.
    """
    inputs, state = [value.to(device) for value in case.inputs(seed)], case.state(seed)
    total = case.signature.compulsory_read_bytes
    first = case.reference(inputs, state, device=device)
    chance = random.Random(seed)
    unread = 0.0
    for value, scalar in zip(inputs, case.scalars, strict=True):
        size = value.numel() * value.element_size()
        if scalar or not value.is_floating_point() or size < SMALL * total:
            continue
        hits = sum(
            _needed(case, inputs, state, value, place, first, device)
            for place in _places(value, chance)
        )
        unread += size * (1.0 - least_share(hits, PROBES))
    return total - int(unread)


def least_share(hits: int, tries: int) -> float:
    """The lower end of Wilson's interval for the share of hits
    (https://en.wikipedia.org/wiki/Binomial_proportion_confidence_interval), and 1.0 where all hit.
    """
    if hits == tries:
        return 1.0
    share, squared = hits / tries, Z * Z
    middle = share + squared / (2 * tries)
    half = Z * math.sqrt(share * (1 - share) / tries + squared / (4 * tries * tries))
    return max(0.0, (middle - half) / (1 + squared / tries))


def _places(value: torch.Tensor, chance: random.Random) -> Iterator[slice]:
    """Sectors of the flat input, drawn by chance."""
    width = min(value.numel(), max(1, SECTOR // value.element_size()))
    for _ in range(PROBES):
        start = chance.randrange(value.numel() - width + 1)
        yield slice(start, start + width)


def _needed(
    case: OpenCase,
    inputs: Sequence[torch.Tensor],
    state: dict[str, torch.Tensor],
    value: torch.Tensor,
    place: slice,
    first: Sequence[torch.Tensor],
    device: str,
) -> bool:
    """Whether any output differs when one sector of an input, `value`, holds something else."""
    flat = value.view(-1)
    before = flat[place].clone()
    try:
        for poison in POISON:
            flat[place] = poison
            outputs = case.reference(inputs, state, device=device)
            if any(map(_differ, outputs, first)):
                return True
        return False
    finally:
        flat[place] = before


def _differ(output: torch.Tensor, first: torch.Tensor) -> bool:
    same = (output == first) | ((output != output) & (first != first))
    return not bool(same.all())
