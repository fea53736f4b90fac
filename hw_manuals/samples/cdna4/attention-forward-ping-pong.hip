// Attention forward on gfx950: Q, O [B][H][L][128], K, V [B][KV][L][128], bfloat16, causal or not,
// grouped heads, any L. 256 queries a workgroup, eight waves in two groups that swap roles at every
// barrier: while four waves run MFMAs, the other four compute the softmax. K and V go from memory
// to LDS without registers, three stages deep; V is read transposed by ds_read_b64_tr_b16.
// Launch: attention<kCausal><<<dim3((L + 255) / 256, H, B), 512>>>(..., log2(e) / sqrt(128)).
#include <hip/hip_runtime.h>

typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef int i32x2 __attribute__((ext_vector_type(2)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef __bf16 bf16x4 __attribute__((ext_vector_type(4)));
typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));

constexpr int kHead = 128, kKeys = 64, kStages = 3, kTile = kKeys * kHead * 2;  // 16 KiB
constexpr float kNever = -1e30f;  // not infinity: the difference of two stays a number
// The sums are rescaled once a maximum has grown by 2^8: until then weights stay below 256, which
// float32 sums and bfloat16 weights bear, and 64 multiplications a step are saved.
constexpr float kLazy = 8.0f;

#if !defined(EMULATED)  // what hipcc compiles, in both of its passes
typedef int lds_at;
__device__ inline lds_at at_of(const char* p) {
  return (int)(__SIZE_TYPE__)(const __attribute__((address_space(3))) char*)p;
}
// Lane l lands 16 l bytes behind the wave's address: the lane's choice is what it fetches.
__device__ inline void copy16(const void* from, char* to) {
  __builtin_amdgcn_global_load_lds((__attribute__((address_space(1))) void*)from,
                                   (__attribute__((address_space(3))) void*)to, 16, 0, 0);
}
// Assembly, because the compiler would wait for all copies before any read that it knows of.
template <int kOffset>
__device__ inline i32x4 read16(lds_at at) {
  i32x4 value;
  asm volatile("ds_read_b128 %0, %1 offset:%2" : "=v"(value) : "v"(at), "n"(kOffset));
  return value;
}
// Each 16 lanes read 4 rows of 16 values: lane i the four from column 4 (i % 4) of row i / 4.
// It gets column i of them.
template <int kOffset>
__device__ inline i32x2 read_column(lds_at at) {
  i32x2 value;
  asm volatile("ds_read_b64_tr_b16 %0, %1 offset:%2" : "=v"(value) : "v"(at), "n"(kOffset));
  return value;
}
// The operands tie every use of the values behind the wait.
__device__ inline void settle(i32x4 (&k)[2][4]) {
  asm volatile("s_waitcnt lgkmcnt(0)"
               : "+v"(k[0][0]), "+v"(k[0][1]), "+v"(k[0][2]), "+v"(k[0][3]), "+v"(k[1][0]),
                 "+v"(k[1][1]), "+v"(k[1][2]), "+v"(k[1][3]));
}
__device__ inline void settle(i32x2 (&v)[8][2]) {
  asm volatile("s_waitcnt lgkmcnt(0)"
               : "+v"(v[0][0]), "+v"(v[0][1]), "+v"(v[1][0]), "+v"(v[1][1]), "+v"(v[2][0]),
                 "+v"(v[2][1]), "+v"(v[3][0]), "+v"(v[3][1]));
  asm volatile("" : "+v"(v[4][0]), "+v"(v[4][1]), "+v"(v[5][0]), "+v"(v[5][1]), "+v"(v[6][0]),
                    "+v"(v[6][1]), "+v"(v[7][0]), "+v"(v[7][1]));
}
template <int kInFlight>
__device__ inline void wait_copies() {
  asm volatile("s_waitcnt vmcnt(%0)" ::"n"(kInFlight) : "memory");
}
__device__ inline void touch(i32x4& x) { asm volatile("" : "+v"(x)); }
// Maximum over the four groups of 16 lanes, without LDS.
__device__ inline float largest(float x) {
  auto a = __builtin_amdgcn_permlane32_swap(__builtin_bit_cast(unsigned, x),
                                            __builtin_bit_cast(unsigned, x), false, false);
  x = fmaxf(__builtin_bit_cast(float, a[0]), __builtin_bit_cast(float, a[1]));
  a = __builtin_amdgcn_permlane16_swap(__builtin_bit_cast(unsigned, x),
                                       __builtin_bit_cast(unsigned, x), false, false);
  return fmaxf(__builtin_bit_cast(float, a[0]), __builtin_bit_cast(float, a[1]));
}
#else  // benchmarks/samples/hip of Kernlore checks the indices on a CPU
typedef const char* lds_at;
inline lds_at at_of(const char* p) { return p; }
inline void copy16(const void* from, char* to) { memcpy(to + 16 * emu_lane(), from, 16); }
template <int kOffset> inline i32x4 read16(lds_at at) { return *(const i32x4*)(at + kOffset); }
template <int kOffset> inline i32x2 read_column(lds_at at) { return emu_read_tr16(at + kOffset); }
template <class T> inline void settle(T&) {}
template <int> inline void wait_copies() {}
inline void touch(i32x4&) {}
inline float largest(float x) {
  x = fmaxf(x, __shfl_xor(x, 16));
  return fmaxf(x, __shfl_xor(x, 32));
}
#endif

