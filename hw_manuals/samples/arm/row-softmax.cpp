// y = softmax(x) over the last dimension, float32, rows of any length. The vector type is SVE where
// the compiler has it (Neoverse V1 and V2, Graviton 3 and 4, Grace, A64FX) and NEON elsewhere.
// Four vectors are in flight, because a maximum or an addition takes two cycles or more and four
// pipes wait for them. g++ or clang++ -O3 -mcpu=native -fopenmp; no C library is used.
#include <stdint.h>

#if defined(__ARM_FEATURE_SVE)
#include <arm_sve.h>
typedef svfloat32_t vec;
static inline int64_t lanes() { return svcntw(); }
static inline vec all(float value) { return svdup_f32(value); }
// Lanes of `left` elements: predicates make the last vector of a row like any other.
static inline vec load(const float* p, int64_t left, float fill) {
  svbool_t in = svwhilelt_b32_s64(0, left);
  return svsel_f32(in, svld1_f32(in, p), svdup_f32(fill));
}
static inline void store(float* p, int64_t left, vec v) {
  svst1_f32(svwhilelt_b32_s64(0, left), p, v);
}
static inline vec larger(vec a, vec b) { return svmax_f32_x(svptrue_b32(), a, b); }
static inline vec add(vec a, vec b) { return svadd_f32_x(svptrue_b32(), a, b); }
static inline vec multiply(vec a, vec b) { return svmul_f32_x(svptrue_b32(), a, b); }
static inline float largest(vec v) { return svmaxv_f32(svptrue_b32(), v); }
static inline float sum(vec v) { return svaddv_f32(svptrue_b32(), v); }

// exp(x) for x <= 0. FEXPA looks up 2^(k / 64) for all k: adding 1.5 * 2^17 + 127 to x / ln 2
// leaves its 64ths in the low bits, with the exponent's bias. Two terms are left of the series.
static inline vec exp_of(vec x) {
  svbool_t every = svptrue_b32(), normal = svcmpge_n_f32(every, x, -87.0f);  // below: 0
  vec shift = svdup_f32(196735.0f), t = svmla_n_f32_x(every, shift, x, 1.44269504f);
  vec n = svsub_f32_x(every, t, shift);
  vec r = svmls_n_f32_x(every, x, n, 0.693145752f);  // ln 2 in two parts
  r = svmls_n_f32_x(every, r, n, 1.42860677e-6f);
  vec p = svmla_f32_x(every, r, svmul_n_f32_x(every, r, 0.49999627f), r);
  vec scale = svexpa_f32(svreinterpret_u32_f32(t));
  return svsel_f32(normal, svmla_f32_x(every, scale, scale, p), svdup_f32(0.0f));
}
#else
#include <arm_neon.h>
typedef float32x4_t vec;
static inline int64_t lanes() { return 4; }
static inline vec all(float value) { return vdupq_n_f32(value); }
static inline vec load(const float* p, int64_t left, float fill) {
  if (left >= 4) return vld1q_f32(p);
  float part[4] = {fill, fill, fill, fill};
  for (int64_t i = 0; i < left; i++) part[i] = p[i];
  return vld1q_f32(part);
}
static inline void store(float* p, int64_t left, vec v) {
  if (left >= 4) return vst1q_f32(p, v);
  float part[4];
  vst1q_f32(part, v);
  for (int64_t i = 0; i < left; i++) p[i] = part[i];
}
static inline vec larger(vec a, vec b) { return vmaxq_f32(a, b); }
static inline vec add(vec a, vec b) { return vaddq_f32(a, b); }
static inline vec multiply(vec a, vec b) { return vmulq_f32(a, b); }
static inline float largest(vec v) { return vmaxvq_f32(v); }
static inline float sum(vec v) { return vaddvq_f32(v); }

