// Attention of one new query per sequence over a paged cache, from compute capability 8.0 on where
// a block may have 128 KB of shared memory: 8.6, 8.9 and 12.x give 99, room for three STAGES.
// Every warp walks tiles of 16 keys through a ring of its own, filled by cp.async from the page
// that the table names, so the loop has no barrier of the block; queries that share a head of keys
// are the 16 rows of mma.sync. A sequence is cut into parts, which a second kernel joins. Heads are
// 128 wide; at most 16 queries share a head of keys; pages: a multiple of 16 keys; every length is
// at least 1. Pointers: aligned to 16 bytes.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int D = 128, KEYS = 16, STAGES = 4, WARPS = 4;
constexpr int TILE = KEYS * D * 2, STAGE = 2 * TILE, SHARED = WARPS * STAGES * STAGE;

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// Rows of 16 chunks of 16 bytes; the chunk's low bits are exchanged by the row's.
__device__ __forceinline__ uint32_t at(uint32_t tile, int row, int chunk) {
  return tile + row * 256 + ((chunk ^ row % 8) * 16);
}
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t* a, uint32_t b0,
                                         uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t packed(float x, float y) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<uint32_t&>(pair);
}

// 256 chunks of keys and of values; rows at or behind `rows` are filled with zeros, because what
// lies behind the end of a sequence may be NaN, and NaN times a weight of 0 is NaN.
__device__ __forceinline__ void fill(uint32_t stage, const __nv_bfloat16* keys,
                                     const __nv_bfloat16* values, size_t first, int stride,
                                     int rows) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    int row = threadIdx.x % 32 / 16 + i * 2, chunk = threadIdx.x % 16, bytes = row < rows ? 16 : 0;
    size_t from = first + size_t(row) * stride + chunk * 8;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at(stage, row, chunk)),
                 "l"(keys + from), "r"(bytes));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     at(stage + TILE, row, chunk)), "l"(values + from), "r"(bytes));
  }
}

__global__ void __launch_bounds__(WARPS * 32)
decode_part_kernel(const __nv_bfloat16* __restrict__ query, const __nv_bfloat16* __restrict__ keys,
                   const __nv_bfloat16* __restrict__ values, const int* __restrict__ table,
                   const int* __restrict__ lengths, float* __restrict__ sums,
                   float* __restrict__ logs, int share, int page, int most_pages, float scale) {
  extern __shared__ __align__(128) uint8_t ring[];
  __shared__ float highest_of[WARPS][16], total_of[WARPS][16];
  int batch = blockIdx.x, head = blockIdx.y, part = blockIdx.z, parts = gridDim.z;
  int kv_heads = gridDim.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int length = lengths[batch], tiles = (length + KEYS - 1) / KEYS;
  int each = (tiles + parts - 1) / parts, first = part * each, end = min(first + each, tiles);
  int stride = kv_heads * D;  // from key to key
  const int* pages = table + size_t(batch) * most_pages;
  uint32_t own = shared_address(ring) + warp * STAGES * STAGE;
  size_t query_row = (size_t(batch) * kv_heads + head) * share;

  uint32_t q[8][4];  // 16 rows of queries; those that are not there are zero
#pragma unroll
  for (int k = 0; k < 8; k++)
#pragma unroll
    for (int r = 0; r < 4; r++) {
      int row = lane / 4 + r % 2 * 8, column = k * 16 + lane % 4 * 2 + r / 2 * 8;
      q[k][r] = row < share
          ? *reinterpret_cast<const uint32_t*>(query + (query_row + row) * D + column) : 0;
    }
  float highest[2] = {-INFINITY, -INFINITY}, total[2] = {}, o[16][4] = {};

  // The page of the tile that is filled next is read one step before it is needed.
  int filled = first + warp, next_page = filled < end ? pages[filled * KEYS / page] : 0, slot = 0;
  auto fill_next = [&] {
    if (filled < end) {
      size_t row = size_t(next_page) * page + filled * KEYS % page;
      fill(own + slot * STAGE, keys, values, row * stride + head * D, stride,
           length - filled * KEYS);
      filled += WARPS;
      if (filled < end) next_page = pages[filled * KEYS / page];
      if (++slot == STAGES) slot = 0;
    }
    asm volatile("cp.async.commit_group;");
  };
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) fill_next();
  int stage = 0;
  for (int tile = first + warp; tile < end; tile += WARPS) {
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
    __syncwarp();  // every lane's copies are there, and all have left the stage that is filled now
    fill_next();
    uint32_t tile_k = own + stage * STAGE, tile_v = tile_k + TILE;
    float s[2][4] = {};
#pragma unroll
    for (int k = 0; k < 8; k++) {
      uint32_t b[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(at(tile_k, lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2)) : "memory");
      multiply(s[0], q[k], b[0], b[1]);
      multiply(s[1], q[k], b[2], b[3]);
    }
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float high = highest[r];
#pragma unroll
      for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; i++) {
          int key = tile * KEYS + j * 8 + lane % 4 * 2 + i % 2;
          s[j][i] = key < length ? s[j][i] * scale : -INFINITY;
          high = fmaxf(high, s[j][i]);
        }
      high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
      high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
      shrink[r] = exp2f(highest[r] - high);
      highest[r] = high;
      total[r] *= shrink[r];
