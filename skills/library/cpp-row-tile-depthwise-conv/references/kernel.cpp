// Depthwise convolution, stride 1: one channel's plane with its border in the cache, a tile of output
// rows in registers, so that an input vector serves every row that it touches.
#include "kernlore_abi.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace {

constexpr int LANES = @{lanes};
constexpr int ROWS = @{rows};
constexpr int VECTORS = @{vectors};
constexpr int WIDE = LANES * VECTORS;
typedef float Vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

struct Plane {
  const float *padded, *taps;
  float *out;
  float bias;
  int64_t stride, width;
  int size;
};

// R rows by WIDE columns of output from (y, x); SIZE is the filter's side, 0 where only known at run
// time.
template <int SIZE, int R>
inline void tile(const Plane &p, int64_t y, int64_t x, float *to, int64_t to_stride) {
  const int size = SIZE ? SIZE : p.size;
  Vec acc[R][VECTORS];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) acc[r][v] = Vec{} + p.bias;
#pragma GCC unroll 16
  for (int i = 0; i < R + size - 1; i++) {
    const float *row = p.padded + (y + i) * p.stride + x;
#pragma GCC unroll 8
    for (int j = 0; j < size; j++) {
#pragma GCC unroll 8
      for (int v = 0; v < VECTORS; v++) {
        const Vec in = *(const Vec *)(row + j + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
          if (i >= r && i - r < size) acc[r][v] += in * p.taps[(i - r) * size + j];
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; v++) *(Vec *)(to + r * to_stride + v * LANES) = acc[r][v];
}

// R whole rows; the last tile steps back instead of going past the end.
template <int SIZE, int R>
void rows_from(const Plane &p, int64_t y) {
  if (p.width < WIDE) {
    float narrow[R * WIDE];
    tile<SIZE, R>(p, y, 0, narrow, WIDE);
    for (int r = 0; r < R; r++)
      std::memcpy(p.out + (y + r) * p.width, narrow + r * WIDE, p.width * sizeof(float));
    return;
  }
  for (int64_t x = 0; x < p.width; x += WIDE) {
    const int64_t at = std::min(x, p.width - WIDE);
    tile<SIZE, R>(p, y, at, p.out + y * p.width + at, p.width);
  }
}

template <int SIZE>
void plane(const Plane &p, int64_t height) {
  int64_t y = 0;
  for (; y + ROWS <= height; y += ROWS) rows_from<SIZE, ROWS>(p, y);
  for (; y < height; y++) rows_from<SIZE, 1>(p, y);
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int64_t above = (out_height - height + taps - 1) / 2;
  const int64_t left = (out_width - width + taps - 1) / 2;
  const int64_t stride = std::max<int64_t>(out_width + WIDE, left + width) + taps;
  const int64_t held = std::max(out_height + taps, above + height);
#pragma omp parallel
  {
    std::vector<float> padded(held * stride, 0.0f);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < batch * channels; n++) {
      const float *from = x + n * height * width;
      for (int64_t i = 0; i < height; i++)
        std::memcpy(&padded[(i + above) * stride + left], from + i * width, width * sizeof(float));
      const int64_t c = n % channels;
      const Plane p{padded.data(), weight + c * taps * taps, y + n * out_height * out_width,
                    bias[c],       stride, out_width, static_cast<int>(taps)};
      if (taps == 3) plane<3>(p, out_height);
      else if (taps == 5) plane<5>(p, out_height);
      else if (taps == 7) plane<7>(p, out_height);
      else plane<0>(p, out_height);
    }
  }
  return 0;
}
