"""Time against what the device can do, and times that no device can reach."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.collectors.ceilings import Ceilings, Figure, Point
from optimizer.collectors.work import (
    Work,
    achieved,
    hard_floor,
    metrics_of,
    physics_flags,
    work_of,
)
from optimizer.problem.load import load_problem
from optimizer.problem.tensors import open_case

MIB, GIB = 1 << 20, 1 << 30
SIZES = (MIB, 64 * MIB, GIB)
DEVICE = Ceilings(
    device="d",
    kind="cpu",
    threads=2,
    cache_bytes=32 * MIB,
    copy=tuple(Point(s, r, 0, 9) for s, r in zip(SIZES, (100e9, 20e9, 20e9), strict=True)),
    read=tuple(Point(s, r, 0, 9) for s, r in zip(SIZES, (120e9, 25e9, 25e9), strict=True)),
    matmul={"float32": Figure(300e9, 0, 9), "bfloat16": Figure(2000e9, 0, 9)},
    dispatch=Figure(2e-6, 0, 9),
)
COPY = Work("elementwise", "float32", GIB // 2, GIB // 2)
PROBLEM = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 32)

    def forward(self, x):
        return self.linear(x)

def get_inputs():
    return [torch.randn(16, 64)]

def get_init_inputs():
    return []
"""


def test_the_work_of_a_case_is_counted_from_its_reference(tmp_path: Path) -> None:
    path = tmp_path / "linear.py"
    path.write_text(PROBLEM)
    problem = load_problem(path)
    work = work_of(open_case(problem, problem.cases[0]))
    assert work.read_bytes == 4 * (16 * 64 + 32 * 64 + 32)
    assert work.written_bytes == 4 * 16 * 32
    assert work.flops == 2 * 16 * 64 * 32 and work.dtype == "float32"
    assert work.element_bytes == 4 and work.reduction_length is not None


def test_a_stream_is_limited_by_bytes() -> None:
    told = achieved(COPY, 0.06, DEVICE)
    assert told.limit == "bytes" and told.floor_seconds == pytest.approx(GIB / 20e9)
    assert told.bandwidth == pytest.approx(GIB / 0.06)
    assert told.bandwidth_pct == pytest.approx(89.5, abs=0.1) == told.roofline_pct
    assert told.flops_pct is None or told.flops_pct == 0
    assert achieved(COPY, 0.06, DEVICE, counted_bytes=2 * GIB).bytes_ratio == 2


def test_a_product_is_limited_by_flops_of_its_dtype() -> None:
    work = Work("matmul", "float32", 8 * MIB, 4 * MIB, flops=2 * 1024**3)
    told = achieved(work, 0.01, DEVICE)
    assert told.limit == "flops" and told.flops_pct == pytest.approx(71.6, abs=0.1)
    relaxed = achieved(replace(work, relaxed=True), 0.01, DEVICE)
    assert relaxed.flops_pct == pytest.approx(10.7, abs=0.1)
    assert achieved(replace(work, dtype="int8"), 0.01, DEVICE).flops_pct is None


def test_a_gather_reads_a_part_and_no_share_is_told() -> None:
    gather = Work("embedding_bag", "float32", GIB, MIB)
    assert achieved(gather, 0.001, DEVICE).bandwidth_pct is None
    assert "copy_bandwidth_pct" not in metrics_of(gather, 0.001, DEVICE)
    assert physics_flags(gather, 0.001, 2.0, DEVICE) == []


def test_shares_are_only_told_of_ceilings_of_a_quiet_machine() -> None:
    assert metrics_of(COPY, 0.06, DEVICE)["copy_bandwidth_pct"] == pytest.approx(89.5, abs=0.1)
    assert metrics_of(COPY, 0.06, replace(DEVICE, waited=0.5)) == {"call_us": 60_000.0}
    assert metrics_of(COPY, 0.06, None) == {"call_us": 60_000.0}
    assert metrics_of(COPY, 20e-6, DEVICE, launches=8)["dispatch_pct"] == pytest.approx(80)


def test_faster_than_the_bytes_is_rejected() -> None:
    floor = hard_floor(COPY, DEVICE)
    assert floor == pytest.approx((GIB - 32 * MIB) / 25e9)
    (flag,) = physics_flags(COPY, floor / 2, 20.0, DEVICE)
    assert (flag.defence, flag.severity) == (29, "reject")
    assert physics_flags(COPY, floor / 1.04, 2.0, DEVICE) == []


def test_faster_than_the_fastest_arithmetic_is_rejected_and_winograd_is_not() -> None:
    work = Work("matmul", "float32", MIB, MIB, flops=2_000_000_000)
    assert physics_flags(work, 0.9e-3, 2.0, DEVICE)[0].severity == "reject"
    # Three products in bfloat16 give a float32 one: faster than float32's own peak, and honest.
    assert physics_flags(work, 4e-3, 2.0, DEVICE) == []
    conv = replace(work, op="conv")
    assert all(flag.severity == "review" for flag in physics_flags(conv, 0.9e-3, 2.0, DEVICE))


def test_what_fits_the_cache_is_never_impossible() -> None:
    small = Work("elementwise", "float32", 8 * MIB, 8 * MIB)
    assert hard_floor(small, DEVICE) == 0
    (flag,) = physics_flags(small, 1e-6, 3.0, DEVICE)
    assert flag.severity == "review"


def test_doubtful_ceilings_reject_nobody() -> None:
    fast = hard_floor(COPY, DEVICE) / 2
    assert (
        physics_flags(COPY, fast, 1.1, DEVICE, baseline_seconds=fast * 1.1)[0].severity == "review"
    )
    assert physics_flags(COPY, fast, 1.1, replace(DEVICE, waited=0.4))[0].severity == "review"


def test_ten_times_as_fast_is_shown_to_a_person() -> None:
    (flag,) = physics_flags(COPY, 1.0, 10.5, DEVICE)
    assert flag.severity == "review" and "10.5" in flag.message
    assert physics_flags(COPY, 1.0, 10.5, None)[0].severity == "review"
    assert physics_flags(COPY, 1.0, 9.0, None) == []
