// Attention forward for sm_100a: q, out [batch][heads][length][128], k, v [batch][kv_heads][length]
// [128], bf16, causal or not, any length. Two tiles of 128 queries take turns: while the softmax of
// one is computed, the tensor core works for the other. Roles: one thread loads by TMA, one issues
// tcgen05 products, two warpgroups of softmax, one that rescales the sums of values and stores.
// Tensor memory, 512 columns of 32 bits: scores of both tiles 2 x 128, sums of values 2 x 128. The
// weights, bf16, take the first 64 columns of the scores that they replace.
#include <cudaTypedefs.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define INLINE __device__ __forceinline__

constexpr int WIDTH = 128, BM = 128, BN = 128, SLOTS = 4;  // slots: K and V of two steps
constexpr int TILE = 128 * WIDTH * 2, HALF = TILE / 2;     // two boxes of 128 rows of 128 bytes
constexpr int SHARED = (2 + SLOTS) * TILE + 2 * BM * 4 + 512 + 1024;

// bf16 operands, float32 sums, N / 8 and M / 16. Bit 16: B is N-major, as V with its keys outside.
constexpr uint32_t KIND_K = 1u << 4 | 1u << 7 | 1u << 10 | (BN / 8) << 17 | (BM / 16) << 24;
constexpr uint32_t KIND_V = 1u << 4 | 1u << 7 | 1u << 10 | 1u << 16 | (WIDTH / 8) << 17 |
                            (BM / 16) << 24;

struct Barriers {
  uint64_t q_full[2], full[SLOTS], empty[SLOTS];
  uint64_t s_full[2], p_full[2];   // scores, weights are there
  uint64_t o_full[2], o_ready[2];  // a product with values has ended, its sums are rescaled
  uint64_t sent[2], taken[2];      // a factor, at last the sum of weights, in shared memory
  uint32_t columns;                // address in tensor memory
};

// PTX
INLINE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
INLINE void barrier_init(uint64_t* b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(count));
}
INLINE void barrier_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
               "r"(bytes) : "memory");
}
INLINE void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
INLINE void barrier_wait(uint64_t* b, int parity) {
  asm volatile(
      "{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(shared_address(b)), "r"(parity) : "memory");
}
INLINE void tma_load(void* to, const CUtensorMap* map, uint64_t* b, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cta.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)), "l"(map),
      "r"(shared_address(b)), "r"(x), "r"(y), "r"(z) : "memory");
}
INLINE void tma_store(const CUtensorMap* map, const void* from, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(shared_address(from)), "r"(x), "r"(y), "r"(z) : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
INLINE void stores_ended() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
INLINE void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
INLINE void multiply(uint32_t sums, uint64_t a, uint64_t b, uint32_t kind, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p;\n}" ::"r"(sums), "l"(a), "l"(b),
      "r"(kind), "r"(add) : "memory");
}
// The first operand lies in tensor memory: two bf16 a column.
INLINE void multiply_columns(uint32_t sums, uint32_t a, uint64_t b, uint32_t kind, int add) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %4, 0;\n"
      "tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p;\n}" ::"r"(sums), "r"(a), "l"(b),
      "r"(kind), "r"(add) : "memory");
}
// Arrives once all products that this thread issued before have ended.
INLINE void commit(uint64_t* b) {
  asm volatile(
      "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
          shared_address(b)) : "memory");
}
INLINE void fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
INLINE void fence_after() {
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}
INLINE void allocate_columns(uint32_t* to) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], 512;" ::"r"(
                   shared_address(to)) : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
INLINE void free_columns(uint32_t columns) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, 512;" ::"r"(columns));
}
#define NAMES32                                                                                  \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define R4(c, i) c(v[i]), c(v[i + 1]), c(v[i + 2]), c(v[i + 3])
#define R32(c) \
  R4(c, 0), R4(c, 4), R4(c, 8), R4(c, 12), R4(c, 16), R4(c, 20), R4(c, 24), R4(c, 28)
