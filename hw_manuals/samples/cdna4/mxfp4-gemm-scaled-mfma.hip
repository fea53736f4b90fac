// C[M][N] bf16 = A B^T with MXFP4 operands: A[M][K / 2] and B[N][K / 2] hold two E2M1 values a byte
// (the lower nibble first), SA[M][K / 32] and SB[N][K / 32] one E8M0 scale per 32 values. gfx950.
// N is a multiple of 4, K of 256; pointers to values are aligned to 16 bytes.
// Launch: gemm_mxfp4<<<((M + 127) / 128) * ((N + 127) / 128), 256>>>(A, B, SA, SB, C, M, N, K);
#include <hip/hip_runtime.h>

typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef int i32x8 __attribute__((ext_vector_type(8)));
typedef __bf16 bf16x4 __attribute__((ext_vector_type(4)));

constexpr int kTile = 128, kDepth = 256;  // a row of a stage: 256 values, 128 bytes, 8 scales
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
  return row * 128 + ((piece ^ ((row >> 1) & 7)) << 4);
}

// 16 x 16 x 128: lane l gives 32 values of row l % 16 from 32 (l / 16) on, and their one scale.
__device__ inline f32x4 multiply(i32x4 a, i32x4 b, f32x4 sum, int scale_a, int scale_b) {
  i32x8 x = {a[0], a[1], a[2], a[3], 0, 0, 0, 0}, y = {b[0], b[1], b[2], b[3], 0, 0, 0, 0};
  return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(x, y, sum, 4, 4, 0, scale_a, 0, scale_b);
}

extern "C" __global__ void __launch_bounds__(256)
gemm_mxfp4(const uint8_t* __restrict__ A, const uint8_t* __restrict__ B,
           const uint8_t* __restrict__ SA, const uint8_t* __restrict__ SB, __bf16* __restrict__ C,
           int M, int N, int K) {
  __shared__ __attribute__((aligned(16))) char lds[2][2][kTile * 128];
  const int tid = threadIdx.x, lane = tid % 64, wave = tid / 64;
  int tile_row, tile_col;
  tile_of(blockIdx.x, (M + kTile - 1) / kTile, (N + kTile - 1) / kTile, tile_row, tile_col);

  const uint8_t *from_a[4], *from_b[4], *scale_a[4], *scale_b[4];
  int to[4];
  const int m0 = wave / 2 * 64, n0 = wave % 2 * 64;
  for (int i = 0; i < 4; i++) {
    int row = tid / 8 + 32 * i, own = 16 * i + lane % 16;
    from_a[i] = A + (size_t)min(tile_row * kTile + row, M - 1) * (K / 2) + tid % 8 * 16;
    from_b[i] = B + (size_t)min(tile_col * kTile + row, N - 1) * (K / 2) + tid % 8 * 16;
    scale_a[i] = SA + (size_t)min(tile_row * kTile + m0 + own, M - 1) * (K / 32) + lane / 16;
    scale_b[i] = SB + (size_t)min(tile_col * kTile + n0 + own, N - 1) * (K / 32) + lane / 16;
    to[i] = place(row, tid % 8);
  }
  i32x4 next_a[4], next_b[4];
  int sa[2][4], sb[2][4], next_sa[2][4], next_sb[2][4];
  auto fetch = [&](int t) {
    for (int i = 0; i < 4; i++) next_a[i] = *(const i32x4*)(from_a[i] + t * 128);
    for (int i = 0; i < 4; i++) next_b[i] = *(const i32x4*)(from_b[i] + t * 128);
    for (int s = 0; s < 2; s++)
      for (int i = 0; i < 4; i++) {
        next_sa[s][i] = scale_a[i][8 * t + 4 * s];
        next_sb[s][i] = scale_b[i][8 * t + 4 * s];
      }
  };
  auto commit = [&](int stage) {
    for (int i = 0; i < 4; i++) *(i32x4*)(lds[stage][0] + to[i]) = next_a[i];
    for (int i = 0; i < 4; i++) *(i32x4*)(lds[stage][1] + to[i]) = next_b[i];
    for (int s = 0; s < 2; s++)
      for (int i = 0; i < 4; i++) sa[s][i] = next_sa[s][i], sb[s][i] = next_sb[s][i];
  };

  f32x4 sum[4][4] = {};
  fetch(0);
  commit(0);
  __syncthreads();
  const int steps = K / kDepth;
  for (int t = 0; t < steps; t++) {
    if (t + 1 < steps) fetch(t + 1);
    const char *la = lds[t & 1][0], *lb = lds[t & 1][1];
#pragma unroll
    for (int s = 0; s < 2; s++) {
      i32x4 a[4], b[4];
      for (int i = 0; i < 4; i++)
        a[i] = *(const i32x4*)(la + place(m0 + 16 * i + lane % 16, 4 * s + lane / 16));
      for (int j = 0; j < 4; j++)
        b[j] = *(const i32x4*)(lb + place(n0 + 16 * j + lane % 16, 4 * s + lane / 16));
      for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
          sum[i][j] = multiply(b[j], a[i], sum[i][j], sb[s][j], sa[s][i]);
    }
    if (t + 1 < steps) commit((t + 1) & 1);
    __syncthreads();
  }

  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) {
      int m = tile_row * kTile + m0 + 16 * i + lane % 16;
      int n = tile_col * kTile + n0 + 16 * j + lane / 16 * 4;
      bf16x4 out;
      for (int r = 0; r < 4; r++) out[r] = (__bf16)sum[i][j][r];
      if (m < M && n < N) *(bf16x4*)(C + (size_t)m * N + n) = out;
    }
}
