// Attention forward in bf16, heads 128 wide, for sm_90a, with the ideas of FlashAttention-3. A
// block takes 128 queries: one producer thread loads Q, K and V by TMA, two consumer warpgroups
// take 64 rows each. The product with the next keys is issued before that with the last values, so
// that the softmax between them runs beside the tensor cores; named barriers let the warpgroups
// take turns. Tensors [batch][heads][length][128]; fewer heads of K and V divide those of Q.
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

constexpr int BM = 128, BN = 128, D = 128, STAGES = 2;
constexpr int TILE = 128 * D * 2, HALF = TILE / 2;  // two boxes of 64 columns each
constexpr int SHARED = TILE * (1 + 2 * STAGES) + 8 * (1 + 4 * STAGES) + 1024;

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
                                         int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)), "l"(map),
      "r"(shared_address(b)), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ __forceinline__ void load_tile(void* to, const CUtensorMap* map, uint64_t* b, int row,
                                          int head) {
  barrier_expect(b, TILE);
  tma_load(to, map, b, 0, row, head);
  tma_load(static_cast<uint8_t*>(to) + HALF, map, b, 64, row, head);
}
// Swizzled rows of 128 bytes. K-major (Q, K): the leading offset is not used. Values are N-major:
// their leading offset is the step from one box of columns to the next.
__device__ __forceinline__ uint64_t descriptor(const void* p, int leading) {
  return ((shared_address(p) & 0x3FFFF) >> 4) | (uint64_t(leading >> 4) << 16) | (64ull << 32) |
         (1ull << 62);
}
__device__ __forceinline__ void turn_wait(int part) {
  asm volatile("bar.sync %0, 256;" ::"r"(2 + part) : "memory");
}
__device__ __forceinline__ void turn_pass(int part) {
  asm volatile("bar.arrive %0, 256;" ::"r"(3 - part) : "memory");
}

#define F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define F16(i) F4(i), F4(i + 4), F4(i + 8), F4(i + 12)
#define SUMS                                                                           \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "  \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "   \
  "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "   \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"

__device__ __forceinline__ void multiply_shared(float (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " SUMS ", %64, %65, p, 1, 1, 0, 0;\n}"
      : F16(0), F16(16), F16(32), F16(48) : "l"(a), "l"(b), "r"(add));
}
// A from registers; B is the transposed (M- or N-major) operand.
__device__ __forceinline__ void multiply_registers(float (&d)[64], const uint32_t* a, uint64_t b,
                                                   int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " SUMS
      ", {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
      : F16(0), F16(16), F16(32), F16(48)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
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

struct Rows {  // of the two rows of a thread: highest score and sum of weights
  float highest[2], total[2];
};

// Scores become weights, in place; returns what the earlier sums shrink by.
__device__ __forceinline__ void softmax(float (&s)[64], Rows& rows, float scale,
                                        float (&shrink)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float high = rows.highest[r];
#pragma unroll
    for (int j = 0; j < 64; j += 4) high = fmaxf(high, fmaxf(s[j + 2 * r], s[j + 2 * r + 1]));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
    float offset = high == -INFINITY ? 0.f : high * scale, sum = 0.f;
    shrink[r] = exp2f(rows.highest[r] * scale - offset);
#pragma unroll
    for (int j = 0; j < 64; j += 4)
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; i++) sum += s[j + i] = exp2f(s[j + i] * scale - offset);
    rows.total[r] = rows.total[r] * shrink[r] + sum;
    rows.highest[r] = high;
  }
}
__device__ __forceinline__ void scores(float (&s)[64], const uint8_t* q, const uint8_t* k) {
#pragma unroll
  for (int c = 0; c < D / 16; c++) {  // 16 columns are 32 bytes of a row; 64 fill a box
    int at = c / 4 * HALF + c % 4 * 32;
    multiply_shared(s, descriptor(q + at, 16), descriptor(k + at, 16), c > 0);
  }
}
__device__ __forceinline__ void values(float (&o)[64], const uint32_t (&p)[32], const uint8_t* v,
                                       bool add) {
#pragma unroll
  for (int c = 0; c < BN / 16; c++)  // 16 keys are 16 rows of 128 bytes
    multiply_registers(o, p + 4 * c, descriptor(v + c * 2048, HALF), add || c > 0);
}

