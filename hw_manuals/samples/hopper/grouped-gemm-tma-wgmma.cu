// A product for each expert: C[rows][N] = A[rows][K] * B[group of the row][N][K]^T in bf16 with
// float32 sums, for sm_90a. Rows are sorted by group; offsets[groups + 1] int32, on the device, say
// where each group begins, so no size comes back to the host. One producer thread fills a ring of
// stages by TMA; two consumer warpgroups share each 128 x 256 tile. The grid is persistent.
// K and N: multiples of 8; groups: up to MAX_GROUPS, of any size, empty ones too.
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int BM = 128, BN = 256, BK = 64, STAGES = 4, CONSUMERS = 2, MAX_GROUPS = 256;
constexpr int A_BYTES = BM * BK * 2, B_BYTES = BN * BK * 2, C_BYTES = 64 * 128 * 2;
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
#define F64(i) F16(i), F16(i + 16), F16(i + 32), F16(i + 48)

__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[128], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "
      "%111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, "
      "%125, %126, %127}, %128, %129, p, 1, 1, 0, 0;\n}"
      : F64(0), F64(64)
      : "l"(a), "l"(b), "r"(add));
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

// first[g]: number of tiles before those of group g. Done by one warp.
__device__ void count_tiles(const int* offsets, int groups, int tiles_n, int* first) {
  int lane = threadIdx.x % 32, sum = 0;
  if (lane == 0) first[0] = 0;
  for (int base = 0; base < groups; base += 32) {
    int g = base + lane, own = 0;
    if (g < groups) own = (__ldg(offsets + g + 1) - __ldg(offsets + g) + BM - 1) / BM * tiles_n;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      int other = __shfl_up_sync(~0u, own, step);
      if (lane >= step) own += other;
    }
    if (g < groups) first[g + 1] = sum + own;
    sum += __shfl_sync(~0u, own, 31);
  }
}

struct Place {
  int group = 0, m, n, end;  // rows m .. end of the group are left
};

// Tiles of a block only grow, so the group is found by walking on. The row tiles of a group lie
// next to each other: they run together and share the 256 rows of B in L2.
__device__ __forceinline__ void place(int tile, const int* first, const int* offsets, Place& p) {
  while (tile >= first[p.group + 1]) p.group++;
  int begin = __ldg(offsets + p.group);
  p.end = __ldg(offsets + p.group + 1);
  int inside = tile - first[p.group], tiles_m = (p.end - begin + BM - 1) / BM;
  p.m = begin + inside % tiles_m * BM;
  p.n = inside / tiles_m * BN;
}

