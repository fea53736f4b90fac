// Rounding, saturation, subnormals and the largest errors of approximate instructions.
#include <cmath>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "device.cuh"

// -- single values

struct Single {
  float fused, subnormal_kept, subnormal_flushed, exp2_of_subnormal_flushed, maximum_with_nan;
  uint32_t e4m3_large, e4m3_infinity, e4m3_nan, e4m3_tie, e5m2_large, e4m3_no_saturation;
  int int_of_nan, int_of_large, int_of_minus_large, half_large_is_infinite, bf16_tie_even;
  uint32_t shift_by_33, tf32_converted, tf32_converted_down;
  float atomic_subnormal;
};

__global__ void single(Single *out, float one, float nan, float infinity, float *memory) {
  const float small = __uint_as_float(0x00012345u);
  const float a = one + 0x1p-12f;
  out->fused = fmaf(a, a, -1.0f - 0x1p-11f);  // 2^-24, or 0 if the product were rounded first
  float v;
  asm volatile("mul.rn.f32 %0, %1, %2;" : "=f"(v) : "f"(small), "f"(one));
  out->subnormal_kept = v;
  asm volatile("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(v) : "f"(small), "f"(one));
  out->subnormal_flushed = v;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(-130.0f * one));
  out->exp2_of_subnormal_flushed = v;
  asm volatile("max.f32 %0, %1, %2;" : "=f"(v) : "f"(nan), "f"(one));
  out->maximum_with_nan = v;
  const auto e4m3 = [](float x) {
    uint16_t pair;
    asm volatile("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %1;" : "=h"(pair) : "f"(x));
    return uint32_t(pair & 0xff);
  };
  const auto e5m2 = [](float x) {
    uint16_t pair;
    asm volatile("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %1;" : "=h"(pair) : "f"(x));
    return uint32_t(pair & 0xff);
  };
  out->e4m3_large = e4m3(1e6f * one);
  out->e4m3_infinity = e4m3(infinity);
  out->e4m3_nan = e4m3(nan);
  out->e4m3_tie = e4m3(17.0f * one);  // between 16 and 18
  out->e5m2_large = e5m2(1e6f * one);
  out->e4m3_no_saturation = __nv_cvt_float_to_fp8(1e6f * one, __NV_NOSAT, __NV_E4M3);
  asm volatile("cvt.rzi.s32.f32 %0, %1;" : "=r"(out->int_of_nan) : "f"(nan));
  asm volatile("cvt.rzi.s32.f32 %0, %1;" : "=r"(out->int_of_large) : "f"(1e20f * one));
  asm volatile("cvt.rzi.s32.f32 %0, %1;" : "=r"(out->int_of_minus_large) : "f"(-1e20f * one));
  out->half_large_is_infinite = __hisinf(__float2half_rn(65520.0f * one)) != 0;
  out->bf16_tie_even = __bfloat16_as_ushort(__float2bfloat16_rn(__uint_as_float(0x3f808000u) * one)) == 0x3f80 &&
                       __bfloat16_as_ushort(__float2bfloat16_rn(__uint_as_float(0x3f818000u) * one)) == 0x3f82;
  asm volatile("shl.b32 %0, %1, %2;" : "=r"(out->shift_by_33) : "r"(unsigned(one)), "r"(32 + unsigned(one)));
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(out->tf32_converted) : "f"(one + 0x1.8p-11f));
  *memory = 0;
  atomicAdd(memory, small);
  out->atomic_subnormal = *memory;
}

// One product of 16 x 8 x 8 in TF32 with every a and b equal: the sums are 8 a b.
__global__ void product_tf32(float *out, float a, float b) {
  float d[4] = {};
  const uint32_t x = __float_as_uint(a), y = __float_as_uint(b);
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x), "r"(y));
  if (threadIdx.x == 0) *out = d[0];
}
// The same in FP16, with the sum before it.
__global__ void product_half(float *out, float a, float b, float sum) {
  float d[4] = {sum, sum, sum, sum};
  const __half2 pa = __float2half2_rn(a), pb = __float2half2_rn(b);
  const uint32_t x = *(const uint32_t *)&pa, y = *(const uint32_t *)&pb;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(x), "r"(y));
  if (threadIdx.x == 0) *out = d[0];
}

// -- largest errors over all floats of an interval

enum Function { EXP2, RECIPROCAL, RSQRT, LOG2, SINE, TANH, SQRT, DIVIDE, FAST_EXP };

