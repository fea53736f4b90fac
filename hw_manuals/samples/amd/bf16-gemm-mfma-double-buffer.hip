// C[M][N] = A[M][K] * B[N][K]^T in bfloat16 with FP32 sums, for gfx942 and gfx950.
// K is a multiple of 64, N of 4; all pointers are aligned to 16 bytes.
// Launch: gemm_bf16<<<((M + 127) / 128) * ((N + 127) / 128), 256>>>(A, B, C, M, N, K);
#include <hip/hip_runtime.h>

typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef short s16x4 __attribute__((ext_vector_type(4)));
typedef __bf16 bf16x4 __attribute__((ext_vector_type(4)));
typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));

constexpr int kTile = 128;      // rows of A and of B in a workgroup's tile
constexpr int kDepth = 64;      // elements of K in a stage: 128 bytes, eight pieces of 16
constexpr int kDies = 8;        // dispatch deals workgroups to the dies in turn
constexpr int kGroup = 8;       // rows of tiles that are walked together

// Consecutive tiles go to one die, so that they meet in its L2; then bands of kGroup rows.
__device__ inline void tile_of(int id, int rows, int cols, int& row, int& col) {
  int whole = rows * cols / kDies * kDies;
  if (id < whole) id = id % kDies * (whole / kDies) + id / kDies;
  int band = id / (kGroup * cols), first = band * kGroup;
  int height = min(kGroup, rows - first), inside = id - first * cols;
  row = first + inside % height;
  col = inside / height;
}

// Byte offset of a 16-byte piece: the XOR keeps every phase of ds_read_b128 free of conflicts.
__device__ inline int place(int row, int piece) {
#if defined(__gfx950__)
  return row * 128 + ((piece ^ ((row >> 1) & 7)) << 4);  // 64 banks: two rows a cycle
#else
  return row * 128 + ((piece ^ (row & 7)) << 4);         // 32 banks: one row a cycle
#endif
}

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

extern "C" __global__ void __launch_bounds__(256)
gemm_bf16(const __bf16* __restrict__ A, const __bf16* __restrict__ B, __bf16* __restrict__ C,
          int M, int N, int K) {
  __shared__ __attribute__((aligned(16))) char lds[2][2][kTile * 128];  // stage, operand: 64 KiB
  const int tid = threadIdx.x, lane = tid % 64, wave = tid / 64;
  int tile_row, tile_col;
  tile_of(blockIdx.x, (M + kTile - 1) / kTile, (N + kTile - 1) / kTile, tile_row, tile_col);

  // Each thread carries piece tid % 8 of rows tid / 8 + 32 i; rows past the end repeat the last.
  const __bf16 *from_a[4], *from_b[4];
  int to[4];
  for (int i = 0; i < 4; i++) {
    int row = tid / 8 + 32 * i;
    from_a[i] = A + (size_t)min(tile_row * kTile + row, M - 1) * K + tid % 8 * 8;
    from_b[i] = B + (size_t)min(tile_col * kTile + row, N - 1) * K + tid % 8 * 8;
    to[i] = place(row, tid % 8);
  }
  i32x4 next_a[4], next_b[4];
  auto fetch = [&](int k) {
    for (int i = 0; i < 4; i++) next_a[i] = *(const i32x4*)(from_a[i] + k);
    for (int i = 0; i < 4; i++) next_b[i] = *(const i32x4*)(from_b[i] + k);
  };
  auto commit = [&](int stage) {
    for (int i = 0; i < 4; i++) *(i32x4*)(lds[stage][0] + to[i]) = next_a[i];
    for (int i = 0; i < 4; i++) *(i32x4*)(lds[stage][1] + to[i]) = next_b[i];
  };

  const int m0 = wave / 2 * 64, n0 = wave % 2 * 64;  // this wave's 64 x 64 quarter
  f32x4 sum[4][4] = {};
  fetch(0);
  commit(0);
  __syncthreads();
  const int steps = K / kDepth;
  for (int t = 0; t < steps; t++) {
    if (t + 1 < steps) fetch((t + 1) * kDepth);  // in flight while the matrix cores work
    const char *la = lds[t & 1][0], *lb = lds[t & 1][1];
#pragma unroll
    for (int s = 0; s < 2; s++) {
      i32x4 a[4], b[4];
      for (int i = 0; i < 4; i++)
        a[i] = *(const i32x4*)(la + place(m0 + 16 * i + lane % 16, 4 * s + lane / 16));
      for (int j = 0; j < 4; j++)
        b[j] = *(const i32x4*)(lb + place(n0 + 16 * j + lane % 16, 4 * s + lane / 16));
      for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) sum[i][j] = multiply(b[j], a[i], sum[i][j]);
    }
    if (t + 1 < steps) commit((t + 1) & 1);
    __syncthreads();
  }

  // B was the first operand: a lane holds four neighbouring columns of one row of C.
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++) {
      int m = tile_row * kTile + m0 + 16 * i + lane % 16;
      int n = tile_col * kTile + n0 + 16 * j + lane / 16 * 4;
      bf16x4 out;
      for (int r = 0; r < 4; r++) out[r] = (__bf16)sum[i][j][r];
      if (m < M && n < N) *(bf16x4*)(C + (size_t)m * N + n) = out;
    }
}