// exp(x) for x <= 0 as 2^n times a polynomial. Adding 1.5 * 2^23 rounds x / ln 2 to an integer in
// the low bits, which a shift moves into the exponent.
static inline vec exp_of(vec x) {
  vec shift = vdupq_n_f32(12582912.0f), t = vfmaq_n_f32(shift, x, 1.44269504f);
  vec n = vsubq_f32(t, shift);
  vec r = vfmsq_f32(x, n, vdupq_n_f32(0.693145752f));  // ln 2 in two parts
  r = vfmsq_f32(r, n, vdupq_n_f32(1.42860677e-6f));
  vec square = vmulq_f32(r, r);  // pairs of terms: shorter than one chain of five
  vec low = vfmaq_n_f32(vdupq_n_f32(0.49999228f), r, 0.16667116f);
  vec high = vfmaq_n_f32(vdupq_n_f32(0.04189055f), r, 0.008312478f);
  vec p = vfmaq_f32(r, vfmaq_f32(low, high, square), square);
  int32x4_t power = vshlq_n_s32(vreinterpretq_s32_f32(t), 23);
  vec scale = vreinterpretq_f32_s32(vaddq_s32(power, vdupq_n_s32(127 << 23)));
  uint32x4_t normal = vcgeq_f32(x, vdupq_n_f32(-87.0f));  // below: 0, also of -infinity
  vec result = vfmaq_f32(scale, scale, p);
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(result), normal));
}
#endif

// A row is read from memory once and then from the cache: maximum, exponentials with their sum,
// and the factor. Recomputing the exponential instead of storing it would cost more than the pass.
static void softmax_row(const float* x, float* y, int64_t columns) {
  const int64_t step = lanes(), block = 4 * step, whole = columns / block * block;
  vec m0 = all(-__builtin_inff()), m1 = m0, m2 = m0, m3 = m0;
  int64_t j = 0;
  for (; j < whole; j += block) {
    m0 = larger(m0, load(x + j, step, 0));
    m1 = larger(m1, load(x + j + step, step, 0));
    m2 = larger(m2, load(x + j + 2 * step, step, 0));
    m3 = larger(m3, load(x + j + 3 * step, step, 0));
  }
  for (; j < columns; j += step) m0 = larger(m0, load(x + j, columns - j, -__builtin_inff()));
  const float top = largest(larger(larger(m0, m1), larger(m2, m3)));

  const vec minus = all(-top);
  vec s0 = all(0), s1 = s0, s2 = s0, s3 = s0;
  for (j = 0; j < whole; j += block) {
    vec e0 = exp_of(add(load(x + j, step, 0), minus));
    vec e1 = exp_of(add(load(x + j + step, step, 0), minus));
    vec e2 = exp_of(add(load(x + j + 2 * step, step, 0), minus));
    vec e3 = exp_of(add(load(x + j + 3 * step, step, 0), minus));
    store(y + j, step, e0), store(y + j + step, step, e1);
    store(y + j + 2 * step, step, e2), store(y + j + 3 * step, step, e3);
    s0 = add(s0, e0), s1 = add(s1, e1), s2 = add(s2, e2), s3 = add(s3, e3);
  }
  for (; j < columns; j += step) {
    vec e = exp_of(add(load(x + j, columns - j, -__builtin_inff()), minus));
    store(y + j, columns - j, e);
    s0 = add(s0, e);
  }
  const vec factor = all(1 / sum(add(add(s0, s1), add(s2, s3))));
  for (j = 0; j < whole; j += step) store(y + j, step, multiply(load(y + j, step, 0), factor));
  for (; j < columns; j += step)
    store(y + j, columns - j, multiply(load(y + j, columns - j, 0), factor));
}

// x and y: rows x columns, contiguous; they may be the same.
extern "C" void softmax_rows(const float* x, float* y, int64_t rows, int64_t columns) {
  // Starting threads costs microseconds: not for what one core does in that time.
#pragma omp parallel for schedule(static) if (rows * columns > 65536)
  for (int64_t row = 0; row < rows; row++)
    softmax_row(x + row * columns, y + row * columns, columns);
}
