// C[M][N] = A[M][K] * B[N][K]^T in bf16 with float32 sums, for sm_100a. Specialised warps: one
// loads by TMA, one issues tcgen05 products, one asks the hardware for the next tile (cluster
// launch control), four empty tensor memory, whose two accumulators let them work beside the
// products.
// K and N: multiples of 8.
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int BM = 128, BN = 256, BK = 64, STAGES = 4, GROUP = 8, COLUMNS = 512;
constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, C_BYTES = 32 * 64 * 2;
constexpr int READERS = 6;  // of an answer about the next tile: loads, products, four of results
constexpr int SHARED = STAGES * (A_BYTES + B_BYTES) + 8 * C_BYTES + 1024 + 256;

// Types bf16 and float32, N / 8 and M / 16. No layout is named: both operands are K-major.
constexpr uint32_t KIND = 1u << 4 | 1u << 7 | 1u << 10 | (BN / 8) << 17 | (BM / 16) << 24;

struct Barriers {
  uint64_t answer[2][2];  // 16 bytes each, written by the hardware
  uint64_t full[STAGES], empty[STAGES], summed[2], drained[2], told[2], read[2];
  uint32_t columns;  // address in tensor memory
};

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count));
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
               "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(shared_address(b)), "r"(parity) : "memory");
}
__device__ __forceinline__ void tma_load(void* to, const CUtensorMap* map, uint64_t* b, int x,
                                         int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)), "l"(map), "r"(shared_address(b)),
      "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
                   map), "r"(shared_address(from)), "r"(x), "r"(y) : "memory");
}
// A K-major tile of rows of 128 bytes, swizzled: groups of 8 rows lie 1024 bytes apart. Bit 46 and
// the swizzle's code in bits 61 to 63 differ from what wgmma takes.
__device__ __forceinline__ uint64_t descriptor(const void* p) {
  return ((shared_address(p) & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 46) |
         (2ull << 61);
}
__device__ __forceinline__ void multiply(uint32_t sums, uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(sums), "l"(a), "l"(b),
      "r"(KIND), "r"(add) : "memory");
}
// Arrives once all products that this thread issued before have ended.
__device__ __forceinline__ void commit(uint64_t* b) {
  asm volatile(
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
          shared_address(b)) : "memory");
}
__device__ __forceinline__ void fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

#define R4(i) "=r"(v[i]), "=r"(v[i + 1]), "=r"(v[i + 2]), "=r"(v[i + 3])
__device__ __forceinline__ void read_columns(uint32_t from, uint32_t (&v)[32]) {
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31}, [%32];"
      : R4(0), R4(4), R4(8), R4(12), R4(16), R4(20), R4(24), R4(28)
      : "r"(from));
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t packed(uint32_t x, uint32_t y) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(__uint_as_float(x), __uint_as_float(y));
  return reinterpret_cast<uint32_t&>(pair);
}

// Tiles in groups of GROUP rows, so that blocks that run together share panels of A and B in L2.
__device__ __forceinline__ void place(int tile, int tiles_m, int tiles_n, int& m, int& n) {
  int first = tile / (GROUP * tiles_n) * GROUP, rows = min(GROUP, tiles_m - first);
  int inside = tile % (GROUP * tiles_n);
  m = (first + inside % rows) * BM;
  n = inside / rows * BN;
}

// The tile of the answer, or -1 after the last. Blocks that have not begun are cancelled, and this
// one does their work: the grid has a block for each tile, but few are ever started.
__device__ __forceinline__ int next_tile(Barriers* bar, int turn) {
  int slot = turn % 2, tile = -1;
  barrier_wait(&bar->told[slot], turn / 2 & 1);
  asm volatile(
      "{\n.reg .pred p;\n.reg .b128 h;\nld.shared.b128 h, [%1];\n"
      "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 p, h;\n"
      "@p clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %0, h;\n}"
      : "+r"(tile) : "r"(shared_address(bar->answer[slot])) : "memory");
  // The next answer is written by another proxy than the one that read this.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  return tile;
}