template <bool CAUSAL>
__global__ void __launch_bounds__(384, 1)
attention_kernel(const __grid_constant__ CUtensorMap map_q,
                 const __grid_constant__ CUtensorMap map_k,
                 const __grid_constant__ CUtensorMap map_v,
                 const __grid_constant__ CUtensorMap map_o, int length, int share, float scale) {
  extern __shared__ uint8_t raw[];
  uint8_t* q = raw + (1024 - shared_address(raw) % 1024) % 1024;
  uint8_t *k = q + TILE, *v = k + STAGES * TILE;
  uint64_t* ready_q = reinterpret_cast<uint64_t*>(v + STAGES * TILE);
  uint64_t *full_k = ready_q + 1, *full_v = full_k + STAGES;
  uint64_t *empty_k = full_v + STAGES, *empty_v = empty_k + STAGES;
  int head = blockIdx.y, group = threadIdx.x / 128;
  int block = CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;  // the longest rows first
  int last = CAUSAL ? block : (length - 1) / BN;                 // block of keys
  if (threadIdx.x == 0) {
    barrier_init(ready_q, 1);
    for (int s = 0; s < STAGES; s++) {
      barrier_init(&full_k[s], 1);
      barrier_init(&full_v[s], 1);
      barrier_init(&empty_k[s], 8);
      barrier_init(&empty_v[s], 8);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();

  if (group == 0) {  // producer
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (threadIdx.x == 0) {
      load_tile(q, &map_q, ready_q, block * BM, head);
      int stage = 0, phase = 1;
      for (int n = last; n >= 0; n--) {
        barrier_wait(&empty_k[stage], phase);
        load_tile(k + stage * TILE, &map_k, &full_k[stage], n * BN, head / share);
        barrier_wait(&empty_v[stage], phase);
        load_tile(v + stage * TILE, &map_v, &full_v[stage], n * BN, head / share);
        if (++stage == STAGES) stage = 0, phase ^= 1;
      }
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  int part = group - 1, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  int row = block * BM + part * 64 + warp * 16 + lane / 4;  // and row + 8
  uint8_t* own_q = q + part * 64 * 128;
  float s[64], o[64], shrink[2];
  uint32_t p[32];
  Rows rows = {{-INFINITY, -INFINITY}, {0.f, 0.f}};
  if (part == 1) turn_pass(1);  // the first turn is the first warpgroup's

  // The last block of keys alone holds the diagonal and the end of the sequence.
  barrier_wait(ready_q, 0);
  barrier_wait(&full_k[0], 0);
  wgmma_begin();
  scores(s, own_q, k);
  wgmma_commit();
  wgmma_wait<0>();
  if (lane == 0) barrier_arrive(&empty_k[0]);
#pragma unroll
  for (int i = 0; i < 64; i++) {
    int key = last * BN + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (key >= length || (CAUSAL && key > row + i / 2 % 2 * 8)) s[i] = -INFINITY;
  }
  softmax(s, rows, scale, shrink);
#pragma unroll
  for (int i = 0; i < 32; i++) p[i] = packed(s[2 * i], s[2 * i + 1]);

  int stage = 0, phase = 0;  // of the values
  for (int n = last - 1; n >= 0; n--) {
    int next = stage + 1 == STAGES ? 0 : stage + 1, next_phase = next ? phase : phase ^ 1;
    barrier_wait(&full_k[next], next_phase);
    turn_wait(part);
    wgmma_begin();
    scores(s, own_q, k + next * TILE);
    wgmma_commit();
    barrier_wait(&full_v[stage], phase);
    wgmma_begin();  // o and p were written by ordinary instructions
    values(o, p, v + stage * TILE, n < last - 1);
    wgmma_commit();
    turn_pass(part);
    wgmma_wait<1>();  // the scores are there, the values still run
    if (lane == 0) barrier_arrive(&empty_k[next]);
    softmax(s, rows, scale, shrink);
    wgmma_wait<0>();
    if (lane == 0) barrier_arrive(&empty_v[stage]);
#pragma unroll
    for (int i = 0; i < 64; i++) o[i] *= shrink[i / 2 % 2];
#pragma unroll
    for (int i = 0; i < 32; i++) p[i] = packed(s[2 * i], s[2 * i + 1]);
    stage = next, phase = next_phase;
  }
  barrier_wait(&full_v[stage], phase);
  wgmma_begin();
  values(o, p, v + stage * TILE, last > 0);
  wgmma_commit();
  wgmma_wait<0>();

  float inverse[2];
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float total = rows.total[r];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    inverse[r] = 1.f / total;
  }
  // Through the rows of Q, which this warpgroup alone has read.
  int to_row = warp * 16 + lane % 16;
#pragma unroll
  for (int j = 0; j < 16; j += 2) {
    const float* x = o + 4 * j;
    int chunk = j + lane / 16;
    uint32_t to = shared_address(own_q + chunk / 8 * HALF + to_row * 128 +
                                 (chunk % 8 ^ to_row % 8) * 16);
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(packed(x[0] * inverse[0], x[1] * inverse[0])),
                 "r"(packed(x[2] * inverse[1], x[3] * inverse[1])),
                 "r"(packed(x[4] * inverse[0], x[5] * inverse[0])),
                 "r"(packed(x[6] * inverse[1], x[7] * inverse[1])) : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync %0, 128;" ::"r"(4 + part) : "memory");
  if (threadIdx.x % 128 == 0) {
    for (int box = 0; box < 2; box++)
      asm volatile(
          "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(
              &map_o), "r"(shared_address(own_q + box * HALF)), "r"(box * 64),
          "r"(block * BM + part * 64), "r"(head) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

static int map_of(CUtensorMap* map, const void* data, int heads, int length, int box_rows) {
  static PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  if (!encode) {
    cudaDriverEntryPointQueryResult state;
    void* entry = nullptr;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                         cudaEnableDefault, &state) != cudaSuccess || !entry)
      return 1;
    encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }
  cuuint64_t sizes[3] = {D, cuuint64_t(length), cuuint64_t(heads)};
  cuuint64_t strides[2] = {D * 2, sizes[1] * D * 2};
  cuuint32_t box[3] = {64, cuuint32_t(box_rows), 1}, steps[3] = {1, 1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

// q_heads and kv_heads count over the batch. Causal: as many keys as queries.
extern "C" int attention(const void* q, const void* k, const void* v, void* o, int q_heads,
                         int kv_heads, int length, float scale, int causal, cudaStream_t stream) {
  CUtensorMap map_q, map_k, map_v, map_o;
  if (map_of(&map_q, q, q_heads, length, BM) || map_of(&map_k, k, kv_heads, length, BN) ||
      map_of(&map_v, v, kv_heads, length, BN) || map_of(&map_o, o, q_heads, length, 64))
    return 1;
  auto kernel = causal ? attention_kernel<true> : attention_kernel<false>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  dim3 grid((length + BM - 1) / BM, q_heads);
  kernel<<<grid, 384, SHARED, stream>>>(map_q, map_k, map_v, map_o, length, q_heads / kv_heads,
                                        scale * 1.44269504f);
  return cudaGetLastError();
}
