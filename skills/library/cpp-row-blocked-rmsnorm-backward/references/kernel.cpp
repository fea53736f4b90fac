// Gradients of an RMS norm. A block of rows is reduced along its rows, then swept down its columns
// while it is in the cache: that gives the gradient of the input and the block's part of the
// gradient of the scale, which stays in registers until the block ends.
#include "kernlore_abi.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace {

constexpr int LANES = @{lanes}, UNROLL = @{unroll}, BLOCK = @{block};
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef float unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// `count` elements, the rest of the vector 0.
inline __attribute__((always_inline)) vec load(const float *p, int64_t count) {
  if (count == LANES) return *(const unaligned *)p;
  vec v = {};
  std::memcpy(&v, p, count * sizeof(float));
  return v;
}

inline __attribute__((always_inline)) void store(float *p, int64_t count, vec v) {
  if (count == LANES)
    *(unaligned *)p = v;
  else
    std::memcpy(p, &v, count * sizeof(float));
}

inline float added(const vec (&parts)[UNROLL]) {
  float total = 0;
  for (const vec &part : parts)
    for (int l = 0; l < LANES; l++) total += part[l];
  return total;
}

// 1 / rms of a row, and the mean of grad * scale * x / rms over it.
inline void along(const float *grad, const float *x, const float *scale, int64_t width,
                  float &inverse, float &mean) {
  vec squares[UNROLL] = {}, products[UNROLL] = {};
  const auto body = [&](int u, int64_t j, int64_t count) __attribute__((always_inline)) {
    const vec v = load(x + j, count);
    squares[u] += v * v;
    products[u] += load(grad + j, count) * load(scale + j, count) * v;
  };
  int64_t j = 0;
  for (; j + LANES * UNROLL <= width; j += LANES * UNROLL)
#pragma GCC unroll 8
    for (int u = 0; u < UNROLL; u++) body(u, j + u * LANES, LANES);
  for (; j < width; j += LANES) body(0, j, std::min<int64_t>(LANES, width - j));
  inverse = 1 / std::sqrt(added(squares) / width + @{eps}f);
  mean = added(products) * inverse / width;
}

void rows_of(int count, const float *grad, const float *x, const float *scale, int64_t width,
             float *grad_x, float *part) {
  float inverse[BLOCK] = {}, mean[BLOCK] = {};
  for (int r = 0; r < count; r++)
    along(grad + r * width, x + r * width, scale, width, inverse[r], mean[r]);
  for (int64_t j = 0; j < width; j += LANES) {
    const int64_t left = std::min<int64_t>(LANES, width - j);
    const vec s = load(scale + j, left);
    vec down = {};
    for (int r = 0; r < count; r++) {
      const vec g = load(grad + r * width + j, left);
      const vec normed = load(x + r * width + j, left) * inverse[r];
      down += g * normed;
      store(grad_x + r * width + j, left, (g * s - normed * mean[r]) * inverse[r]);
    }
    store(part + j, left, load(part + j, left) + down);
  }
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int threads = omp_get_max_threads();
  const int64_t blocks = (rows + BLOCK - 1) / BLOCK;
  std::vector<float> parts(threads * width);
#pragma omp parallel for schedule(static, @{chunk})
  for (int64_t b = 0; b < blocks; b++) {
    const int64_t first = b * BLOCK * width;
    rows_of(static_cast<int>(std::min<int64_t>(BLOCK, rows - b * BLOCK)), grad + first, x + first,
            scale, width, grad_x + first, parts.data() + omp_get_thread_num() * width);
  }
  std::copy_n(parts.data(), width, grad_scale);
  for (int p = 1; p < threads; p++)
    for (int64_t j = 0; j < width; j++) grad_scale[j] += parts[p * width + j];
  return 0;
}
