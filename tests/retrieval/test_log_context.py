"""The context of an error comes before the remedy of its class; results in a program's words."""

import pytest

from retrieval.diagnose.diagnosis import Diagnoser
from retrieval.diagnose.log_context import load_contexts, results_in
from retrieval.diagnose.signals import load_signals
from retrieval.request import RetrieveRequest

SANITIZER = """========= Invalid __global__ read of size 16 bytes
=========     Access to 0x7f0000000 is out of bounds
"""
INSIDE = "=========     and is inside the nearest allocation at 0x7e0000000 of size 999 bytes\n"
FAULT = "Memory access fault by GPU node-1 on address 0x7ff96a9ac000. Reason: Page not present\n"
ILLEGAL = "CUDA error: an illegal memory access was encountered\n"
SHARED = "ptxas error   : Entry function 'f' uses too much shared data (0x{:x} bytes, 0x{:x} max)\n"
LDS = "error: local memory (90000) exceeds limit (65536) in function 'k'\n"
PASS = "RuntimeError: PassManager::run failed\n"
SPILL = "ptxas info : 8 bytes stack frame, 64 bytes spill stores, 64 bytes spill loads\n"


def remedy(log: str) -> str:
    request = RetrieveRequest(log=log)
    return str(
        Diagnoser(load_signals()).conclude(request, {}, (), ()).verdict.signatures[0]["remedy"]
    )


@pytest.mark.parametrize(
    ("log", "first"),
    [
        (SANITIZER + INSIDE, "The address is inside an allocation"),
        (FAULT + "amdgpu: Faulty UTCL2 client ID: CPF (0x4)\n", "The fault is of CPF"),
        (FAULT + "amdgpu: Faulty UTCL2 client ID: SDMA0 (0x8)\n", "The fault is of SDMA0"),
        ("lld: " + LDS, "This limit is checked when device code is linked"),
        (LDS + "-- CMAKE_BUILD_TYPE=Debug\n", "The build is without optimisation"),
        ("hipcc -c k.hip -O0 -g\n" + LDS, "The build is without optimisation"),
        (ILLEGAL + "It works in a fresh process.\n", "The failure depends on an earlier"),
        (
            ILLEGAL + "It only fails if another kernel was compiled first\n",
            "The failure depends on",
        ),
        (
            PASS + 'File "/x/triton/backends/amd/compiler.py", line 3, in make_ttgir\n',
            "This is a pass of Triton's amd",
        ),
        (
            PASS + "works with triton 3.2.0, fails with 3.3.0\n",
            "The paste names a version that works, 3.2.0",
        ),
        (
            ILLEGAL + "worked fine on 12.6 and broke in 12.8\n",
            "The paste names a version that works, 12.6",
        ),
        (
            PASS + "This is a regression, it used to compile.\n",
            "It worked before a change of version",
        ),
        (LDS + "fails since the upgrade of ROCm\n", "It worked before a change of version"),
        (SPILL + "nvcc --maxrregcount=24 k.cu\n", "The build caps the registers at 24"),
        (
            "named symbol not found\nLibomptarget --> Unable to generate entries\n",
            "The host's table",
        ),
    ],
)
def test_another_line_comes_before_the_remedy_of_the_class(log: str, first: str) -> None:
    assert remedy(log).startswith(first)


@pytest.mark.parametrize(
    ("log", "quoted"),
    [
        (
            "Check failed: shared uses 40000 bytes of shared memory, but target supports only"
            " 32768 bytes.  If it supports this, please add -max_shared_memory_per_block=N to it.",
            "-max_shared_memory_per_block=N",
        ),
        (ILLEGAL + "hint: set stride to a multiple of 16\n", "set stride to a multiple of 16"),
        (LDS + "note: try `--amdgpu-lower-module-lds-strategy=table`\n", "lower-module-lds"),
        ("Metal does not support Float64 values, try using Float32 instead", "try using Float32"),
        ("error: RAM exceeded; consider raising the limit of vmem\n" + LDS, "consider raising"),
        (PASS + "error: use the option `--iree-codegen-tile=4` here\n", "--iree-codegen-tile=4"),
    ],
)
def test_the_tools_own_advice_is_quoted(log: str, quoted: str) -> None:
    assert quoted in remedy(log).partition('". ')[0]


@pytest.mark.parametrize(
    "line",
    [
        "    raise DSLCudaRuntimeError(error_code, error_name)",
        "Using kernel 8",
        "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "  set_device(0);",
        "Please submit a full bug report, with preprocessed source.",
        "try:",
    ],
)
def test_source_and_boilerplate_are_no_advice(line: str) -> None:
    assert "The tool says" not in remedy(ILLEGAL + line + "\n")


def test_a_limit_of_a_small_device_is_not_raised_by_opting_in() -> None:
    assert "no opt-in raises it" in remedy(SHARED.format(0x4010, 0x4000))
    assert "no opt-in" not in remedy(SHARED.format(0xC400, 0xC000))


@pytest.mark.parametrize(
    ("log", "signal"),
    [
        ("Run 1: top1 = 6.50%\nRun 2: top1 = 2.50%\n", "nondeterminism"),
        (
            "run #1: checksum 81234\nrun #2: checksum 81239\nrun #3: checksum 81234\n",
            "nondeterminism",
        ),
        ("[Run 1] sum=0.12501\n[Run 2] sum=0.12499\n", "nondeterminism"),
        ("execution 1: norm 3.5\nexecution 2: norm 3.25\n", "nondeterminism"),
        ("Run 1 - hash: 99\nRun 2 - hash: 98\n", "nondeterminism"),
        ("gemm 4096: 9,871.2 TFLOPS\n", "measurement_error"),
        ("throughput: 5.1 PFLOP/s (bf16)\n", "measurement_error"),
        (
            "matmul-performance:\n  M  N  ours\n0 512 64.0 88.1\n1 4096 64.0 7120.4\n",
            "measurement_error",
        ),
        ("kernel: 0.000 ms, inf GFLOPS\n", "measurement_error"),
        ("copy: inf GB/s\n", "measurement_error"),
    ],
)
def test_results_of_a_program(log: str, signal: str) -> None:
    assert [match.signature.signal for match in results_in(log, {})] == [signal]


@pytest.mark.parametrize(
    "log",
    [
        "Run 1: 12.1 ms\nRun 2: 12.3 ms\n",
        "Run 1: checksum 81234\nRun 2: checksum 81234\n",
        "Run 1: 812 GFLOPS\nRun 2: 799 GFLOPS\n",
        "Iteration 1: residual = 0.5\nIteration 2: residual = 0.1\n",
        "matmul-performance:\n  M  N  ours\n0 512.0 512.0 88.1\n1 4096.0 4096.0 620.4\n",
        "fp8 gemm: 4,410 TFLOPS\n",
        "llama: 71.2 tokens/s, 989 TFLOPS peak\n",
    ],
)
def test_plausible_results_are_no_signal(log: str) -> None:
    assert results_in(log, {}) == []


def test_a_known_chip_bounds_the_rate() -> None:
    log = "gemm: 950 TFLOPS\n"
    assert results_in(log, {"peak_matrix_fp16": 312e12})
    assert not results_in(log, {"peak_matrix_fp16": 989e12})


def test_contexts_are_valid() -> None:
    assert len(load_contexts()) >= 12
