// C[M][N] = A[M][K] B[K][N]; float32, any sizes. Tile 0 and 1 of ZA hold two blocks of C side by
// side; tile 2 transposes a block of A: rows are loaded horizontally, columns read vertically.
#include "chip.h"
#include <arm_sme.h>

__arm_new("za") static void product(const float *a, const float *b, float *c, int m, int k,
                                    int n) __arm_streaming {
  const int sv = svcntw();
  const svfloat32_t none = svdup_f32(0.0f);
  for (int i = 0; i < m; i += sv) {
    const svbool_t rows = svwhilelt_b32(i, m);
    for (int j = 0; j < n; j += 2 * sv) {
      const svbool_t left = svwhilelt_b32(j, n), right = svwhilelt_b32(j + sv, n);
      svzero_za();
      for (int p = 0; p < k; p += sv) {
        const svbool_t inside = svwhilelt_b32(p, k);
        for (int r = 0; r < sv && i + r < m; r++)
          svld1_hor_za32(2, r, inside, a + (long)(i + r) * k + p);
        for (int q = 0; q < sv && p + q < k; q++) {
          const svfloat32_t column = svread_ver_za32_f32_m(none, rows, 2, q);
          const float *row = b + (long)(p + q) * n + j;
          svmopa_za32_f32_m(0, rows, left, column, svld1(left, row));
          svmopa_za32_f32_m(1, rows, right, column, svld1(right, row + sv));
        }
      }
      for (int r = 0; r < sv && i + r < m; r++) {
        svst1_hor_za32(0, r, left, c + (long)(i + r) * n + j);
        svst1_hor_za32(1, r, right, c + (long)(i + r) * n + j + sv);
      }
    }
  }
}

void kernlore_run(const tensor *t) {
  product(t[0].data, t[1].data, t[2].data, t[0].shape[0], t[0].shape[1], t[1].shape[1]);
}
