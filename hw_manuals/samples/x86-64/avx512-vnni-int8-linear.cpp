// Y[M][N] float = X[M][K] * W[N][K]^T with int8 operands and a scale per row of each; M is small.
// VPDPBUSD multiplies unsigned by signed bytes: x + 128 goes in, 128 * sum(w) comes out again.
// K is a multiple of 64, N of 4. g++ -O3 -fopenmp; needs avx512_vnni (Cascade Lake, Zen 4, newer).
#include <immintrin.h>
#include <cstddef>
#include <cstdint>

#pragma GCC target("avx512f,avx512bw,avx512vnni")

// sums[n] = sum of W[n]: once, when the weights are loaded.
extern "C" void row_sums(const int8_t* W, int32_t* sums, int N, int K) {
#pragma omp parallel for schedule(static)
  for (int n = 0; n < N; n++) {
    int32_t sum = 0;
    for (int k = 0; k < K; k++) sum += W[(size_t)n * K + k];
    sums[n] = sum;
  }
}

// kRows rows of X against four of W: 4 kRows sums in registers, W is read once for all rows.
template <int kRows>
static void strip(const int8_t* X, const int8_t* W, int K, int32_t (&out)[kRows][4]) {
  const __m512i shift = _mm512_set1_epi8((char)0x80);
  __m512i sum[kRows][4];
  for (int m = 0; m < kRows; m++)
    for (int n = 0; n < 4; n++) sum[m][n] = _mm512_setzero_si512();
  for (int k = 0; k < K; k += 64) {
    __m512i w[4];
    for (int n = 0; n < 4; n++) w[n] = _mm512_loadu_si512(W + (size_t)n * K + k);
    for (int m = 0; m < kRows; m++) {
      __m512i x = _mm512_xor_si512(_mm512_loadu_si512(X + (size_t)m * K + k), shift);  // x + 128
      for (int n = 0; n < 4; n++) sum[m][n] = _mm512_dpbusd_epi32(sum[m][n], x, w[n]);
    }
  }
  for (int m = 0; m < kRows; m++)
    for (int n = 0; n < 4; n++) out[m][n] = _mm512_reduce_add_epi32(sum[m][n]);
}

template <int kRows>
static void rows_of(const int8_t* X, const int8_t* W, const int32_t* sums, const float* scale_x,
                    const float* scale_w, float* Y, int N, int K) {
#pragma omp parallel for schedule(static)
  for (int n = 0; n < N; n += 4) {
    int32_t out[kRows][4];
    strip<kRows>(X, W + (size_t)n * K, K, out);
    for (int m = 0; m < kRows; m++)
      for (int j = 0; j < 4; j++)
        Y[(size_t)m * N + n + j] =
            (float)(out[m][j] - 128 * sums[n + j]) * scale_x[m] * scale_w[n + j];
  }
}

extern "C" void linear_int8(const int8_t* X, const int8_t* W, const int32_t* sums,
                            const float* scale_x, const float* scale_w, float* Y, int M, int N,
                            int K) {
  int m = 0;
  for (; m + 4 <= M; m += 4)
    rows_of<4>(X + (size_t)m * K, W, sums, scale_x + m, scale_w, Y + (size_t)m * N, N, K);
  for (; m < M; m++)
    rows_of<1>(X + (size_t)m * K, W, sums, scale_x + m, scale_w, Y + (size_t)m * N, N, K);
}
