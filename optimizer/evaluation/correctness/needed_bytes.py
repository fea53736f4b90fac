"""How much of its inputs a result depends on, by trying: what a slice, a stride or a gather leaves
out, no kernel has to read.

A line of an input is overwritten with the input's largest or smallest value, which its operators
take, and the reference is called again; where no output differs, the line was not needed.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence

import torch

from optimizer.evaluation.problem.tensors import OpenCase

PROBES = 24  # lines of each input
LINE = 64  # bytes, aligned: what a processor reads at once
SMALL = 0.05  # of all bytes, below which an input is taken as needed whole
Z = 1.645  # of the one-sided interval of 95 %
SECONDS = 30.0  # for all calls of the reference; where it takes longer, all counts as needed


def needed_read_bytes(case: OpenCase, device: str, seed: int) -> int:
    """Bytes of inputs and weights that the outputs depend on: the lower end of an interval of 95 %,
    from PROBES lines of each large input or weight of floats. Integers index and choose, so they
    count whole; and so does everything where the reference fails, takes too long, or does not
    repeat its own result.
    """
    total = case.signature.compulsory_read_bytes
    try:
        return total - _left_out(case, device, seed, total)
    # The reference is somebody's own code, and takes values that nobody has tried with it.
    except Exception:
        return total


def _left_out(case: OpenCase, device: str, seed: int, total: int) -> int:
    inputs, state = [value.to(device) for value in case.inputs(seed)], case.state(seed)
    began = time.monotonic()
    first = case.reference(inputs, state, device=device)
    again = case.reference(inputs, state, device=device)
    probed = [v for v, scalar in zip(inputs, case.scalars, strict=True) if not scalar]
    probed = [v for v in (*probed, *state.values()) if _worth_probing(v, total)]
    calls = 2 * PROBES * len(probed)
    if any(map(_differ, again, first)) or calls * (time.monotonic() - began) / 2 > SECONDS:
        return 0
    chance = random.Random(seed)
    left_out = 0.0
    for value in probed:
        places = list(_lines(value, chance))
        hits = sum(_needed(case, inputs, state, value, p, first, device) for p in places)
        size = value.numel() * value.element_size()
        left_out += size * (1.0 - least_share(hits, len(places)))
    return int(left_out)


def _worth_probing(value: torch.Tensor, total: int) -> bool:
    if not value.is_floating_point() or value.numel() * value.element_size() < SMALL * total:
        return False
    return bool(value.isfinite().all()) and bool(value.max() > value.min())


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


def _lines(value: torch.Tensor, chance: random.Random) -> Iterator[slice]:
    """Lines of the flat input, drawn by chance."""
    width = LINE // value.element_size()
    for _ in range(PROBES):
        start = width * chance.randrange(math.ceil(value.numel() / width))
        yield slice(start, start + width)


def _needed(
    case: OpenCase,
    inputs: Sequence[torch.Tensor],
    state: Mapping[str, torch.Tensor],
    value: torch.Tensor,
    place: slice,
    first: Sequence[torch.Tensor],
    device: str,
) -> bool:
    """Whether any output differs when one line of an input or weight holds something else."""
    flat = value.view(-1)
    before = flat[place].clone()
    extremes = (value.max().clone(), value.min().clone())
    try:
        for extreme in extremes:
            flat[place] = extreme
            outputs = case.reference(inputs, state, device=device)
            if any(map(_differ, outputs, first)):
                return True
        return False
    finally:
        flat[place] = before


def _differ(output: torch.Tensor, first: torch.Tensor) -> bool:
    same = (output == first) | ((output != output) & (first != first))
    return not bool(same.all())
