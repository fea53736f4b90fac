// C[M][N] = (A * its scales) (B * its scales)^T, A and B in float8_e4m3, C in bf16, for sm_90a. A
// has a scale for every row and 128 columns, stored [K/128][M]; B one for every 128 x 128 block,
// stored [N/128][K/128]. The tensor cores sum one block of 128 in K; ordinary float32 arithmetic
// scales it and adds it to the result, which also promotes the short sums of the FP8 path. K and N:
// multiples of 128; M is free.
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int BN = 128, BK = 128, STAGES = 4, CONSUMERS = 3, BM = 64 * CONSUMERS, GROUP = 11;
constexpr int A_BYTES = BM * BK, B_BYTES = BN * BK, C_BYTES = 64 * BN * 2;
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
__device__ __forceinline__ uint64_t descriptor(const void* p) {
  return ((shared_address(p) & 0x3FFFF) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)

__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "
      "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
      "%56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1;\n}"
      : F16(0), F16(16), F16(32), F16(48) : "l"(a), "l"(b), "r"(add));
}
__device__ __forceinline__ uint32_t packed(float x, float y) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<uint32_t&>(pair);
}
__device__ __forceinline__ void place(int tile, int tiles_m, int tiles_n, int& m, int& n) {
  int first = tile / (GROUP * tiles_n) * GROUP, rows = min(GROUP, tiles_m - first);
  int inside = tile % (GROUP * tiles_n);
  m = (first + inside % rows) * BM;
  n = inside / rows * BN;
}

__global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
fp8_gemm_kernel(const __grid_constant__ CUtensorMap map_a,
                const __grid_constant__ CUtensorMap map_b,
                const __grid_constant__ CUtensorMap map_c, const float* __restrict__ scale_a,
                const float* __restrict__ scale_b, int M, int N, int K) {
  extern __shared__ uint8_t raw[];
  uint8_t* tile_a = raw + (1024 - shared_address(raw) % 1024) % 1024;
  uint8_t *tile_b = tile_a + STAGES * A_BYTES, *tile_c = tile_b + STAGES * B_BYTES;
  uint64_t* full = reinterpret_cast<uint64_t*>(tile_c + CONSUMERS * C_BYTES);
  uint64_t* empty = full + STAGES;
  int tiles_m = (M + BM - 1) / BM, tiles_n = N / BN, steps = K / BK;
  int group = threadIdx.x / 128, stage = 0, phase = 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], 4 * CONSUMERS);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (group == 0) {  // producer
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) {
      for (int tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
        int m, n;
        place(tile, tiles_m, tiles_n, m, n);
        for (int step = 0; step < steps; step++) {
          barrier_wait(&empty[stage], phase ^ 1);
          barrier_expect(&full[stage], A_BYTES + B_BYTES);
          tma_load(tile_a + stage * A_BYTES, &map_a, &full[stage], step * BK, m);
          tma_load(tile_b + stage * B_BYTES, &map_b, &full[stage], step * BK, n);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 160;");
  int part = group - 1, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  uint8_t* own_c = tile_c + part * C_BYTES;
  for (int tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
    int m, n;
    place(tile, tiles_m, tiles_n, m, n);
    int row = m + part * 64 + warp * 16 + lane / 4;
    const float* a_row = scale_a + min(row, M - 1);
    const float* a_row8 = scale_a + min(row + 8, M - 1);
    const float* b_block = scale_b + n / BN * steps;
    float sum[64] = {};
    for (int step = 0; step < steps; step++) {
      // The scales of this step are on their way while the tile arrives.
      float b_scale = __ldg(b_block + step);
      float low = __ldg(a_row + size_t(step) * M) * b_scale;
      float high = __ldg(a_row8 + size_t(step) * M) * b_scale;
      float d[64];
      barrier_wait(&full[stage], phase);
      uint64_t a = descriptor(tile_a + stage * A_BYTES + part * 64 * BK);
      uint64_t b = descriptor(tile_b + stage * B_BYTES);
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int k = 0; k < BK / 32; k++) multiply(d, a + 2 * k, b + 2 * k, k > 0);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (lane == 0) barrier_arrive(&empty[stage]);
      // While this warpgroup scales, the other two have the tensor cores.
#pragma unroll
      for (int i = 0; i < 64; i++) sum[i] = fmaf(d[i], i / 2 % 2 ? high : low, sum[i]);
      if (++stage == STAGES) stage = 0, phase ^= 1;
    }
    if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(1 + part) : "memory");
    int to_row = warp * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
      const float* x = sum + 4 * j;
      int chunk = j + lane / 16;
      uint32_t to = shared_address(own_c + chunk / 8 * 8192 + to_row * 128 +
                                   (chunk % 8 ^ to_row % 8) * 16);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                   "r"(packed(x[0], x[1])), "r"(packed(x[2], x[3])), "r"(packed(x[4], x[5])),
                   "r"(packed(x[6], x[7])) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("bar.sync %0, 128;" ::"r"(1 + part) : "memory");
    if (threadIdx.x % 128 == 0) {
      for (int box = 0; box < 2; box++)
        tma_store(&map_c, own_c + box * 8192, n + box * 64, m + part * 64);
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
  }
  if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

static int map_of(CUtensorMap* map, CUtensorMapDataType type, int bytes, const void* data, int rows,
                  int columns, int box_rows) {
  static PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  if (!encode) {
    cudaDriverEntryPointQueryResult state;
    void* entry = nullptr;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                         cudaEnableDefault, &state) != cudaSuccess || !entry)
      return 1;
    encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }
  cuuint64_t sizes[2] = {cuuint64_t(columns), cuuint64_t(rows)}, strides[1] = {sizes[0] * bytes};
  cuuint32_t box[2] = {cuuint32_t(128 / bytes), cuuint32_t(box_rows)}, unit[2] = {1, 1};
  return encode(map, type, 2, const_cast<void*>(data), sizes, strides, box, unit,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

extern "C" int fp8_gemm(const void* a, const void* b, void* c, const float* scale_a,
                        const float* scale_b, int M, int N, int K, cudaStream_t stream) {
  CUtensorMap map_a, map_b, map_c;
  if (K % 128 || N % 128 || map_of(&map_a, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, a, M, K, BM) ||
      map_of(&map_b, CU_TENSOR_MAP_DATA_TYPE_UINT8, 1, b, N, K, BN) ||
      map_of(&map_c, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, c, M, N, 64))
    return 1;
  int device, units;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
  cudaFuncSetAttribute(fp8_gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  fp8_gemm_kernel<<<units, 128 * (CONSUMERS + 1), SHARED, stream>>>(map_a, map_b, map_c, scale_a,
                                                                     scale_b, M, N, K);
  return cudaGetLastError();
}
