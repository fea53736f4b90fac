"""Time relative to the ceilings of the device, and impossible times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.evaluation.collectors.ceilings import BandwidthPoint, Ceilings, MeasuredRate
from optimizer.evaluation.problem.load import load_problem
from optimizer.evaluation.problem.open_case import OpenCase
from optimizer.evaluation.records import CaseTiming, Interval
from optimizer.evaluation.roofline import (
    CaseWork,
    NeededOperations,
    achieved,
    impossible_times,
    limits_of,
    metrics_of,
    work_of,
)
from tests.problem_files import model_text

MIB, GIB = 1 << 20, 1 << 30
SIZES = (MIB, 64 * MIB, GIB)
DEVICE = Ceilings(
    device="d",
    kind="cpu",
    threads=2,
    cache_bytes=32 * MIB,
    copy=tuple(BandwidthPoint(s, r, 0, 9) for s, r in zip(SIZES, (100e9, 20e9, 20e9), strict=True)),
    read=tuple(BandwidthPoint(s, r, 0, 9) for s, r in zip(SIZES, (120e9, 25e9, 25e9), strict=True)),
    matmul={"float32": MeasuredRate(300e9, 0, 9), "bfloat16": MeasuredRate(2000e9, 0, 9)},
    dispatch=MeasuredRate(2e-6, 0, 9),
)
COPY = CaseWork("elementwise", "float32", GIB // 2, GIB // 2, needed_read_bytes=GIB // 2)
G = 1_000_000_000
PRODUCT = CaseWork(
    *("matmul", "float32", MIB, MIB, 2 * G),
    needed_read_bytes=MIB,
    operations=NeededOperations(2 * G, 2 * G, G),
)
PROBLEM = model_text(
    "self.linear(x)", "torch.randn(16, 64)", init="self.linear = nn.Linear(64, 32)"
)


def test_work_of_a_case_is_counted_from_its_reference(tmp_path: Path) -> None:
    path = tmp_path / "linear.py"
    path.write_text(PROBLEM)
    problem = load_problem(path)
    work = work_of(OpenCase(problem, problem.cases[0]))
    assert work.read_bytes == 4 * (16 * 64 + 32 * 64 + 32)
    assert work.written_bytes == 4 * 16 * 32
    assert work.flops == 2 * 16 * 64 * 32 and work.dtype == "float32"
    assert work.element_bytes == 4 and work.reduction_length is not None


def test_stream_is_limited_by_bytes() -> None:
    reported = achieved(COPY, 0.06, DEVICE)
    assert reported.floor_seconds == pytest.approx(GIB / 20e9)
    assert reported.bandwidth_pct == pytest.approx(89.5, abs=0.1) == reported.roofline_pct
    assert reported.flops_pct is None or reported.flops_pct == 0


def test_product_is_limited_by_flops_of_its_dtype() -> None:
    work = CaseWork("matmul", "float32", 8 * MIB, 4 * MIB, flops=2 * 1024**3)
    reported = achieved(work, 0.01, DEVICE)
    assert reported.flops_pct == pytest.approx(71.6, abs=0.1) == reported.roofline_pct
    relaxed = achieved(replace(work, relaxed=True), 0.01, DEVICE)
    assert relaxed.flops_pct == pytest.approx(10.7, abs=0.1)
    assert achieved(replace(work, dtype="int8"), 0.01, DEVICE).flops_pct is None


def test_causal_attention_needs_half_of_counted_products() -> None:
    problem = load_problem(Path("attention"))
    work = work_of(OpenCase(problem, problem.cases[0]))
    assert work.causal and work.needed_flops == work.flops // 2 > 0
    assert work.counted_from == "formula"
    assert limits_of(work, CaseTiming("main", "measured", 1e6, 1e6), None).flops == 0


def test_partial_gather_has_no_share() -> None:
    gather = CaseWork("embedding_bag", "float32", GIB, MIB)
    assert achieved(gather, 0.001, DEVICE).bandwidth_pct is None
    assert "copy_bandwidth_pct" not in metrics_of(gather, 0.001, DEVICE)
    assert severities(gather, timing(0.001)) == []


def test_shares_need_ceilings_of_a_quiet_machine() -> None:
    assert metrics_of(COPY, 0.06, DEVICE)["copy_bandwidth_pct"] == pytest.approx(89.5, abs=0.1)
    assert metrics_of(COPY, 0.06, replace(DEVICE, waited=0.5)) == {"call_us": 60_000.0}
    assert metrics_of(COPY, 0.06, None) == {"call_us": 60_000.0}
    assert metrics_of(COPY, 20e-6, DEVICE, launches=8)["dispatch_pct"] == pytest.approx(80)


def timing(seconds: float, speedup: float = 2.0, baseline: float | None = None) -> CaseTiming:
    gain = Interval(speedup, speedup, speedup, 9)
    before = seconds * speedup if baseline is None else baseline
    return CaseTiming("main", "measured", before * 1e6, seconds * 1e6, gain, 100)


def severities(work: CaseWork, found: CaseTiming, ceilings: Ceilings | None = DEVICE) -> list[str]:
    flags = impossible_times(work, found, ceilings)
    assert all(flag.defence == 29 for flag in flags)
    return [flag.severity for flag in flags]


FP8 = model_text(
    "a.view(torch.float8_e4m3fn).float() @ b.view(torch.float8_e4m3fn).float() * mask",
    "*(torch.randn(64, 64).to(torch.float8_e4m3fn).view(torch.uint8) for _ in range(2)),"
    " torch.ones(8, 8, dtype=torch.{mask}).repeat(8, 8)",
    takes="a, b, mask",
)


def test_eight_bit_operands_may_exceed_every_ceiling(tmp_path: Path) -> None:
    """An FP8 kernel that reached 968 TFLOPS on an H100 was once refused, because 790 are measured
    there in 16 bits.
    """
    path = tmp_path / "fp8.py"
    path.write_text(FP8.replace("{mask}", "int64"))
    problem = load_problem(path)
    assert work_of(OpenCase(problem, problem.cases[0])).narrow_rate == 4
    path.write_text(PROBLEM)
    problem = load_problem(path)
    assert work_of(OpenCase(problem, problem.cases[0])).narrow_rate == 1
    assert severities(PRODUCT, timing(0.4e-3)) == ["reject"]
    assert severities(replace(PRODUCT, narrow_rate=2.0), timing(0.5e-3)) == []
    assert severities(replace(PRODUCT, narrow_rate=2.0), timing(0.2e-3)) == ["reject"]


def test_time_below_that_of_bytes_is_rejected() -> None:
    floor = (GIB - 32 * MIB) / 25e9
    assert limits_of(COPY, timing(1.0), DEVICE).least_us == pytest.approx(floor * 1e6 / 1.05)
    assert severities(COPY, timing(floor / 2, 8.0)) == ["reject"]
    assert severities(COPY, timing(floor / 2, 20.0)) == ["reject", "review"]
    assert severities(COPY, timing(floor / 1.04)) == []


def test_time_below_fastest_arithmetic_is_rejected_but_not_winograd() -> None:
    assert severities(PRODUCT, timing(0.4e-3)) == ["reject"]
    # Half of the operations at the fastest rate: no known algorithm, but not impossible.
    assert severities(PRODUCT, timing(0.9e-3)) == ["review"]
    # Three products in bfloat16 give a float32 one: faster than float32's own peak, and honest.
    assert severities(PRODUCT, timing(3e-3)) == []
    assert severities(PRODUCT, timing(1.6e-3)) == []
    conv = replace(PRODUCT, op="conv", operations=NeededOperations(2 * G, G // 2, 0))
    assert severities(conv, timing(0.9e-3)) == []
    assert severities(conv, timing(0.2e-3)) == ["review"]


def test_operation_formula_alone_rejects_nothing() -> None:
    formula = replace(PRODUCT, operations=None)
    assert formula.counted_from == "formula" and PRODUCT.counted_from == "dependence"
    (flag,) = impossible_times(formula, timing(0.4e-3), DEVICE)
    assert flag.severity == "review" and "counted from: formula" in flag.message
    floor = (GIB - 32 * MIB) / 25e9
    assert severities(replace(COPY, needed_read_bytes=None), timing(floor / 2, 8.0)) == ["review"]
    masked = replace(PRODUCT, operations=NeededOperations(G // 2, G // 2, 0))
    assert severities(masked, timing(0.9e-3)) == []
    assert severities(replace(masked, operations=None), timing(0.9e-3)) == ["review"]


def test_share_of_roof_uses_needed_operations() -> None:
    masked = replace(PRODUCT, operations=NeededOperations(G // 2, G // 2, 0))
    whole, needed = achieved(PRODUCT, 0.01, DEVICE), achieved(masked, 0.01, DEVICE)
    assert whole.flops_pct is not None and needed.flops_pct == pytest.approx(whole.flops_pct / 4)


def test_time_of_cached_data_is_never_impossible() -> None:
    small = CaseWork("elementwise", "float32", 8 * MIB, 8 * MIB)
    assert limits_of(small, timing(1.0), DEVICE).least_us == 0
    assert severities(small, timing(1e-6)) == ["review"]


def test_doubtful_ceilings_reject_nothing() -> None:
    fast = GIB / 25e9 / 3
    assert severities(COPY, timing(fast, 1.1)) == ["review"]
    assert severities(COPY, timing(fast, 8.0), replace(DEVICE, waited=0.4)) == ["review"]


def test_tenfold_speed_up_needs_review() -> None:
    assert severities(COPY, timing(1.0, 10.5)) == ["review"]
    assert severities(COPY, timing(1.0, 10.5), None) == ["review"]
    assert severities(COPY, timing(1.0, 9.0), None) == []
