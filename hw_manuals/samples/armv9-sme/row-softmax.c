// y = softmax(x) over the last dimension; float32, any row length. Streaming SVE only.
#include "chip.h"
#include <arm_sme.h>

// exp(x) = 2^k * 2^f with k = round(x / ln 2): a polynomial of degree 6 for 2^f.
static inline svfloat32_t vexp(svbool_t p, svfloat32_t x) __arm_streaming {
  x = svmax_x(p, x, -87.0f);
  svfloat32_t n = svrinta_x(p, svmul_x(p, x, 1.44269504f));
  svfloat32_t r = svmls_x(p, x, n, 0.693359375f);
  r = svmls_x(p, r, n, -2.12194440e-4f);
  svfloat32_t y = svdup_f32(1.9875691500e-4f);
  y = svmad_x(p, y, r, svdup_f32(1.3981999507e-3f));
  y = svmad_x(p, y, r, svdup_f32(8.3334519073e-3f));
  y = svmad_x(p, y, r, svdup_f32(4.1665795894e-2f));
  y = svmad_x(p, y, r, svdup_f32(1.6666665459e-1f));
  y = svmad_x(p, y, r, svdup_f32(5.0000001201e-1f));
  y = svmad_x(p, y, r, svdup_f32(1.0f));
  y = svmad_x(p, y, r, svdup_f32(1.0f));
  return svscale_x(p, y, svcvt_s32_x(p, n));
}

static void rows_of(const float *x, float *y, int rows, int columns) __arm_streaming {
  const int step = svcntw();
  for (int row = 0; row < rows; row++, x += columns, y += columns) {
    svfloat32_t best = svdup_f32(-3.4e38f), sum = svdup_f32(0.0f);
    for (int at = 0; at < columns; at += step) {
      svbool_t p = svwhilelt_b32(at, columns);
      best = svmax_m(p, best, svld1(p, x + at));
    }
    const float top = svmaxv(svptrue_b32(), best);
    for (int at = 0; at < columns; at += step) {
      svbool_t p = svwhilelt_b32(at, columns);
      svfloat32_t e = vexp(p, svsub_x(p, svld1(p, x + at), top));
      svst1(p, y + at, e);
      sum = svadd_m(p, sum, e);
    }
    const float scale = 1.0f / svaddv(svptrue_b32(), sum);
    for (int at = 0; at < columns; at += step) {
      svbool_t p = svwhilelt_b32(at, columns);
      svst1(p, y + at, svmul_x(p, svld1(p, y + at), scale));
    }
  }
}

void kernlore_run(const tensor *t) {
  const int columns = t[0].shape[t[0].ndim - 1];
  rows_of(t[0].data, t[1].data, t[0].elements / columns, columns);
}
