#pragma GCC optimize("no-math-errno", "no-trapping-math")
#include "kernlore_abi.h"
#include <cmath>
#include <cstdlib>
#include <cstring>
#define KL static inline __attribute__((always_inline))

template <class T, class F> KL T kl_bits(F from) { T to; std::memcpy(&to, &from, sizeof to); return to; }

// Without branches or calls, so that a loop over it becomes vector code; after Cephes, expf.c.
KL float kl_exp(float x) {
  const float bounded = x < -87.3f ? -87.3f : (x > 88.7f ? 88.7f : x);
  const float shifted = bounded * 1.44269504088896341f + 12582912.0f;
  const float whole = shifted - 12582912.0f;
  float r = bounded - whole * 0.693359375f;
  r += whole * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const int32_t power = kl_bits<int32_t>(shifted) - 0x4B400000;
  const float y = p * kl_bits<float>((power + 127) << 23);
  return x != x ? x : (x > 88.72f ? INFINITY : (x < -103.97f ? 0.0f : y));
}
KL double kl_exp(double x) { return std::exp(x); }

// After Cephes, logf.c.
KL float kl_log(float x) {
  int32_t bits = kl_bits<int32_t>(x);
  const int32_t small = x < 1.17549435e-38f;
  bits = small ? kl_bits<int32_t>(x * 8388608.0f) : bits;
  int32_t power = ((bits >> 23) & 255) - 126 - (small ? 23 : 0);
  float m = kl_bits<float>((bits & 0x007FFFFF) | 0x3F000000);
  const bool low = m < 0.70710678118f;
  power -= low;
  m = low ? m + m - 1.0f : m - 1.0f;
  const float z = m * m, e = (float)power;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float y = p * m * z - 2.12194440e-4f * e - 0.5f * z;
  y = m + y + 0.693359375f * e;
  return x != x || x < 0.0f ? NAN : (x == 0.0f ? -INFINITY : (x == INFINITY ? x : y));
}
KL double kl_log(double x) { return std::log(x); }

// After Cephes, tanhf.c.
KL float kl_tanh(float x) {
  const float a = x < 0.0f ? -x : x, z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float large = 1.0f - 2.0f / (kl_exp(a + a) + 1.0f);
  return a < 0.625f ? p * z * x + x : (x < 0.0f ? -large : large);
}
KL double kl_tanh(double x) { return std::tanh(x); }

// After Cephes, ndtrf.c.
KL float kl_erf(float x) {
  const float a = x < 0.0f ? -x : x, z = x * x;
  float p = 7.853861353153693e-5f;
  p = p * z - 8.010193625184903e-4f;
  p = p * z + 5.188327685732524e-3f;
  p = p * z - 2.685381193529856e-2f;
  p = p * z + 1.128358514861418e-1f;
  p = p * z - 3.761262582423300e-1f;
  p = p * z + 1.128379165726710e+0f;
  // Abramowitz and Stegun, 7.1.26: off by 1.5e-7 at most
  const float t = 1.0f / (1.0f + 0.3275911f * a);
  float q = 1.061405429f;
  q = q * t - 1.453152027f;
  q = q * t + 1.421413741f;
  q = q * t - 0.284496736f;
  q = q * t + 0.254829592f;
  const float large = 1.0f - q * t * kl_exp(-a * a);
  return x != x ? x : (a < 1.0f ? p * x : (x < 0.0f ? -large : large));
}
KL double kl_erf(double x) { return std::erf(x); }

KL float kl_fmod(float a, float b) { return std::fmod(a, b); }
KL double kl_fmod(double a, double b) { return std::fmod(a, b); }
// Of integers: torch refuses a divisor of 0.
template <class T> KL T kl_fmod(T a, T b) { return b == 0 || b == (T)-1 ? (T)0 : (T)(a % b); }

// Torch refuses a divisor of 0, and the quotient by -1 may not fit.
template <class T> KL T kl_quotient(T a, T b) {
  return b == 0 ? (T)0 : (b == (T)-1 ? (T)(0 - (uint64_t)a) : (T)(a / b));
}

template <class T> KL T kl_lgamma(T x) { int sign; return (T)lgamma_r((double)x, &sign); }

// The recurrence up to 10, then the asymptotic series; negative numbers by reflection. Abramowitz
// and Stegun, 6.3.5, 6.3.7 and 6.3.18.
template <class T> KL T kl_digamma(T of) {
  double x = of, y = 0;
  if (x == 0) return (T)std::copysign(INFINITY, -x);
  if (x < 0) {
    if (x == std::trunc(x)) return (T)NAN;
    y = -M_PI / std::tan(M_PI * (x - std::trunc(x)));
    x = 1 - x;
  }
  for (; x < 10; x++) y -= 1 / x;
  const double z = 1 / (x * x);
  double p = 8.33333333333333333333e-2;
  p = p * z - 2.10927960927960927961e-2;
  p = p * z + 7.57575757575757575758e-3;
  p = p * z - 4.16666666666666666667e-3;
  p = p * z + 3.96825396825396825397e-3;
  p = p * z - 8.33333333333333333333e-3;
  p = p * z + 8.33333333333333333333e-2;
  return (T)(y + std::log(x) - 0.5 / x - z * p);
}

