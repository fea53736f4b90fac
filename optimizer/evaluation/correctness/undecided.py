"""Elements of whole-number outputs that no order of rounding settles: a count of what lies below a
limit, where a value is as near the limit as its own rounding.

Such an element is shown to be undecided by the reference itself: run in float64, and run in float64
with every result that the case's dtype would round moved by what honest kernels may lose there, up
and down (Monte Carlo arithmetic). Inputs stay as they are, and so does a result that the dtype
holds exactly, so a comparison of inputs, or of sums of ones, is never undecided. An element that
two of these runs disagree on is held against each of their results, any other against the
reference's bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from optimizer.evaluation.problem.bounds import rounding
from optimizer.evaluation.problem.operators import ADDED_TO
from optimizer.evaluation.problem.tensors import OpenCase
from optimizer.evaluation.runner.dispatch import DispatchWatch

DRAWS = 3  # of directions of rounding; each is run with its opposite too
# Of an output's elements, that may be undecided: where it is more, rounding is all that it shows.
MOST_SHARE = 0.01
# Pointwise operators that round nothing; those that compare give no floats.
EXACT = frozenset(
    [
        "abs",
        "neg",
        "relu",
        "clamp",
        "clamp_min",
        "clamp_max",
        "minimum",
        "maximum",
        "fmin",
        "fmax",
        "where",
        "floor",
        "ceil",
        "round",
        "trunc",
        "sign",
        "sgn",
        "threshold",
        "hardtanh",
        "copysign",
        "masked_fill",
        "heaviside",
        "nan_to_num",
        "_to_copy",
        "copy",
        "clone",
        "fill",
        "positive",
        "remainder",
        "fmod",
        "frac",
    ]
)
REDUCED = frozenset(
    ["sum", "mean", "var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "prod"]
)
PRODUCTS = frozenset(
    ["mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv", "_cdist_forward", "convolution"]
)
ROWS = frozenset(
    [
        "_softmax",
        "_log_softmax",
        "logsumexp",
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "native_layer_norm",
        "native_group_norm",
        "native_batch_norm",
        "_native_batch_norm_legit_no_training",
        "avg_pool2d",
    ]
)


class OtherRoundings:
    """Outputs of the reference on the same values, rounded otherwise; each is run when it is asked
    for, the golden first."""

    def __init__(
        self,
        case: OpenCase,
        tensors: Sequence[torch.Tensor],
        device: str,
        golden: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """`tensors` are inputs and weights; `golden` is the float64 result, where it is known."""
        self._case, self._device = case, device
        count = len(case.scalars)
        names = [t.name for t in case.signature.of("parameter", "buffer")]
        self._inputs = list(tensors[:count])
        self._state = dict(zip(names, tensors[count:], strict=True))
        floats = [t.dtype for t in tensors if t.is_floating_point()]
        self._dtype = max(floats, key=lambda dtype: torch.finfo(dtype).eps, default=None)
        self._known = [] if golden is None else [list(golden)]

    def of(self, output: int) -> Iterator[torch.Tensor]:
        """The values of the output with this number in one run after another."""
        runs = 1 + 2 * DRAWS if self._dtype is not None else 0  # without floats nothing is rounded
        for number in range(runs):
            if number == len(self._known):
                self._known.append(self._run(number))
            yield self._known[number][output]

    def _run(self, number: int) -> list[torch.Tensor]:
        given = self._inputs, self._state
        if not number:
            return self._case.reference(*given, dtype=torch.float64, device=self._device)
        assert self._dtype is not None
        draw, opposite = divmod(number - 1, 2)
        with _Rounded(self._dtype, draw, -1 if opposite else 1):
            return self._case.reference(*given, dtype=torch.float64, device=self._device)


def settled(
    output: torch.Tensor, reference: torch.Tensor, others: Iterator[torch.Tensor]
) -> tuple[torch.Tensor, int]:
    """Which elements of a whole-number output are wrong, and how many differ from the reference
    that are right by another rounding; 0 where those are too many to be edges."""
    differ = output != reference
    wrong = differ.clone()
    most = max(1, math.ceil(MOST_SHARE * differ.numel()))
    if int(differ.sum()) > most:
        return differ, 0
    for other in others:
        wrong &= output != other.to(output.device)
        if not bool(wrong.any()):
            break
    return wrong, int(differ.sum()) - int(wrong.sum())


class _Rounded(DispatchWatch):  # type: ignore[no-untyped-call]
    """Moves what operators give in float64, as far as the dtype rounds it."""

    def __init__(self, dtype: torch.dtype, draw: int, sign: int) -> None:
        super().__init__()
        self._dtype, self._sign = dtype, sign
        self._name = str(dtype).removeprefix("torch.")
        self._draw = draw
        self._generators: dict[torch.device, torch.Generator] = {}

    def dispatched(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        name = func._schema.name.split("::")[-1].removesuffix("_")
        pointwise = torch.Tag.pointwise in func.tags and name not in EXACT
        if not pointwise and name not in REDUCED | PRODUCTS | ROWS:
            return func(*args, **kwargs)
        first = args[0] if args else None
        if name in REDUCED and isinstance(first, torch.Tensor) and first.dtype == torch.float64:
            # Terms that cancel are rounded by their own size.
            args = (self._moved(first.clone(), 1), *args[1:])
        result = func(*args, **kwargs)
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, torch.Tensor) and value.dtype == torch.float64:
                self._moved(value, _terms(name, args, value))
        return result

    def _moved(self, value: torch.Tensor, terms: int) -> torch.Tensor:
        """In place, where the dtype does not hold the value as it is."""
        device = value.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._draw)
        generator = self._generators[device]
        signs = torch.randint(0, 2, value.shape, generator=generator, device=device).mul_(2).sub_(1)
        far = self._sign * rounding(self._name, terms, False)
        rounds = value.to(self._dtype).double() != value
        return value.mul_(1 + far * (signs * rounds))


def _terms(name: str, args: tuple[Any, ...], result: torch.Tensor) -> int:
    """How many terms a sum of the operator has, about; 1 where it sums nothing."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if name in PRODUCTS:
        tensors = tensors[name in ADDED_TO :]
        if name == "convolution":
            return max(1, tensors[1].numel() // max(1, tensors[1].shape[0]))
        return int(tensors[0].shape[-1]) if tensors and tensors[0].dim() else 1
    if name in ROWS:
        return max(1, int(tensors[0].shape[-1])) if tensors and tensors[0].dim() else 1
    if name in REDUCED and tensors:
        return max(1, tensors[0].numel() // max(1, result.numel()))
    return 1
