// Causal attention by blocks of query rows: scores of a block stay in the cache between the two
// products, keys right of the diagonal are never touched, and both products hold a tile in registers.
#include "kernlore_abi.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

constexpr int ROWS = @{tile_rows};
constexpr int VECTORS = @{vectors};
constexpr int LANES = @{lanes};
constexpr int WIDE = VECTORS * LANES;
constexpr int64_t BLOCK = int64_t{@{tiles}} * ROWS;
constexpr int64_t SPLIT = @{split};
typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t Int __attribute__((vector_size(LANES * 4)));

inline int64_t rounded(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

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

// to[ROWS][V * LANES] = a[ROWS][depth] b[depth][V * LANES]
template <int V>
inline void tile(const float *a, int64_t a_stride, const float *b, int64_t b_stride, int64_t depth,
                 float *to, int64_t to_stride) {
  Vec sum[ROWS][V];
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sum[m][v] = Vec{};
  for (int64_t k = 0; k < depth; k++, b += b_stride) {
    Vec right[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) right[v] = *(const Vec *)(b + v * LANES);
#pragma GCC unroll 16
    for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sum[m][v] += right[v] * a[m * a_stride + k];
  }
#pragma GCC unroll 16
  for (int m = 0; m < ROWS; m++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) *(Vec *)(to + m * to_stride + v * LANES) = sum[m][v];
}

// The tile with as many vectors as are left, at most VECTORS.
template <int V = VECTORS>
void tile_of(int64_t vectors, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
             int64_t depth, float *to, int64_t to_stride) {
  if constexpr (V > 1)
    if (vectors < V) return tile_of<V - 1>(vectors, a, a_stride, b, b_stride, depth, to, to_stride);
  tile<V>(a, a_stride, b, b_stride, depth, to, to_stride);
}

// Scores of one row become weights that sum to one over its first `seen`; those behind, up to `held`,
// become zero. There is room for whole vectors.
void softmax(float *row, int64_t seen, int64_t held) {
  const int64_t whole = rounded(seen, LANES);
  std::fill(row + seen, row + whole, -FLT_MAX);
  Vec most = Vec{} - FLT_MAX, sum = Vec{};
  for (int64_t j = 0; j < whole; j += LANES) {
    const Vec score = *(const Vec *)(row + j);
    most = score > most ? score : most;
  }
  float top = most[0], total = 0;
  for (int l = 1; l < LANES; l++) top = std::max(top, most[l]);
  for (int64_t j = 0; j < whole; j += LANES)
    sum += *(Vec *)(row + j) = exp_of(*(const Vec *)(row + j) - top);
  for (int l = 0; l < LANES; l++) total += sum[l];
  for (int64_t j = 0; j < whole; j += LANES) *(Vec *)(row + j) *= 1 / total;
  std::fill(row + seen, row + std::max(held, whole), 0.0f);
}

struct Workspace {
  int64_t length, width, keys, values;
  std::vector<float> turned, value, query, scores, out;

  Workspace(int64_t length, int64_t width)
      : length(length), width(width), keys(rounded(length, WIDE)), values(rounded(width, LANES)),
        turned(keys * width), value(length * values), query(BLOCK * width), scores(BLOCK * keys),
        out(BLOCK * values) {}

  // Keys as [length / WIDE][width][WIDE], values with rows of whole vectors.
  void load(const float *key, const float *from) {
    for (int64_t j = 0; j < keys; j += LANES)
      for (int64_t d = 0; d < width; d++) {
        float *to = &turned[j / WIDE * WIDE * width + d * WIDE + j % WIDE];
        for (int64_t l = 0; l < LANES; l++) to[l] = j + l < length ? key[(j + l) * width + d] : 0;
      }
    for (int64_t j = 0; j < length; j++)
      std::memcpy(&value[j * values], from + j * width, width * sizeof(float));
  }

  // Rows [first, first + BLOCK) of one head.
  void block(const float *q, float *to, int64_t first) {
    const int64_t last = std::min(first + BLOCK, length), seen = rounded(last, WIDE);
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    for (int64_t i = 0; i < (last - first) * width; i++) query[i] = q[first * width + i] * scale;
    const int64_t rows = rounded(last - first, ROWS);
    for (int64_t j = 0; j < seen; j += WIDE)
      for (int64_t r = 0; r < rows; r += ROWS)
        tile<VECTORS>(&query[r * width], width, &turned[j * width], WIDE, width, &scores[r * keys + j],
                      keys);
    for (int64_t r = 0; r < last - first; r++) softmax(&scores[r * keys], first + r + 1, last);
    for (int64_t d = 0; d < values; d += WIDE)
      for (int64_t r = 0; r < rows; r += ROWS)
        tile_of((values - d) / LANES, &scores[r * keys], keys, &value[d], values, last,
                &out[r * values + d], values);
    for (int64_t r = 0; r < last - first; r++)
      std::memcpy(to + (first + r) * width, &out[r * values], width * sizeof(float));
  }
};

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int64_t head = length * width;
#pragma omp parallel
  {
    Workspace work(length, width);
#pragma omp for schedule(dynamic)
    for (int64_t n = 0; n < heads * SPLIT; n++) {
      const int64_t h = n / SPLIT;
      work.load(key + h * head, value + h * head);
      for (int64_t i = n % SPLIT * BLOCK; i < length; i += SPLIT * BLOCK)
        work.block(query + h * head, y + h * head, i);
    }
  }
  return 0;
}
