"""Error bounds of outputs, and comparison with them.

Floats are compared with a float64 golden, in units of the golden's own size (its RMS in each slice
of the last dimension): an error may be C_REF times the reference's own, or C_EPS * eps * sqrt(K)
for K terms in a sum (eps of float32 at most, see `rounding`), whichever is more; both the largest
error and the 99.9 % quantile must be within. All other outputs are compared exactly, indices by the
values they point to. The constants are the same for every problem. Knows tensors, not problems or
candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from optimizer.evaluation.problem.spec import OutputKind
from optimizer.evaluation.records import OutputError

C_REF = 4.0
C_EPS = 2.0
# A product by one level of Strassen's algorithm may have three times the error of the usual one:
# the ratio of the bounds on the largest error for large n (Higham, Accuracy and Stability of
# Numerical Algorithms, 2nd edition, theorem 23.2: (12 ((n/2)^2 + 5 n/2) - 5 n) against n^2, times
# the unit roundoff and the largest elements of both matrices).
C_PRODUCT = 3.0
QUANTILE = 0.999
# A shorter slice is extended over the dimensions before it: the RMS of a few elements does not show
# the size of the terms that they are sums of.
MIN_SLICE = 32
SAMPLED_ROWS = 64
# On a CPU comparisons process arrays in pieces that fit a core's cache and that torch gives to one
# thread: several threads wait for each other while other work runs.
PIECE = 1 << 15  # elements
DEVICE_PIECE = 1 << 26  # elements, whose float64 values fit in memory together with large arrays
MAX_UNITS = 1 << 24  # elements whose units are stored
# Inputs rounded once to 8 bits of significand: what `relaxed` allows in addition to the sum's
# error.
RELAXED_EPS = 2.0**-7


@dataclass(frozen=True)
class Pointed:
    """The tensor that an index output points into, and the dimension."""

    source: torch.Tensor
    dim: int


@dataclass(frozen=True)
class Bound:
    """Input of `compare` for one output.

    `allowed` and `quantile_allowed` are in units of `scale`, which has one value for each of `rows`
    slices. For exact kinds both are 0 and limit the share of elements that differ. `unit` has the
    unit of every element's error, float64. `finite`: golden and reference are finite everywhere.
    """

    name: str
    kind: OutputKind
    reference: torch.Tensor
    allowed: float = 0.0
    quantile_allowed: float = 0.0
    scale: torch.Tensor | None = None
    rows: int = 1
    unit: torch.Tensor | None = None
    finite: bool = True
    pointed: Pointed | None = None


@dataclass(frozen=True)
class _Errors:
    """Errors in units of the scale, by element, in the output's order, and the largest of each
    `piece` of elements."""

    values: torch.Tensor
    largest: torch.Tensor
    piece: int

    @property
    def worst(self) -> float:
        return float(self.largest.max()) if self.values.numel() else 0.0

    @property
    def where(self) -> int:
        """The largest error's position in the flat output."""
        begin = int(self.largest.argmax()) * self.piece
        return begin + int(self.values[begin : begin + self.piece].argmax())

    @property
    def quantile(self) -> float:
        count = self.values.numel()
        if not count:
            return 0.0
        above = count - math.ceil(QUANTILE * count) + 1
        return float(torch.topk(self.values, above, sorted=True).values[-1])


