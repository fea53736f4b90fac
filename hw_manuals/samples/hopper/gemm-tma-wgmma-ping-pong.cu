// C[M][N] = A[M][K] * B[N][K]^T in bf16 for sm_90a, ping-pong: each of the two consumer warpgroups
// has a tile of 128 x 128 of its own, and they take turns with the tensor cores. While one
// multiplies, the other stores its last tile, which pays where K is short or the epilogue is long.
// One producer thread, persistent grid. K and N: multiples of 8.
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int BM = 128, BN = 128, BK = 64, STAGES = 5, CONSUMERS = 2, GROUP = 16;
constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, C_BYTES = BM * BN * 2;
constexpr int SHARED = STAGES * (A_BYTES + B_BYTES) + CONSUMERS * C_BYTES + 16 * STAGES + 1024;

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
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(shared_address(to)), "l"(map), "r"(shared_address(b)),
      "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void tma_store(const CUtensorMap* map, const void* from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
                   map), "r"(shared_address(from)), "r"(x), "r"(y) : "memory");
}
// A K-major tile of rows of 128 bytes, swizzled: groups of 8 rows lie 1024 bytes apart.
__device__ __forceinline__ uint64_t descriptor(const void* p) {
  return ((shared_address(p) & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)

__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, 0;\n}"
      : F16(0), F16(16), F16(32), F16(48) : "l"(a), "l"(b), "r"(add));
}
// Whose turn with the tensor cores it is: the one who waits and the one who passes meet.
__device__ __forceinline__ void turn_wait(int part) {
  asm volatile("bar.sync %0, 256;" ::"r"(3 + part) : "memory");
}
__device__ __forceinline__ void turn_pass(int part) {
  asm volatile("bar.arrive %0, 256;" ::"r"(4 - part) : "memory");
}
__device__ __forceinline__ void wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
__device__ __forceinline__ uint32_t packed(float x, float y) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<uint32_t&>(pair);
}

// Tiles in groups of GROUP rows, so that the blocks of a wave share panels of A and B in L2.
__device__ __forceinline__ void place(int tile, int tiles_m, int tiles_n, int& m, int& n) {
  int first = tile / (GROUP * tiles_n) * GROUP, rows = min(GROUP, tiles_m - first);
  int inside = tile % (GROUP * tiles_n);
  m = (first + inside % rows) * BM;
  n = inside / rows * BN;
}

__global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
ping_pong_gemm_kernel(const __grid_constant__ CUtensorMap map_a,
                      const __grid_constant__ CUtensorMap map_b,
                      const __grid_constant__ CUtensorMap map_c, int M, int N, int K) {
  extern __shared__ uint8_t raw[];
  uint8_t* base = raw + (1024 - shared_address(raw) % 1024) % 1024;  // the swizzle's unit
  uint8_t *tile_a = base, *tile_b = base + STAGES * A_BYTES;
  uint8_t* tile_c = tile_b + STAGES * B_BYTES;
  uint64_t* full = reinterpret_cast<uint64_t*>(tile_c + CONSUMERS * C_BYTES);
  uint64_t* empty = full + STAGES;
  int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN, steps = (K + BK - 1) / BK;
  int group = threadIdx.x / 128;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], 4);  // the warps of the one warpgroup that has the tile
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (group == 0) {  // producer
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      int stage = 0, phase = 0;
      for (int tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
        int m, n;
        place(tile, tiles_m, tiles_n, m, n);
        for (int step = 0; step < steps; step++) {
          barrier_wait(&empty[stage], phase ^ 1);  // the first round passes at once
          barrier_expect(&full[stage], A_BYTES + B_BYTES);
          tma_load(tile_a + stage * A_BYTES, &map_a, &full[stage], step * BK, m);
          tma_load(tile_b + stage * B_BYTES, &map_b, &full[stage], step * BK, n);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {  // consumers: every other tile of this block
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int part = group - 1, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    uint8_t* own_c = tile_c + part * C_BYTES;
    float d[2][64];  // rows 0-63 and 64-127
    if (part == 1) turn_pass(1);  // the first turn is the first warpgroup's
    int turn = part;              // counts the tiles of this block
    for (int tile = blockIdx.x + part * gridDim.x; tile < tiles_m * tiles_n;
         tile += 2 * gridDim.x, turn += 2) {
      int m, n, previous = -1, count = turn * steps;  // steps before this tile
      place(tile, tiles_m, tiles_n, m, n);
      turn_wait(part);
      for (int step = 0; step < steps; step++, count++) {
        int stage = count % STAGES;
        barrier_wait(&full[stage], count / STAGES & 1);
        uint64_t a = descriptor(tile_a + stage * A_BYTES), b = descriptor(tile_b + stage * B_BYTES);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < BK / 16; k++)
#pragma unroll
          for (int i = 0; i < 2; i++)  // 64 rows further are 8192 bytes: 512 in the descriptor
            multiply(d[i], a + 512 * i + 2 * k, b + 2 * k, step > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>();
        if (previous >= 0 && lane == 0) barrier_arrive(&empty[previous]);
        previous = stage;
      }
      turn_pass(part);  // the last products still run; the other warpgroup's come behind them
      wgmma_wait<0>();
      if (lane == 0) barrier_arrive(&empty[previous]);
      if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
      asm volatile("bar.sync %0, 128;" ::"r"(1 + part) : "memory");
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 16; j += 2) {
          const float* v = d[i] + 4 * j;
          int chunk = j + lane / 16, row = i * 64 + warp * 16 + lane % 16;
          uint32_t to = shared_address(own_c + chunk / 8 * (C_BYTES / 2) + row * 128 +
                                       (chunk % 8 ^ row % 8) * 16);
          asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                       "r"(packed(v[0], v[1])), "r"(packed(v[2], v[3])), "r"(packed(v[4], v[5])),
                       "r"(packed(v[6], v[7])) : "memory");
        }
      asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
      asm volatile("bar.sync %0, 128;" ::"r"(1 + part) : "memory");
      if (threadIdx.x % 128 == 0) {
        for (int box = 0; box < 2; box++)
          tma_store(&map_c, own_c + box * (C_BYTES / 2), n + box * 64, m);
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
    }
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
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

extern "C" int gemm_ping_pong(const void* a, const void* b, void* c, int M, int N, int K,
                              cudaStream_t stream) {
  CUtensorMap map_a, map_b, map_c;
  if (map_of(&map_a, a, M, K, BM) || map_of(&map_b, b, N, K, BN) || map_of(&map_c, c, M, N, BM))
    return 1;
  int device, units;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
  cudaFuncSetAttribute(ping_pong_gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  ping_pong_gemm_kernel<<<units, 128 * (CONSUMERS + 1), SHARED, stream>>>(map_a, map_b, map_c, M, N,
                                                                          K);
  return cudaGetLastError();
}