// M. Giles, Approximating the erfinv function (GPU Computing Gems, 2011), then two Newton steps.
template <class T> KL T kl_erfinv(T of) {
  const double x = of;
  if (!(x > -1 && x < 1)) return (T)(x == 1 ? INFINITY : (x == -1 ? -INFINITY : NAN));
  double w = -std::log((1 - x) * (1 + x)), p;
  if (w < 5) {
    w -= 2.5;
    p = 2.81022636e-08;
    p = p * w + 3.43273939e-07;
    p = p * w - 3.5233877e-06;
    p = p * w - 4.39150654e-06;
    p = p * w + 0.00021858087;
    p = p * w - 0.00125372503;
    p = p * w - 0.00417768164;
    p = p * w + 0.246640727;
    p = p * w + 1.50140941;
  } else {
    w = std::sqrt(w) - 3;
    p = -0.000200214257;
    p = p * w + 0.000100950558;
    p = p * w + 0.00134934322;
    p = p * w - 0.00367342844;
    p = p * w + 0.00573950773;
    p = p * w - 0.0076224613;
    p = p * w + 0.00943887047;
    p = p * w + 1.00167406;
    p = p * w + 2.83297682;
  }
  double y = p * x;
  for (int step = 0; step < 2; step++) y -= (std::erf(y) - x) * 0.886226925452758 * std::exp(y * y);
  return (T)y;
}

template <class T> KL T kl_erfcx(T of) {
  const long double x = of;
  if (x < 25) return (T)(std::exp(x * x) * std::erfc(x));
  const long double z = 1 / (2 * x * x);  // asymptotic: Abramowitz and Stegun, 7.1.23
  return (T)((1 - z * (1 - 3 * z * (1 - 5 * z * (1 - 7 * z)))) / (x * 1.7724538509055160273L));
}

template <class T> KL T kl_bessel(T of) {
  const double x = of;
  return (T)(std::isinf(x) ? 0.0 : (std::abs(x) < 1e-4 ? 1 - x * x / 6 : std::sin(x) / x));
}

template <class T> KL T kl_mantissa(T x) { int power; return std::frexp(x, &power); }
template <class T> KL int32_t kl_exponent(T x) {
  int power = 0;
  std::frexp(x, &power);
  return std::isfinite(x) ? power : 0;
}

// Polynomials by their recurrences: `zeroth`, `first`, then a next one from the two before it.
template <class F> KL double kl_recurred(double degree, double zeroth, double first, F next) {
  const int64_t n = (int64_t)degree;
  if (n < 0) return 0;
  if (n == 0) return zeroth;
  double before = zeroth, last = first;
  for (int64_t k = 1; k < n && last == last; k++) {
    const double then = next((double)k, last, before);
    before = last;
    last = then;
  }
  return last;
}

template <class T> KL T kl_chebyshev_t(T x, T n) {
  const double y = x;
  return (T)kl_recurred(n, 1, y, [=](double, double q, double p) { return 2 * y * q - p; });
}

template <class T> KL T kl_chebyshev_u(T x, T n) {
  const double y = x;
  return (T)kl_recurred(n, 1, 2 * y, [=](double, double q, double p) { return 2 * y * q - p; });
}

template <class T> KL T kl_chebyshev_v(T x, T n) {
  const double y = x;
  return (T)kl_recurred(n, 1, 2 * y - 1, [=](double, double q, double p) { return 2 * y * q - p; });
}

template <class T> KL T kl_chebyshev_w(T x, T n) {
  const double y = x;
  return (T)kl_recurred(n, 1, 2 * y + 1, [=](double, double q, double p) { return 2 * y * q - p; });
}

template <class T> KL T kl_hermite_h(T x, T n) {
  const double y = x;
  if (n > (sizeof(T) == 4 ? 128 : 512)) return (T)NAN;  // as torch
  return (T)kl_recurred(n, 1, 2 * y, [=](double k, double q, double p) {
    return 2 * y * q - 2 * k * p;
  });
}

template <class T> KL T kl_hermite_he(T x, T n) {
  const double y = x;
  if (n > (sizeof(T) == 4 ? 128 : 512)) return (T)NAN;  // as torch
  return (T)kl_recurred(n, 1, y, [=](double k, double q, double p) { return y * q - k * p; });
}