#pragma unroll
      for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; i++) total[r] += s[j][i] = exp2f(s[j][i] - high);
    }
    uint32_t p[4] = {packed(s[0][0], s[0][1]), packed(s[0][2], s[0][3]), packed(s[1][0], s[1][1]),
                     packed(s[1][2], s[1][3])};
#pragma unroll
    for (int c = 0; c < 8; c++) {  // 16 columns of the values, read transposed
      uint32_t b[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                   : "r"(at(tile_v, lane % 16, 2 * c + lane / 16)) : "memory");
#pragma unroll
      for (int j = 0; j < 2; j++) {
        float(&d)[4] = o[2 * c + j];
#pragma unroll
        for (int i = 0; i < 4; i++) d[i] *= shrink[i / 2];
        multiply(d, p, b[2 * j], b[2 * j + 1]);
      }
    }
    if (++stage == STAGES) stage = 0;
  }
  asm volatile("cp.async.wait_group 0;" ::: "memory");

  // The warps of the block are joined in shared memory.
#pragma unroll
  for (int r = 0; r < 2; r++) {
    total[r] += __shfl_xor_sync(~0u, total[r], 1);
    total[r] += __shfl_xor_sync(~0u, total[r], 2);
    if (lane % 4 == 0) {
      highest_of[warp][lane / 4 + r * 8] = highest[r];
      total_of[warp][lane / 4 + r * 8] = total[r];
    }
  }
  __syncthreads();  // also: nobody reads the rings any more
  float* joined = reinterpret_cast<float*>(ring) + warp * 16 * D;
#pragma unroll
  for (int c = 0; c < 16; c++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      joined[(lane / 4 + i / 2 * 8) * D + c * 8 + lane % 4 * 2 + i % 2] = o[c][i];
  __syncthreads();
  for (int row = 0; row < share; row++) {
    float high = -INFINITY, sum = 0.f, value = 0.f;
    for (int w = 0; w < WARPS; w++) high = fmaxf(high, highest_of[w][row]);
    for (int w = 0; w < WARPS && high > -INFINITY; w++) {
      float weight = exp2f(highest_of[w][row] - high);
      sum += weight * total_of[w][row];
      value += weight * reinterpret_cast<float*>(ring)[(w * 16 + row) * D + threadIdx.x];
    }
    size_t out = (query_row + row) * parts + part;  // a part without keys: sum 0, minus infinity
    sums[out * D + threadIdx.x] = sum > 0.f ? value / sum : 0.f;
    if (threadIdx.x == 0) logs[out] = high + log2f(sum);
  }
}

__global__ void __launch_bounds__(D)
join_kernel(const float* __restrict__ sums, const float* __restrict__ logs,
            __nv_bfloat16* __restrict__ out, int parts) {
  size_t row = blockIdx.x;
  float high = -INFINITY, sum = 0.f, value = 0.f;
  for (int p = 0; p < parts; p++) high = fmaxf(high, logs[row * parts + p]);
  for (int p = 0; p < parts; p++) {
    float weight = exp2f(logs[row * parts + p] - high);
    sum += weight;
    value += weight * sums[(row * parts + p) * D + threadIdx.x];
  }
  out[row * D + threadIdx.x] = __float2bfloat16(value / sum);
}

// query, out [batch][heads][128]; keys, values [pages][page][kv_heads][128]; table [batch][most
// pages]; sums and logs: room for batch * heads * parts rows of 128 and numbers.
extern "C" int paged_decode(const void* query, const void* keys, const void* values,
                            const int* table, const int* lengths, void* out, float* sums,
                            float* logs, int batch, int heads, int kv_heads, int page,
                            int most_pages, int parts, float scale, cudaStream_t stream) {
  if (page % KEYS || heads / kv_heads > 16) return 1;
  cudaFuncSetAttribute(decode_part_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  decode_part_kernel<<<dim3(batch, kv_heads, parts), WARPS * 32, SHARED, stream>>>(
      static_cast<const __nv_bfloat16*>(query), static_cast<const __nv_bfloat16*>(keys),
      static_cast<const __nv_bfloat16*>(values), table, lengths, sums, logs, heads / kv_heads, page,
      most_pages, scale * 1.44269504f);
  join_kernel<<<batch * heads, D, 0, stream>>>(sums, logs, static_cast<__nv_bfloat16*>(out), parts);
  return cudaGetLastError();
}
