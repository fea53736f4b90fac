// y = x / sqrt(mean(x^2) + eps) * weight for rows of bf16: one block a row, 16 bytes a load, the
// row stays in registers between the two passes, and the sum crosses the block by warp shuffles and
// 32 floats of shared memory. Width: a multiple of 8, at most 8 * THREADS * PIECES.
// Pointers: aligned to 16 bytes.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

union Piece {
  uint4 bits;
  __nv_bfloat162 pairs[4];
};

__device__ __forceinline__ float block_sum(float value, float* shared) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = lane < blockDim.x / 32 ? shared[lane] : 0.f;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;  // in every lane of every warp
}

template <int THREADS, int PIECES>
__global__ void __launch_bounds__(THREADS)
rmsnorm_kernel(const uint4* __restrict__ x, const uint4* __restrict__ weight, uint4* __restrict__ y,
               int pieces, float inverse_width, float eps) {
  __shared__ float shared[32];
  size_t row = size_t(blockIdx.x) * pieces;
  Piece own[PIECES];
  float sum = 0.f;
  // All loads are issued before the first is used.
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    int at = threadIdx.x + i * THREADS;
    own[i].bits = at < pieces ? __ldcs(x + row + at) : make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < PIECES; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float2 pair = __bfloat1622float2(own[i].pairs[j]);
      sum = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, sum));
    }
  float scale = rsqrtf(block_sum(sum, shared) * inverse_width + eps);
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    int at = threadIdx.x + i * THREADS;
    if (at >= pieces) continue;
    Piece factor, out;
    factor.bits = __ldg(weight + at);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float2 pair = __bfloat1622float2(own[i].pairs[j]), w = __bfloat1622float2(factor.pairs[j]);
      out.pairs[j] = __floats2bfloat162_rn(pair.x * scale * w.x, pair.y * scale * w.y);
    }
    __stcs(y + row + at, out.bits);
  }
}

extern "C" int rmsnorm(const void* x, const void* weight, void* y, int rows, int width, float eps,
                       cudaStream_t stream) {
  if (width % 8 || width > 8 * 1024 * 2) return 1;
  auto *in = static_cast<const uint4*>(x), *factors = static_cast<const uint4*>(weight);
  auto* out = static_cast<uint4*>(y);
  int pieces = width / 8;
  float inverse = 1.f / width;
  if (pieces <= 256)
    rmsnorm_kernel<128, 2><<<rows, 128, 0, stream>>>(in, factors, out, pieces, inverse, eps);
  else if (pieces <= 1024)
    rmsnorm_kernel<256, 4><<<rows, 256, 0, stream>>>(in, factors, out, pieces, inverse, eps);
  else
    rmsnorm_kernel<1024, 2><<<rows, 1024, 0, stream>>>(in, factors, out, pieces, inverse, eps);
  return cudaGetLastError();
}
