// y = softmax(x * scale) over rows of bf16: one block a row, 16 bytes a load. The row stays in
// registers between maximum, sum and result, so it is read once; maximum and sum cross the block
// together by one pair, with one barrier. Width: a multiple of 8, at most 32,768. Pointers: aligned
// to 16 bytes. A row of -inf alone gives zeros.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math_constants.h>
#include <stdint.h>

union Piece {
  uint4 bits;
  __nv_bfloat162 pairs[4];
};

// Sum of 2^(x - top) over x, with its top. Joining two of them is associative: one reduction does
// for both. -inf - -inf would be NaN, so an empty part has factor 0.
struct Part {
  float top, sum;
};

__device__ __forceinline__ Part join(Part a, Part b) {
  float top = fmaxf(a.top, b.top);
  if (top == -CUDART_INF_F) return {top, 0.f};
  return {top, a.sum * exp2f(a.top - top) + b.sum * exp2f(b.top - top)};
}

__device__ __forceinline__ Part warp_join(Part part) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    Part other = {__shfl_xor_sync(~0u, part.top, step), __shfl_xor_sync(~0u, part.sum, step)};
    part = join(part, other);
  }
  return part;
}

template <int THREADS, int PIECES>
__global__ void __launch_bounds__(THREADS)
softmax_kernel(const uint4* __restrict__ x, uint4* __restrict__ y, int pieces, float scale_log2) {
  __shared__ Part shared[THREADS / 32];
  size_t row = size_t(blockIdx.x) * pieces;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float own[PIECES][8];
  // All loads are issued before the first is used. Lanes past the end hold -inf.
  Piece loaded[PIECES];
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    int at = threadIdx.x + i * THREADS;
    loaded[i].bits = make_uint4(0xFF80FF80u, 0xFF80FF80u, 0xFF80FF80u, 0xFF80FF80u);
    if (at < pieces) loaded[i].bits = __ldcs(x + row + at);
  }
  Part part = {-CUDART_INF_F, 0.f};
#pragma unroll
  for (int i = 0; i < PIECES; i++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float2 pair = __bfloat1622float2(loaded[i].pairs[j]);
      own[i][2 * j] = pair.x * scale_log2, own[i][2 * j + 1] = pair.y * scale_log2;
      part.top = fmaxf(part.top, fmaxf(own[i][2 * j], own[i][2 * j + 1]));
    }
  // Exponentials against the thread's own top: only a factor is left to apply after the barrier.
  float base = part.top == -CUDART_INF_F ? 0.f : part.top;
#pragma unroll
  for (int i = 0; i < PIECES; i++)
#pragma unroll
    for (int j = 0; j < 8; j++) {
      own[i][j] = exp2f(own[i][j] - base);
      part.sum += own[i][j];
    }
  Part all = warp_join(part);
  if (lane == 0) shared[warp] = all;
  __syncthreads();
  all = warp_join(lane < THREADS / 32 ? shared[lane] : Part{-CUDART_INF_F, 0.f});
  // Not 2^(0 - top) where the thread has nothing: that may be infinite, and its zeros become NaN.
  float factor = part.top == -CUDART_INF_F ? 0.f : exp2f(base - all.top) / all.sum;
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    int at = threadIdx.x + i * THREADS;
    if (at >= pieces) continue;
    Piece out;
#pragma unroll
    for (int j = 0; j < 4; j++)
      out.pairs[j] = __floats2bfloat162_rn(own[i][2 * j] * factor, own[i][2 * j + 1] * factor);
    __stcs(y + row + at, out.bits);
  }
}

// scale > 0.
extern "C" int softmax(const void* x, void* y, int rows, int width, float scale,
                       cudaStream_t stream) {
  if (width % 8 || width > 8 * 1024 * 4) return cudaErrorInvalidValue;
  auto* in = static_cast<const uint4*>(x);
  auto* out = static_cast<uint4*>(y);
  int pieces = width / 8;
  float scale_log2 = scale * 1.4426950408889634f;
  if (pieces <= 128)
    softmax_kernel<64, 2><<<rows, 64, 0, stream>>>(in, out, pieces, scale_log2);
  else if (pieces <= 512)
    softmax_kernel<128, 4><<<rows, 128, 0, stream>>>(in, out, pieces, scale_log2);
  else if (pieces <= 1024)
    softmax_kernel<256, 4><<<rows, 256, 0, stream>>>(in, out, pieces, scale_log2);
  else
    softmax_kernel<1024, 4><<<rows, 1024, 0, stream>>>(in, out, pieces, scale_log2);
  return cudaGetLastError();
}