template <class T> KL T kl_laguerre_l(T x, T n) {
  const double y = x;
  return (T)kl_recurred(n, 1, 1 - y, [=](double k, double q, double p) {
    return ((2 * k + 1 - y) * q - k * p) / (k + 1);
  });
}

template <class T> KL T kl_legendre_p(T x, T n) {
  const double y = x;
  return (T)kl_recurred(n, 1, y, [=](double k, double q, double p) {
    return ((2 * k + 1) * y * q - k * p) / (k + 1);
  });
}

KL double kl_logaddexp(double a, double b) {
  const double most = a > b ? a : b, least = a > b ? b : a;
  if (a != a || b != b) return NAN;
  return std::isinf(most) ? most : most + std::log1p(std::exp(least - most));
}

// Numbers whose order is that of the values: NaN behind all others, as torch sorts it.
#include <algorithm>
#include <vector>
KL uint32_t kl_key(float x) {
  const uint32_t bits = kl_bits<uint32_t>(x + 0.0f);
  return x != x ? UINT32_MAX : bits ^ (bits >> 31 ? UINT32_MAX : 0x80000000u);
}
KL uint64_t kl_key(double x) {
  const uint64_t bits = kl_bits<uint64_t>(x + 0.0);
  return x != x ? UINT64_MAX : bits ^ (bits >> 63 ? UINT64_MAX : 1ull << 63);
}
KL uint64_t kl_key(int64_t x) { return (uint64_t)x ^ 1ull << 63; }
KL uint32_t kl_key(int32_t x) { return (uint32_t)x ^ 0x80000000u; }
KL uint32_t kl_key(int16_t x) { return kl_key((int32_t)x); }
KL uint32_t kl_key(int8_t x) { return kl_key((int32_t)x); }
KL uint32_t kl_key(uint8_t x) { return x; }
KL uint32_t kl_key(bool x) { return x; }

// A key and its place: one number where both fit, so that equal keys stay in their order.
struct kl_wide {
  uint64_t key, place;
  bool operator<(const kl_wide &other) const {
    return key < other.key || (key == other.key && place < other.place);
  }
};

KL uint64_t kl_placed(uint32_t key, uint32_t place) { return (uint64_t)key << 32 | place; }
KL kl_wide kl_placed(uint64_t key, uint64_t place) { return {key, place}; }
KL int64_t kl_place(uint64_t of) { return (int64_t)(uint32_t)of; }
KL int64_t kl_place(kl_wide of) { return (int64_t)of.place; }

template <class T> static T *kl_places(int64_t count) {
  static thread_local std::vector<T> kept;
  if ((int64_t)kept.size() < count) kept.resize(count);
  return kept.data();
}

// By digits of eleven bits, from the lowest; `other` is room for as many.
static void kl_digits(uint64_t *of, uint64_t *other, int64_t count) {
  for (int shift = 32; shift < 64; shift += 11) {
    int64_t ends[2049] = {0};
    for (int64_t i = 0; i < count; i++) ends[(of[i] >> shift & 2047) + 1]++;
    for (int d = 0; d < 2048; d++) ends[d + 1] += ends[d];
    for (int64_t i = 0; i < count; i++) other[ends[of[i] >> shift & 2047]++] = of[i];
    std::swap(of, other);
  }
  std::copy(of, of + count, other);
}

// The least `first` of them in order, at the beginning.
template <class T> static void kl_ordered(T *of, int64_t count, int64_t first) {
  if (first * 4 < count) {
    std::nth_element(of, of + first - 1, of + count);
    std::sort(of, of + first);
  } else {
    if constexpr (sizeof(T) == 8) {
      if (count >= 1024) return kl_digits(of, of + count, count);
    }
    std::sort(of, of + count);
  }
}

template <class T> KL T kl_sigmoid(T x) { return (T)1 / ((T)1 + kl_exp(-x)); }

template <class T> KL T kl_sign(T x) { return (T)((x > (T)0) - (x < (T)0)); }

template <class T> KL T kl_max(T a, T b) { T m = a > b ? a : b; return a != a ? a : m; }

template <class T> KL T kl_min(T a, T b) { T m = a < b ? a : b; return a != a ? a : m; }

template <class T> KL T kl_read(T x) { return x; }
KL float kl_read(_Float16 x) { return (float)x; }

template <class T, class F> KL void kl_write(T *to, F from) { *to = (T)from; }

struct kl_bfloat16 { uint16_t bits; };
KL float kl_read(kl_bfloat16 x) { return kl_bits<float>((uint32_t)x.bits << 16); }
KL void kl_write(kl_bfloat16 *to, float from) {
  const uint32_t bits = kl_bits<uint32_t>(from);
  to->bits = from != from ? 0x7FC0 : (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

static void *kl_room(void **kept, size_t bytes) {
  if (!*kept) *kept = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *kept;
}
