// Convolution of one pixel as a product over channels: a panel of pixels is copied close together, so
// that its channels, far apart in memory, share the first-level cache.
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

// FILTERS by WIDE outputs: the sum over channels stays in registers.
inline void tile(const float *panel, const float *w, int64_t channels, Vec acc[FILTERS][VECTORS]) {
  Vec sum[FILTERS][VECTORS];
#pragma GCC unroll 32
  for (int m = 0; m < FILTERS; m++)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) sum[m][v] = Vec{};
  for (int64_t c = 0; c < channels; c++, panel += PANEL, w += FILTERS) {
    Vec in[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) in[v] = *(const Vec *)(panel + v * LANES);
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

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int64_t blocks = (filters + FILTERS - 1) / FILTERS;
  const int64_t panels = (pixels + PANEL - 1) / PANEL;
  std::vector<float> packed(blocks * FILTERS * channels);
  pack_weights(weight, packed.data(), filters, channels);
#pragma omp parallel
  {
    std::vector<float> panel(channels * PANEL);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < batch * panels; n++) {
      const int64_t b = n / panels, first = n % panels * PANEL;
      const int64_t end = std::min(first + PANEL, pixels);
      for (int64_t c = 0; c < channels; c++)
        std::memcpy(&panel[c * PANEL], x + (b * channels + c) * pixels + first,
                    (end - first) * sizeof(float));
      for (int64_t f = 0; f < filters; f += FILTERS)
        for (int64_t at = first; at < end; at += WIDE) {
          Vec acc[FILTERS][VECTORS];
          tile(&panel[at - first], &packed[f * channels], channels, acc);
          const int64_t kept = std::min<int64_t>(WIDE, end - at);
          for (int64_t m = 0; m < std::min<int64_t>(FILTERS, filters - f); m++) {
            float *to = y + (b * filters + f + m) * pixels + at;
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