// 32 columns of the warp's 32 lanes: a thread has the row of its lane. Not waited for.
INLINE void read_columns(uint32_t from, uint32_t* v) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 " NAMES32 ", [%32];" : R32("=r")
               : "r"(from));
}
INLINE void write_columns(uint32_t to, const uint32_t* v) {
  asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%32], " NAMES32 ";" ::R32("r"), "r"(to)
               : "memory");
}
// The values pass through the wait, so that nothing uses them early.
INLINE void reads_ended(uint32_t* v) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" : R32("+r")::"memory");
}
INLINE void writes_ended() {
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
}
template <int COUNT>
INLINE void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
INLINE void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
INLINE float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
INLINE uint32_t packed(float x, float y) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<uint32_t&>(pair);
}
// End of PTX

// Rows of 128 bytes, swizzled, groups of 8 rows 1024 bytes apart (bits 32 to 45). In units of 16
// bytes. Q and K: the row is the outer dimension. V: the row is a key, which the product sums over,
// so 64 of the 128 columns lie in a box and the next box is HALF bytes away (bits 16 to 29).
INLINE uint64_t descriptor(const void* p, int box) {
  return ((shared_address(p) & 0x3FFFF) >> 4) | uint64_t(box / 16) << 16 | 64ull << 32 |
         1ull << 46 | 2ull << 61;
}
INLINE uint64_t row_major(const void* p) { return descriptor(p, 16); }
INLINE uint64_t key_major(const void* p) { return descriptor(p, HALF); }

INLINE void load_tile(uint8_t* to, const CUtensorMap* map, uint64_t* b, int row, int head) {
  barrier_expect(b, TILE);
  tma_load(to, map, b, 0, row, head);
  tma_load(to + HALF, map, b, 64, row, head);
}

__device__ void load_role(const CUtensorMap* map_q, const CUtensorMap* map_k,
                          const CUtensorMap* map_v, uint8_t* q_tiles, uint8_t* ring, Barriers* bar,
                          int m, int head, int kv_head, int steps) {
  for (int t = 0; t < 2; t++)
    load_tile(q_tiles + t * TILE, map_q, &bar->q_full[t], m + t * BM, head);
  for (int i = 0; i < 2 * steps; i++) {  // K of step 0, V of step 0, K of step 1 ...
    int slot = i % SLOTS;
    barrier_wait(&bar->empty[slot], i / SLOTS & 1 ^ 1);  // the first round passes at once
    load_tile(ring + slot * TILE, i % 2 ? map_v : map_k, &bar->full[slot], i / 2 * BN, kv_head);
  }
}

INLINE void multiply_keys(uint32_t scores, const uint8_t* q, const uint8_t* k) {
  uint64_t a = row_major(q), b = row_major(k);
#pragma unroll
  for (int i = 0; i < WIDTH / 16; i++) {  // 16 columns are 32 bytes: 2 in the descriptor
    int at = i / 4 * (HALF / 16) + i % 4 * 2;
    multiply(scores, a + at, b + at, KIND_K, i > 0);
  }
}
INLINE void multiply_values(uint32_t sums, uint32_t weights, const uint8_t* v, int add) {
  uint64_t b = key_major(v);
#pragma unroll
  for (int i = 0; i < BN / 16; i++)  // 16 keys are 8 columns of weights and 2,048 bytes of V
    multiply_columns(sums, weights + 8 * i, b + 128 * i, KIND_V, add || i > 0);
}

