"""The least work of a case against its time: bytes and operations against measured ceilings, and
times that no kernel can have reached.

Compulsory bytes are every input and weight read once and every output written once. Operators that
read only part of an input (gathers, jagged rows) have a smaller floor, and no share of the
bandwidth is stated for them. A candidate is refused only by a bound that holds for every right
kernel (`limits_of`); what another algorithm might undercut is shown to a person (`doubtful_us`).
Does not know how a candidate works. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from kb.problem_terms import op_family
from optimizer.evaluation.abi import ITEM_BYTES, Signature
from optimizer.evaluation.collectors.ceilings import Ceilings
from optimizer.evaluation.problem.spec import shape_quantities
from optimizer.evaluation.records import CaseTiming, Flag, Violation

if TYPE_CHECKING:
    from optimizer.evaluation.problem.open_case import OpenCase


# Inside the caches the measured rate is no limit: a better loop than torch's may exceed it.
CACHED_SLACK = 2.0
READS_A_PART = frozenset({"gather", "scatter", "jagged"})
# Share of the operations that the formulas give, below which a person looks at a case whose needed
# operations could not be counted: Winograd's F(4x4, 3x3) multiplies a quarter as often, and causal
# attention skips half of its products.
FEWEST_FLOPS = {"conv": 0.25, "attention": 0.5}
# 16-bit products that give a float32 one (each operand as a sum of two parts; the product of the
# small parts is left out).
PRODUCTS_FOR_FLOAT32 = 3
# Ceilings are measured with 16-bit values; how many times as fast matrix units process narrower
# ones at most, by the dtype of an input. 8 bits: twice (H100 SXM, dense: 1,979 TFLOPS in FP8, 989
# in BF16). Unsigned bytes may hold two 4-bit values: four times (B200, dense: 9 PFLOPS in FP4, 2.25
# in BF16). Data sheets of NVIDIA H100 and DGX B200.
NARROW_RATE = {"int8": 2.0, "uint8": 4.0}
NARROW_SHARE = 1 / 8  # of the bytes read, from which on such inputs count as operands


@dataclass(frozen=True)
class NeededOperations:
    """Floating-point operations of the reference that its result depends on (`needed_work.py`).

    `needed`: by the algorithm of the reference. `fewest`: by the fastest known algorithms for its
    products. `certain`: no right kernel performs fewer; 0 if no such number is known.
    """

    needed: int
    fewest: int
    certain: int


@dataclass(frozen=True)
class CaseWork:
    """The least work of one case. `dtype` is that of most of its bytes. `flops` are those of the
    formulas of the reference's operators, 0 without any.

    `relaxed`: lower precision inside is allowed. `causal`: attention in which a position sees only
    itself and earlier ones; the formulas count all pairs. `shape` comes from `shape_quantities`.
    `narrow_rate` is how many times as fast as 16-bit values matrix units may process its operands.
    `operations`, `needed_read_bytes` (a lower bound) and `view_bytes` (of outputs that may be views
    of an input) are found by running the reference; None and 0 if that was not tried or not
    possible.
    """

    op: str
    dtype: str
    read_bytes: int
    written_bytes: int
    flops: int = 0
    relaxed: bool = False
    reduction_length: int | None = None
    causal: bool = False
    shape: Mapping[str, float | str] = field(default_factory=dict)
    narrow_rate: float = 1.0
    operations: NeededOperations | None = None
    needed_read_bytes: int | None = None
    view_bytes: int = 0

    @property
    def needed_flops(self) -> int:
        """Flops that the result depends on; by the formulas, half of the pairs in causal attention,
        whose two sides have the same length."""
        if self.operations is not None:
            return self.operations.needed
        return self.flops // 2 if self.causal else self.flops

    @property
    def counted_from(self) -> Literal["formula", "dependence"]:
        """How `needed_flops` were counted."""
        return "formula" if self.operations is None else "dependence"

    @property
    def fewest_flops(self) -> int:
        """Flops of the fastest known algorithm, a bound that others may undercut."""
        if self.operations is not None:
            return self.operations.fewest
        return int(self.flops * FEWEST_FLOPS.get(op_family(self.op), 1.0))

    @property
    def compulsory_bytes(self) -> int:
        """Fewest bytes read and written."""
        return self.read_bytes + self.written_bytes

    @property
    def whole(self) -> bool:
        """Whether every byte of every input is needed."""
        return op_family(self.op) not in READS_A_PART

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of the main dtype."""
        return ITEM_BYTES[self.dtype]


def work_of(case: OpenCase) -> CaseWork:
    """The work of a case. Runs the reference once to count its operations."""
    signature = case.signature
    read = signature.compulsory_read_bytes
    return CaseWork(
        op=case.problem.op,
        dtype=main_dtype(signature),
        read_bytes=read,
        written_bytes=signature.compulsory_bytes - read,
        flops=case.flops,
        relaxed=case.problem.policy.precision == "relaxed",
        reduction_length=case.reduction_length(),
        causal=_causal(case),
        shape=shape_quantities(signature),
        narrow_rate=_narrow_rate(signature, read),
    )


