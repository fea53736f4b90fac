// C[M][N] bf16 = (A * scales) (B * scales)^T, A[M][K] and B[N][K] in FP8 E4M3, one FP32 scale per
// row and 128 of K for A (SA[M][K / 128]), one per 128 x 128 block for B (SB[N / 128][K / 128]).
// gfx942 reads E4M3 FNUZ, gfx950 the OCP kind. N and K are multiples of 128; 16-byte alignment.
// Launch: gemm_fp8<<<((M + 127) / 128) * (N / 128), 256>>>(A, B, SA, SB, C, M, N, K);
#include <hip/hip_runtime.h>

typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef int i32x8 __attribute__((ext_vector_type(8)));
typedef __bf16 bf16x4 __attribute__((ext_vector_type(4)));

constexpr int kTile = 128, kDepth = 128;  // a row of a stage: 128 bytes, one block of scales
constexpr int kDies = 8, kGroup = 8;

__device__ inline void tile_of(int id, int rows, int cols, int& row, int& col) {
  int whole = rows * cols / kDies * kDies;
  if (id < whole) id = id % kDies * (whole / kDies) + id / kDies;
  int band = id / (kGroup * cols), first = band * kGroup;
  int height = min(kGroup, rows - first), inside = id - first * cols;
  row = first + inside % height;
  col = inside / height;
}

__device__ inline int place(int row, int piece) {
#if defined(__gfx950__)
  return row * 128 + ((piece ^ ((row >> 1) & 7)) << 4);
#else
  return row * 128 + ((piece ^ (row & 7)) << 4);
#endif
}

struct Fragment { i32x4 low, high; };  // bytes 16 q .. and 64 + 16 q .. of a row, q = lane / 16

// The product over 128 of K, from zero: scales are applied to it in FP32 afterwards.
__device__ inline f32x4 multiply(Fragment a, Fragment b) {
  f32x4 sum = {0, 0, 0, 0};
#if defined(__gfx950__)
  const int one = 127;  // E8M0 exponent of 1.0; format 0 is E4M3
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
      __builtin_bit_cast(i32x8, a), __builtin_bit_cast(i32x8, b), sum, 0, 0, 0, one, 0, one);
#else
  struct Longs { long v[4]; };
  Longs x = __builtin_bit_cast(Longs, a), y = __builtin_bit_cast(Longs, b);
  for (int i = 0; i < 4; i++)
    sum = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(x.v[i], y.v[i], sum, 0, 0, 0);
  return sum;
#endif
}

extern "C" __global__ void __launch_bounds__(256)
gemm_fp8(const uint8_t* __restrict__ A, const uint8_t* __restrict__ B,
         const float* __restrict__ SA, const float* __restrict__ SB, __bf16* __restrict__ C,
         int M, int N, int K) {
  __shared__ __attribute__((aligned(16))) char lds[2][2][kTile * 128];
  const int tid = threadIdx.x, lane = tid % 64, wave = tid / 64, blocks = K / kDepth;
  int tile_row, tile_col;
  tile_of(blockIdx.x, (M + kTile - 1) / kTile, N / kTile, tile_row, tile_col);

  const uint8_t *from_a[4], *from_b[4];
  int to[4];
  for (int i = 0; i < 4; i++) {
    int row = tid / 8 + 32 * i;
    from_a[i] = A + (size_t)min(tile_row * kTile + row, M - 1) * K + tid % 8 * 16;
    from_b[i] = B + (size_t)(tile_col * kTile + row) * K + tid % 8 * 16;
    to[i] = place(row, tid % 8);
  }
  const int m0 = wave / 2 * 64, n0 = wave % 2 * 64;
  const float* scale_b = SB + (size_t)tile_col * blocks;
  const float* scale_a[4];
  for (int i = 0; i < 4; i++) {
    int m = min(tile_row * kTile + m0 + 16 * i + lane % 16, M - 1);
    scale_a[i] = SA + (size_t)m * blocks;
  }
  i32x4 next_a[4], next_b[4];
  float scale[4], next_scale[4];
  auto fetch = [&](int t) {
    for (int i = 0; i < 4; i++) next_a[i] = *(const i32x4*)(from_a[i] + t * kDepth);
    for (int i = 0; i < 4; i++) next_b[i] = *(const i32x4*)(from_b[i] + t * kDepth);
    for (int i = 0; i < 4; i++) next_scale[i] = scale_a[i][t] * scale_b[t];
  };
  auto commit = [&](int stage) {
    for (int i = 0; i < 4; i++) *(i32x4*)(lds[stage][0] + to[i]) = next_a[i];
    for (int i = 0; i < 4; i++) *(i32x4*)(lds[stage][1] + to[i]) = next_b[i];
    for (int i = 0; i < 4; i++) scale[i] = next_scale[i];
  };
  auto fragment = [&](const char* tile, int row) {
    Fragment f;
    f.low = *(const i32x4*)(tile + place(row, lane / 16));
    f.high = *(const i32x4*)(tile + place(row, lane / 16 + 4));
    return f;
  };

  f32x4 sum[4][4] = {};
  fetch(0);
  commit(0);
  __syncthreads();
  for (int t = 0; t < blocks; t++) {
    if (t + 1 < blocks) fetch(t + 1);
    const char *la = lds[t & 1][0], *lb = lds[t & 1][1];
    Fragment a[4];
    for (int i = 0; i < 4; i++) a[i] = fragment(la, m0 + 16 * i + lane % 16);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      Fragment b = fragment(lb, n0 + 16 * j + lane % 16);
      for (int i = 0; i < 4; i++) sum[i][j] += scale[i] * multiply(b, a[i]);
    }
    if (t + 1 < blocks) commit((t + 1) & 1);
    __syncthreads();
  }

  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) {
      int m = tile_row * kTile + m0 + 16 * i + lane % 16;
      int n = tile_col * kTile + n0 + 16 * j + lane / 16 * 4;
      bf16x4 out;
      for (int r = 0; r < 4; r++) out[r] = (__bf16)sum[i][j][r];
      if (m < M) *(bf16x4*)(C + (size_t)m * N + n) = out;
    }
}