__device__ void multiply_role(const uint8_t* q_tiles, const uint8_t* ring, Barriers* bar,
                              int steps) {
  uint32_t scores = bar->columns, sums = scores + 2 * BN;
  barrier_wait(&bar->full[0], 0);
#pragma unroll 1
  for (int t = 0; t < 2; t++) {
    barrier_wait(&bar->q_full[t], 0);
    fence_after();
    multiply_keys(scores + t * BN, q_tiles + t * TILE, ring);
    commit(&bar->s_full[t]);
    commit(&bar->empty[0]);
  }
  for (int step = 0; step < steps; step++) {
    int v_at = 2 * step + 1, k_at = v_at + 1;
#pragma unroll 1  // the role has few registers
    for (int t = 0; t < 2; t++) {
      if (t == 0) barrier_wait(&bar->full[v_at % SLOTS], v_at / SLOTS & 1);
      barrier_wait(&bar->p_full[t], step & 1);
      if (step > 0) barrier_wait(&bar->o_ready[t], step & 1 ^ 1);
      fence_after();
      multiply_values(sums + t * WIDTH, scores + t * BN, ring + v_at % SLOTS * TILE, step > 0);
      commit(&bar->o_full[t]);
      commit(&bar->empty[v_at % SLOTS]);
      if (step + 1 == steps) continue;
      if (t == 0) barrier_wait(&bar->full[k_at % SLOTS], k_at / SLOTS & 1);
      barrier_wait(&bar->o_full[t], step & 1);  // the next scores overwrite the weights it reads
      fence_after();
      multiply_keys(scores + t * BN, q_tiles + t * TILE, ring + k_at % SLOTS * TILE);
      commit(&bar->s_full[t]);
      commit(&bar->empty[k_at % SLOTS]);
    }
  }
}

// Every thread holds a row, so its maximum needs no shuffle.
template <bool CAUSAL>
__device__ void softmax_role(Barriers* bar, float* message, int t, int m, int length,
                             float scale_log2, int free_steps, int steps) {
  int lane = threadIdx.x % 32, row = threadIdx.x % 128, quarter = row / 32;
  uint32_t scores = bar->columns + t * BN + (quarter * 32 << 16);  // lane in the upper half
  float top = -INFINITY, total = 0.f;
  for (int step = 0; step < steps; step++) {
    barrier_wait(&bar->s_full[t], step & 1);
    fence_after();
    uint32_t s[BN];
#pragma unroll
    for (int i = 0; i < BN; i += 32) read_columns(scores + i, s + i);
#pragma unroll
    for (int i = 0; i < BN; i += 32) reads_ended(s + i);
    if (step >= free_steps) {
      int limit = (CAUSAL ? min(length, m + t * BM + row + 1) : length) - step * BN;
#pragma unroll
      for (int i = 0; i < BN; i++)
        if (i >= limit) s[i] = __float_as_uint(-INFINITY);
    }
    float high[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < BN; i++) high[i % 4] = fmaxf(high[i % 4], __uint_as_float(s[i]));
    float highest = fmaxf(fmaxf(high[0], high[1]), fmaxf(high[2], high[3])) * scale_log2;
    // The top moves only if it grows by 2^8: weights stay below 256 until then, and most steps
    // need no rescaling.
    float factor = 1.f;
    if (highest > top + 8.f) factor = power_of_two(top - highest), top = highest;
    // The other warps need the factor first: they rescale while exponentials are taken.
    barrier_wait(&bar->taken[t], step & 1 ^ 1);
    message[row] = factor;
    __syncwarp();
    if (lane == 0) barrier_arrive(&bar->sent[t]);
    float sum[2] = {0.f, 0.f};
#pragma unroll
    for (int half = 0; half < 2; half++) {
      uint32_t weights[32];
#pragma unroll
      for (int i = 0; i < 32; i++) {
        int at = half * 64 + 2 * i;
        float x = power_of_two(fmaf(__uint_as_float(s[at]), scale_log2, -top));
        float y = power_of_two(fmaf(__uint_as_float(s[at + 1]), scale_log2, -top));
        sum[0] += x, sum[1] += y;
        weights[i] = packed(x, y);
      }
      write_columns(scores + half * 32, weights);
    }
    writes_ended();
    fence_before();
    __syncwarp();
    if (lane == 0) barrier_arrive(&bar->p_full[t]);
    total = total * factor + sum[0] + sum[1];
  }
  barrier_wait(&bar->taken[t], steps & 1 ^ 1);
  message[row] = total;
  __syncwarp();
  if (lane == 0) barrier_arrive(&bar->sent[t]);
}

