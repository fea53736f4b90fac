"""CUDA C++ with the real nvcc, if installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.toolchains.base import Compiled, EvaluationTarget
from optimizer.evaluation.toolchains.cuda import Nvcc, find_nvcc
from retrieval.diagnose.signatures import SignatureIndex, load_signatures

pytestmark = pytest.mark.slow(seconds=7)

HOPPER = EvaluationTarget("h100", ("h100", "hopper", "nvidia"), "90")
SOURCE = """
#include "kernlore_abi.h"
#include <cuda_runtime.h>

__global__ void scale(const float4 *a, float4 *o, long n) {
  __shared__ float s[128];
  long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
  s[threadIdx.x % 128] = i;
  __syncthreads();
  if (i < n) { float4 v = a[i]; v.x *= s[3]; o[i] = v; }
}

__global__ __launch_bounds__(1024, 2) void spills(const float *a, float *o) {
  float v[96];
  for (int k = 0; k < 96; k++) v[k] = a[k * 1024 + threadIdx.x];
  for (int r = 0; r < 8; r++)
#pragma unroll
    for (int k = 0; k < 96; k++) v[k] = v[k] * v[(k + 7) % 96] + v[(k + 31) % 96];
#pragma unroll
  for (int k = 0; k < 96; k++) o[k * 1024 + threadIdx.x] = v[k];
}

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {
  cudaStream_t stream = (cudaStream_t)c->stream;
  long n = t[0].shape[0] / 4;
  scale<<<(n + 255) / 256, 256, 0, stream>>>((float4 *)t[0].data, (float4 *)t[1].data, n);
  spills<<<1, 1024, 0, stream>>>((float *)t[0].data, (float *)t[1].data);
  return (int)cudaGetLastError();
}
"""
with_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")


def build(source: str, workdir: Path, target: EvaluationTarget = HOPPER) -> Compiled:
    bundle = Bundle({"k.cu": source}, "k.cu", "cuda", "kernlore_run")
    return Nvcc().compile(bundle, target, workdir, ())


@with_nvcc
def test_each_kernel_has_resource_report(tmp_path: Path) -> None:
    done = build(SOURCE, tmp_path)
    assert done.ok, done.log
    assert done.loader is None and "not run" in done.notes[0]
    scale = next(row for name, row in done.kernels.items() if "scale" in name)
    spills = next(row for name, row in done.kernels.items() if "spills" in name)
    assert (scale["shared"], scale["n_spills"], scale["ld_global_vector"]) == (512, 0, 1)
    assert int(spills["n_spills"]) > 0 and int(spills["spill_stores"]) > 0
    assert spills["n_regs"] == 32
    assert done.metrics["spill_stores"] == spills["spill_stores"]
    signals = {m.signature.signal for m in SignatureIndex(load_signatures()).match(done.log)}
    assert "register_spill" in signals


@with_nvcc
def test_errors_keep_their_text(tmp_path: Path) -> None:
    done = build(SOURCE.replace("a[k *", "b[k *"), tmp_path)
    assert not done.ok
    assert 'identifier "b" is undefined' in done.log
    assert "src/k.cu(" in done.log


@with_nvcc
def test_library_is_loaded_on_device(tmp_path: Path) -> None:
    on_device = EvaluationTarget("h100", ("h100", "hopper", "nvidia"), "90", "cuda")
    done = build(SOURCE, tmp_path, on_device)
    assert done.loader is not None and done.loader.kind == "c_abi"


@with_nvcc
def test_architecture_unknown_to_nvcc_is_unavailable() -> None:
    assert Nvcc().available(HOPPER).ok
    answer = Nvcc().available(EvaluationTarget("old", ("old",), "30"))
    assert not answer.ok and "sm_30" in answer.reason


def test_missing_nvcc_is_reported(tmp_path: Path) -> None:
    chain = Nvcc(env={"PATH": str(tmp_path)})
    answer = chain.available(HOPPER)
    assert not answer.ok
    assert "CUDA_HOME" in answer.hint
    assert chain.version() == "nvcc is not installed"


def test_nvcc_is_found_under_cuda_home(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "nvcc"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert find_nvcc({"PATH": "", "CUDA_HOME": str(tmp_path)}) == str(tool)
