// C[M][N] = A[M][K] * B[N][K]^T in bf16 with float32 sums for compute capability 8.0 and later:
// cp.async into a ring of swizzled stages, ldmatrix into fragments, mma.sync m16n8k16. A block of
// 256 threads has a tile of 128 x 128, each of its 2 x 4 warps 64 x 32 of it. M, N: multiples of
// 128; K: of 32. Pointers: aligned to 16 bytes.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int BM = 128, BN = 128, BK = 32, STAGES = 4, GROUP = 8;
constexpr int STAGE = (BM + BN) * BK;  // elements
constexpr int SHARED = STAGES * STAGE * 2;

// A row holds four chunks of 16 bytes. Two rows make 128 bytes, all banks, so the chunk is
// exchanged by bits 1-2 of the row: the eight rows that ldmatrix reads at once lie in different
// banks.
__device__ __forceinline__ int at(int row, int chunk) {
  return row * BK + ((chunk ^ (row / 2 % 4)) * 8);
}
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void copy16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from));
}
__device__ __forceinline__ void load_fragment(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)));
}
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 512 chunks of A and of B a stage: two of each for every thread.
__device__ __forceinline__ void fill(__nv_bfloat16* stage, const __nv_bfloat16* a,
                                     const __nv_bfloat16* b, int K) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int chunk = threadIdx.x + i * 256, row = chunk / 4, column = chunk % 4;
    copy16(stage + at(row, column), a + size_t(row) * K + column * 8);
    copy16(stage + BM * BK + at(row, column), b + size_t(row) * K + column * 8);
  }
}

__global__ void __launch_bounds__(256)
mma_gemm_kernel(const __nv_bfloat16* __restrict__ a, const __nv_bfloat16* __restrict__ b,
                __nv_bfloat16* __restrict__ c, int M, int N, int K) {
  extern __shared__ __align__(128) __nv_bfloat16 ring[];
  int tiles_m = M / BM, tiles_n = N / BN;
  int first = blockIdx.x / (GROUP * tiles_n) * GROUP, rows = min(GROUP, tiles_m - first);
  int inside = blockIdx.x % (GROUP * tiles_n);
  int m = (first + inside % rows) * BM, n = inside / rows * BN;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int warp_m = warp / 4 * 64, warp_n = warp % 4 * 32;
  a += size_t(m) * K;
  b += size_t(n) * K;
  int steps = K / BK;
  float d[4][4][4] = {};  // 4 fragments of 16 rows, 4 of 8 columns
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < steps) fill(ring + s * STAGE, a + s * BK, b + s * BK, K);
    asm volatile("cp.async.commit_group;");
  }
  for (int step = 0; step < steps; step++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
    __syncthreads();  // this stage is there for all, and nobody reads the one that is filled next
    int next = step + STAGES - 1;
    if (next < steps) fill(ring + next % STAGES * STAGE, a + next * BK, b + next * BK, K);
    asm volatile("cp.async.commit_group;");  // an empty group keeps the count right
    const __nv_bfloat16* tile_a = ring + step % STAGES * STAGE;
    const __nv_bfloat16* tile_b = tile_a + BM * BK;
#pragma unroll
    for (int k = 0; k < BK / 16; k++) {
      uint32_t fa[4][4], fb[2][4];
#pragma unroll
      for (int i = 0; i < 4; i++)
        load_fragment(fa[i], tile_a + at(warp_m + i * 16 + lane % 16, k * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < 2; j++)  // 16 columns: (0-7, k), (0-7, k + 8), (8-15, k), (8-15, k + 8)
        load_fragment(fb[j], tile_b + at(warp_n + j * 16 + lane / 16 * 8 + lane % 8,
                                         k * 2 + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          multiply(d[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int r = 0; r < 2; r++) {
        int row = m + warp_m + i * 16 + lane / 4 + r * 8;
        int column = n + warp_n + j * 8 + lane % 4 * 2;
        *reinterpret_cast<__nv_bfloat162*>(c + size_t(row) * N + column) =
            __floats2bfloat162_rn(d[i][j][2 * r], d[i][j][2 * r + 1]);
      }
}

extern "C" int mma_gemm(const void* a, const void* b, void* c, int M, int N, int K,
                        cudaStream_t stream) {
  if (M % BM || N % BN || K % BK) return 1;
  cudaFuncSetAttribute(mma_gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  mma_gemm_kernel<<<M / BM * (N / BN), 256, SHARED, stream>>>(
      static_cast<const __nv_bfloat16*>(a), static_cast<const __nv_bfloat16*>(b),
      static_cast<__nv_bfloat16*>(c), M, N, K);
  return cudaGetLastError();
}
