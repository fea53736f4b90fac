"""Triton for absent chips: compiling the kernels that a candidate launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.evaluation.abi import Signature, TensorSpec
from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains.base import CompileCase, Compiled, EvaluationTarget
from optimizer.evaluation.toolchains.python import BF16_NOTE, LIMITS, TritonAmd, TritonNvidia, gfx
from retrieval.diagnose.signatures import SignatureIndex, load_signatures

pytestmark = pytest.mark.slow(seconds=15)

pytest.importorskip("triton")

HOPPER = EvaluationTarget("h100", ("h100", "hopper", "nvidia"), "90")
CDNA3 = EvaluationTarget("mi300x", ("mi300x", "cdna3", "amd"), "gfx942")

IMPORTS = """
import torch
import triton
import triton.language as tl
"""
TWO = (
    IMPORTS
    + """
@triton.jit
def spills(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + at).to(tl.float32)
    top = tl.exp(row - tl.max(row, 0))
    tl.store(y + at, row + top / tl.sum(top, 0))

@triton.jit
def matmul(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        right = tl.load(b + (k + rk)[:, None] * BN + rn[None, :])
        acc = tl.dot(left, right, acc)
    tl.store(c + rm[:, None] * BN + rn[None, :], acc.to(tl.float16))

class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        assert a.is_cuda and a.device.type == "cuda"
        c = torch.empty(a.shape[0], b.shape[1], device=a.device, dtype=a.dtype)
        with torch.cuda.device(a.device):
            matmul[(a.shape[0] // 64, 1)](a, b, c, a.shape[1], 64, 64, 32)
            spills[(1,)](a, c, SPILLS)
        return c
"""
)
ONE = (
    IMPORTS
    + """
@triton.autotune([triton.Config({"B": 256}), triton.Config({"B": 512})], key=["n"])
@triton.heuristics({"EVEN": lambda a: a["n"] % a["B"] == 0})
@triton.jit
def scale(x, y, n, factor, B: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    if EVEN:
        tl.store(y + at, tl.load(x + at) * factor)
    else:
        tl.store(y + at, tl.load(x + at, at < n) * factor, at < n)

class ModelNew(torch.nn.Module):
    def __init__(self, width, slope=2.0):
        super().__init__()
        self.layer = torch.nn.Linear(width, width, device="cuda")
        self.slope = slope

    def forward(self, x):
        count = int(x.sum().item()) if READS_VALUES else 1
        y = torch.empty_like(x)
        n = x.numel()
        scale[lambda meta: (triton.cdiv(n, meta["B"]),)](x, y, n, self.slope)
        return self.layer(y)

READS_VALUES = False
"""
)


MISTAKES = (
    IMPORTS
    + """
@triton.jit
def power(x, B: tl.constexpr):
    tl.store(x + tl.arange(0, 100), 1.0)

@triton.jit
def name(x, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), missing)

@triton.jit
def constant(x, n):
    tl.store(x + tl.arange(0, n), 1.0)

@triton.jit
def shapes(x, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), tl.load(x + tl.arange(0, 2 * B)))

@triton.jit
def small(x, B: tl.constexpr):
    tile = tl.load(x + tl.arange(0, 8)[:, None] * 8 + tl.arange(0, 8)[None, :])
    tl.store(x + tl.arange(0, 8), tl.sum(tl.dot(tile, tile[None, :]), 1))

@triton.jit
def carried(x, B: tl.constexpr):
    total = 0
    for at in range(tl.load(x).to(tl.int32)):
        total += tl.load(x + at)
    tl.store(x, total)

@triton.jit
def attribute(x, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), tl.no_such_function(x))

class ModelNew(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        globals()[self.kernel][(1,)](x, 128)
"""
)
EXPECTED = {
    "power": "triton-arange-power-of-2",
    "name": "triton-name-undefined",
    "constant": "triton-arange-constexpr",
    "shapes": "triton-broadcast",
    "small": "triton-dot-rank",
    "carried": "triton-loop-carried-type",
    "attribute": "triton-no-such-function",
}


def tensors(*shapes: tuple[int, ...], dtype: str = "float16") -> Signature:
    return Signature(tuple(TensorSpec(f"x{n}", "input", dtype, s) for n, s in enumerate(shapes)))


MATRICES = tensors((1024, 1024), (1024, 64))


def build(
    source: str,
    workdir: Path,
    target: EvaluationTarget = HOPPER,
    signature: Signature = MATRICES,
    init_args: Sequence[object] | None = None,
    dtype: str | None = None,
    seconds: float = 60.0,
) -> Compiled:
    limits = replace(LIMITS, seconds=seconds)
    chain = TritonAmd(limits) if target is CDNA3 else TritonNvidia(limits)
    assert chain.available(target).ok
    bundle = Bundle({"k.py": source}, "k.py", "triton", "ModelNew")
    return chain.compile(bundle, target, workdir, (CompileCase(signature, init_args, dtype),))


def signals(log: str) -> list[tuple[str, str]]:
    found = SignatureIndex(load_signatures()).match(log)
    return [(match.signature.id, match.signature.signal) for match in found]


def test_hopper_resources_of_each_kernel(tmp_path: Path) -> None:
    done = build(TWO.replace("SPILLS", "BLOCK=8192, num_warps=1"), tmp_path)
    assert done.ok, done.log
    matmul, spills = done.kernels["matmul"], done.kernels["spills"]
    assert matmul["matrix_kind"] == "wgmma.mma_async"
    assert int(matmul["mma_instructions"]) > 0
    assert int(matmul["ld_global_vector"]) > 0 and matmul["widest_load_bytes"] == 16
    assert (matmul["n_spills"], matmul["num_warps"]) == (0, 4)
    assert int(matmul["shared"]) >= 3 * (64 * 32 + 32 * 64) * 2 // 2
    assert (matmul["constant.BM"], matmul["constant.BK"]) == ("64", "32")
    assert int(spills["n_spills"]) > 0 and int(spills["spill_stores"]) > 0
    assert spills["mma_instructions"] == 0
    assert done.metrics["n_spills"] == spills["n_spills"]
    assert done.metrics["mma_instructions"] == matmul["mma_instructions"]
    assert done.loader is not None and done.loader.kind == "interpreter"
    assert ("ptxas-spill", "register_spill") in signals(done.log)


def test_cdna3_resources_of_each_kernel(tmp_path: Path) -> None:
    launch = "BLOCK=4096, num_warps=1, waves_per_eu=8"
    done = build(TWO.replace("SPILLS", launch), tmp_path, CDNA3)
    assert done.ok, done.log
    matmul, spills = done.kernels["matmul"], done.kernels["spills"]
    assert int(matmul["mfma_instructions"]) > 0
    assert int(matmul["shared"]) > 0  # LDS
    assert matmul["vgpr_spill_count"] == 0 and int(matmul["widest_load_bytes"]) >= 8
    assert int(spills["vgpr_spill_count"]) > 0
    assert int(spills["private_segment_fixed_size"]) > 0
    assert spills["occupancy"] == 1.0 and 0 < float(done.metrics["occupancy"]) <= 1
    assert done.metrics["vgpr_spill_count"] == spills["vgpr_spill_count"]


def test_device_runs_compiled_kernels(tmp_path: Path) -> None:
    here = replace(HOPPER, device="cuda")
    signature = tensors((512, 64), dtype="bfloat16")
    done = build(ONE, tmp_path, here, signature, (64,), "bfloat16")
    assert done.ok, done.log
    assert done.loader is not None and done.loader.kind == "python"
    assert BF16_NOTE not in done.notes
    assert any("first that fits of 2 configurations" in note for note in done.notes)
    assert (done.kernels["scale"]["constant.B"], done.kernels["scale"]["constant.EVEN"]) == (
        "256",
        "True",
    )


def test_candidate_that_reads_values_and_bf16(tmp_path: Path) -> None:
    source = ONE.replace("READS_VALUES = False", "READS_VALUES = True")
    done = build(source, tmp_path, HOPPER, tensors((512, 64), dtype="bfloat16"), [64, 0.5])
    assert "scale" in done.kernels, done.notes
    assert BF16_NOTE in done.notes


def test_unknown_init_arguments_leave_note(tmp_path: Path) -> None:
    done = build(ONE, tmp_path, HOPPER, tensors((512, 64)))
    assert done.ok and not done.kernels
    assert "arguments of ModelNew are not known" in done.notes[0]


@pytest.mark.parametrize("target", [HOPPER, CDNA3], ids=["hopper", "cdna3"])
def test_compile_error_names_kernel_line(tmp_path: Path, target: EvaluationTarget) -> None:
    done = build(TWO.replace("tl.dot(left, right", "tl.dot(left, left"), tmp_path, target)
    assert not done.ok and done.loader is None
    assert "CompilationError: at 9:14" in done.log
    assert str(tmp_path) not in done.log and "toolchains/triton" not in done.log
    assert signals(done.log)[0][1] == "compile_error"


def test_errors_are_in_signature_index(tmp_path: Path) -> None:
    bundle = Bundle({"k.py": MISTAKES}, "k.py", "triton", "ModelNew")
    signature = tensors((4096,), dtype="float32")
    cases = tuple(CompileCase(signature, (kernel,)) for kernel in EXPECTED)
    done = TritonNvidia().compile(bundle, HOPPER, tmp_path, cases)
    assert not done.ok
    found = {signature for signature, _ in signals(done.log)}
    assert set(EXPECTED.values()) <= found, done.log
    assert {signal for _, signal in signals(done.log)} == {"compile_error"}


def test_more_shared_memory_than_chip_has(tmp_path: Path) -> None:
    target = replace(HOPPER, facts={"shared_memory_per_block": 8_192})
    done = build(TWO.replace("SPILLS", "BLOCK=64"), tmp_path, target)
    assert not done.ok
    assert signals(done.log)[0] == ("triton-shared-memory", "shared_memory_limit")


def test_unimportable_file_is_a_compile_error(tmp_path: Path) -> None:
    done = build("import torch\ndef forward(:\n", tmp_path)
    assert not done.ok
    assert "SyntaxError" in done.log
    assert signals(done.log)[0][1] == "compile_error"


def test_endless_compilation_is_killed(tmp_path: Path) -> None:
    endless = TWO.replace("for k in range(0, K, BK)", "for k in tl.static_range(0, 10**9, 32)")
    done = build(endless, tmp_path, seconds=3.0)
    assert not done.ok and done.timed_out
    assert "compilation of kernel matmul timed out" in done.log
    assert done.seconds < 40
    assert signals(done.log)[0][1] == "timeout"


def test_call_that_is_slow_without_its_device_is_not_a_failure(tmp_path: Path) -> None:
    first = "            matmul[(a.shape[0] // 64, 1)](a, b, c, a.shape[1], 64, 64, 32)\n"
    slow = TWO.replace(first, "").replace("SPILLS", "BLOCK=64")
    slow = slow.replace("        return c", "        while True: time.sleep(1)")
    done = build("import time\n" + slow, tmp_path, seconds=3.0)
    assert done.ok and not done.timed_out
    assert set(done.kernels) == {"spills"}
    assert "did not end within 3 s" in done.notes[0]


def test_unsuitable_configuration_is_skipped(tmp_path: Path) -> None:
    tuned = TWO.replace("SPILLS", "BLOCK=64").replace("a.shape[1], 64, 64, 32)", "a.shape[1])")
    configs = "[triton.Config({'BM': 64, 'BN': 64, 'BK': k}) for k in (64, 16)]"
    tuned = tuned.replace(
        "@triton.jit\ndef matmul",
        f"@triton.autotune({configs}, key=['K'])\n@triton.jit\ndef matmul",
    ).replace(
        "import torch\n", "import torch\n@torch.compile(dynamic=False)\ndef same(x): return x\n"
    )
    target = replace(HOPPER, facts={"shared_memory_per_block": 20_000})
    done = build(tuned, tmp_path, target)
    assert done.ok, done.log
    assert done.kernels["matmul"]["constant.BK"] == "16"
    assert set(done.kernels) == {"matmul", "spills"}


def test_candidate_that_exits_fails(tmp_path: Path) -> None:
    done = build("import os\nos._exit(0)\n", tmp_path)
    assert not done.ok
    assert "ended with status 0" in done.log


def test_architectures_by_name_or_fact() -> None:
    facts = {"compute_capability": "10.0"}
    assert EvaluationTarget("b200", ("b200",), None, None, facts).capability == 100
    assert EvaluationTarget("x", ("x",), "sm_90a").capability == 90
    assert (
        gfx(EvaluationTarget("x", ("x",), None, None, {"compute_capability": "gfx950"})) == "gfx950"
    )
    assert not TritonNvidia().available(EvaluationTarget("x", ("x",))).ok
    assert not TritonNvidia().available(EvaluationTarget("v100", ("v100",), "70")).ok
    assert not TritonAmd().available(HOPPER).ok


def test_versions_name_compilers() -> None:
    assert "ptxas V" in TritonNvidia().version()
    assert "triton 3." in TritonAmd().version()
