// Compiled with -DSAMPLE="..."; runs the sample's kernels on the emulator and compares with double
#include <hip/hip_runtime.h>
#include SAMPLE
#include <random>
static std::mt19937 rng(7);
static float uni() { return std::uniform_real_distribution<float>(-1, 1)(rng); }
static void report(const char* name, double worst, double bound) {
  printf("%-28s worst relative error %.3g (bound %.3g) %s\n", name, worst, bound,
         worst <= bound ? "ok" : "WRONG");
  if (worst > bound) exit(1);
}
template <class T>
struct Buf {
  std::vector<T> v;
  T* p;
  Buf(size_t n) : v(n + 64) { p = (T*)(((uintptr_t)v.data() + 63) & ~63ull); }
  T& operator[](size_t i) { return p[i]; }
};
static void gemm_check(const char* name, int M, int N, int K, auto a, auto b, auto c,
                       double bound) {
  double worst = 0;
  for (int m = 0; m < M; m++)
    for (int n = 0; n < N; n++) {
      double s = 0, mag = 0;
      for (int k = 0; k < K; k++) {
        double p = a(m, k) * b(n, k);
        s += p;
        mag += fabs(p);
      }
      worst = fmax(worst, fabs(c(m, n) - s) / (mag + 1e-30));
      if (std::isnan(c(m, n))) worst = 1e9;
    }
  report(name, worst, bound);
}
int main() {
#if defined(GEMM)
  for (auto [M, N, K] :
       {std::tuple{128, 128, 64}, {200, 260, 192}, {64, 132, 128}, {1100, 20, 64}}) {
    Buf<__bf16> A((size_t)M * K), B((size_t)N * K), C((size_t)M * N);
    for (int i = 0; i < M * K; i++) A[i] = (__bf16)uni();
    for (int i = 0; i < N * K; i++) B[i] = (__bf16)uni();
    for (int i = 0; i < M * N; i++) C[i] = (__bf16)NAN;
    launch({unsigned((M + 127) / 128 * ((N + 127) / 128)), 1, 1}, 256,
           [&] { gemm_bf16(A.p, B.p, C.p, M, N, K); });
    gemm_check(
        "bf16 gemm", M, N, K, [&](int m, int k) { return (double)(float)A[(size_t)m * K + k]; },
        [&](int n, int k) { return (double)(float)B[(size_t)n * K + k]; },
        [&](int m, int n) { return (double)(float)C[(size_t)m * N + n]; }, 4e-3);
  }
  for (auto [r, c] : {std::pair{1, 1}, {3, 5}, {8, 8}, {17, 9}, {30, 31}}) {
    std::vector<int> seen(r * c);
    for (int i = 0; i < r * c; i++) {
      int a, b;
      tile_of(i, r, c, a, b);
      if (a < 0 || a >= r || b < 0 || b >= c) return 2;
      seen[a * c + b]++;
    }
    for (int s : seen)
      if (s != 1) {
        puts("tile_of is no permutation");
        return 2;
      }
  }
#elif defined(DIRECT)
  for (auto [M, N, K] : {std::tuple{128, 128, 64}, {200, 260, 448}, {64, 132, 128}}) {
    Buf<__bf16> A((size_t)M * K), B((size_t)N * K), C((size_t)M * N);
    for (int i = 0; i < M * K; i++) A[i] = (__bf16)uni();
    for (int i = 0; i < N * K; i++) B[i] = (__bf16)uni();
    launch({unsigned((M + 127) / 128 * ((N + 127) / 128)), 1, 1}, 256,
           [&] { gemm_direct(A.p, B.p, C.p, M, N, K); });
    gemm_check(
        "direct gemm", M, N, K, [&](int m, int k) { return (double)(float)A[(size_t)m * K + k]; },
        [&](int n, int k) { return (double)(float)B[(size_t)n * K + k]; },
        [&](int m, int n) { return (double)(float)C[(size_t)m * N + n]; }, 4e-3);
  }
#elif defined(PINGPONG)
  for (auto [M, N, K] :
       {std::tuple{256, 256, 32}, {256, 256, 64}, {512, 256, 160}, {256, 512, 96}}) {
    Buf<__bf16> A((size_t)M * K), B((size_t)N * K), C((size_t)M * N);
    for (int i = 0; i < M * K; i++) A[i] = (__bf16)uni();
    for (int i = 0; i < N * K; i++) B[i] = (__bf16)uni();
    launch({unsigned(M / 256 * (N / 256)), 1, 1}, 512,
           [&] { gemm_ping_pong(A.p, B.p, C.p, M, N, K); });
    gemm_check(
        "ping-pong gemm", M, N, K,
        [&](int m, int k) { return (double)(float)A[(size_t)m * K + k]; },
        [&](int n, int k) { return (double)(float)B[(size_t)n * K + k]; },
        [&](int m, int n) { return (double)(float)C[(size_t)m * N + n]; }, 4e-3);
  }
#elif defined(FP8)
  for (auto [M, N, K] : {std::tuple{128, 128, 128}, {150, 256, 384}}) {
    int T = K / 128;
    Buf<uint8_t> A((size_t)M * K), B((size_t)N * K);
    Buf<float> SA(M * T), SB(N / 128 * T);
    Buf<__bf16> C((size_t)M * N);
    auto byte = [] {
      uint8_t v;
      do v = rng();
      while (std::isnan(e4m3(v, kFnuz)));
      return v;
    };
    for (int i = 0; i < M * K; i++) A[i] = byte();
    for (int i = 0; i < N * K; i++) B[i] = byte();
    for (int i = 0; i < M * T; i++) SA[i] = 0.5f + fabsf(uni());
    for (int i = 0; i < N / 128 * T; i++) SB[i] = 0.5f + fabsf(uni());
    launch({unsigned((M + 127) / 128 * (N / 128)), 1, 1}, 256,
           [&] { gemm_fp8(A.p, B.p, SA.p, SB.p, C.p, M, N, K); });
    gemm_check(
        "fp8 block-scaled gemm", M, N, K,
        [&](int m, int k) {
          return (double)e4m3(A[(size_t)m * K + k], kFnuz) * SA[m * T + k / 128];
        },
        [&](int n, int k) {
          return (double)e4m3(B[(size_t)n * K + k], kFnuz) * SB[n / 128 * T + k / 128];
        },
        [&](int m, int n) { return (double)(float)C[(size_t)m * N + n]; }, 4e-3);
  }
#elif defined(MXFP4)
  for (auto [M, N, K] : {std::tuple{128, 128, 256}, {150, 140, 768}}) {
    Buf<uint8_t> A((size_t)M * K / 2), B((size_t)N * K / 2), SA(M * K / 32), SB(N * K / 32);
    Buf<__bf16> C((size_t)M * N);
    for (int i = 0; i < M * K / 2; i++) A[i] = rng();
    for (int i = 0; i < N * K / 2; i++) B[i] = rng();
    for (int i = 0; i < M * K / 32; i++) SA[i] = 124 + rng() % 6;
    for (int i = 0; i < N * K / 32; i++) SB[i] = 124 + rng() % 6;
    launch({unsigned((M + 127) / 128 * ((N + 127) / 128)), 1, 1}, 256,
           [&] { gemm_mxfp4(A.p, B.p, SA.p, SB.p, C.p, M, N, K); });
    auto val = [&](Buf<uint8_t>& X, Buf<uint8_t>& S, int r, int k) {
      return (double)e2m1((X[(size_t)r * K / 2 + k / 2] >> (4 * (k % 2))) & 15) *
             ldexp(1.0, S[(size_t)r * (K / 32) + k / 32] - 127);
    };
    gemm_check(
        "mxfp4 gemm", M, N, K, [&](int m, int k) { return val(A, SA, m, k); },
        [&](int n, int k) { return val(B, SB, n, k); },
        [&](int m, int n) { return (double)(float)C[(size_t)m * N + n]; }, 4e-3);
  }
#elif defined(SKINNY)
  for (auto [M, N, K, S] :
       {std::tuple{1, 16, 32, 1}, {16, 48, 1056, 3}, {5, 32, 2048, 2}, {9, 16, 96, 4}}) {
    Buf<__bf16> X(M * K), W(N * K), Y(M * N);
    Buf<float> parts(S * M * N);
    for (int i = 0; i < M * K; i++) X[i] = (__bf16)uni();
    for (int i = 0; i < N * K; i++) W[i] = (__bf16)uni();
    launch({unsigned(N / 16), unsigned(S), 1}, 256,
           [&] { skinny_part(X.p, W.p, parts.p, M, N, K, S); });
    launch({unsigned((M * N + 255) / 256), 1, 1}, 256,
           [&] { skinny_join(parts.p, Y.p, M * N, S); });
    gemm_check(
        "skinny gemm", M, N, K, [&](int m, int k) { return (double)(float)X[m * K + k]; },
        [&](int n, int k) { return (double)(float)W[n * K + k]; },
        [&](int m, int n) { return (double)(float)Y[m * N + n]; }, 4e-3);
  }
#elif defined(ROWS)
  for (auto [rows, width] : {std::pair{5, 8}, {4, 1000}, {7, 4096}, {2, 8192}}) {
    Buf<__bf16> X(rows * width), G(width), Y(rows * width);
    for (int i = 0; i < rows * width; i++) X[i] = (__bf16)(4 * uni());
    for (int i = 0; i < width; i++) G[i] = (__bf16)uni();
    launch({unsigned((rows + 3) / 4), 1, 1}, 256,
           [&] { rmsnorm_rows(X.p, G.p, Y.p, rows, width, 1e-5f); });
    double worst = 0;
    for (int r = 0; r < rows; r++) {
      double s = 0;
      for (int i = 0; i < width; i++) s += pow((double)(float)X[r * width + i], 2);
      double f = 1 / sqrt(s / width + 1e-5);
      for (int i = 0; i < width; i++) {
        double e = (double)(float)X[r * width + i] * f * (float)G[i];
        worst = fmax(worst, fabs((float)Y[r * width + i] - e) / (fabs(e) + 1e-3));
      }
    }
    report("rmsnorm", worst, 5e-3);
    launch({unsigned((rows + 3) / 4), 1, 1}, 256, [&] { softmax_rows(X.p, Y.p, rows, width); });
    worst = 0;
    for (int r = 0; r < rows; r++) {
      double s = 0, t = -1e9;
      for (int i = 0; i < width; i++) t = fmax(t, (double)(float)X[r * width + i]);
      for (int i = 0; i < width; i++) s += exp((float)X[r * width + i] - t);
      for (int i = 0; i < width; i++) {
        double e = exp((float)X[r * width + i] - t) / s;
        worst = fmax(worst, fabs((float)Y[r * width + i] - e) / (e + 1e-30));
      }
    }
    report("softmax", worst, 5e-3);
  }
#elif defined(ATTENTION)
  for (auto [B, H, KV, L, causal] : {std::tuple{1, 1, 1, 64, 0}, {1, 2, 1, 300, 0}, {2, 2, 2, 77, 1},
                                     {1, 1, 1, 1, 1}, {1, 1, 1, 520, 1}, {1, 1, 1, 513, 0}}) {
    size_t rows = (size_t)B * H * L, kv_rows = (size_t)B * KV * L;
    Buf<__bf16> Q(rows * 128), K(kv_rows * 128), V(kv_rows * 128), O(rows * 128);
    // Scores grow along the keys, so that maxima rise by more than the lazy threshold.
    for (size_t i = 0; i < rows * 128; i++) Q[i] = (__bf16)(3 * uni() + 1);
    for (size_t i = 0; i < kv_rows * 128; i++)
      K[i] = (__bf16)(3 * uni() + (i / 128 % L) * 0.02f), V[i] = (__bf16)uni();
    float scale = 1 / sqrtf(128);
    launch({unsigned((L + 255) / 256), unsigned(H), unsigned(B)}, 512, [&] {
      if (causal)
        attention<true>(Q.p, K.p, V.p, O.p, H, KV, L, scale * 1.44269504f);
      else
        attention<false>(Q.p, K.p, V.p, O.p, H, KV, L, scale * 1.44269504f);
    });
    double worst = 0;
    for (size_t row = 0; row < rows; row++) {
      size_t b = row / L / H, h = row / L % H, q = row % L, kv = (b * KV + h / (H / KV)) * L;
      std::vector<double> s(causal ? q + 1 : L), o(128);
      double t = -1e30, z = 0;
      for (size_t i = 0; i < s.size(); i++) {
        for (int c = 0; c < 128; c++)
          s[i] += (double)(float)Q[row * 128 + c] * (float)K[(kv + i) * 128 + c];
        t = fmax(t, s[i] *= scale);
      }
      for (size_t i = 0; i < s.size(); i++) {
        double e = exp(s[i] - t);
        z += e;
        for (int c = 0; c < 128; c++) o[c] += e * (float)V[(kv + i) * 128 + c];
      }
      for (int c = 0; c < 128; c++) {
        double error = fabs((float)O[row * 128 + c] - o[c] / z);
        worst = std::isnan(error) ? 1e9 : fmax(worst, error);
      }
    }
    report("attention (absolute)", worst, 8e-3);
  }
#elif defined(DECODE)
  for (auto [B, H, KV, splits, top] :
       {std::tuple{2, 8, 2, 3, 300}, {1, 16, 1, 1, 17}, {3, 4, 4, 5, 90}, {1, 6, 2, 8, 1}}) {
    int max_pages = (top + 15) / 16, pool = B * max_pages + 3;
    Buf<__bf16> Q(B * H * 128), Kp((size_t)pool * KV * 16 * 128), Vp((size_t)pool * KV * 16 * 128),
        O(B * H * 128);
    Buf<int> table(B * max_pages), lengths(B);
    Buf<float> partial((size_t)B * H * splits * 130);
    for (int i = 0; i < B * H * 128; i++) Q[i] = (__bf16)(2 * uni());
    for (int i = 0; i < pool * KV * 2048; i++) Kp[i] = (__bf16)uni(), Vp[i] = (__bf16)uni();
    std::vector<int> order(pool);
    for (int i = 0; i < pool; i++) order[i] = i;
    std::shuffle(order.begin(), order.end(), rng);
    for (int i = 0; i < B * max_pages; i++) table[i] = order[i];
    for (int b = 0; b < B; b++) lengths[b] = b == 0 ? top : 1 + rng() % top;
    float scale = 1 / sqrtf(128);
    launch({unsigned(splits), unsigned(KV), unsigned(B)}, 256, [&] {
      decode_part(Q.p, Kp.p, Vp.p, table.p, lengths.p, partial.p, H, KV, max_pages,
                  scale * 1.44269504f);
    });
    launch({unsigned(H), unsigned(B), 1}, 128, [&] { decode_join(partial.p, O.p, H, splits); });
    double worst = 0;
    for (int b = 0; b < B; b++)
      for (int h = 0; h < H; h++) {
        int kv = h / (H / KV), L = lengths[b];
        std::vector<double> s(L);
        double t = -1e30, z = 0;
        for (int i = 0; i < L; i++) {
          size_t pg = (size_t)table[b * max_pages + i / 16] * KV + kv;
          double d = 0;
          for (int c = 0; c < 128; c++)
            d += (double)(float)Q[(b * H + h) * 128 + c] * (float)Kp[(pg * 16 + i % 16) * 128 + c];
          s[i] = d * scale;
          t = fmax(t, s[i]);
        }
        for (auto& e : s) {
          e = exp(e - t);
          z += e;
        }
        for (int c = 0; c < 128; c++) {
          double o = 0;
          for (int i = 0; i < L; i++) {
            size_t pg = (size_t)table[b * max_pages + i / 16] * KV + kv;
            o += s[i] / z * (float)Vp[(pg * 128 + c) * 16 + i % 16];
          }
          worst = fmax(worst, fabs((float)O[(b * H + h) * 128 + c] - o));
        }
      }
    report("paged decode (absolute)", worst, 8e-3);
  }
#endif
}