def allowed(
    golden64: torch.Tensor,
    reference: torch.Tensor,
    kind: OutputKind,
    dtype: str,
    reduction_length: int,
    *,
    relaxed: bool = False,
    pointed: Pointed | None = None,
    name: str = "output0",
    sensitivity: float = 0.0,
    product: bool = False,
) -> Bound:
    """The bound of one output of this dtype. `pointed` is needed for an index output; `sensitivity`
    is the golden's, from the function of that name. `product`: the terms are those of a matrix
    product."""
    if kind == "exact":
        return Bound(name, kind, reference)
    if kind == "index":
        if pointed is None:
            raise ValueError("an index output needs the tensor that it points into")
        return Bound(name, kind, reference, pointed=pointed)
    rows = _row_count(golden64)
    scale = _scale(golden64, rows)
    unit = _unit(golden64, scale, rows) if golden64.numel() <= MAX_UNITS else None
    own = _errors(reference, golden64, unit, scale)
    lost = rounding(dtype, reduction_length, relaxed, product)
    floor = C_EPS * max(lost, sensitivity * math.sqrt(reduction_length))
    return Bound(
        name,
        kind,
        reference,
        allowed=max(C_REF * own.worst, floor),
        quantile_allowed=max(C_REF * own.quantile, floor),
        scale=scale,
        rows=rows,
        unit=unit,
        finite=_all_finite(golden64) and _all_finite(reference),
    )


def rounding(dtype: str, terms: int, relaxed: bool, product: bool = False) -> float:
    """The error of an honest kernel, relative to the result.

    16-bit results are rounded once and summed in float32, as every matrix unit and the reference
    do: with bfloat16's own eps, sqrt(4096) terms would allow an error as large as the result, and
    a norm without its bias would pass.
    """
    eps = float(torch.finfo(getattr(torch, dtype)).eps)
    summed = min(eps, float(torch.finfo(torch.float32).eps)) * math.sqrt(terms)
    summed *= C_PRODUCT if product else 1.0
    return max(eps, summed, RELAXED_EPS if relaxed else 0.0)


def sensitivity(golden64: torch.Tensor, moved64: torch.Tensor) -> float:
    """The typical change of a golden when its inputs change by less than their last place.

    Where terms cancel (a norm of values far from zero), another order of summing costs that much
    per term, even if the reference's costs less because its vector lanes have short partial sums.
    The median is used, because single elements that jump (over a border, to another bucket) mean
    nothing.
    """
    if not golden64.is_floating_point() or not golden64.numel():
        return 0.0
    rows = _row_count(golden64)
    return float(_errors(moved64, golden64, None, _scale(golden64, rows)).values.median())


def compare(output: torch.Tensor, golden64: torch.Tensor, bound: Bound) -> OutputError:
    """The error of an output against the golden, with its limit."""
    output = output.detach().to(golden64.device)
    if output.shape != bound.reference.shape or output.dtype != bound.reference.dtype:
        return _output_error(bound, math.inf, math.inf, ())
    if bound.kind == "index":
        return _compare_index(output, bound)
    if bound.kind == "exact":
        return shares(bound, _differ(output, bound.reference))
    if not (bound.finite and _all_finite(output)):
        wrong = _wrongly_finite(output, golden64, bound.reference)
        if bool(wrong.any()):
            return _output_error(
                bound, math.inf, math.inf, _position(wrong.flatten().float(), wrong.shape)
            )
    assert bound.scale is not None
    errors = _errors(output, golden64, bound.unit, bound.scale)
    worst = errors.worst
    # Sorting takes longest, and no quantile is above the maximum.
    quantile = worst if worst <= bound.quantile_allowed else errors.quantile
    return _output_error(
        bound, worst, quantile, _index(errors.where, output.shape) if worst else ()
    )


