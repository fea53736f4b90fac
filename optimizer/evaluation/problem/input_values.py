"""Values of tensors: draws, distributions, and which tensors may be changed piecewise.

Knows tensors, not problems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from optimizer.evaluation.problem.spec import Distribution

# Mean of `offset` in standard deviations: large enough to cancel badly, small enough that the
# dtype still resolves a deviation in eight steps or more.
_OFFSETS = {torch.float64: 1e6, torch.float32: 1e3, torch.float16: 32.0, torch.bfloat16: 8.0}
_DECADES = {torch.float64: 6.0, torch.float32: 6.0, torch.float16: 3.0, torch.bfloat16: 3.0}
_SPREAD_SEED = 0x5EED
KEPT_SHARE = 1 / 8  # of the memory that is free, which a draw that is kept takes at most
ALWAYS_KEPT = 256 * 2**20  # bytes of a draw that is kept in any case
DRAWN_SHARE = 1 / 8  # of a GPU's memory, which the values take with all that leads to them


def cast(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """The tensor in this dtype where it holds floating values; None leaves it as it is."""
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def own_copy(tensor: torch.Tensor, dtype: torch.dtype | None, device: str) -> torch.Tensor:
    """A copy on the device, as `cast`; only one is made, as arrays may fill a device's memory."""
    moved = cast(tensor.to(device), dtype)  # a device casts large arrays quickly
    return moved.clone() if moved.data_ptr() == tensor.data_ptr() else moved


def scalar_dtype(value: Any) -> torch.dtype | None:
    """That of a tensor for a Python number; None for what has one."""
    return torch.float64 if isinstance(value, float) else None


class LatestDraw:
    """The values of the seed that was drawn last. Drawing a gigabyte on a CPU takes seconds, and
    opening a case asks for the values of one seed six times.

    On a GPU it takes milliseconds. Inputs that take more than DRAWN_SHARE of its memory are drawn
    on the CPU, and so is what cannot be made there, such as a sum with an array of numpy's. That is
    decided once, at the first draw: a seed has the same values whenever it is drawn.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._device: str | None = None  # that draws; None until it is decided
        self._wanted = device
        self._seed: int | None = None
        self._values: list[Any] = []

    def of(self, seed: int, draw: Callable[[int], list[Any]]) -> list[Any]:
        """What `draw` makes of the seed, on the CPU; what would take too much of the memory that
        is free is drawn each time.
        """
        if seed == self._seed:
            return self._values
        self._seed, self._values = None, []
        if self._device is None:
            self._device, values = self._first(seed, draw)
        else:
            values = _drawn_on(self._device, seed, draw)
        if _bytes_of(values) <= max(ALWAYS_KEPT, KEPT_SHARE * _free_memory()):
            self._seed, self._values = seed, values
        return values

    def _first(self, seed: int, draw: Callable[[int], list[Any]]) -> tuple[str, list[Any]]:
        if self._wanted != "cpu":
            with suppress(Exception):  # whatever it is: the CPU draws it, or says what is wrong
                values = _drawn_on(self._wanted, seed, draw)
                memory = torch.cuda.get_device_properties(self._wanted).total_memory
                if _bytes_of(values) <= DRAWN_SHARE * memory:
                    return self._wanted, values
            torch.cuda.empty_cache()
        return "cpu", draw(seed)


def _bytes_of(values: Sequence[Any]) -> int:
    return sum(v.nbytes for v in values if isinstance(v, torch.Tensor))


def _free_memory() -> int:
    """In bytes, with what the system would give back; 0 where it does not say."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return 0
    lines = dict(line.split(":", 1) for line in text.splitlines())
    return int(lines.get("MemAvailable", "0 kB").split()[0]) << 10


def _drawn_on(device: str, seed: int, draw: Callable[[int], list[Any]]) -> list[Any]:
    """What `draw` makes on this device, whose memory is given back, on the CPU."""
    if device == "cpu":
        return draw(seed)
    with torch.device(device), torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        made = draw(seed)
    values = [v.cpu() if isinstance(v, torch.Tensor) else v for v in made]
    del made
    torch.cuda.empty_cache()
    return values


def distributed(
    values: torch.Tensor, distribution: Distribution, dtype: torch.dtype, seed: int
) -> torch.Tensor:
    """Floating values drawn from, or moved to, a distribution, as `dtype`."""
    if distribution == "as_given" or not values.numel():
        return values.to(dtype)
    if distribution == "wide":
        return _wide(values.shape, _DECADES.get(dtype, 3.0), seed).to(dtype)
    wide = values.double() if dtype == torch.float64 else values.float()
    deviation, mean = torch.std_mean(wide, correction=0)
    centred = (wide - mean) / deviation if deviation > 0 else wide - mean
    if distribution == "offset":
        centred += _OFFSETS.get(dtype, 8.0)
    return centred.to(dtype)


def _wide(shape: torch.Size, decades: float, seed: int) -> torch.Tensor:
    """Random signs; magnitudes log-uniform around 1."""
    source = torch.Generator().manual_seed(seed ^ _SPREAD_SEED)
    spread = torch.rand(shape, generator=source)
    sign = torch.randint(0, 2, shape, generator=source, dtype=torch.int8) * 2 - 1
    return torch.pow(10.0, (spread - 0.5) * decades) * sign


def lively(name: str, value: torch.Tensor, is_parameter: bool, seed: int) -> torch.Tensor:
    """Other values for a weight that starts as one constant (a norm's scale of ones, its bias of
    zeros, running statistics), so that a kernel that leaves it out is wrong."""
    statistic = name.rpartition(".")[2] in ("running_mean", "running_var")
    if not (is_parameter or statistic) or not value.is_floating_point() or value.numel() < 2:
        return value
    first = value.view(-1)[0]
    if not bool((value == first).all()):
        return value
    source = torch.Generator().manual_seed(seed)
    noise = torch.rand(value.shape, generator=source, dtype=torch.float32)
    return (noise - 0.5 if first == 0 else first * (noise + 0.5)).to(value.dtype)


def replaceable(first: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether stretches of a floating tensor may be replaced by stretches of a second draw of it,
    at other places.

    Not if both draws are equal (a table, not a sample), or share a structure that a candidate may
    rely on: the same zeros, symmetry, sorted rows.
    """
    if not first.is_floating_point() or not first.numel() or torch.equal(first, other):
        return False
    zeros = first == 0
    if bool(zeros.any()) and torch.equal(zeros, other == 0):
        return False
    if first.dim() >= 2 and first.shape[-1] == first.shape[-2] > 1 and torch.equal(first, first.mT):
        return False
    return not (first.dim() and first.shape[-1] > 2 and bool((first.diff(dim=-1) >= 0).all()))