def _narrow_rate(signature: Signature, read_bytes: int) -> float:
    sizes: dict[str, int] = {}
    for tensor in signature.of("input", "parameter", "buffer"):
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.bytes
    rates = (NARROW_RATE[d] for d in NARROW_RATE if sizes.get(d, 0) >= NARROW_SHARE * read_bytes)
    return max(rates, default=1.0) if read_bytes else 1.0


def _causal(case: OpenCase) -> bool:
    """Whether the reference's operator is causal; a mask in a tensor does not count."""
    if op_family(case.problem.op) != "attention":
        return False
    from optimizer.evaluation.problem.operators import traits_of  # needs torch

    return any(
        name.endswith(".is_causal") and value is True for name, value in traits_of(case).items()
    )


def main_dtype(signature: Signature) -> str:
    """The dtype of most bytes, among floating ones if there are any."""
    totals: dict[str, int] = {}
    for tensor in signature.tensors:
        totals[tensor.dtype] = totals.get(tensor.dtype, 0) + tensor.bytes
    floating = {dtype: size for dtype, size in totals.items() if "float" in dtype}
    chosen = floating or totals or {"float32": 0}
    return max(chosen, key=lambda dtype: (chosen[dtype], dtype))


@dataclass(frozen=True)
class Achieved:
    """The rates of one timed case as shares of the ceilings, in percent; None if unknown.
    `floor_seconds` is the least time at the measured ceilings."""

    seconds: float
    bandwidth_pct: float | None
    flops_pct: float | None
    floor_seconds: float | None

    @property
    def roofline_pct(self) -> float | None:
        """The least time over the measured time, in percent."""
        return None if self.floor_seconds is None else 100 * self.floor_seconds / self.seconds


def achieved(work: CaseWork, seconds: float, ceilings: Ceilings) -> Achieved:
    """The rates of a case that took so many seconds."""
    by_bytes = _byte_seconds(work, ceilings)
    peak = ceilings.peak(work.dtype, relaxed=work.relaxed)
    # No counted flops means hardly any arithmetic: 0 % of the peak, not an unknown share.
    by_flops = work.needed_flops / peak if peak else None
    floors = [floor for floor in (by_bytes, by_flops or None) if floor is not None]
    return Achieved(
        seconds=seconds,
        bandwidth_pct=None if by_bytes is None else 100 * by_bytes / seconds,
        flops_pct=None if by_flops is None else 100 * by_flops / seconds,
        floor_seconds=max(floors, default=None),
    )


def _byte_seconds(work: CaseWork, ceilings: Ceilings) -> float | None:
    if not work.whole or not work.compulsory_bytes:
        return None
    return ceilings.stream_seconds(work.read_bytes, work.written_bytes)


def metrics_of(
    work: CaseWork, seconds: float, ceilings: Ceilings | None, launches: float | None = None
) -> dict[str, float]:
    """The harness's own metrics of a timed case, by raw names. Shares are given only of ceilings
    that a quiet machine measured."""
    metrics = {"call_us": seconds * 1e6}
    if ceilings is None or not ceilings.trusted:
        return metrics
    rates = achieved(work, seconds, ceilings)
    named = {
        "copy_bandwidth_pct": rates.bandwidth_pct,
        "matmul_peak_pct": rates.flops_pct,
        "roofline_pct": rates.roofline_pct,
    }
    metrics |= {name: round(value, 3) for name, value in named.items() if value is not None}
    if launches is not None and ceilings.dispatch is not None:
        share = 100 * launches * ceilings.dispatch.value / seconds
        metrics["dispatch_pct"] = round(min(100.0, share), 3)
    return metrics


# -- impossible times


def remarkable(timing: CaseTiming) -> bool:
    """Whether a gain is so large that a person should look at it."""
    return timing.speedup is not None and timing.speedup.value >= REMARKABLE


def unneeded_factor(work: CaseWork, result_bytes: int, ceilings: Ceilings | None) -> float:
    """How many times as long as the case needs its reference takes at the ceilings: it computes
    values that the result does not depend on, and moves each of its intermediate results,
    `result_bytes` in all, which a fused kernel does not. At least 1, and 1 if the needed work is
    not known."""
    counted = work.operations is not None or not work.flops
    known = counted and work.needed_read_bytes is not None
    if ceilings is None or not ceilings.trusted or not known or not work.whole:
        return 1.0
    # A lower bound of 0 means that nothing was found.
    peak, read = _likely_peak(work, ceilings), work.needed_read_bytes or work.read_bytes
    needed = ceilings.stream_seconds(read, work.written_bytes) if work.written_bytes else 0.0
    # Written and read again; copies of the inputs may be among the results.
    between = max(0, result_bytes - work.written_bytes - work.read_bytes)
    spent = ceilings.stream_seconds(work.read_bytes + between, work.written_bytes + between)
    if peak:
        needed, spent = max(needed, work.needed_flops / peak), max(spent, work.flops / peak)
    return max(1.0, spent / needed) if needed else 1.0