__global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
grouped_kernel(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
               const __grid_constant__ CUtensorMap map_c, __nv_bfloat16* __restrict__ c,
               const int* __restrict__ offsets, int groups, int N, int K) {
  extern __shared__ uint8_t raw[];
  __shared__ int first[MAX_GROUPS + 1];
  uint8_t* base = raw + (1024 - shared_address(raw) % 1024) % 1024;  // the swizzle's unit
  uint8_t *tile_a = base, *tile_b = base + STAGES * A_BYTES;
  uint8_t* tile_c = tile_b + STAGES * B_BYTES;
  uint64_t* full = reinterpret_cast<uint64_t*>(tile_c + CONSUMERS * C_BYTES);
  uint64_t* empty = full + STAGES;
  int tiles_n = (N + BN - 1) / BN, steps = (K + BK - 1) / BK;
  int group = threadIdx.x / 128, stage = 0, phase = 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      barrier_init(&full[s], 1);
      barrier_init(&empty[s], 4 * CONSUMERS);  // one arrival of each consumer warp
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (threadIdx.x / 32 == 1) count_tiles(offsets, groups, tiles_n, first);
  __syncthreads();
  int tiles = first[groups];
  Place p;

  if (group == 0) {  // producer
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        place(tile, first, offsets, p);
        for (int step = 0; step < steps; step++) {
          barrier_wait(&empty[stage], phase ^ 1);  // the first round passes at once
          barrier_expect(&full[stage], A_BYTES + B_BYTES);
          tma_load(tile_a + stage * A_BYTES, &map_a, &full[stage], step * BK, p.m);
          // Past N lie weights of the next group: columns that are not stored.
          tma_load(tile_b + stage * B_BYTES, &map_b, &full[stage], step * BK, p.group * N + p.n);
          if (++stage == STAGES) stage = 0, phase ^= 1;
        }
      }
    }
  } else {  // consumers: rows 0-63 and 64-127 of the tile
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    int part = group - 1, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    uint8_t* own_c = tile_c + part * C_BYTES;
    float d[128];
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      int previous = -1;
      place(tile, first, offsets, p);
      int left = min(p.end - p.m - part * 64, 64);  // rows of this group; may be none
      for (int step = 0; step < steps; step++) {
        barrier_wait(&full[stage], phase);
        uint64_t a = descriptor(tile_a + stage * A_BYTES + part * 64 * BK * 2);
        uint64_t b = descriptor(tile_b + stage * B_BYTES);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < BK / 16; k++)  // 16 columns are 32 bytes: 2 in the descriptor
          wgmma_m64n256k16(d, a + 2 * k, b + 2 * k, step > 0 || k > 0);
        wgmma_commit();
        wgmma_wait<1>();  // all but the newest have read their stage
        if (previous >= 0 && lane == 0) barrier_arrive(&empty[previous]);
        previous = stage;
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
      wgmma_wait<0>();
      if (lane == 0) barrier_arrive(&empty[previous]);
      // Through shared memory in two halves of 128 columns, swizzled as the store's map says.
#pragma unroll
      for (int half = 0; half < 2; half++) {
        if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(1 + part) : "memory");
        int row = warp * 16 + lane % 16;
#pragma unroll
        for (int j = 0; j < 16; j += 2) {
          const float* v = d + 4 * (half * 16 + j);
          int chunk = j + lane / 16;
          uint32_t to = shared_address(own_c + chunk / 8 * 8192 + row * 128 +
                                       (chunk % 8 ^ row % 8) * 16);
          asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                       "r"(packed(v[0], v[1])), "r"(packed(v[2], v[3])), "r"(packed(v[4], v[5])),
                       "r"(packed(v[6], v[7])) : "memory");
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync %0, 128;" ::"r"(1 + part) : "memory");
        if (left == 64) {
          if (threadIdx.x % 128 == 0) {
            for (int box = 0; box < 2; box++)
              tma_store(&map_c, own_c + box * 8192, p.n + half * 128 + box * 64, p.m + part * 64);
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
          }
        } else {  // a box of the map would overwrite the rows of the next group
          for (int i = threadIdx.x % 128; i < left * 16; i += 128) {
            int to_row = i / 16, piece = i % 16, column = p.n + half * 128 + piece * 8;
            const uint8_t* from =
                own_c + piece / 8 * 8192 + to_row * 128 + (piece % 8 ^ to_row % 8) * 16;
            if (column < N)
              *reinterpret_cast<uint4*>(c + size_t(p.m + part * 64 + to_row) * N + column) =
                  *reinterpret_cast<const uint4*>(from);
          }
        }
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

// a [rows][K], b [groups][N][K], c [rows][N]; rows = offsets[groups], which the host may know as
// the number of tokens times the experts of each.
extern "C" int grouped_gemm(const void* a, const void* b, void* c, const int* offsets, int rows,
                            int groups, int N, int K, cudaStream_t stream) {
  if (groups > MAX_GROUPS || N % 8 || K % 8) return cudaErrorInvalidValue;
  CUtensorMap map_a, map_b, map_c;
  if (map_of(&map_a, a, rows, K, BM) || map_of(&map_b, b, groups * N, K, BN) ||
      map_of(&map_c, c, rows, N, 64))
    return cudaErrorInvalidValue;
  int device, units;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
  cudaFuncSetAttribute(grouped_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  grouped_kernel<<<units, 128 * (CONSUMERS + 1), SHARED, stream>>>(
      map_a, map_b, map_c, static_cast<__nv_bfloat16*>(c), offsets, groups, N, K);
  return cudaGetLastError();
}