__device__ void load_role(const CUtensorMap* map_a, const CUtensorMap* map_b, uint8_t* tile_a,
                          uint8_t* tile_b, Barriers* bar, int tiles_m, int tiles_n, int steps) {
  int stage = 0, phase = 0;
  for (int tile = blockIdx.x, turn = 0; tile >= 0; turn++) {
    int m, n;
    place(tile, tiles_m, tiles_n, m, n);
    for (int step = 0; step < steps; step++) {
      barrier_wait(&bar->empty[stage], phase ^ 1);  // the first round passes at once
      barrier_expect(&bar->full[stage], A_BYTES + B_BYTES);
      tma_load(tile_a + stage * A_BYTES, map_a, &bar->full[stage], step * BK, m);
      tma_load(tile_b + stage * B_BYTES, map_b, &bar->full[stage], step * BK, n);
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    tile = next_tile(bar, turn);
    barrier_arrive(&bar->read[turn % 2]);
  }
}

__device__ void multiply_role(const uint8_t* tile_a, const uint8_t* tile_b, Barriers* bar,
                              int steps) {
  int stage = 0, phase = 0;
  for (int tile = blockIdx.x, turn = 0; tile >= 0; turn++) {
    int half = turn % 2;
    barrier_wait(&bar->drained[half], (turn / 2 & 1) ^ 1);
    fence_after();
    uint32_t sums = bar->columns + half * BN;
    for (int step = 0; step < steps; step++) {
      barrier_wait(&bar->full[stage], phase);
      fence_after();
      uint64_t a = descriptor(tile_a + stage * A_BYTES), b = descriptor(tile_b + stage * B_BYTES);
#pragma unroll
      for (int k = 0; k < BK / 16; k++)  // 16 columns are 32 bytes: 2 in the descriptor
        multiply(sums, a + 2 * k, b + 2 * k, step > 0 || k > 0);
      commit(&bar->empty[stage]);
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    commit(&bar->summed[half]);
    tile = next_tile(bar, turn);
    barrier_arrive(&bar->read[turn % 2]);
  }
}

__device__ void ask_role(Barriers* bar) {
  for (int turn = 0;; turn++) {
    int slot = turn % 2;
    barrier_wait(&bar->read[slot], (turn / 2 & 1) ^ 1);
    barrier_expect(&bar->told[slot], 16);
    asm volatile(
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 "
        "[%0], [%1];" ::"r"(shared_address(bar->answer[slot])),
        "r"(shared_address(&bar->told[slot])) : "memory");
    if (next_tile(bar, turn) < 0) break;  // asking again after a refusal is undefined
  }
}

// A warp owns 32 rows: those of its quarter of the lanes. It needs no other warp.
__device__ void store_role(const CUtensorMap* map_c, uint8_t* own_c, Barriers* bar, int tiles_m,
                           int tiles_n) {
  int lane = threadIdx.x % 32, quarter = threadIdx.x / 32 % 4;
  for (int tile = blockIdx.x, turn = 0; tile >= 0; turn++) {
    int m, n, half = turn % 2;
    place(tile, tiles_m, tiles_n, m, n);
    barrier_wait(&bar->summed[half], turn / 2 & 1);
    fence_after();
    uint32_t from = bar->columns + half * BN + (quarter * 32 << 16);  // lane in the upper half
    for (int box = 0; box < BN / 64; box++) {
      uint8_t* to = own_c + box % 2 * C_BYTES;
      if (lane == 0) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
      __syncwarp();
#pragma unroll
      for (int part = 0; part < 2; part++) {
        uint32_t v[32];
        read_columns(from + box * 64 + part * 32, v);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int chunk = part * 4 + i;  // of 16 bytes, swizzled as the store's map says
          uint4 words = {packed(v[8 * i], v[8 * i + 1]), packed(v[8 * i + 2], v[8 * i + 3]),
                         packed(v[8 * i + 4], v[8 * i + 5]), packed(v[8 * i + 6], v[8 * i + 7])};
          *reinterpret_cast<uint4*>(to + lane * 128 + (chunk ^ lane % 8) * 16) = words;
        }
      }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      __syncwarp();
      if (lane == 0) {
        tma_store(map_c, to, n + box * 64, m + quarter * 32);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
    }
    fence_before();
    __syncwarp();
    if (lane == 0) barrier_arrive(&bar->drained[half]);
    tile = next_tile(bar, turn);
    __syncwarp();
    if (lane == 0) barrier_arrive(&bar->read[turn % 2]);
  }
  if (lane == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__global__ void __launch_bounds__(256, 1)
gemm_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
            const __grid_constant__ CUtensorMap map_c, int M, int N, int K) {
  extern __shared__ uint8_t raw[];
  uint8_t* base = raw + (1024 - shared_address(raw) % 1024) % 1024;  // the swizzle's unit
  uint8_t *tile_a = base, *tile_b = base + STAGES * A_BYTES;
  uint8_t* tile_c = tile_b + STAGES * B_BYTES;
  Barriers* bar = reinterpret_cast<Barriers*>(tile_c + 8 * C_BYTES);
  int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN, steps = (K + BK - 1) / BK;
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(&bar->full[s], 1);
      barrier_init(&bar->empty[s], 1);
    }
    for (int s = 0; s < 2; s++) {
      barrier_init(&bar->summed[s], 1);
      barrier_init(&bar->drained[s], 4);
      barrier_init(&bar->told[s], 1);
      barrier_init(&bar->read[s], READERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (warp == 2) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(
                     shared_address(&bar->columns)), "n"(COLUMNS) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  }
  fence_before();
  __syncthreads();
  fence_after();

  if (warp == 0 && lane == 0)
    load_role(&map_a, &map_b, tile_a, tile_b, bar, tiles_m, tiles_n, steps);
  if (warp == 1 && lane == 0) multiply_role(tile_a, tile_b, bar, steps);
  if (warp == 2 && lane == 0) ask_role(bar);
  if (warp >= 4) store_role(&map_c, tile_c + (warp - 4) * 2 * C_BYTES, bar, tiles_m, tiles_n);

  __syncwarp();
  fence_before();
  __syncthreads();
  fence_after();
  if (warp == 2)
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(bar->columns),
                 "n"(COLUMNS));
}

// A row-major [rows][columns] matrix of bf16 in boxes of `box_rows` x 64.
static int map_of(CUtensorMap* map, const void* data, int rows, int columns, int box_rows) {
  static PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  if (!encode) {
    cudaDriverEntryPointQueryResult state;
    void* entry = nullptr;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                         cudaEnableDefault, &state) != cudaSuccess || !entry)
      return 1;
    encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }
  cuuint64_t sizes[2] = {cuuint64_t(columns), cuuint64_t(rows)}, strides[1] = {sizes[0] * 2};
  cuuint32_t box[2] = {64, cuuint32_t(box_rows)}, steps[2] = {1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

extern "C" int gemm(const void* a, const void* b, void* c, int M, int N, int K,
                    cudaStream_t stream) {
  CUtensorMap map_a, map_b, map_c;
  if (map_of(&map_a, a, M, K, BM) || map_of(&map_b, b, N, K, BN) || map_of(&map_c, c, M, N, 32))
    return 1;
  int tiles = (M + BM - 1) / BM * ((N + BN - 1) / BN);
  cudaFuncSetAttribute(gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  gemm_kernel<<<tiles, 256, SHARED, stream>>>(map_a, map_b, map_c, M, N, K);
  return cudaGetLastError();
}
