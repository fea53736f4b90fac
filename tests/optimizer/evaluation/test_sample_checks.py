"""Built-in kernels are checked with the tools of their rows; unchecked ones have a reason."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ingestion.builtin import builtin_hardware
from ingestion.builtin.samples import ShippedSample, shipped_samples
from kb.errors import NotFound
from optimizer.evaluation.sample_checks import check_sample, check_samples
from optimizer.evaluation.toolchains.cuda import find_nvcc

pytestmark = pytest.mark.slow(seconds=6)

SHIPPED = Path(__file__).resolve().parents[3] / "hw_manuals"
SPECS = {spec.id: spec for spec in builtin_hardware(SHIPPED)}


def sample(hardware: str, file: str) -> ShippedSample:
    (row,) = (s for s in shipped_samples(SHIPPED, hardware) if s.file == file)
    return row


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_kernel_that_stopped_compiling_is_broken(tmp_path: Path) -> None:
    place = tmp_path / "samples" / "x86-64"
    place.mkdir(parents=True)
    row = ShippedSample(
        hardware="x86-64",
        file="add.cpp",
        title="Addition",
        operator="elementwise",
        language="cpp",
        about="",
        code="",
        check="g++",
        status="compiles",
    )
    (place / "add.cpp").write_text('extern "C" void add(float* x, int n) { x[n] += 1; }')
    result = check_sample(tmp_path, row, SPECS)
    assert (result.outcome, result.broken) == ("compiles", False), result.detail
    assert "(" in result.toolchain and result.target == "any"
    (place / "add.cpp").write_text('extern "C" void add(float* x, int n) { x[n] += y; }')
    result = check_sample(tmp_path, row, SPECS)
    assert (result.outcome, result.broken) == ("refused", True)
    assert "y" in result.detail


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
def test_specific_instructions_compile_for_specific_target() -> None:
    """`-arch=sm_90a` would also assemble for plain sm_90, which lacks wgmma."""
    result = check_sample(SHIPPED, sample("hopper", "gemm-tma-wgmma-cooperative.cu"), SPECS)
    assert (result.outcome, result.target) == ("compiles", "sm_90a"), result.detail


def test_gluon_and_descriptors_compile_without_device() -> None:
    row = sample("hopper", "gemm-gluon-tma-wgmma.py")
    result = check_sample(SHIPPED, row, SPECS)
    assert (result.outcome, result.target) == ("compiles", "90"), result.detail
    assert result.toolchain.startswith("triton 3.")


def test_uncompilable_sample_is_parsed_or_not_checked() -> None:
    row = sample("hopper", "paged-decode-attention.py")
    parsed = check_sample(SHIPPED, replace(row, check="parse"), SPECS)
    assert (parsed.outcome, parsed.detail) == ("parses", "parsed only, not compiled")
    other = replace(sample("ampere", "gemm-mma-sync-cp-async.cu"), check="parse")
    assert check_sample(SHIPPED, other, SPECS).outcome == "not checked"


def test_chip_without_samples_is_an_error() -> None:
    with pytest.raises(NotFound, match="mtia-v9"):
        next(check_samples(SHIPPED, "mtia-v9"))
