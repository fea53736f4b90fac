"""Names of changes of CUDA kernels, their limits, and the lines that show them."""

from __future__ import annotations

import pytest

from optimizer.evaluation.bundle import Bundle
from optimizer.evaluation.records import Interval
from optimizer.search.records import Proposal
from skills.curator.contrast import rules_in
from skills.curator.excerpt import excerpt
from skills.curator.structure import differences, needs, structure_of
from skills.lineage.from_history import apart
from skills.trajectories.records import MeasuredKernel, TrajectoryStep
from tests.skills.curator.planted import measured

NAIVE = """
__global__ void product(int M, int N, int K, const float *A, const float *B, float *C) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < M && y < N) {
    float sum = 0;
    for (int i = 0; i < K; ++i) {
      sum += A[x * K + i] * B[i * N + y];
    }
    C[x * N + y] = sum;
  }
}
"""
COALESCED = NAIVE.replace("threadIdx.x", "threadIdx.?").replace("threadIdx.y", "threadIdx.x")
COALESCED = COALESCED.replace("threadIdx.?", "threadIdx.y")
TILES = """
__global__ void product(int M, int N, int K, const float *A, const float *B, float *C) {
  __shared__ float As[W * W];
  __shared__ float Bs[W * W];
  const int col = threadIdx.x % W;
  const int row = threadIdx.x / W;
  float sum = 0;
  for (int k = 0; k < K; k += W) {
    As[row * W + col] = A[row * K + col];
    Bs[row * W + col] = B[row * N + col];
    __syncthreads();
    for (int i = 0; i < W; ++i) {
      sum += As[row * W + i] * Bs[i * W + col];
    }
    __syncthreads();
  }
  C[row * N + col] = sum;
}
"""
ROW_TILE = TILES.replace("float sum = 0;", "float sums[TM] = {0};").replace(
    "sum += As[row * W + i] * Bs[i * W + col];",
    "for (int r = 0; r < TM; ++r) sums[r] += As[(row * TM + r) * W + i] * Bs[i * W + col];",
)
SQUARE = ROW_TILE.replace("sums[TM]", "sums[TM * TN]")
BOUND = TILES.replace("void product", "void __launch_bounds__(256) product")
BOUND_SQUARE = SQUARE.replace("void product", "void __launch_bounds__(256) product")
THREAD_ROW = """
__global__ void total(float *out, const float *inp, int N, int C) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) {
    const float *x = inp + i * C;
    float sum = 0;
    for (int j = 0; j < C; j++) { sum += x[j]; }
    out[i] = sum;
  }
}
"""
BLOCK_ROW = """
__global__ void total(float *out, const float *inp, int N, int C) {
  extern __shared__ float shared[];
  const float *x = inp + blockIdx.x * C;
  int tid = threadIdx.x;
  float sum = 0;
  for (int j = tid; j < C; j += blockDim.x) { sum += x[j]; }
  shared[tid] = sum;
  for (int stride = blockDim.x / 2; stride >= 1; stride /= 2) {
    __syncthreads();
    if (tid < stride) { shared[tid] += shared[tid + stride]; }
  }
  out[blockIdx.x] = shared[0];
}
"""
WARP_ROW = """
__global__ void total(float *out, const float *inp, int N, int C) {
  int lane = threadIdx.x % 32;
  int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= N) { return; }
  float sum = 0;
  for (int j = lane; j < C; j += 32) { sum += inp[row * C + j]; }
  sum = warpReduceSum(sum);
  if (lane == 0) { out[row] = sum; }
}
"""
TWICE = """
__global__ void twice(float *out, const float *inp, int N) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < N) { out[i] = 2 * inp[i]; }
}
"""
FOUR = TWICE.replace(
    "out[i] = 2 * inp[i];",
    "float4 v = reinterpret_cast<const float4 *>(inp)[i]; reinterpret_cast<float4 *>(out)[i] = v;",
)


def kernel(device: str, host: str = "") -> Bundle:
    name = device.partition("void ")[2].partition("(")[0].split()[-1]
    if "__launch_bounds__" in device:
        name = "product"
    launch = host or f"  {name}<<<1, 256>>>();"
    text = f'{device}\nextern "C" int kernlore_run(void *t) {{\n{launch}\n  return 0;\n}}\n'
    return Bundle({"kernel.cu": text}, "kernel.cu", "cuda", "kernlore_run")