__device__ inline f32x4 multiply(i32x4 a, i32x4 b, f32x4 sum) {
  return __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(bf16x8, a),
                                                 __builtin_bit_cast(bf16x8, b), sum, 0, 0, 0);
}
__device__ inline void end_of_phase() {
  __builtin_amdgcn_sched_barrier(0);
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_sched_barrier(0);
}
__device__ inline void pin() { __builtin_amdgcn_sched_barrier(0); }

template <bool kCausal>
__global__ void __launch_bounds__(512, 2)
attention(const __bf16* __restrict__ Q, const __bf16* __restrict__ K,
          const __bf16* __restrict__ V, __bf16* __restrict__ O, int heads, int kv_heads, int length,
          float scale_log2) {
  // Stage p holds K of step p and V of step p - 1: what one matrix phase reads.
  __shared__ __attribute__((aligned(256))) char lds[kStages][2][kTile];
  const int lane = threadIdx.x % 64, column = lane % 16, quad = lane / 16;
  const int wave = __builtin_amdgcn_readfirstlane((int)threadIdx.x / 64), group = wave / 4;
  // The blocks with most keys begin first.
  const int block = kCausal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  const int row0 = block * 256 + wave * 32;  // of this wave: 32 queries in two tiles of 16
  const size_t head = (size_t)blockIdx.z * heads + blockIdx.y;
  const size_t kv = (size_t)blockIdx.z * kv_heads + blockIdx.y / (heads / kv_heads);
  const __bf16 *k_rows = K + kv * length * kHead, *v_rows = V + kv * length * kHead;
  const int last = kCausal ? min(length, block * 256 + 256) : length;
  const int steps = (last + kKeys - 1) / kKeys;
  // Waves with early rows have nothing to do in the last steps, but meet the barriers.
  const int own_steps = kCausal ? min(steps, (row0 + 31) / kKeys + 1) : steps;

  // A copy fills four rows of 256 bytes; lane l fills slot l % 16 of row l / 16. A slot holds
  // piece `slot ^ row % 16` of K, so that the 16 rows that a phase of ds_read_b128 meets lie in
  // different banks, and piece `slot ^ 2 (row % 8)` of V, since a transposed read takes 32 bytes
  // of a row.
  auto copy_stage = [&](int stage, int p) {
    for (int i = 0; i < 2; i++) {
      const int piece = wave + 8 * i, row = 4 * piece + quad;
      const int key = min(min(p, steps - 1) * kKeys + row, length - 1);
      copy16(k_rows + (size_t)key * kHead + (column ^ (row & 15)) * 8,
             lds[stage][0] + piece * 1024);
    }
    for (int i = 0; i < 2; i++) {
      const int piece = wave + 8 * i, row = 4 * piece + quad;
      const int key = min(max(p - 1, 0) * kKeys + row, length - 1);
      copy16(v_rows + (size_t)key * kHead + (column ^ (2 * (row & 7))) * 8,
             lds[stage][1] + piece * 1024);
    }
  };
  copy_stage(0, 0);
  copy_stage(1, 1);

  // Queries are the second operand: column = query. They stay in registers.
  i32x4 query[2][4];
  for (int n = 0; n < 2; n++)
    for (int c = 0; c < 4; c++)
      query[n][c] = *(const i32x4*)(Q + (head * length + min(row0 + 16 * n + column, length - 1)) *
                                            kHead + 32 * c + 8 * quad);

  f32x4 sum[2][8] = {}, score[2][4];
  i32x4 weight[2][2];  // second operand of the product with V: [tile of queries][32 keys]
  float top[2] = {kNever, kNever}, total[2] = {0, 0};
  const int k_row = column * 256;
  const int v_row = (4 * quad + column / 4) * 256 + (4 * quad + column / 4) % 8 * 32 +
                    column % 4 / 2 * 16 + column % 2 * 8;

  // The scores come out transposed: a lane has keys 4 quad .. + 3 of each 16, for one query. That
  // is the layout of a second operand if V^T, the first, takes its keys in the same order: of 32
  // keys, slot j of a lane is key 4 quad + j of the first 16, slot 4 + j of the second.
  auto read_values = [&](lds_at at, int half, i32x2 (&v)[8][2]) {
    for (int d = 0; d < 8; d++) {
      const lds_at from = at + (v_row ^ (d * 32));
      v[d][0] = half ? read_column<8192>(from) : read_column<0>(from);
      v[d][1] = half ? read_column<12288>(from) : read_column<4096>(from);
    }
  };
  auto add_values = [&](const i32x2 (&v)[8][2], int half) {
#pragma unroll
    for (int d = 0; d < 8; d++) {
      const i32x4 a = {v[d][0][0], v[d][0][1], v[d][1][0], v[d][1][1]};
      for (int n = 0; n < 2; n++) sum[n][d] = multiply(a, weight[n][half], sum[n][d]);
    }
  };
  auto read_keys = [&](lds_at at, int half, i32x4 (&k)[2][4]) {
    for (int c = 0; c < 2; c++) {
      const lds_at from = at + k_row + ((4 * (2 * half + c) + quad) ^ column) * 16;
      k[c][0] = read16<0>(from), k[c][1] = read16<4096>(from);
      k[c][2] = read16<8192>(from), k[c][3] = read16<12288>(from);
    }
  };
  auto add_keys = [&](const i32x4 (&k)[2][4], int half) {
#pragma unroll
    for (int c = 0; c < 2; c++)
      for (int i = 0; i < 4; i++)
        for (int n = 0; n < 2; n++)
          score[n][i] = multiply(k[c][i], query[n][2 * half + c],
                                 half + c ? score[n][i] : f32x4{0, 0, 0, 0});
  };
  // While the products of one half run, the operands of the next are read.
  auto matrix_phase = [&](int stage, bool values, bool keys) {
    const lds_at at_k = at_of(lds[stage][0]), at_v = at_of(lds[stage][1]);
    i32x2 v[2][8][2];
    i32x4 k[2][2][4];
    __builtin_amdgcn_s_setprio(1);  // the multiplying wave of a SIMD issues first
    if (values) {
      read_values(at_v, 0, v[0]);
      settle(v[0]);
      read_values(at_v, 1, v[1]);
      pin();
      add_values(v[0], 0);
      pin();
      settle(v[1]);
    }
    if (keys) read_keys(at_k, 0, k[0]);
    pin();
    if (values) add_values(v[1], 1);
    pin();
    if (keys) {
      settle(k[0]);
      read_keys(at_k, 1, k[1]);
      pin();
      add_keys(k[0], 0);
      pin();
      settle(k[1]);
      add_keys(k[1], 1);
    }
    __builtin_amdgcn_s_setprio(0);
  };
  auto vector_phase = [&](int t) {
    const int first = t * kKeys;
    const bool masked = first + kKeys > length || (kCausal && first + kKeys - 1 > row0);
    for (int n = 0; n < 2; n++) {
      float highest = kNever;
      for (int i = 0; i < 4; i++)
        for (int r = 0; r < 4; r++) {
          if (masked) {
            const int key = first + 16 * i + 4 * quad + r;
            const bool seen = key < length && (!kCausal || key <= row0 + 16 * n + column);
            score[n][i][r] = seen ? score[n][i][r] : kNever;
          }
          highest = fmaxf(highest, score[n][i][r]);
        }
      highest = largest(highest) * scale_log2;
      if (__builtin_amdgcn_ballot_w64(highest > top[n] + kLazy)) {
        const float now = fmaxf(top[n], highest), keep = exp2f(top[n] - now);
        top[n] = now;
        total[n] *= keep;
        for (int d = 0; d < 8; d++) sum[n][d] *= keep;
      }
      for (int half = 0; half < 2; half++) {
        bf16x8 w;
        for (int j = 0; j < 8; j++) {
          const float e = exp2f(score[n][2 * half + j / 4][j % 4] * scale_log2 - top[n]);
          total[n] += e;  // of this lane's keys; the lanes join after the last step
          w[j] = (__bf16)e;
        }
        weight[n][half] = __builtin_bit_cast(i32x4, w);
      }
    }
  };

  // The queries are waited for here, not in the loop, where that would be a wait for all copies.
  for (int n = 0; n < 2; n++)
    for (int c = 0; c < 4; c++) touch(query[n][c]);
  wait_copies<4>();  // stage 0 is there; the four copies of stage 1 may stay in flight
  end_of_phase();
  if (group == 1) end_of_phase();  // group 1 runs one phase behind from here on
  int stage = 0;
  for (int t = 0; t <= steps; t++) {
    // The stage after the next was read in both groups' last matrix phase but one at the latest.
    if (t + 2 <= steps) copy_stage(stage == 0 ? 2 : stage - 1, t + 2);
    matrix_phase(stage, t > 0 && t <= own_steps, t < own_steps);
    // What the next matrix phase reads was copied one step ago.
    if (t + 2 <= steps) wait_copies<4>();
    else wait_copies<0>();
    end_of_phase();
    if (t < own_steps) vector_phase(t);
    if (t < steps) end_of_phase();
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  if (group == 0) end_of_phase();  // every wave has met the same number of barriers

  for (int n = 0; n < 2; n++) {
    float all = total[n] + __shfl_xor(total[n], 16);
    all += __shfl_xor(all, 32);
    const float inverse = 1 / all;
    const int row = row0 + 16 * n + column;
    for (int d = 0; d < 8; d++) {
      bf16x4 out;
      for (int r = 0; r < 4; r++) out[r] = (__bf16)(sum[n][d][r] * inverse);
      if (row < length) *(bf16x4*)(O + (head * length + row) * kHead + 16 * d + 4 * quad) = out;
    }
  }
}
template __global__ void attention<false>(const __bf16*, const __bf16*, const __bf16*, __bf16*, int,
                                          int, int, float);
template __global__ void attention<true>(const __bf16*, const __bf16*, const __bf16*, __bf16*, int,
                                         int, int, float);
