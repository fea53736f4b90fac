// Transposed convolution split by phase: outputs whose place has the same remainder by the stride meet
// the same taps, so each phase is a dense product in registers, and the phases are woven on the way out.
#include "kernlore_abi.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace {

constexpr int FILTERS = @{tile_filters};
constexpr int VECTORS = @{vectors};
constexpr int LANES = @{lanes};
constexpr int WIDE = VECTORS * LANES;
constexpr int STRIDE = @{stride};
typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef float Phases[STRIDE][FILTERS][WIDE];

// Up to a whole number of vectors.
inline int64_t rounded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

// Taps of one dimension that meet outputs of phase `phase`: phase, phase + STRIDE, ...
inline int64_t taps_of(int64_t taps, int64_t phase) { return (taps - phase + STRIDE - 1) / STRIDE; }

// Per pair of phases: [filters / FILTERS][channels][taps down][taps across][FILTERS].
struct Weights {
  std::vector<float> values;
  int64_t begin[STRIDE][STRIDE], depth[STRIDE][STRIDE];

  Weights(const float *from, int64_t channels, int64_t filters, int64_t taps) {
    const int64_t held = (filters + FILTERS - 1) / FILTERS * FILTERS;
    values.resize(held * channels * taps * taps);
    int64_t at = 0;
    for (int q = 0; q < STRIDE; q++)
      for (int r = 0; r < STRIDE; r++) {
        begin[q][r] = at;
        depth[q][r] = channels * taps_of(taps, q) * taps_of(taps, r);
        at += held * depth[q][r];
        pack(from, &values[begin[q][r]], channels, filters, taps, q, r);
      }
  }

  static void pack(const float *from, float *to, int64_t channels, int64_t filters, int64_t taps, int q,
                   int r) {
    for (int64_t f = 0; f < filters; f += FILTERS)
      for (int64_t c = 0; c < channels; c++)
        for (int64_t ky = q; ky < taps; ky += STRIDE)
          for (int64_t kx = r; kx < taps; kx += STRIDE)
            for (int64_t m = f; m < f + FILTERS; m++)
              *to++ = m < filters ? from[((c * filters + m) * taps + ky) * taps + kx] : 0;
  }
};

// FILTERS by V * LANES outputs of one phase; `rows` of the panel, each read at `across` offsets to the
// left. ACROSS is their number, 0 where only known at run time.
template <int V, int ACROSS>
inline void tile(const float *panel, int64_t stride, const float *w, int64_t rows, int64_t across,
                 float to[FILTERS][WIDE]) {
  const int64_t offsets = ACROSS ? ACROSS : across;
  Vec sum[FILTERS][V];
#pragma GCC unroll 32
  for (int m = 0; m < FILTERS; m++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sum[m][v] = Vec{};
  for (int64_t row = 0; row < rows; row++, panel += stride)
#pragma GCC unroll 4
    for (int64_t k = 0; k < offsets; k++, w += FILTERS) {
      Vec in[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) in[v] = *(const Vec *)(panel - k + v * LANES);
#pragma GCC unroll 32
      for (int m = 0; m < FILTERS; m++)
#pragma GCC unroll 8
        for (int v = 0; v < V; v++) sum[m][v] += in[v] * w[m];
    }
#pragma GCC unroll 32
  for (int m = 0; m < FILTERS; m++)
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) *(Vec *)&to[m][v * LANES] = sum[m][v];
}

// The tile with as many vectors as are left, at most VECTORS.
template <int V = VECTORS>
void tile_of(int64_t vectors, const float *panel, int64_t stride, const float *w, int64_t rows,
             int64_t across, float to[FILTERS][WIDE]) {
  if constexpr (V > 1)
    if (vectors < V) return tile_of<V - 1>(vectors, panel, stride, w, rows, across, to);
  if (across == 2) tile<V, 2>(panel, stride, w, rows, across, to);
  else tile<V, 0>(panel, stride, w, rows, across, to);
}

// The phases of one filter side by side in the output row.
inline void weave(const Phases &from, int m, float bias, float *__restrict__ to, int64_t kept) {
  if (kept == STRIDE * WIDE) {
    for (int i = 0; i < WIDE; i++)
      for (int s = 0; s < STRIDE; s++) to[STRIDE * i + s] = from[s][m][i] + bias;
    return;
  }
  for (int64_t i = 0; i < kept; i++) to[i] = from[i % STRIDE][m][i / STRIDE] + bias;
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int64_t whole_h = (height - 1) * STRIDE + taps + @{output_padding};
  const int64_t whole_w = (width - 1) * STRIDE + taps + @{output_padding};
  const int64_t above = (whole_h - out_height) / 2, left = (whole_w - out_width) / 2;
  const int64_t halo = rounded(taps_of(taps, 0) - 1);
  const int64_t places = rounded((out_width + STRIDE - 1) / STRIDE);
  const int64_t stride = halo + rounded(std::max((STRIDE - 1 + left) / STRIDE + places, width));
  const Weights packed(weight, channels, filters, taps);
#pragma omp parallel
  {
    std::vector<float> room(channels * taps_of(taps, 0) * stride + LANES);
    void *aligned = room.data();
    size_t space = room.size() * sizeof(float);
    float *panel = (float *)std::align(LANES * sizeof(float), LANES * sizeof(float), aligned, space);
    Phases phases;
#pragma omp for schedule(static)
    for (int64_t n = 0; n < batch * out_height; n++) {
      const int64_t b = n / out_height, oy = n % out_height;
      const int64_t q = (oy + above) % STRIDE, base = (oy + above) / STRIDE, down = taps_of(taps, q);
      for (int64_t c = 0; c < channels; c++)
        for (int64_t k = 0; k < down; k++) {
          float *row = &panel[(c * down + k) * stride];
          const int64_t iy = base - k;
          std::fill(row, row + halo, 0.0f);
          if (iy < 0 || iy >= height) std::fill(row + halo, row + halo + width, 0.0f);
          else
            std::memcpy(row + halo, x + ((b * channels + c) * height + iy) * width, width * sizeof(float));
          std::fill(row + halo + width, row + stride, 0.0f);
        }
      for (int64_t f = 0; f < filters; f += FILTERS)
        for (int64_t at = 0; at < places; at += WIDE) {
          for (int64_t s = 0; s < STRIDE; s++) {
            const int64_t r = (s + left) % STRIDE, shift = (s + left) / STRIDE;
            const float *w = &packed.values[packed.begin[q][r] + f * packed.depth[q][r]];
            tile_of((places - at) / LANES, &panel[halo + shift + at], stride, w, channels * down,
                    taps_of(taps, r), phases[s]);
          }
          const int64_t kept = std::min<int64_t>(STRIDE * WIDE, out_width - at * STRIDE);
          for (int64_t m = 0; m < std::min<int64_t>(FILTERS, filters - f); m++)
            weave(phases, m, bias[f + m],
                  y + ((b * filters + f + m) * out_height + oy) * out_width + at * STRIDE, kept);
        }
    }
  }
  return 0;
}
