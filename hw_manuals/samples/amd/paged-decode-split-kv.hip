// One decoding step of attention over a paged cache, grouped queries, split over the keys.
// Q[B][H][128]; K pages [P][KV][16][128]; V pages [P][KV][128][16] (keys innermost);
// table[B][max_pages]; lengths[B]; H / KV <= 16. All bfloat16, FP32 inside. gfx942 and gfx950.
// Pointers: aligned to 16 bytes. V behind a sequence's end in its last page: finite, since NaN
// survives a weight of 0.
// Launch: decode_part<<<dim3(splits, KV, B), 256>>>, then decode_join<<<dim3(H, B), 128>>>.
#include <hip/hip_runtime.h>

typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef short s16x4 __attribute__((ext_vector_type(4)));
typedef __bf16 bf16x4 __attribute__((ext_vector_type(4)));

constexpr int kHead = 128, kPage = 16, kWaves = 4;
constexpr float kNever = -1e30f;  // not infinity: the difference of two stays a number

struct Halves { s16x4 low, high; };

// 16 x 16 x 16: lane l gives row (or column) l % 16 and k = 4 (l / 16) .. + 3;
// the result: rows 4 (l / 16) .. + 3 of column l % 16, which is the layout of a second operand.
__device__ inline f32x4 multiply(s16x4 a, s16x4 b, f32x4 sum) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, sum, 0, 0, 0);
}

// partial[B][H][splits][130]: 128 sums, then the maximum and the sum of weights.
extern "C" __global__ void __launch_bounds__(256)
decode_part(const __bf16* __restrict__ Q, const __bf16* __restrict__ Kp,
            const __bf16* __restrict__ Vp, const int* __restrict__ table,
            const int* __restrict__ lengths, float* __restrict__ partial, int heads, int kv_heads,
            int max_pages, float scale_log2) {
  __shared__ float shared_sum[kWaves][kHead][16];
  __shared__ float shared_max[kWaves][16], shared_weight[kWaves][16];
  const int lane = threadIdx.x % 64, wave = threadIdx.x / 64, column = lane % 16, quad = lane / 16;
  const int split = blockIdx.x, splits = gridDim.x, kv = blockIdx.y, batch = blockIdx.z;
  const int per = heads / kv_heads, length = lengths[batch];
  const int pages = (length + kPage - 1) / kPage, share = (pages + splits - 1) / splits;
  const int first = split * share, last = min(first + share, pages);

  // Queries are the second operand: column = head of the group; surplus columns repeat the last.
  const __bf16* q = Q + ((size_t)batch * heads + kv * per + min(column, per - 1)) * kHead;
  Halves query[4];
  for (int c = 0; c < 4; c++)
    query[c] = __builtin_bit_cast(Halves, *(const i32x4*)(q + 32 * c + 8 * quad));

  f32x4 sum[8] = {};
  float top = kNever, weight = 0;
  for (int p = first + wave; p < last; p += kWaves) {
    const size_t page = (size_t)table[(size_t)batch * max_pages + p] * kv_heads + kv;
    const __bf16* keys = Kp + (page * kPage + column) * kHead + 8 * quad;  // row l % 16 of K
    const __bf16* values = Vp + (page * kHead + column) * kPage + 4 * quad;
    i32x4 key[4];
    s16x4 value[8];
    for (int c = 0; c < 4; c++) key[c] = *(const i32x4*)(keys + 32 * c);
    for (int d = 0; d < 8; d++) value[d] = *(const s16x4*)(values + 16 * d * kPage);

    f32x4 score = {0, 0, 0, 0};  // keys 4 quad .. + 3 against head l % 16
    for (int c = 0; c < 4; c++) {
      Halves k = __builtin_bit_cast(Halves, key[c]);
      score = multiply(k.low, query[c].low, score);
      score = multiply(k.high, query[c].high, score);
    }
    float page_top = kNever;
    for (int r = 0; r < 4; r++) {
      score[r] = p * kPage + 4 * quad + r < length ? score[r] * scale_log2 : kNever;
      page_top = fmaxf(page_top, score[r]);
    }
    page_top = fmaxf(page_top, __shfl_xor(page_top, 16));
    page_top = fmaxf(page_top, __shfl_xor(page_top, 32));
    const float now = fmaxf(top, page_top), keep = exp2f(top - now);
    top = now;
    bf16x4 chance;
    float page_weight = 0;
    for (int r = 0; r < 4; r++) {
      float e = score[r] == kNever ? 0.0f : exp2f(score[r] - now);
      chance[r] = (__bf16)e;
      page_weight += (float)chance[r];
    }
    page_weight += __shfl_xor(page_weight, 16);
    page_weight += __shfl_xor(page_weight, 32);
    weight = weight * keep + page_weight;
    for (int d = 0; d < 8; d++)  // V^T P^T: the scores are already the second operand
      sum[d] = multiply(value[d], __builtin_bit_cast(s16x4, chance), sum[d] * keep);
  }

  for (int d = 0; d < 8; d++)
    for (int r = 0; r < 4; r++) shared_sum[wave][16 * d + 4 * quad + r][column] = sum[d][r];
  if (quad == 0) shared_max[wave][column] = top, shared_weight[wave][column] = weight;
  __syncthreads();
  for (int i = threadIdx.x; i < per * kHead; i += 256) {
    const int head = i / kHead, d = i % kHead;
    float best = kNever, total = 0, out = 0;
    for (int w = 0; w < kWaves; w++) best = fmaxf(best, shared_max[w][head]);
    for (int w = 0; w < kWaves; w++) {
      const float f = exp2f(shared_max[w][head] - best);
      total += f * shared_weight[w][head];
      out += f * shared_sum[w][d][head];
    }
    float* to = partial + (((size_t)batch * heads + kv * per + head) * splits + split) * 130;
    to[d] = out;
    if (d == 0) to[128] = best, to[129] = total;
  }
}

extern "C" __global__ void __launch_bounds__(128)
decode_join(const float* __restrict__ partial, __bf16* __restrict__ O, int heads, int splits) {
  const size_t row = (size_t)blockIdx.y * heads + blockIdx.x;
  const float* from = partial + row * splits * 130;
  float best = kNever, total = 0, out = 0;
  for (int s = 0; s < splits; s++) best = fmaxf(best, from[s * 130 + 128]);
  for (int s = 0; s < splits; s++) {
    const float f = exp2f(from[s * 130 + 128] - best);
    total += f * from[s * 130 + 129];
    out += f * from[s * 130 + threadIdx.x];
  }
  O[row * kHead + threadIdx.x] = (__bf16)(total > 0 ? out / total : 0.0f);
}
