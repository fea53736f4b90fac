// A tile in shared memory is read column by column, without a padding word: all lanes in one bank.
#include "kernlore_abi.h"
#include <cuda_runtime.h>

__global__ void turn(const float *x, float *y, int rows, int cols) {
  __shared__ float tile[32][32];
  int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    tile[threadIdx.y + j][threadIdx.x] = x[(int64_t)(r + j) * cols + c];
  __syncthreads();
  int to = blockIdx.y * 32 + threadIdx.x, from = blockIdx.x * 32 + threadIdx.y;
  for (int j = 0; j < 32; j += 8)
    y[(int64_t)(from + j) * rows + to] = tile[threadIdx.x][threadIdx.y + j];
}

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *c) {
  const int rows = t[0].shape[0], cols = t[0].shape[1];
  turn<<<dim3(cols / 32, rows / 32), dim3(32, 8), 0, (cudaStream_t)c->stream>>>(
      (const float *)t[0].data, (float *)t[1].data, rows, cols);
  return cudaGetLastError();
}
