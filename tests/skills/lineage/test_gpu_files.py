"""CUDA and Triton files of a history: launchers are cut out with their kernels, and compiled for a
chip that need not be here. Running them needs a GPU; Triton's kernels run in its interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from api.services import open_services
from kb.settings import Settings
from optimizer.evaluation.evaluate import choose_target
from optimizer.evaluation.toolchains.cuda import find_nvcc
from optimizer.evaluation.toolchains.registry import usable_toolchain
from skills.lineage.binding import GPU, bundle_of, calls_of, references
from skills.lineage.from_history import (
    HistoryRequest,
    changes_of,
    learn_from_history,
    steps_of_files,
)
from skills.trajectories.git_history import Repository
from tests.catalogs import builtin_data_dir
from tests.skills.lineage.test_changes import git

COMMON = """#include <cublas_v2.h>
int unrelated = 3;
template <class T, class U>
void checked(T *x, U tolerance = 1e-4) { for (;;) x[0] = tolerance; }
void cuda_check(cudaError_t error, const char *file);
"""
CHECKS = """#include "checks.h"
void cuda_check(cudaError_t error, const char *file) { if (error != cudaSuccess) abort(); }
"""
CUDA = """#include "checks.h"
__global__ void softmax_kernel1(float *out, const float *inp, int N, int C) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= N) return;
  float sum = 0.f;
  for (int c = 0; c < C; c++) sum += expf(inp[row * C + c]);
  for (int c = 0; c < C; c++) out[row * C + c] = expf(inp[row * C + c]) / sum;
}
__global__ void softmax_kernel2(float *out, const float *inp, int N, int C) {
  __shared__ float part[256];
  float sum = 0.f;
  for (int c = threadIdx.x; c < C; c += 256) sum += expf(inp[blockIdx.x * C + c]);
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int k = 128; k > 0; k /= 2) {
    if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
    __syncthreads();
  }
  for (int c = threadIdx.x; c < C; c += 256)
    out[blockIdx.x * C + c] = expf(inp[blockIdx.x * C + c]) / part[0];
}
void softmax1(float *out, const float *inp, int N, int C, const int block_size) {
  softmax_kernel1<<<(N + block_size - 1) / block_size, block_size>>>(out, inp, N, C);
  cuda_check(cudaGetLastError(), __FILE__);
}
void softmax2(float *out, const float *inp, int N, int C, int block_size) {
  softmax_kernel2<<<N, 256>>>(out, inp, N, C);
  cuda_check(cudaGetLastError(), __FILE__);
}
"""
TRITON = '''"""Kernels."""
import torch
import triton
import triton.language as tl
from .sizes import block_of
from tiny.missing import absent

UNUSED = absent


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < n
    tl.store(out + places, tl.load(x + places, mask) + tl.load(y + places, mask), mask)


def add(x, y, out=None):
    out = torch.zeros_like(x)
    add_kernel[(triton.cdiv(x.numel(), block_of(x)),)](x, y, out, x.numel(), BLOCK=block_of(x))
    return out


def other(x):
    return x
'''
SIZES = "def block_of(x):\n    return 256\n"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A CUDA file with two versions of a softmax, and a Triton file in two commits."""
    root = tmp_path / "tiny"
    (root / "src" / "tiny").mkdir(parents=True)
    git(root, "init", "-q")
    for name, text in (
        ("src/checks.h", COMMON),
        ("src/checks.cu", CHECKS),
        ("src/softmax.cu", CUDA),
        ("src/tiny/__init__.py", ""),
        ("src/tiny/sizes.py", SIZES),
        ("src/tiny/add.py", TRITON),
    ):
        (root / name).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "start")
    faster = TRITON.replace("torch.zeros_like", "torch.empty_like")
    (root / "src/tiny/add.py").write_text(faster)
    git(root, "commit", "-q", "-a", "-m", "do not clear, 1.3x faster")
    return Repository(root)


STEPS = ["src/softmax.cu:softmax1", "src/softmax.cu:softmax2"]


def test_launcher_is_cut_out_with_its_kernel_under_the_name_of_the_later_step(
    repository: Repository,
) -> None:
    ((change,), refused) = steps_of_files(repository, STEPS)
    assert not refused and change.after.name == change.before.name == "softmax2"
    assert change.after.parameters == change.before.parameters
    for function in (change.before, change.after):
        assert function.language == "cuda" and not function.refusal
        assert function.text.count("__global__") == 1 and "softmax_kernel2<<<" in function.text
        assert "abort()" in function.text  # of the source file that belongs to the header
        assert "unrelated" not in function.text and "checked" not in function.text
    call = calls_of(change.after)[0]
    assert call.reference.name == "softmax"
    assert "t[0].shape[0], t[0].shape[1], 256);" in call.statements
    assert "cublas" not in "".join(bundle_of(change.after, call.statements).files.values())


@pytest.mark.slow(seconds=20)
def test_both_steps_compile_for_a_gpu(repository: Repository, tmp_path: Path) -> None:
    if find_nvcc() is None:
        pytest.skip("nvcc is not installed: CUDA files are not compiled here")
    ((change,), _) = steps_of_files(repository, STEPS)
    services = open_services(Settings(data_dir=builtin_data_dir(tmp_path / "data")))
    try:
        chosen = choose_target(services, "h200", "cuda")
        nvcc = usable_toolchain("cuda", chosen.target, chosen.builtin)
        for number, function in enumerate((change.before, change.after)):
            bundle = bundle_of(function, calls_of(function)[0].statements)
            compiled = nvcc.compile(bundle, chosen.target, tmp_path / str(number), ())
            assert compiled.ok, compiled.log
    finally:
        services.close()


def test_triton_function_is_cut_out_with_the_modules_of_its_repository(
    repository: Repository,
) -> None:
    (changes, refused) = changes_of(repository, ["src/tiny"])
    assert not refused
    (change,) = changes
    assert (change.after.name, change.after.language) == ("add", "triton")
    assert change.after.files == {"tiny/sizes.py": SIZES}
    assert "from tiny.sizes import block_of" in change.after.text
    assert "absent" not in change.after.text and "def other" not in change.after.text
    (call,) = [c for c in calls_of(change.after) if c.reference.name == "sum of two arrays"]
    assert call.statements == "add(t[0], t[1])"


@pytest.mark.slow(seconds=20)
def test_triton_candidate_is_right_in_the_interpreter(
    repository: Repository, tmp_path: Path
) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    ((change,), _) = changes_of(repository, ["src/tiny"])
    bundle_of(change.after, calls_of(change.after)[0].statements).write(tmp_path / "kernel")
    code = (
        "import torch; from kernel import ModelNew; x, y = torch.randn(1000), torch.randn(1000);"
        "assert torch.equal(ModelNew()(x, y), x + y)"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(tmp_path / "kernel")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_cases_of_a_gpu_are_multiples_of_tiles() -> None:
    (product,) = [r for r in references() if r.name == "matrix product"]
    source, toml = product.problem("float32", device=GPU, odd=False)
    assert "m = 2048" in source and "{m = 128, n = 512, k = 384}" in toml


@pytest.mark.slow(seconds=120)
def test_steps_teach_on_a_gpu(repository: Repository, tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here: steps of CUDA files are not run")
    services = open_services(Settings(data_dir=builtin_data_dir(tmp_path / "data")))
    try:
        request = HistoryRequest(repository.place, tuple(STEPS), files_are_steps=True)
        (change,) = learn_from_history(services, request).changes
    finally:
        services.close()
    assert change.gain is not None and change.gain.low > 1 and change.outcome == "learned"
