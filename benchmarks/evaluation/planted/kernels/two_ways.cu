// Signs are mixed within every warp, so each warp walks through both long branches.
#include "kernlore_abi.h"
#include <cuda_runtime.h>

__global__ void two_ways(const float *x, float *y, int64_t count) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i >= count) return;
  float v = x[i], q = 0.9f * fabsf(v) / (1.0f + fabsf(v)), p = 1.0f;
  if (v > 0.0f) {
#pragma unroll 1
    for (int n = 0; n < 128; n++) p = 1.0f - p * q;
  } else {
#pragma unroll 1
    for (int n = 0; n < 128; n++) p = 0.5f + 0.5f * p * q;
  }
  y[i] = p;
}

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {
  int64_t count = t[0].shape[0] * t[0].shape[1];
  two_ways<<<(count + 255) / 256, 256, 0, (cudaStream_t)c->stream>>>(
      (const float *)t[0].data, (float *)t[1].data, count);
  return cudaGetLastError();
}