template <Function F> __device__ float approximate(float x) {
  float y;
  if (F == EXP2) asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  if (F == RECIPROCAL) asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  if (F == RSQRT) asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  if (F == LOG2) asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  if (F == SINE) asm("sin.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  if (F == TANH) asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  if (F == SQRT) asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  if (F == DIVIDE) asm("div.full.f32 %0, 1.0, %1;" : "=f"(y) : "f"(x));
  if (F == FAST_EXP) y = __expf(x);
  return y;
}
template <Function F> __device__ double exact(double x) {
  if (F == EXP2) return exp2(x);
  if (F == RECIPROCAL || F == DIVIDE) return 1 / x;
  if (F == RSQRT) return rsqrt(x);
  if (F == LOG2) return log2(x);
  if (F == SINE) return sin(x);
  if (F == TANH) return tanh(x);
  if (F == SQRT) return sqrt(x);
  return exp(x);
}

// `relative`: the error over the exact value; else the absolute error. In units of 2^-32.
template <Function F> __global__ void errors(uint32_t first, uint32_t last, bool relative, unsigned long long *most) {
  unsigned long long worst = 0;
  for (uint64_t bits = first + blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; bits <= last;
       bits += uint64_t(gridDim.x) * blockDim.x) {
    const float x = __uint_as_float(uint32_t(bits));
    const double right = exact<F>(double(x));
    double error = fabs(double(approximate<F>(x)) - right);
    if (relative) error /= fabs(right);
    worst = max(worst, (unsigned long long)(error * 0x1p32));
  }
  atomicMax(most, worst);
}

static uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

// Reports the exponent of the error: -22.5 for 2^-22.5.
template <Function F> void error(const char *name, float low, float high, bool relative) {
  static unsigned long long *most = device_array<unsigned long long>(1);
  CHECK(cudaMemset(most, 0, sizeof *most));
  errors<F><<<1024, 256>>>(bits_of(low), bits_of(high), relative, most);
  CHECK(cudaGetLastError());
  report(name, std::log2(double(fetched(most)) * 0x1p-32));
}

int main() {
  Single *on_device = device_array<Single>(1);
  float *memory = device_array<float>(1);
  single<<<1, 1>>>(on_device, 1.0f, NAN, INFINITY, memory);
  CHECK(cudaGetLastError());
  const Single s = fetched(on_device);
  report_answer("fma_rounds_once", s.fused == 0x1p-24f);
  report_answer("subnormals_are_kept", s.subnormal_kept != 0);
  report_answer("ftz_flushes_subnormals", s.subnormal_flushed == 0);
  report_answer("exp2_ftz_flushes_results", s.exp2_of_subnormal_flushed == 0);
  report_answer("atomic_add_flushes_subnormals", s.atomic_subnormal == 0);
  report_answer("max_drops_nan", s.maximum_with_nan == 1.0f);
  report("e4m3_of_large", double(__half2float(__half(__nv_cvt_fp8_to_halfraw(s.e4m3_large, __NV_E4M3)))));
  report("e4m3_of_infinity", double(__half2float(__half(__nv_cvt_fp8_to_halfraw(s.e4m3_infinity, __NV_E4M3)))));
  report("e5m2_of_large", double(__half2float(__half(__nv_cvt_fp8_to_halfraw(s.e5m2_large, __NV_E5M2)))));
  report_answer("e4m3_of_nan_is_nan", (s.e4m3_nan & 0x7f) == 0x7f);
  report_answer("e4m3_ties_to_even", s.e4m3_tie == 0x58);
  report_answer("e4m3_without_saturation_is_nan", (s.e4m3_no_saturation & 0x7f) == 0x7f);
  report("int_of_nan", s.int_of_nan);
  report_answer("int_of_large_is_clamped", s.int_of_large == INT32_MAX && s.int_of_minus_large == INT32_MIN);
  report_answer("half_of_65520_is_infinite", s.half_large_is_infinite);
  report_answer("bfloat16_ties_to_even", s.bf16_tie_even);
  report("shift_by_33", s.shift_by_33);
  report_answer("cvt_rna_tf32_rounds", s.tf32_converted == 0x3f802000u);

  float *out = device_array<float>(1);
  product_tf32<<<1, 32>>>(out, 1.0f + 0x1.8p-11f, 1.0f);  // 8 if cut to ten bits, 8 + 2^-7 if rounded
  report_answer("mma_truncates_tf32", fetched(out) == 8.0f);
  product_half<<<1, 32>>>(out, 0x1p-12f, 0x1p-12f, 0.0f);  // 16 2^-24, with subnormal operands
  report_answer("mma_keeps_half_subnormals", fetched(out) == 0x1p-20f);
  // 1 and sixteen products of 1.5 2^-27 are 1 and one and a half units of the last place.
  product_half<<<1, 32>>>(out, 0x1.8p-13f, 0x1p-14f, 1.0f);
  const float sum = fetched(out);
  report_text("mma_rounding_of_sums", sum == 1.0f + 0x1p-22f   ? "to nearest"
                                      : sum == 1.0f + 0x1p-23f ? "towards zero"
                                      : sum == 1.0f            ? "terms are dropped"
                                                               : "another result");
  error<EXP2>("exp2_error", 0x1p-24f, 1.0f, true);
  error<RECIPROCAL>("reciprocal_error", 1.0f, 2.0f, true);
  error<RSQRT>("rsqrt_error", 1.0f, 4.0f, true);
  error<SQRT>("sqrt_error", 1.0f, 4.0f, true);
  error<LOG2>("log2_error", 0.5f, 2.0f, false);
  error<SINE>("sine_error", 0x1p-20f, 3.14159265f, false);
  error<TANH>("tanh_error", 0x1p-10f, 10.0f, true);
  error<DIVIDE>("divide_error", 1.0f, 2.0f, true);
  error<FAST_EXP>("fast_exp_error", 0x1p-10f, 1.0f, true);
}