__device__ void rescale_role(const CUtensorMap* map_o, uint8_t* q_tiles, Barriers* bar,
                             const float* messages, int m, int head, int steps) {
  int lane = threadIdx.x % 32, row = threadIdx.x % 128, quarter = row / 32;
  uint32_t sums = bar->columns + 2 * BN + (quarter * 32 << 16);
  for (int t = 0; t < 2; t++) {  // the first factor has nothing to shrink
    barrier_wait(&bar->sent[t], 0);
    if (lane == 0) barrier_arrive(&bar->taken[t]);
  }
  for (int step = 1; step < steps; step++)
#pragma unroll 1
    for (int t = 0; t < 2; t++) {
      barrier_wait(&bar->sent[t], step & 1);
      float factor = messages[t * BM + row];
      __syncwarp();
      if (lane == 0) barrier_arrive(&bar->taken[t]);
      barrier_wait(&bar->o_full[t], step & 1 ^ 1);
      if (__any_sync(~0u, factor != 1.f)) {
        fence_after();
#pragma unroll
        for (int i = 0; i < WIDTH; i += 32) {
          uint32_t v[32];
          read_columns(sums + t * WIDTH + i, v);
          reads_ended(v);
#pragma unroll
          for (int j = 0; j < 32; j++) v[j] = __float_as_uint(__uint_as_float(v[j]) * factor);
          write_columns(sums + t * WIDTH + i, v);
        }
        writes_ended();
        fence_before();
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(&bar->o_ready[t]);
    }
  for (int t = 0; t < 2; t++) {
    barrier_wait(&bar->sent[t], steps & 1);
    float inverse = 1.f / messages[t * BM + row];
    barrier_wait(&bar->o_full[t], steps & 1 ^ 1);
    fence_after();
    // All products with this tile of queries have ended: its place takes the results. A warp's
    // rows are a box of the map, which leaves out rows past the end.
    uint8_t* to = q_tiles + t * TILE + quarter * 32 * 128;
#pragma unroll
    for (int i = 0; i < WIDTH; i += 32) {
      uint32_t v[32];
      read_columns(sums + t * WIDTH + i, v);
      reads_ended(v);
#pragma unroll
      for (int j = 0; j < 4; j++) {
        uint32_t words[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
          words[k] = packed(__uint_as_float(v[8 * j + 2 * k]) * inverse,
                            __uint_as_float(v[8 * j + 2 * k + 1]) * inverse);
        int chunk = i % 64 / 8 + j;  // of 16 bytes, swizzled as the map says
        *reinterpret_cast<uint4*>(to + i / 64 * HALF + lane * 128 + (chunk ^ lane % 8) * 16) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
    fence_async();
    __syncwarp();
    if (lane == 0) {
      tma_store(map_o, to, 0, m + t * BM + quarter * 32, head);
      tma_store(map_o, to + HALF, 64, m + t * BM + quarter * 32, head);
    }
  }
  if (lane == 0) stores_ended();
}

template <bool CAUSAL>
__global__ void __launch_bounds__(512, 1)
attention_kernel(const __grid_constant__ CUtensorMap map_q,
                 const __grid_constant__ CUtensorMap map_k,
                 const __grid_constant__ CUtensorMap map_v,
                 const __grid_constant__ CUtensorMap map_o, int length, int heads, int kv_heads,
                 float scale_log2) {
  extern __shared__ uint8_t raw[];
  uint8_t* base = raw + (1024 - shared_address(raw) % 1024) % 1024;  // the swizzle's unit
  uint8_t *q_tiles = base, *ring = base + 2 * TILE;
  float* messages = reinterpret_cast<float*>(ring + SLOTS * TILE);
  Barriers* bar = reinterpret_cast<Barriers*>(messages + 2 * BM);
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < SLOTS; i++) {
      barrier_init(&bar->full[i], 1);
      barrier_init(&bar->empty[i], 2);  // read by the products of both tiles
    }
    for (int t = 0; t < 2; t++) {
      barrier_init(&bar->q_full[t], 1);
      barrier_init(&bar->s_full[t], 1);
      barrier_init(&bar->o_full[t], 1);
      barrier_init(&bar->p_full[t], 4);  // of a warpgroup: one arrival of each warp
      barrier_init(&bar->o_ready[t], 4);
      barrier_init(&bar->sent[t], 4);
      barrier_init(&bar->taken[t], 4);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  if (warp == 2) allocate_columns(&bar->columns);
  fence_before();
  __syncthreads();
  fence_after();

  // The blocks with most keys begin first.
  int m = (CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x) * 2 * BM;
  int head = blockIdx.z * heads + blockIdx.y;
  int kv_head = blockIdx.z * kv_heads + blockIdx.y / (heads / kv_heads);
  int steps = (length + BN - 1) / BN, free_steps = length / BN;  // without masked keys
  if (CAUSAL) steps = min(steps, (m + 2 * BM) / BN), free_steps = min(free_steps, m / BN);
  // 512 threads begin with 128 registers each: 48 + 192 + 192 + 80 = 4 x 128.
  if (warp < 4) {
    fewer_registers<48>();
    if (warp == 0 && lane == 0)
      load_role(&map_q, &map_k, &map_v, q_tiles, ring, bar, m, head, kv_head, steps);
    if (warp == 1 && lane == 0) multiply_role(q_tiles, ring, bar, steps);
  } else if (warp < 12) {
    more_registers<192>();
    int t = warp / 4 - 1;
    softmax_role<CAUSAL>(bar, messages + t * BM, t, m, length, scale_log2, free_steps, steps);
  } else {
    fewer_registers<80>();
    rescale_role(&map_o, q_tiles, bar, messages, m, head, steps);
  }

  __syncwarp();
  fence_before();
  __syncthreads();
  fence_after();
  if (warp == 2) free_columns(bar->columns);
}

// [heads][length][128] of bf16 in boxes of `rows` x 64: rows past a head's end are zeros, not the
// next head's.
static int map_of(CUtensorMap* map, const void* data, int heads, int length, int rows) {
  static PFN_cuTensorMapEncodeTiled_v12000 encode = nullptr;
  if (!encode) {
    cudaDriverEntryPointQueryResult state;
    void* entry = nullptr;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                         cudaEnableDefault, &state) != cudaSuccess || !entry)
      return 1;
    encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }
  cuuint64_t sizes[3] = {WIDTH, cuuint64_t(length), cuuint64_t(heads)};
  cuuint64_t strides[2] = {WIDTH * 2, cuuint64_t(length) * WIDTH * 2};
  cuuint32_t box[3] = {64, cuuint32_t(rows), 1}, steps[3] = {1, 1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), sizes, strides,
                box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

extern "C" int attention(const void* q, const void* k, const void* v, void* out, int batch,
                         int heads, int kv_heads, int length, int causal, cudaStream_t stream) {
  CUtensorMap map_q, map_k, map_v, map_o;
  if (map_of(&map_q, q, batch * heads, length, BM) ||
      map_of(&map_k, k, batch * kv_heads, length, BN) ||
      map_of(&map_v, v, batch * kv_heads, length, BN) ||
      map_of(&map_o, out, batch * heads, length, 32))
    return 1;
  dim3 grid((length + 2 * BM - 1) / (2 * BM), heads, batch);
  float scale_log2 = 0.08838834764831845f * 1.4426950408889634f;  // 1 / sqrt(128), base 2
  auto* kernel = causal ? attention_kernel<true> : attention_kernel<false>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  kernel<<<grid, 512, SHARED, stream>>>(map_q, map_k, map_v, map_o, length, heads, kv_heads,
                                        scale_log2);
  return cudaGetLastError();
}
