// Compiled with -DATTENTION or -DTOP_K and -DSAMPLE="...", the sample without host code and PTX.
#include "tcgen05.h"
#include SAMPLE
#include <numeric>
#if defined(TOP_K)
int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  struct Case {
    int rows, length, k;
    const char* kind;
  };
  for (auto [rows, length, k, kind] :
       {Case{2, 1000, 10, "infinities"}, {1, 37, 37, ""}, {2, 5000, 2048, "ties"},
        {1, 3000, 700, "constant"}, {1, 1, 1, ""}, {1, 2049, 1, "NaN"}}) {
    std::vector<float> scores(rows * length), values(rows * k);
    std::vector<int> indices(rows * k, -1);
    for (float& x : scores) {
      x = normal(random);
      if (!strcmp(kind, "ties")) x = std::round(x * 2) / 2;
      if (!strcmp(kind, "constant")) x = 1.5f;
      if (!strcmp(kind, "NaN") && random() % 9 == 0) x = NAN;
      if (!strcmp(kind, "infinities") && random() % 50 == 0) x = random() % 2 ? INFINITY : -INFINITY;
    }
    emu_launch({unsigned(rows)}, THREADS, [&] {
      top_k_rows(scores.data(), values.data(), indices.data(), length, k);
    });
    for (int r = 0; r < rows; r++) {
      const float* row = &scores[r * length];
      std::vector<int> order(length);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return std::isnan(row[a]) ? !std::isnan(row[b]) : row[a] > row[b];
      });
      std::sort(order.begin(), order.begin() + k);
      for (int i = 0; i < k; i++) {
        float value = values[r * k + i], wanted = row[order[i]];
        bool same = value == wanted || (std::isnan(value) && std::isnan(wanted));
        if (!same || indices[r * k + i] != order[i]) emu_fail("WRONG");
      }
    }
    printf("top-k %d x %d, k %d %s: exact\n", rows, length, k, kind);
  }
}
#else
int main() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (auto [batch, heads, kv_heads, length, causal] :
       {std::array{1, 1, 1, 128, 0}, {1, 2, 1, 300, 0}, {1, 1, 1, 77, 1}, {1, 1, 1, 700, 1},
        {2, 2, 2, 1, 0}, {1, 1, 1, 900, 0}}) {
    size_t rows = size_t(batch) * heads * length, kv_rows = size_t(batch) * kv_heads * length;
    std::vector<uint16_t> q(rows * 128), k(kv_rows * 128), v(kv_rows * 128), out(rows * 128, 0x7fc0);
    for (auto& x : q) x = to_bf16(normal(random) * 2 + 0.5f);
    for (size_t i = 0; i < k.size(); i++) {
      k[i] = to_bf16(normal(random) * 2 + i / 128 % length * 0.02f);
      v[i] = to_bf16(normal(random));
    }
    CUtensorMap map_q{q.data(), nullptr, batch * heads, length, 128};
    CUtensorMap map_k{k.data(), nullptr, batch * kv_heads, length, 128};
    CUtensorMap map_v{v.data(), nullptr, batch * kv_heads, length, 128};
    CUtensorMap map_o{nullptr, out.data(), batch * heads, length, 32};
    double scale = 1 / std::sqrt(128.0), error = 0, norm = 0;
    emu_launch({unsigned(length + 255) / 256, unsigned(heads), unsigned(batch)}, 512, [&] {
      auto* kernel = causal ? attention_kernel<true> : attention_kernel<false>;
      kernel(map_q, map_k, map_v, map_o, length, heads, kv_heads, float(scale * 1.4426950408889634));
    });
    for (size_t row = 0; row < rows; row++) {
      size_t head = row / length, at = row % length, seen = causal ? at + 1 : length;
      size_t first = (head / heads * kv_heads + head % heads / (heads / kv_heads)) * length;
      std::vector<double> score(seen), wanted(128);
      double top = -INFINITY, total = 0;
      for (size_t j = 0; j < seen; j++) {
        for (int c = 0; c < 128; c++)
          score[j] += scale * of_bf16(q[row * 128 + c]) * of_bf16(k[(first + j) * 128 + c]);
        top = std::max(top, score[j]);
      }
      for (size_t j = 0; j < seen; j++) {
        double e = std::exp(score[j] - top);
        total += e;
        for (int c = 0; c < 128; c++) wanted[c] += e * of_bf16(v[(first + j) * 128 + c]);
      }
      for (int c = 0; c < 128; c++) {
        double w = wanted[c] / total;
        error += std::pow(of_bf16(out[row * 128 + c]) - w, 2), norm += w * w;
      }
    }
    error = std::sqrt(error / norm);
    printf("attention %d x %d over %d, length %d%s: %.2e\n", batch, heads, kv_heads, length,
           causal ? ", causal" : "", error);
    if (!(error < 3e-3)) emu_fail("WRONG");
  }
}
#endif
