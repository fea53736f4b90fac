// Linear layer with bias and exact GELU: the weight packed once into panels, a tile of the result in
// registers, and bias and GELU applied to it before it leaves them.
#include "kernlore_abi.h"

#include <algorithm>
#include <vector>

namespace {

constexpr int ROWS = @{tile_rows};
constexpr int VECTORS = @{vectors};
constexpr int LANES = @{lanes};
constexpr int WIDE = VECTORS * LANES;
constexpr int64_t DEPTH = @{tile_k};
constexpr int64_t BLOCK = 512;  // rows whose part of DEPTH stays in the second-level cache
typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Int __attribute__((vector_size(LANES * 4)));

// exp(x) for x <= 0, by 2^n times a polynomial (Cephes expf). NaN stays NaN.
inline Vec exp_of(Vec x) {
  x = x < -87.0f ? Vec{} - 87.0f : x;
  const Int n = __builtin_convertvector(x * 1.44269504f - 0.5f, Int);  // truncation rounds up here
  const Vec whole = __builtin_convertvector(n, Vec);
  const Vec r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return p * (Vec)((n + 127) << 23);
}

// x * (1 + erf(x / sqrt(2))) / 2; erfc by Abramowitz and Stegun 7.1.26, absolute error 1.5e-7.
inline Vec gelu(Vec x) {
  const Vec z = (x < 0.0f ? -x : x) * 0.70710678f;
  const Vec t = 1.0f / (1.0f + 0.3275911f * z);
  Vec p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const Vec half = p * t * exp_of(-z * z) * 0.5f;
  return x * (x < 0.0f ? half : 1.0f - half);
}

// Panel of the weight's rows [first, first + WIDE), turned: to[inner][WIDE], zero past the last row.
void pack(const float *weight, float *to, int64_t inner, int64_t cols, int64_t first) {
  for (int64_t from = 0; from < inner; from += 64)
    for (int n = 0; n < WIDE; n++)
      for (int64_t k = from; k < std::min(from + 64, inner); k++)
        to[k * WIDE + n] = first + n < cols ? weight[(first + n) * inner + k] : 0;
}

struct Part {
  const float *bias;  // of the panel's columns
  int64_t depth, cols, kept;
  bool first, last;
};

// R rows of one panel: adds what this part of the inner dimension gives.
template <int R>
void tile(const float *a, int64_t a_stride, const float *panel, const Part &part, float *to) {
  Vec sum[R][VECTORS];
#pragma GCC unroll 16
  for (int m = 0; m < R; m++)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) sum[m][v] = Vec{};
  for (int64_t k = 0; k < part.depth; k++, panel += WIDE) {
    Vec right[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) right[v] = *(const Vec *)(panel + v * LANES);
#pragma GCC unroll 16
    for (int m = 0; m < R; m++)
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) sum[m][v] += right[v] * a[m * a_stride + k];
  }
  float edge[R][WIDE];
#pragma GCC unroll 16
  for (int m = 0; m < R; m++)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) *(Vec *)&edge[m][v * LANES] = sum[m][v];
  for (int m = 0; m < R; m++, to += part.cols) {
    if (!part.first)
      for (int64_t j = 0; j < part.kept; j++) edge[m][j] += to[j];
    if (part.last)
      for (int v = 0; v < VECTORS; v++) {
        Vec *at = (Vec *)&edge[m][v * LANES];
        *at = gelu(*at + *(const Vec *)(part.bias + v * LANES));
      }
    std::copy(edge[m], edge[m] + part.kept, to);
  }
}

// The tile with as many rows as are left, at most ROWS.
template <int R = ROWS>
void tile_of(int64_t rows, const float *a, int64_t a_stride, const float *panel, const Part &part,
             float *to) {
  if constexpr (R > 1)
    if (rows < R) return tile_of<R - 1>(rows, a, a_stride, panel, part, to);
  tile<R>(a, a_stride, panel, part, to);
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int64_t panels = (cols + WIDE - 1) / WIDE;
  std::vector<float> packed(panels * inner * WIDE), biases(panels * WIDE);
  std::copy(bias, bias + cols, biases.begin());
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t n = 0; n < panels; n++) pack(weight, &packed[n * inner * WIDE], inner, cols, n * WIDE);
    for (int64_t row = 0; row < rows; row += BLOCK)
      for (int64_t from = 0; from < inner; from += DEPTH) {
        const int64_t depth = std::min(DEPTH, inner - from), end = std::min(row + BLOCK, rows);
        // No barrier: the same thread has the same panels every time.
#pragma omp for schedule(static) nowait
        for (int64_t n = 0; n < panels; n++) {
          const Part part{&biases[n * WIDE], depth, cols, std::min<int64_t>(WIDE, cols - n * WIDE),
                          from == 0, from + depth == inner};
          for (int64_t i = row; i < end; i += ROWS)
            tile_of(end - i, x + i * inner + from, inner, &packed[(n * inner + from) * WIDE], part,
                    y + i * cols + n * WIDE);
        }
      }
  }
  return 0;
}