def plainly_equal(ours: torch.Tensor, theirs: torch.Tensor, bound: Bound) -> bool:
    """Whether two outputs differ by at most twice the bound of one. The exact comparison takes
    ten times as long."""
    if not ours.is_floating_point() or not ours.numel():
        return torch.equal(ours, theirs)
    if bound.kind != "float" or bound.scale is None or ours.dtype != torch.float32:
        return False
    rows = [t.reshape(bound.rows, -1) for t in (ours, theirs)]
    width = max(1, rows[0].shape[1])
    step = max(1, PIECE // width) if ours.device.type == "cpu" else max(1, bound.rows)
    apart = [
        torch.sub(left, right).abs_().amax(dim=1)
        for left, right in zip(*(torch.split(t, step) for t in rows), strict=True)
    ]
    # A NaN anywhere makes this false.
    limit = 2 * min(bound.allowed, bound.quantile_allowed)
    return bool((torch.cat(apart) / bound.scale).max() <= limit)


def with_scale_of(bound: Bound, outputs: torch.Tensor) -> Bound:
    """The bound for other values of the inputs: the scale of a slice is at least that of these
    outputs of the reference. A slice that is empty in the case, as of padding, may hold results
    in a call with other lengths."""
    if bound.scale is None:
        return bound
    scale = _scale(outputs.double(), bound.rows).to(bound.scale.device)
    return replace(bound, scale=torch.maximum(bound.scale, scale), unit=None)


def agree(ours: torch.Tensor, theirs: torch.Tensor, at: torch.Tensor, bound: Bound) -> bool:
    """Whether sampled elements of two outputs differ by at most the sum of both bounds. `at` has
    their positions in the flat output; all three have one shape."""
    if not ours.numel():
        return True
    if bound.kind != "float" or bound.scale is None:
        return not bool(_differ(ours, theirs).any())
    left, right = ours.double(), theirs.double()
    width = bound.reference.numel() // bound.rows if bound.rows else 1
    scale = bound.scale.to("cpu")[at.div(max(1, width), rounding_mode="floor")]
    apart = (left - right).abs() / torch.maximum(right.abs(), scale)
    return bool(((apart <= 2 * bound.allowed) | ~_differ(left, right)).all())


def within(output: torch.Tensor, golden64: torch.Tensor, bound: Bound) -> bool:
    """Whether `compare` accepts the output; decided early if a few slices are wrong."""
    step = bound.rows // SAMPLED_ROWS
    fitting = output.shape == golden64.shape and bound.kind == "float"
    if fitting and bound.scale is not None and step > 1:
        rows = bound.rows
        some = [t.reshape(rows, -1)[::step] for t in (output.to(golden64.device), golden64)]
        scale = bound.scale[::step]
        if _errors(some[0], some[1], None, scale).worst > bound.allowed:
            return False
    return compare(output, golden64, bound).ok


def _compare_index(output: torch.Tensor, bound: Bound) -> OutputError:
    assert bound.pointed is not None
    extent = bound.pointed.source.shape[bound.pointed.dim]
    outside = (output < 0) | (output >= extent)
    if bool(outside.any()):
        return _output_error(
            bound, math.inf, math.inf, _position(outside.flatten().float(), outside.shape)
        )
    ours = _pointed_values(output, bound.pointed)
    return shares(bound, _differ(ours, _pointed_values(bound.reference, bound.pointed)))


def _pointed_values(index: torch.Tensor, into: Pointed) -> torch.Tensor:
    """The values at the indices, in the shape of the indices."""
    source, dim = into.source.to(index.device), into.dim
    if index.dim() == source.dim() - 1:
        return source.gather(dim, index.long().unsqueeze(dim)).squeeze(dim)
    return source.gather(dim, index.long())


# -- errors in units of the golden's size


def _row_count(golden: torch.Tensor) -> int:
    width = 1
    for extent in reversed(golden.shape):
        width *= extent
        if width >= MIN_SLICE:
            break
    return golden.numel() // width if width else 1


def _scale(golden: torch.Tensor, rows: int) -> torch.Tensor:
    """RMS of each slice; that of a slice of zeros is very small, not 0."""
    width = golden.numel() // rows if rows else 1
    parts = torch.split(golden.reshape(rows, -1), max(1, DEVICE_PIECE // max(1, width)))
    squares = torch.cat(
        [p.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).square_().mean(dim=1) for p in parts]
    )
    whole = float(squares.mean().sqrt()) if squares.numel() else 0.0
    return squares.sqrt().clamp_(min=max(1e-6 * whole, 1e-300))


def _unit(golden: torch.Tensor, scale: torch.Tensor, rows: int) -> torch.Tensor:
    """The unit of each element's error, in the golden's shape.

    Rounding an element costs in proportion to that element, however small its neighbours are: the
    peak of a softmax is many times the RMS of its row.
    """
    size = golden.abs().nan_to_num_(nan=0.0, posinf=0.0).reshape(rows, -1)
    return torch.maximum(size, scale.unsqueeze(1), out=size).reshape(golden.shape)


def _errors(
    output: torch.Tensor, golden: torch.Tensor, unit: torch.Tensor | None, scale: torch.Tensor
) -> _Errors:
    """Errors of elements that are not finite are 0: `compare` has checked those before. Without
    `unit` each piece makes its own: units of all elements would take the golden's memory again."""
    if not golden.numel():
        return _Errors(torch.empty(0), torch.zeros(1), 1)
    width, piece = golden.numel() // len(scale), DEVICE_PIECE
    if golden.device.type == "cpu":
        piece = PIECE
    if unit is None:  # pieces of whole slices
        piece = width * max(1, piece // width)
    values = torch.empty(golden.numel(), dtype=torch.float32, device=golden.device)
    flat = [t.to(golden.device).reshape(-1) for t in (values, output, golden)]
    pieces = [torch.split(t, piece) for t in flat]
    if unit is None:
        scales = torch.split(scale, piece // width)
        sizes = (_unit(g, s, len(s)) for g, s in zip(pieces[2], scales, strict=True))
    else:
        sizes = (part for part in torch.split(unit.to(golden.device).reshape(-1), piece))
    largest = []
    for to, ours, wanted, size in zip(*pieces, sizes, strict=True):
        distance = torch.sub(ours, wanted).abs_().div_(size)
        largest.append(to.copy_(distance.nan_to_num_(nan=0.0, posinf=0.0)).amax())
    return _Errors(values, torch.stack(largest), piece)


def _all_finite(values: torch.Tensor) -> bool:
    if not values.numel() or not values.is_floating_point():
        return True
    extremes = torch.aminmax(values)  # NaN if there is one
    return math.isfinite(extremes.min) and math.isfinite(extremes.max)


def _wrongly_finite(
    output: torch.Tensor, golden: torch.Tensor, reference: torch.Tensor
) -> torch.Tensor:
    """Elements that break this: NaN only where the reference is NaN, an infinity only where the
    reference has the same. A finite value is right if only the reference overflowed."""
    finite = torch.isfinite(output)
    same = (torch.isnan(output) & torch.isnan(reference)) | (output == reference)
    better = torch.isfinite(golden) | torch.isfinite(reference)
    return torch.where(finite, ~better & ~same, ~same)


# -- exact


def _differ(output: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Elements that are not equal; the two zeros are equal, and NaN equals NaN."""
    differ = output != reference
    if output.is_floating_point():
        differ &= ~(torch.isnan(output) & torch.isnan(reference))
    return differ


def shares(bound: Bound, differ: torch.Tensor, undecided: int = 0) -> OutputError:
    """The error of an output that is compared exactly, from a mask of wrong elements. `undecided`
    more are right by another rounding."""
    share = float(differ.double().mean()) if differ.numel() else 0.0
    where = _position(differ.flatten().float(), differ.shape) if share else ()
    return replace(_output_error(bound, share, share, where), undecided=undecided)


def _output_error(
    bound: Bound, worst: float, quantile: float, where: tuple[int, ...]
) -> OutputError:
    return OutputError(
        bound.name, bound.kind, worst, bound.allowed, quantile, bound.quantile_allowed, where
    )


def _position(errors: torch.Tensor, shape: torch.Size) -> tuple[int, ...]:
    """Index of the largest error."""
    if not errors.numel():
        return ()
    return _index(int(errors.argmax()), shape)


def _index(at: int, shape: torch.Size) -> tuple[int, ...]:
    # torch.unravel_index imports sympy, which takes each evaluation's process a second.
    index = []
    for size in reversed(shape):
        at, part = divmod(at, size)
        index.append(part)
    return tuple(reversed(index))