def impossible_times(
    work: CaseWork, timing: CaseTiming, ceilings: Ceilings | None, explained: float = 1.0
) -> list[Flag]:
    """Flags of one timed case: `reject` if no right kernel can be so fast on this device, `review`
    if a person should look. Without `ceilings` only the speed-up is checked. `explained` is the
    part of the speed-up that the reference's unneeded work explains."""
    flags = list(roofline_flags(timing, limits_of(work, timing, ceilings), explained))
    took = timing.candidate_us
    if flags or took is None or ceilings is None:
        return flags
    least = doubtful_us(work, timing, ceilings)
    if took < least:
        message = (
            f"case {timing.case}: {took:.3g} us, where the ceilings give {least:.3g} us at least"
            f" (operations counted from: {work.counted_from})"
        )
        flags.append(Flag(Violation.IMPOSSIBLE_TIME, "review", message))
    return flags


def limits_of(work: CaseWork, timing: CaseTiming, ceilings: Ceilings | None) -> DeviceLimits:
    """Limits of every right kernel, by the most favourable assumptions: data that fits the cache is
    already in it, in any dtype, by the best algorithm, at the fastest rate. Operations not known to
    be needed are not counted.

    Ceilings of a busy machine, or ceilings that the reference itself beats, set no limit.
    """
    moved = (work.needed_read_bytes or 0) * work.whole + work.written_bytes - work.view_bytes
    flops = work.operations.certain if work.operations is not None else 0
    return _limits(work, moved, flops, timing, ceilings)


def doubtful_us(work: CaseWork, timing: CaseTiming, ceilings: Ceilings) -> float:
    """A time in microseconds below which a person should look: at half of the time that the
    ceilings of the case's dtype give, or at the fastest rates. Operations not known to be needed
    are counted by the formulas, so this bound may be wrong; that of a work with known `operations`
    and `needed_read_bytes` is never higher. An output is expected to be written, even if it may be
    a view."""
    read = work.read_bytes if work.needed_read_bytes is None else work.needed_read_bytes
    moved = read * work.whole + work.written_bytes
    fastest = _limits(work, moved, work.fewest_flops, timing, ceilings)
    seconds = work.fewest_flops / peak if (peak := _likely_peak(work, ceilings)) else 0.0
    if work.whole and read + work.written_bytes:
        seconds = max(seconds, ceilings.stream_seconds(read, work.written_bytes))
    return max(fastest.least_us, seconds * 1e6 / CACHED_SLACK)


def _likely_peak(work: CaseWork, ceilings: Ceilings) -> float | None:
    """Flop/s of a good kernel for the case, None if unknown."""
    peak, fastest = ceilings.peak(work.dtype, relaxed=work.relaxed), ceilings.fastest_peak
    if fastest is not None and work.narrow_rate > 1:
        return fastest * work.narrow_rate
    if peak is not None and fastest is not None and work.dtype == "float32":
        return max(peak, fastest / PRODUCTS_FOR_FLOAT32)
    return peak


def _limits(
    work: CaseWork, total: int, flops: int, timing: CaseTiming, ceilings: Ceilings | None
) -> DeviceLimits:
    unbound = DeviceLimits(total, flops)
    if ceilings is None or not ceilings.trusted:
        return unbound
    moved = max(0, int(total - ceilings.cached_bytes))
    peak = ceilings.fastest_peak
    peak = peak and peak * work.narrow_rate
    limits = DeviceLimits(moved, flops, ceilings.fastest_bandwidth(total), peak)
    baseline = timing.baseline_us
    return unbound if baseline is not None and baseline < limits.least_us else limits


MARGIN = 1.05  # ceilings are measured, by a program that is no better than a good kernel
REMARKABLE = 10.0  # a gain that a person should look at


@dataclass(frozen=True)
class DeviceLimits:
    """The work of one call, and the device's best rates in bytes and flops a second, None if they
    were not measured or set no limit (a case that fits the cache)."""

    bytes: int
    flops: int
    bandwidth: float | None = None
    peak: float | None = None

    @property
    def least_us(self) -> float:
        """A time in microseconds that no correct kernel goes below."""
        moving = self.bytes / self.bandwidth if self.bandwidth else 0.0
        computing = self.flops / self.peak if self.peak else 0.0
        return max(moving, computing) * 1e6 / MARGIN


def roofline_flags(
    timing: CaseTiming, work: DeviceLimits, explained: float = 1.0
) -> Iterator[Flag]:
    """Flags of one case with these limits; `explained` as in `impossible_times`."""
    took = timing.candidate_us
    if took is None:
        return
    if took < work.least_us:
        yield Flag(
            Violation.IMPOSSIBLE_TIME,
            "reject",
            f"case {timing.case}: {took:.3g} us, but {work.bytes:,} bytes and {work.flops:,} "
            f"operations take this device {work.least_us:.3g} us at least",
        )
    if timing.speedup is not None and timing.speedup.value >= REMARKABLE * explained:
        yield Flag(
            Violation.IMPOSSIBLE_TIME,
            "review",
            f"case {timing.case}: {timing.speedup.value:.1f} times as fast as the reference; look "
            "at what it leaves out",
        )
