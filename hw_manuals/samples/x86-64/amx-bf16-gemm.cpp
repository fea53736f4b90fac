// C[M][N] float = A[M][K] * B[K][N], both bfloat16 (as uint16_t), with AMX tiles. M and N are
// multiples of 32, K of 32. Call amx_enable() once per process, pack B once, then multiply.
// g++ -O3 -fopenmp; the processor must have amx_tile and amx_bf16 (/proc/cpuinfo).
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cstddef>
#include <cstdint>
#include <cstring>

#pragma GCC target("amx-tile,amx-bf16,avx512f")

bool amx_enable() {
  const long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request, tile_data) == 0;
}

// Panels of 16 columns; inside a panel a row holds two neighbours of K for each column:
// packed[panel][k / 2][column][k % 2], so that 16 rows of 64 bytes are one tile.
void pack_b(const uint16_t* B, uint16_t* packed, int K, int N) {
  for (int panel = 0; panel < N / 16; panel++)
    for (int k = 0; k < K; k++)
      for (int column = 0; column < 16; column++)
        packed[(((size_t)panel * (K / 2) + k / 2) * 16 + column) * 2 + k % 2] =
            B[(size_t)k * N + panel * 16 + column];
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Four tiles of sums (0-3), two of A (4, 5) and two of B (6, 7): four products for four loads.
static void block_32x32(const uint16_t* A, const uint16_t* packed, float* C, int K, int N) {
  const size_t panel = (size_t)K * 16, stride_a = (size_t)K * 2, stride_c = (size_t)N * 4;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < K; k += 32) {
    _tile_loadd(4, A + k, stride_a);
    _tile_loadd(5, A + k + (size_t)16 * K, stride_a);
    _tile_loadd(6, packed + (size_t)k * 16, 64);
    _tile_loadd(7, packed + (size_t)k * 16 + panel, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, C, stride_c);
  _tile_stored(1, C + 16, stride_c);
  _tile_stored(2, C + (size_t)16 * N, stride_c);
  _tile_stored(3, C + (size_t)16 * N + 16, stride_c);
}

extern "C" void gemm_amx_bf16(const uint16_t* A, const uint16_t* packed, float* C, int M, int N,
                              int K) {
#pragma omp parallel
  {
    TileConfig config;
    for (int tile = 0; tile < 8; tile++) config.row_bytes[tile] = 64, config.rows[tile] = 16;
    // g++ 12 does not see that loadconfig reads all 64 bytes, and may drop the stores before it.
    asm volatile("" ::"r"(&config) : "memory");
    _tile_loadconfig(&config);  // once per thread, not per block
    // A thread keeps 32 columns of B (64 bytes for each of K) in its L2 for all rows of A.
#pragma omp for schedule(static)
    for (int n = 0; n < N; n += 32)
      for (int m = 0; m < M; m += 32)
        block_32x32(A + (size_t)m * K, packed + (size_t)n * K, C + (size_t)m * N + n, K, N);
    _tile_release();
  }
}
