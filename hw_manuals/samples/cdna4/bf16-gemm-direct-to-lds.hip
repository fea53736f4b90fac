// C[M][N] = A[M][K] * B[N][K]^T in bfloat16 on gfx950: loads of 16 bytes a lane go from memory to
// LDS without passing registers, three stages deep (96 of 160 KiB), one barrier a stage.
// K is a multiple of 64, N of 4; all pointers are aligned to 16 bytes.
// Launch: gemm_direct<<<((M + 127) / 128) * ((N + 127) / 128), 256>>>(A, B, C, M, N, K);
#include <hip/hip_runtime.h>

typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef __bf16 bf16x4 __attribute__((ext_vector_type(4)));
typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));

constexpr int kTile = 128, kDepth = 64, kStages = 3;
constexpr int kDies = 8, kGroup = 8;

__device__ inline void tile_of(int id, int rows, int cols, int& row, int& col) {
  int whole = rows * cols / kDies * kDies;
  if (id < whole) id = id % kDies * (whole / kDies) + id / kDies;
  int band = id / (kGroup * cols), first = band * kGroup;
  int height = min(kGroup, rows - first), inside = id - first * cols;
  row = first + inside % height;
  col = inside / height;
}

// Which piece of a row lies in slot s: the XOR is its own inverse.
__device__ inline int swap(int row, int s) { return s ^ ((row >> 1) & 7); }

#if !defined(EMULATED)  // what hipcc compiles, in both of its passes
typedef __attribute__((address_space(3))) void lds_void;
typedef __attribute__((address_space(1))) void global_void;
// The address in LDS is the wave's: lane l lands 16 l bytes behind it.
__device__ inline void copy16(const void* from, char* to) {
  __builtin_amdgcn_global_load_lds((global_void*)from, (lds_void*)to, 16, 0, 0);
}
template <int kInFlight>
__device__ inline void wait_loads() {
  asm volatile("s_waitcnt vmcnt(%0)" ::"n"(kInFlight) : "memory");
}
// A read that the compiler does not tie to the copies: it would wait for all of them otherwise.
__device__ inline i32x4 read16(const char* from) {
  i32x4 value;
  int at = (int)(__SIZE_TYPE__)(const __attribute__((address_space(3))) char*)from;
  asm volatile("ds_read_b128 %0, %1" : "=v"(value) : "v"(at) : "memory");
  return value;
}
// The operands tie every use of the values behind the wait.
__device__ inline void wait_reads(i32x4 (&a)[2][4], i32x4 (&b)[2][4]) {
  asm volatile("s_waitcnt lgkmcnt(0)"
               : "+v"(a[0][0]), "+v"(a[0][1]), "+v"(a[0][2]), "+v"(a[0][3]), "+v"(a[1][0]),
                 "+v"(a[1][1]), "+v"(a[1][2]), "+v"(a[1][3]) :: "memory");
  asm volatile("" : "+v"(b[0][0]), "+v"(b[0][1]), "+v"(b[0][2]), "+v"(b[0][3]), "+v"(b[1][0]),
                    "+v"(b[1][1]), "+v"(b[1][2]), "+v"(b[1][3]));
}
#else  // benchmarks/samples/hip of Kernlore checks the indices on a CPU
inline void copy16(const void* from, char* to) { memcpy(to + 16 * emu_lane(), from, 16); }
template <int> inline void wait_loads() {}
inline i32x4 read16(const char* from) { return *(const i32x4*)from; }
inline void wait_reads(i32x4 (&)[2][4], i32x4 (&)[2][4]) {}
#endif

extern "C" __global__ void __launch_bounds__(256)
gemm_direct(const __bf16* __restrict__ A, const __bf16* __restrict__ B, __bf16* __restrict__ C,
            int M, int N, int K) {
  __shared__ __attribute__((aligned(16))) char lds[kStages][2][kTile * 128];
  const int lane = threadIdx.x % 64;
  const int wave = __builtin_amdgcn_readfirstlane((int)threadIdx.x / 64);
  int tile_row, tile_col;
  tile_of(blockIdx.x, (M + kTile - 1) / kTile, (N + kTile - 1) / kTile, tile_row, tile_col);

  // One copy of a wave fills eight rows of 128 bytes; lane l fills slot l % 8 of row l / 8.
  const __bf16 *from_a[4], *from_b[4];
  for (int i = 0; i < 4; i++) {
    int row = 32 * i + 8 * wave + lane / 8, piece = swap(row, lane % 8);
    from_a[i] = A + (size_t)min(tile_row * kTile + row, M - 1) * K + piece * 8;
    from_b[i] = B + (size_t)min(tile_col * kTile + row, N - 1) * K + piece * 8;
  }
  auto issue = [&](int t) {
    char *la = lds[t % kStages][0], *lb = lds[t % kStages][1];
    for (int i = 0; i < 4; i++) copy16(from_a[i] + t * kDepth, la + (32 * i + 8 * wave) * 128);
    for (int i = 0; i < 4; i++) copy16(from_b[i] + t * kDepth, lb + (32 * i + 8 * wave) * 128);
  };

  const int m0 = wave / 2 * 64, n0 = wave % 2 * 64, steps = K / kDepth;
  f32x4 sum[4][4] = {};
  issue(0);
  if (steps > 1) issue(1);
  for (int t = 0; t < steps; t++) {
    if (t + 1 < steps) wait_loads<8>();  // the eight copies of tile t + 1 may stay in flight
    else wait_loads<0>();
    __builtin_amdgcn_s_barrier();  // tile t is there for all, and tile t - 1 was read by all
    __builtin_amdgcn_sched_barrier(0);
    if (t + 2 < steps) issue(t + 2);
    const char *la = lds[t % kStages][0], *lb = lds[t % kStages][1];
    i32x4 a[2][4], b[2][4];
    for (int s = 0; s < 2; s++)
      for (int i = 0; i < 4; i++) {
        int ra = m0 + 16 * i + lane % 16, rb = n0 + 16 * i + lane % 16;
        a[s][i] = read16(la + ra * 128 + swap(ra, 4 * s + lane / 16) * 16);
        b[s][i] = read16(lb + rb * 128 + swap(rb, 4 * s + lane / 16) * 16);
      }
    wait_reads(a, b);
#pragma unroll
    for (int s = 0; s < 2; s++)
      for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
          sum[i][j] = __builtin_amdgcn_mfma_f32_16x16x32_bf16(
              __builtin_bit_cast(bf16x8, b[s][j]), __builtin_bit_cast(bf16x8, a[s][i]), sum[i][j],
              0, 0, 0);
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
