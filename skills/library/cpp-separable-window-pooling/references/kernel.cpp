// Maximum over windows of a volume, one direction after the other: every plane of the input is
// pooled down to a small plane once, then the small planes are pooled over depth.
#include "kernlore_abi.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

constexpr int64_t KD = @{kd}, KH = @{kh}, KW = @{kw}, SD = @{sd}, SH = @{sh}, SW = @{sw};
constexpr int64_t PD = @{pd}, PH = @{ph}, PW = @{pw};

// NaN counts as the largest value, as in torch.
inline float larger(float a, float b) { return (b > a) | (b != b) ? b : a; }

void take(const float *__restrict__ from, float *__restrict__ into, int64_t size, bool first) {
  if (first) {
    std::copy_n(from, size, into);
    return;
  }
#pragma omp simd simdlen(@{lanes})
  for (int64_t j = 0; j < size; j++) into[j] = larger(into[j], from[j]);
}

// line: a row with PW places of minus infinity on both sides.
void along_width(const float *__restrict__ line, float *__restrict__ out, int64_t size) {
#pragma omp simd simdlen(@{lanes})
  for (int64_t j = 0; j < size; j++) {
    float most = line[j * SW];
    for (int64_t k = 1; k < KW; k++) most = larger(most, line[j * SW + k]);
    out[j] = most;
  }
}

}  // namespace

KERNLORE_EXPORT int kernlore_run(const kernlore_tensor *t, const kernlore_counts *) {
@{host}
  const int64_t plane = high * wide, small = out_high * out_wide, each = @{planes};
  const int64_t slabs = (out_deep + each - 1) / each;
#pragma omp parallel
  {
    std::vector<float> line(wide + 2 * PW + SW, -INFINITY), pooled(deep * small);
#pragma omp for schedule(static, @{chunk})
    for (int64_t task = 0; task < volumes * slabs; task++) {
      const int64_t v = task / slabs, first = task % slabs * each;
      const int64_t last = std::min(first + each, out_deep);
      const int64_t low = std::max<int64_t>(first * SD - PD, 0);
      const int64_t top = std::min((last - 1) * SD - PD + KD, deep);
      for (int64_t d = low; d < top; d++)
        for (int64_t i = 0; i < out_high; i++) {
          const int64_t from = std::max<int64_t>(i * SH - PH, 0);
          const int64_t to = std::min(i * SH - PH + KH, high);
          for (int64_t h = from; h < to; h++)
            take(x + (v * deep + d) * plane + h * wide, line.data() + PW, wide, h == from);
          along_width(line.data(), pooled.data() + d * small + i * out_wide, out_wide);
        }
      for (int64_t o = first; o < last; o++) {
        const int64_t from = std::max<int64_t>(o * SD - PD, 0);
        const int64_t to = std::min(o * SD - PD + KD, deep);
        for (int64_t d = from; d < to; d++)
          take(pooled.data() + d * small, y + (v * out_deep + o) * small, small, d == from);
      }
    }
  }
  return 0;
}
