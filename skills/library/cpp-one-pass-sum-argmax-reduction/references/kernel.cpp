// Sum and place of the first maximum of every row from one read of it. A piece that fits the
// first-level cache is summed and searched for its maximum; only where that raises the row's
// maximum is the piece searched for the place.
#include "kernlore_abi.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

constexpr int LANES = @{lanes}, UNROLL = @{unroll};
constexpr int64_t PIECE = @{piece};
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

struct Found {
  float sum, most;
};

inline Found piece_of(const float *x, int64_t count) {
  vec sums[UNROLL] = {}, most[UNROLL];
  for (vec &m : most) m = vec{} - INFINITY;
  int64_t j = 0;
  for (; j + LANES * UNROLL <= count; j += LANES * UNROLL)
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; u++) {
      const vec v = *(const unaligned *)(x + j + u * LANES);
      sums[u] += v;
      most[u] = v > most[u] ? v : most[u];
    }
  for (int u = 1; u < UNROLL; u++) {
    sums[0] += sums[u];
    most[0] = most[u] > most[0] ? most[u] : most[0];
  }
  Found found = {0, -INFINITY};
  for (int l = 0; l < LANES; l++) {
    found.sum += sums[0][l];
    found.most = std::max(found.most, most[0][l]);
  }
  for (; j < count; j++) {
    found.sum += x[j];
    found.most = std::max(found.most, x[j]);
  }
  return found;
}

// NaN counts as the largest value, and the first one wins, as in torch.
int64_t place_of(const float *x, int64_t cols, float most, int64_t from, bool holds_nan) {
  if (holds_nan)
    for (int64_t j = 0; j < cols; j++)
      if (std::isnan(x[j])) return j;
  for (int64_t j = from; j < cols; j++)
    if (x[j] == most) return j;
  return 0;
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
#pragma omp parallel for schedule(static, @{chunk})
  for (int64_t i = 0; i < rows; i++) {
    const float *row = x + i * cols;
    double sum = 0;
    float most = -INFINITY;
    int64_t from = 0;
    for (int64_t j = 0; j < cols; j += PIECE) {
      const Found found = piece_of(row + j, std::min(PIECE, cols - j));
      sum += found.sum;
      if (found.most > most) most = found.most, from = j;
    }
    total[i] = static_cast<float>(sum);
    place[i] = place_of(row, cols, most, from, std::isnan(sum));
  }
  return 0;
}
