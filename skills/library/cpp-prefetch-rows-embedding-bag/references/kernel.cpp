// Sum of looked-up rows, bag by bag: a bag's sum stays in registers while its rows are read, and
// rows that are needed a little later are asked for early.
#include "kernlore_abi.h"

#include <algorithm>

namespace {

constexpr int LANES = @{lanes}, HELD = @{held}, AHEAD = @{ahead}, LINE = 64;
typedef float Vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

struct Bags {
  const int64_t *indices, *last;
  const float *table;
  float *sums;
  int64_t pooling, width;
};

// N vectors of one bag's sum, from column `from`.
template <int N>
inline void columns_of(const Bags &all, int64_t bag, int64_t from) {
  const int64_t *index = all.indices + bag * all.pooling;
  Vec sum[N] = {};
  for (int64_t p = 0; p < all.pooling; p++) {
    if constexpr (AHEAD > 0) {
      const float *later = all.table + *std::min(index + p + AHEAD, all.last) * all.width + from;
      for (int at = 0; at < N * LANES; at += LINE / 4) __builtin_prefetch(later + at);
    }
    const float *row = all.table + index[p] * all.width + from;
#pragma GCC unroll 16
    for (int n = 0; n < N; n++) sum[n] += *(const Vec *)(row + n * LANES);
  }
  float *out = all.sums + bag * all.width + from;
#pragma GCC unroll 16
  for (int n = 0; n < N; n++) *(Vec *)(out + n * LANES) = sum[n];
}

// As many blocks of N vectors as fit, then smaller ones; returns the first column left.
template <int N>
inline int64_t blocks_of(const Bags &all, int64_t bag, int64_t from) {
  for (; all.width - from >= N * LANES; from += N * LANES) columns_of<N>(all, bag, from);
  if constexpr (N > 1) from = blocks_of<N / 2>(all, bag, from);
  return from;
}

inline void bag_of(const Bags &all, int64_t bag) {
  const int64_t *index = all.indices + bag * all.pooling;
  for (int64_t at = blocks_of<HELD>(all, bag, 0); at < all.width; at++) {
    float sum = 0;
    for (int64_t p = 0; p < all.pooling; p++) sum += all.table[index[p] * all.width + at];
    all.sums[bag * all.width + at] = sum;
  }
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const Bags all{indices, indices + bags * pooling - 1, table, sums, pooling, width};
#pragma omp parallel for schedule(dynamic, @{chunk})
  for (int64_t bag = 0; bag < bags; bag++) bag_of(all, bag);
  return 0;
}