def names(before: str, after: str) -> tuple[str, ...]:
    sides = [
        MeasuredKernel(n, Proposal(kernel(text), "llm"), measured(str(n), 1.0))
        for n, text in enumerate((before, after), 1)
    ]
    return rules_in(TrajectoryStep(sides[0], sides[1]))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (NAIVE, COALESCED, ("coalesce-thread-mapping",)),
        (COALESCED, NAIVE, ()),
        (COALESCED, TILES, ("stage-in-shared-memory",)),
        (TILES, ROW_TILE, ("register-tile-in-one-dimension",)),
        (ROW_TILE, SQUARE, ("register-tile-in-two-dimensions",)),
        (TILES, BOUND, ("bound-registers",)),
        (TILES, BOUND_SQUARE, ("register-tile-in-two-dimensions",)),
        (THREAD_ROW, BLOCK_ROW, ("block-per-row",)),
        (THREAD_ROW, WARP_ROW, ("warp-per-row",)),
        (BLOCK_ROW, WARP_ROW, ("warp-per-row",)),
        (TWICE, FOUR, ("vectorize-global-access",)),
        (FOUR, TWICE, ()),
    ],
)
def test_change_is_named_by_both_kernels(before: str, after: str, found: tuple[str, ...]) -> None:
    assert names(before, after) == found


def test_lost_preconditions_are_stated() -> None:
    def limits(before: str, after: str) -> str:
        return " ".join(needs(structure_of(kernel(before)), structure_of(kernel(after))))

    assert "`if (x < M && y < N)`" in limits(NAIVE, TILES)
    assert "power of two" in limits(THREAD_ROW, BLOCK_ROW)
    assert "`if (i < N)`" in limits(THREAD_ROW, BLOCK_ROW)
    assert "multiple of the warp" in limits(THREAD_ROW, WARP_ROW)
    assert "aligned to the vector type" in limits(TWICE, FOUR)
    assert limits(FOUR, TWICE) == limits(NAIVE, COALESCED) == ""


def test_differences_are_stated_without_a_name() -> None:
    found = differences(structure_of(kernel(COALESCED)), structure_of(kernel(TILES)))
    assert "Arrays in shared memory: none before, `As`, `Bs` after." in found


def test_kernel_is_shown_before_its_launch() -> None:
    helper = "__device__ float warpReduceSum(float x) { return x; }\n"
    noise = "#include <cstdio>\ntemplate void other<float>(int);\nvoid check(int e) { exit(e); }\n"
    filler = "".join(f"  int a{n} = {n};\n" for n in range(60))
    launch = f"{filler}  total<<<N, 256>>>();"
    shown = excerpt(kernel(THREAD_ROW), kernel(helper + noise + WARP_ROW, launch), 1200)
    assert shown is not None
    before, after = ("\n".join(lines) for lines in shown)
    assert "for (int j = 0; j < C; j++)" in before and "for (int j = lane;" in after
    assert "include" not in after and "warpReduceSum(float" not in after and "check" not in after
    assert "total<<<N, 256>>>" in after and " lines)" in after
    for text in (before, after):
        assert text.count("{") == text.count("}")


def test_new_function_is_shown_beside_the_one_that_ran() -> None:
    both = kernel(THREAD_ROW + WARP_ROW.replace("total", "total2"), "  total2<<<1, 256>>>();")
    shown = excerpt(kernel(THREAD_ROW), both, 4000)
    assert shown is not None
    assert any("int j = 0" in line for line in shown[0])
    assert not any("int j = 0" in line for line in shown[1])


def test_steps_without_effect_belong_to_the_next() -> None:
    unused, used = THREAD_ROW + WARP_ROW.replace("total", "total2"), WARP_ROW
    speeds = [Interval(v, v * 0.99, v * 1.01, 6) for v in (1.0, 1.0, 2.0, 4.0)]
    kernels = [kernel(text) for text in (THREAD_ROW, unused, BLOCK_ROW, used)]
    assert apart(kernels, speeds, 0.01) == [2]
    launched = kernel(WARP_ROW, "  total<<<2, 128>>>();")
    assert apart([kernels[0], kernels[3], launched], [speeds[0], *speeds[2:]], 0.01) == []
