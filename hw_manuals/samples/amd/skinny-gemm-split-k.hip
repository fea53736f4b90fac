// Y[M][N] bf16 = X[M][K] * W[N][K]^T for M <= 16 rows: weights stream from HBM into registers once.
// Four waves of a workgroup and `splits` workgroups share K; a second kernel adds the parts in a
// fixed order. N is a multiple of 16, K of 32; 16-byte alignment. gfx942 and gfx950.
// Launch: skinny_part<<<dim3(N / 16, splits), 256>>>; skinny_join<<<(M * N + 255) / 256, 256>>>.
#include <hip/hip_runtime.h>

typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef short s16x4 __attribute__((ext_vector_type(4)));
typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));
constexpr int kWaves = 4, kAhead = 4;  // loads of 16 bytes a lane that a wave keeps in flight

__device__ inline f32x4 multiply(i32x4 a, i32x4 b, f32x4 sum) {
#if defined(__gfx950__)
  return __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(bf16x8, a),
                                                 __builtin_bit_cast(bf16x8, b), sum, 0, 0, 0);
#else
  struct Halves { s16x4 low, high; };
  Halves x = __builtin_bit_cast(Halves, a), y = __builtin_bit_cast(Halves, b);
  sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x.low, y.low, sum, 0, 0, 0);
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x.high, y.high, sum, 0, 0, 0);
#endif
}

// parts[splits][M][N] in FP32.
extern "C" __global__ void __launch_bounds__(256)
skinny_part(const __bf16* __restrict__ X, const __bf16* __restrict__ W, float* __restrict__ parts,
            int M, int N, int K, int splits) {
  __shared__ f32x4 shared[kWaves][64];
  const int lane = threadIdx.x % 64, wave = threadIdx.x / 64, column = blockIdx.x * 16;
  const int steps = K / 32, lanes = splits * kWaves;  // waves that share K
  const int share = (steps + lanes - 1) / lanes;
  const int first = (blockIdx.y * kWaves + wave) * share, last = min(first + share, steps);
  // Weights are the first operand (16 rows of W), X the second: lane l reads row l % 16 of both.
  const __bf16* w = W + (size_t)(column + lane % 16) * K + lane / 16 * 8;
  const __bf16* x = X + (size_t)min(lane % 16, M - 1) * K + lane / 16 * 8;
  f32x4 sum = {0, 0, 0, 0};
  int t = first;
  for (; t + kAhead <= last; t += kAhead) {
    i32x4 a[kAhead], b[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; i++)
      a[i] = __builtin_nontemporal_load((const i32x4*)(w + 32 * (t + i)));
#pragma unroll
    for (int i = 0; i < kAhead; i++) b[i] = *(const i32x4*)(x + 32 * (t + i));
#pragma unroll
    for (int i = 0; i < kAhead; i++) sum = multiply(a[i], b[i], sum);
  }
  for (; t < last; t++)
    sum = multiply(*(const i32x4*)(w + 32 * t), *(const i32x4*)(x + 32 * t), sum);
  shared[wave][lane] = sum;
  __syncthreads();
  if (wave != 0) return;
  for (int i = 1; i < kWaves; i++) sum += shared[i][lane];
  const int m = lane % 16, n = column + lane / 16 * 4;
  if (m < M) *(f32x4*)(parts + ((size_t)blockIdx.y * M + m) * N + n) = sum;
}

extern "C" __global__ void __launch_bounds__(256)
skinny_join(const float* __restrict__ parts, __bf16* __restrict__ Y, int count, int splits) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i >= count) return;
  float sum = 0;
  for (int s = 0; s < splits; s++) sum += parts[(size_t)s * count + i];
  Y[i] = (__bf16)sum;
}
