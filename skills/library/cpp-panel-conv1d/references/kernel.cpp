// Convolution along sequences, stride 1, as a product whose right-hand side is never built: a panel of
// the input with its border in the cache, read at one offset for each tap.
#include "kernlore_abi.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

constexpr int FILTERS = @{tile_filters};
constexpr int VECTORS = @{vectors};
constexpr int LANES = @{lanes};
constexpr int WIDE = VECTORS * LANES;
constexpr int64_t PANEL = int64_t{@{tiles}} * WIDE;
typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

// Weights as [filters / FILTERS][channels * taps][FILTERS], zero where there is no filter.
void pack_weights(const float *from, float *to, int64_t filters, int64_t depth) {
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < filters; block += FILTERS)
    for (int64_t k = 0; k < depth; k++)
      for (int m = 0; m < FILTERS; m++)
        to[block * depth + k * FILTERS + m] = block + m < filters ? from[(block + m) * depth + k] : 0;
}

// FILTERS by WIDE outputs: the sum over channels and taps stays in registers.
inline void tile(const float *panel, int64_t stride, const float *w, int64_t channels, int64_t taps,
                 Vec acc[FILTERS][VECTORS]) {
  Vec sum[FILTERS][VECTORS];
#pragma GCC unroll 32
  for (int m = 0; m < FILTERS; m++)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) sum[m][v] = Vec{};
  for (int64_t c = 0; c < channels; c++)
    for (int64_t k = 0; k < taps; k++, w += FILTERS) {
      Vec in[VECTORS];
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) in[v] = *(const Vec *)(panel + c * stride + k + v * LANES);
#pragma GCC unroll 32
      for (int m = 0; m < FILTERS; m++)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; v++) sum[m][v] += in[v] * w[m];
    }
#pragma GCC unroll 32
  for (int m = 0; m < FILTERS; m++)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) acc[m][v] = sum[m][v];
}

// One sequence's channels from `first`, with zeros where the border is.
void fill_panel(const float *x, float *panel, int64_t stride, int64_t channels, int64_t length,
                int64_t first) {
  const int64_t from = std::max<int64_t>(first, 0), to = std::min(first + stride, length);
  for (int64_t c = 0; c < channels; c++, panel += stride) {
    std::fill(panel, panel + std::min(from - first, stride), 0.0f);
    if (to > from) std::memcpy(panel + from - first, x + c * length + from, (to - from) * sizeof(float));
    std::fill(panel + std::clamp<int64_t>(to - first, 0, stride), panel + stride, 0.0f);
  }
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int64_t before = (out_length - length + taps - 1) / 2, depth = channels * taps;
  const int64_t blocks = (filters + FILTERS - 1) / FILTERS;
  const int64_t panels = (out_length + PANEL - 1) / PANEL;
  const int64_t stride = PANEL + taps - 1;
  std::vector<float> packed(blocks * FILTERS * depth);
  pack_weights(weight, packed.data(), filters, depth);
#pragma omp parallel
  {
    std::vector<float> panel(channels * stride);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < batch * panels; n++) {
      const int64_t b = n / panels, first = n % panels * PANEL;
      fill_panel(x + b * channels * length, panel.data(), stride, channels, length, first - before);
      const int64_t end = std::min(first + PANEL, out_length);
      for (int64_t f = 0; f < filters; f += FILTERS)
        for (int64_t at = first; at < end; at += WIDE) {
          Vec acc[FILTERS][VECTORS];
          tile(&panel[at - first], stride, &packed[f * depth], channels, taps, acc);
          const int64_t kept = std::min<int64_t>(WIDE, end - at);
          for (int64_t m = 0; m < std::min<int64_t>(FILTERS, filters - f); m++) {
            float *to = y + (b * filters + f + m) * out_length + at;
            for (int v = 0; v < VECTORS; v++) acc[m][v] += bias[f + m];
            if (kept == WIDE)
              for (int v = 0; v < VECTORS; v++) *(Vec *)(to + v * LANES) = acc[m][v];
            else
              std::memcpy(to, acc[m], kept * sizeof(float));
          }
        }
    }
  }
  return 0;
}
