"""Readers of compiler reports, on text as compilers print it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from optimizer.evaluation.toolchains.reports import (
    COMBINE,
    count_instructions,
    packed_bits,
    parse_amdgcn,
    parse_loops,
    parse_ptx,
    parse_ptxas,
    whole,
)

ROOT = Path(__file__).resolve().parents[4]


def test_every_candidate_metric_is_in_registry() -> None:
    path = ROOT / "retrieval" / "data" / "metrics.toml"
    metrics = tomllib.loads(path.read_text(encoding="utf-8"))["metrics"]
    aliases = [alias for metric in metrics for alias in metric.get("aliases", [])]
    known = {alias["name"] for alias in aliases if alias["collector"] == "static"}
    assert {*COMBINE, "packed_instructions", "vec_missed"} <= known


def test_ptxas_reports_kernels_and_not_their_callees() -> None:
    log = """
ptxas info    : Compiling entry function 'outer' for 'sm_90a'
ptxas info    : Function properties for outer
    24 bytes stack frame, 20 bytes spill stores, 16 bytes spill loads
ptxas info    : Function properties for callee
    800 bytes stack frame, 400 bytes spill stores, 400 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 1024 bytes smem, 380 bytes cmem[0]
ptxas-blackwell info    : Compiling entry function 'frame_only' for 'sm_100a'
ptxas-blackwell info    : Function properties for frame_only
    64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas-blackwell info    : Used 12 registers, used 0 barriers
"""
    kernels = parse_ptxas(log)
    outer, frame = kernels["outer"], kernels["frame_only"]
    assert (outer["n_regs"], outer["shared"], outer["spill_stores"]) == (40, 1024, 20)
    assert (outer["n_spills"], frame["n_spills"], frame["stack_frame"]) == (6, 0, 64)
    combined = whole(kernels)
    assert (combined["n_regs"], combined["n_spills"], combined["shared"]) == (40, 6, 1024)


@pytest.mark.parametrize(
    "line, width",
    [
        ("@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];", 16),
        ("ld.global.nc.L1::no_allocate.L2::128B.v2.f32 {%f1,%f2}, [%rd1];", 8),
        ("ld.global.L1::evict_last.b16 { %rs1 }, [ %rd1 + 0 ];", 2),
        ("ld.volatile.global.u32 %r1, [%rd1];", 4),
        ("@%p1 cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r5;", 16),
        ("cp.async.ca.shared.global [%r1], [%rd1], 4;", 4),
    ],
)
def test_width_of_ptx_loads(line: str, width: int) -> None:
    report = parse_ptx(f"\t{line}\n\tld.shared.v4.b32 {{%r1}}, [%r2];\n\tld.param.b64 %rd1, [p];\n")
    assert report["widest_load_bytes"] == width
    assert report["ld_global_vector"] == int(width >= 8)
    assert report["ld_global_scalar"] == int(width < 8)


def test_ptx_matrix_instructions_and_bulk_copies() -> None:
    report = parse_ptx(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%f1};\n"
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1];\n"
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1];\n"
    )
    assert (report["mma_instructions"], report["matrix_kind"]) == (1, "wgmma.mma_async")
    assert (report["bulk_copies"], report["ld_global_vector"]) == (1, 1)


def test_amd_assembly() -> None:
    report = parse_amdgcn(
        "\tbuffer_load_dwordx4 v[0:3], v2, s[0:3], 0 offen\n\tglobal_load_ushort v1, v2, s[0:1]\n"
        "\tglobal_load_lds_dwordx4 v1, s[2:3]\n\tv_mfma_f32_32x32x8_f16 v[0:15], v[0:1]\n"
        "; Occupancy: 4\n  - .agpr_count:     16\n    .vgpr_count:     128\n"
        "    .vgpr_spill_count: 3\n    .private_segment_fixed_size: 12\n"
    )
    assert (report["vgpr_count"], report["agpr_count"], report["vgpr_spill_count"]) == (128, 16, 3)
    assert (report["occupancy"], report["mfma_instructions"]) == (0.5, 1)
    assert (report["ld_global_vector"], report["ld_global_scalar"]) == (2, 1)


def test_loop_with_vectorised_copy_is_not_missed() -> None:
    report = """src/k.cpp:9:5: optimized: loop vectorized using 32 byte vectors
src/k.cpp:9:5: missed: couldn't vectorize loop
src/k.cpp:20:3: missed: couldn't vectorize loop
src/k.cpp:21:3: missed: not vectorized: no vectype for stmt
/usr/include/c++/12/bits/stl_algo.h:10:3: missed: couldn't vectorize loop
"""
    loops = parse_loops(report, Path("src"))
    assert (loops.vectorised, loops.missed) == (
        frozenset({"src/k.cpp:9"}),
        frozenset({"src/k.cpp:20"}),
    )
    assert loops.summary == "loops vectorised: 1, widest 256 bits; missed: 1"


@pytest.mark.parametrize(
    "op, args, bits",
    [
        ("vfmadd213ps", "%zmm0,%zmm1,%zmm2", 512),
        ("vmovups", "(%rax),%ymm1", 256),
        ("mulps", "%xmm1,%xmm0", 128),
        ("vpaddd", "%xmm1,%xmm0,%xmm0", 128),
        ("vmulss", "%xmm1,%xmm0,%xmm0", 0),
        ("vxorps", "%xmm0,%xmm0,%xmm0", 0),
        ("vpxor", "%ymm0,%ymm0,%ymm0", 0),
        ("movups", "%xmm0,(%rax)", 0),
        ("vzeroupper", "", 0),
        ("fmla", "v0.4s, v1.4s, v2.4s", 128),
        ("fmadd", "s0, s1, s2, s3", 0),
    ],
)
def test_packed_instructions(op: str, args: str, bits: int) -> None:
    assert packed_bits(op, args) == bits


def test_start_up_code_is_not_counted() -> None:
    listing = (
        "0000000000001000 <frame_dummy>:\n    1000:\tvaddps %ymm0,%ymm1,%ymm2\n"
        "0000000000001100 <work>:\n    1100:\tvaddps %ymm0,%ymm1,%ymm2\n"
        "    1104:\tvmovaps %ymm0,0x20(%rsp)\n    1108:\tret\n"
    )
    counts = count_instructions(listing)
    assert counts == {
        "work": {"instructions": 3, "packed_instructions": 2, "vector_bits": 256, "stack_vector": 1}
    }
