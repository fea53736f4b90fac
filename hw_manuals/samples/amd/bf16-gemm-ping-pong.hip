// C[M][N] = A[M][K] * B[N][K]^T in bfloat16: 256 x 256 tile, eight waves in two groups that swap
// roles at every barrier. While four waves run MFMAs, the other four move memory. gfx942, gfx950.
// M and N are multiples of 256, K of 32; all pointers are aligned to 16 bytes.
// Launch: gemm_ping_pong<<<(M / 256) * (N / 256), 512>>>(A, B, C, M, N, K);
#include <hip/hip_runtime.h>

typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef short s16x4 __attribute__((ext_vector_type(4)));
typedef __bf16 bf16x4 __attribute__((ext_vector_type(4)));
typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));

constexpr int kTile = 256, kDepth = 32;  // a row of a stage: 64 bytes, four pieces of 16
constexpr int kDies = 8, kGroup = 4;

__device__ inline void tile_of(int id, int rows, int cols, int& row, int& col) {
  int whole = rows * cols / kDies * kDies;
  if (id < whole) id = id % kDies * (whole / kDies) + id / kDies;
  int band = id / (kGroup * cols), first = band * kGroup;
  int height = min(kGroup, rows - first), inside = id - first * cols;
  row = first + inside % height;
  col = inside / height;
}

// Byte offset of a 16-byte piece in a tile of 64-byte rows.
__device__ inline int place(int row, int piece) {
#if defined(__gfx950__)
  return row * 64 + ((piece ^ ((0x78 >> (2 * (row >> 2 & 3))) & 3)) << 4);  // four rows a cycle
#else
  return row * 64 + ((piece ^ ((row >> 1) & 3)) << 4);                      // two rows a cycle
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

// Barrier of a phase: LDS work is finished, nothing is moved across, loads from HBM stay in flight.
__device__ inline void end_of_phase() {
#if !defined(EMULATED)
  asm volatile("s_waitcnt lgkmcnt(0)" ::: "memory");
#endif
  __builtin_amdgcn_sched_barrier(0);
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_sched_barrier(0);
}

extern "C" __global__ void __launch_bounds__(512, 2)
gemm_ping_pong(const __bf16* __restrict__ A, const __bf16* __restrict__ B, __bf16* __restrict__ C,
               int M, int N, int K) {
  __shared__ __attribute__((aligned(16))) char lds[2][2][kTile * 64];  // stage, operand: 64 KiB
  const int tid = threadIdx.x, lane = tid % 64, wave = tid / 64, group = wave / 4;
  int tile_row, tile_col;
  tile_of(blockIdx.x, M / kTile, N / kTile, tile_row, tile_col);

  const int row = tid / 4, piece = tid % 4;  // and row + 128
  const __bf16* from_a = A + (size_t)(tile_row * kTile + row) * K + piece * 8;
  const __bf16* from_b = B + (size_t)(tile_col * kTile + row) * K + piece * 8;
  const int to = place(row, piece);  // row + 128 has the same XOR
  i32x4 next[4];
  auto fetch = [&](int t) {
    next[0] = *(const i32x4*)(from_a + t * kDepth);
    next[1] = *(const i32x4*)(from_a + t * kDepth + (size_t)128 * K);
    next[2] = *(const i32x4*)(from_b + t * kDepth);
    next[3] = *(const i32x4*)(from_b + t * kDepth + (size_t)128 * K);
  };
  auto commit = [&](int stage) {
    for (int i = 0; i < 4; i++) *(i32x4*)(lds[stage][i / 2] + to + i % 2 * 128 * 64) = next[i];
  };

  // A SIMD holds one wave of each group. Group g owns rows 128 g .. 128 g + 127 of the tile.
  const int m0 = group * 128, n0 = wave % 4 * 64, steps = K / kDepth;
  f32x4 sum[8][4] = {};
  i32x4 a[8], b[4];
  fetch(0);
  commit(0);
  if (steps > 1) fetch(1);
  __syncthreads();
  if (group == 1) end_of_phase();  // group 1 runs one phase behind from here on
  for (int t = 0; t < steps; t++) {
    if (t + 1 < steps) commit((t + 1) & 1);  // tile t + 1, fetched one step ago
    if (t + 2 < steps) fetch(t + 2);
    const char *la = lds[t & 1][0], *lb = lds[t & 1][1];
    for (int i = 0; i < 8; i++)
      a[i] = *(const i32x4*)(la + place(m0 + 16 * i + lane % 16, lane / 16));
    for (int j = 0; j < 4; j++)
      b[j] = *(const i32x4*)(lb + place(n0 + 16 * j + lane % 16, lane / 16));
    end_of_phase();  // memory phase over

    __builtin_amdgcn_s_setprio(1);  // the multiplying wave of a SIMD issues first
#pragma unroll
    for (int i = 0; i < 8; i++)
      for (int j = 0; j < 4; j++) sum[i][j] = multiply(b[j], a[i], sum[i][j]);
    __builtin_amdgcn_s_setprio(0);
    end_of_phase();  // compute phase over
  }
  if (group == 0) end_of_phase();  // every wave has met the same number of barriers

  for (int i = 0; i < 8; i++)
    for (int j = 0; j < 4; j++) {
      int m = tile_row * kTile + m0 + 16 * i + lane % 16;
      int n = tile_col * kTile + n0 + 16 * j + lane / 16 * 4;
      bf16x4 out;
      for (int r = 0; r < 4; r++) out[r] = (__bf16)sum[i][j][r];
      *(bf16x4*)(C + (size_t)m * N + n) = out;
    }
}
