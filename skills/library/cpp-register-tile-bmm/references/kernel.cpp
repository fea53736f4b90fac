// Batched product of small matrices: one member of the batch to a thread, a panel of its right side
// packed into the cache, and a tile of the result in registers.
#include "kernlore_abi.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

constexpr int ROWS = @{tile_rows};
constexpr int VECTORS = @{vectors};
constexpr int LANES = @{lanes};
constexpr int WIDE = VECTORS * LANES;
constexpr int64_t DEPTH = @{tile_k};
typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

// to[R][V * LANES] (+)= a[R][depth] panel[depth][V * LANES]; the panel's rows are WIDE apart.
template <int R, int V>
void tile(const float *a, int64_t a_stride, const float *panel, int64_t depth, float *to,
          int64_t to_stride, bool add) {
  Vec sum[R][V];
#pragma GCC unroll 16
  for (int m = 0; m < R; m++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sum[m][v] = Vec{};
  for (int64_t k = 0; k < depth; k++, panel += WIDE) {
    Vec right[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) right[v] = *(const Vec *)(panel + v * LANES);
#pragma GCC unroll 16
    for (int m = 0; m < R; m++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sum[m][v] += right[v] * a[m * a_stride + k];
  }
#pragma GCC unroll 16
  for (int m = 0; m < R; m++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      Vec *at = (Vec *)(to + m * to_stride + v * LANES);
      *at = add ? *at + sum[m][v] : sum[m][v];
    }
}

// The tile with as many rows and vectors as are left, at most ROWS and VECTORS.
template <int R = ROWS, int V = VECTORS>
void tile_of(int64_t rows, int64_t vectors, const float *a, int64_t a_stride, const float *panel,
             int64_t depth, float *to, int64_t to_stride, bool add) {
  if constexpr (V > 1)
    if (vectors < V)
      return tile_of<R, V - 1>(rows, vectors, a, a_stride, panel, depth, to, to_stride, add);
  if constexpr (R > 1)
    if (rows < R)
      return tile_of<R - 1, V>(rows, vectors, a, a_stride, panel, depth, to, to_stride, add);
  tile<R, V>(a, a_stride, panel, depth, to, to_stride, add);
}

// Columns [first, first + WIDE) of a result, all rows.
void columns(const float *a, const float *b, float *to, int64_t rows, int64_t inner, int64_t cols,
             int64_t first, float *panel) {
  const int64_t kept = std::min<int64_t>(WIDE, cols - first), whole = kept / LANES * LANES;
  float edge[ROWS * WIDE];
  for (int64_t from = 0; from < inner; from += DEPTH) {
    const int64_t depth = std::min(DEPTH, inner - from);
    for (int64_t k = 0; k < depth; k++)
      std::memcpy(panel + k * WIDE, b + (from + k) * cols + first, kept * sizeof(float));
    for (int64_t i = 0; i < rows; i += ROWS) {
      const int64_t left = std::min<int64_t>(ROWS, rows - i);
      const float *at = a + i * inner + from;
      float *out = to + i * cols + first;
      if (whole)
        tile_of(left, whole / LANES, at, inner, panel, depth, out, cols, from > 0);
      if (whole == kept) continue;
      tile_of<ROWS, 1>(left, 1, at, inner, panel + whole, depth, edge, WIDE, false);
      for (int64_t m = 0; m < left; m++)
        for (int64_t j = whole; j < kept; j++)
          out[m * cols + j] = edge[m * WIDE + j - whole] + (from ? out[m * cols + j] : 0);
    }
  }
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
#pragma omp parallel
  {
    std::vector<float> panel(std::min(DEPTH, inner) * WIDE);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < batch; n++)
      for (int64_t j = 0; j < cols; j += WIDE)
        columns(left + n * rows * inner, right + n * inner * cols, y + n * rows * cols, rows, inner, cols,
                j, panel.data());
  }
  return 0;
}
