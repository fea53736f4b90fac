// Results per cycle of one SM: 32 warps, each with eight independent chains, on one block. A rate is
// the difference of two lengths, so that start and end do not count. Multiply-adds read one register
// three times, because reads of different registers may meet in a bank of the register file.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device.cuh"

constexpr int REPEATS = 9, LOOPS = 512, CHAINS = 8, THREADS = 1024, UNROLLED = 16;

struct Span {
  unsigned long long first, last;
};

#define RATE(NAME, TYPE, STEP)                                                                \
  __global__ void __launch_bounds__(THREADS, 1) NAME(Span *span, TYPE *out, TYPE a, TYPE b, int loops) { \
    __shared__ unsigned long long first, last;                                                \
    if (threadIdx.x == 0) first = ~0ull, last = 0;                                            \
    TYPE v[CHAINS];                                                                           \
    for (int c = 0; c < CHAINS; c++) v[c] = a + TYPE(int(threadIdx.x) + c);                   \
    unsigned long long begin, end;                                                            \
    _Pragma("unroll 1") for (int round = 0; round < 2; round++) {                             \
      __syncthreads();                                                                        \
      asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");                         \
      _Pragma("unroll 1") for (int n = 0; n < loops; n += UNROLLED) {                         \
        _Pragma("unroll") for (int k = 0; k < UNROLLED * CHAINS; k++) {                       \
          const int c = k % CHAINS;                                                           \
          TYPE &x = v[c];                                                                     \
          STEP;                                                                               \
        }                                                                                     \
      }                                                                                       \
      asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");                           \
    }                                                                                         \
    for (int c = 1; c < CHAINS; c++) v[0] += v[c];                                            \
    out[threadIdx.x] = v[0];                                                                  \
    atomicMin(&first, begin);                                                                 \
    atomicMax(&last, end);                                                                    \
    __syncthreads();                                                                          \
    if (threadIdx.x == 0) *span = {first, last};                                              \
  }

RATE(fma32, float, asm volatile("fma.rn.f32 %0, %0, %0, %0;" : "+f"(x)))
RATE(fma64, double, asm volatile("fma.rn.f64 %0, %0, %0, %0;" : "+d"(x)))
RATE(fma16x2, uint32_t, asm volatile("fma.rn.f16x2 %0, %0, %0, %0;" : "+r"(x)))
RATE(bf16x2, uint32_t, asm volatile("fma.rn.bf16x2 %0, %0, %0, %0;" : "+r"(x)))
RATE(add32, uint32_t, asm volatile("add.u32 %0, %0, %1;" : "+r"(x) : "r"(v[(c + 1) % CHAINS])))
RATE(mad32, uint32_t, asm volatile("mad.lo.u32 %0, %0, %0, %0;" : "+r"(x)))
RATE(logical, uint32_t, asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(x) : "r"(a), "r"(b)))
RATE(shift, uint32_t, asm volatile("shf.l.wrap.b32 %0, %0, %1, %2;" : "+r"(x) : "r"(a), "r"(b)))
RATE(count, uint32_t, asm volatile("popc.b32 %0, %0;" : "+r"(x)))
RATE(exponent, float, asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x)))
RATE(tangent, float, asm volatile("tanh.approx.f32 %0, %0;" : "+f"(x)))
RATE(to_half, uint32_t, asm volatile("{ .reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h; }"
                                     : "=r"(x) : "f"(__uint_as_float(x))))
RATE(to_float, int, asm volatile("cvt.rn.f32.s32 %0, %1;" : "=r"(x) : "r"(x)))
RATE(to_fp8, uint32_t,
     asm volatile("{ .reg .b16 h; cvt.rn.satfinite.e4m3x2.f32 h, %1, %1; mov.b32 %0, {h, h}; }"
                  : "=r"(x) : "f"(__uint_as_float(x))))
RATE(shuffle, uint32_t, asm volatile("shfl.sync.up.b32 %0, %0, 1, 0, -1;" : "+r"(x)))
RATE(dp4a, int, asm volatile("dp4a.s32.s32 %0, %0, %1, %2;" : "+r"(x) : "r"(a), "r"(b)))

template <typename T, typename Kernel>
void rate(const char *name, Kernel kernel, T a, T b, int results = 1) {
  static Span *span = device_array<Span>(1);
  T *out = device_array<T>(THREADS);
  const auto cycles = [&](int loops) {
    kernel<<<1, THREADS>>>(span, out, a, b, loops);
    const Span took = fetched(span);
    return double(took.last - took.first);
  };
  for (int repeat = 0; repeat < REPEATS; repeat++)
    report(name, double(results) * LOOPS * CHAINS * THREADS / (cycles(2 * LOOPS) - cycles(LOOPS)));
  CHECK(cudaGetLastError());
  CHECK(cudaFree(out));
}

// Bytes per cycle of loads of 16 bytes a thread, from shared memory or from lines in L1.
template <bool SHARED> __global__ void __launch_bounds__(THREADS, 1) loads(Span *span, uint4 *global, uint32_t *out, int loops) {
  __shared__ uint4 shared[THREADS];
  __shared__ unsigned long long first, last;
  if (threadIdx.x == 0) first = ~0ull, last = 0;
  shared[threadIdx.x] = global[threadIdx.x];
  uint32_t base = __cvta_generic_to_shared(shared), sum = 0;
  unsigned long long begin, end;
#pragma unroll 1
  for (int round = 0; round < 2; round++) {
    __syncthreads();
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(begin)::"memory");
#pragma unroll 1
    for (int from = 0; from < loops; from += UNROLLED)
#pragma unroll
    for (int n = from; n < from + UNROLLED; n++) {
      const uint32_t row = (threadIdx.x + 32 * n) % THREADS;  // equal addresses would be loaded once
      uint4 v;
      if (SHARED)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(base + 16 * row));
      else
        asm volatile("ld.global.ca.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(global + row));
      sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(end)::"memory");
  }
  out[threadIdx.x] = sum;
  atomicMin(&first, begin);
  atomicMax(&last, end);
  __syncthreads();
  if (threadIdx.x == 0) *span = {first, last};
}

template <bool SHARED> void load_rate(const char *name) {
  Span *span = device_array<Span>(1);
  uint4 *global = device_array<uint4>(THREADS);
  uint32_t *out = device_array<uint32_t>(THREADS);
  const auto cycles = [&](int loops) {
    loads<SHARED><<<1, THREADS>>>(span, global, out, loops);
    const Span took = fetched(span);
    return double(took.last - took.first);
  };
  for (int repeat = 0; repeat < REPEATS; repeat++)
    report(name, 16.0 * LOOPS * THREADS / (cycles(2 * LOOPS) - cycles(LOOPS)));
  CHECK(cudaGetLastError());
}

// Flop/s of independent multiply-adds on all SMs.
template <typename T> __global__ void __launch_bounds__(THREADS) whole_chip(T *out, T a, T b, int loops) {
  T v[CHAINS];
  for (int c = 0; c < CHAINS; c++) v[c] = a + T(threadIdx.x + c);
#pragma unroll 1
  for (int n = 0; n < loops; n++)
#pragma unroll
    for (int k = 0; k < 16; k++)
#pragma unroll
      for (int c = 0; c < CHAINS; c++) v[c] = v[c] * a + b;
  for (int c = 1; c < CHAINS; c++) v[0] += v[c];
  out[blockIdx.x * blockDim.x + threadIdx.x] = v[0];
}

template <typename T> void chip_rate(const char *name, int loops) {
  const int blocks = 2 * properties().multiProcessorCount;
  T *out = device_array<T>(size_t(blocks) * THREADS);
  for (int repeat = 0; repeat < REPEATS; repeat++) {
    double took = seconds_of([&] { whole_chip<T><<<blocks, THREADS>>>(out, T(0.999), T(0.001), loops); });
    report(name, 2.0 * CHAINS * 16 * loops * double(blocks) * THREADS / took);
  }
  CHECK(cudaFree(out));
}

int main() {
  rate("fma_per_cycle", fma32, 1.0f, 0.5f);
  rate("fp64_fma_per_cycle", fma64, 1.0, 0.5);
  rate("half2_fma_per_cycle", fma16x2, 0x3c003c00u, 0x38003800u, 2);
  rate("bfloat16x2_fma_per_cycle", bf16x2, 0x3f803f80u, 0x3f003f00u, 2);
  rate("integer_add_per_cycle", add32, 3u, 5u);
  rate("integer_mad_per_cycle", mad32, 3u, 5u);
  rate("logic_per_cycle", logical, 3u, 5u);
  rate("shift_per_cycle", shift, 3u, 5u);
  rate("popc_per_cycle", count, 3u, 5u);
  rate("exp2_per_cycle", exponent, 0.5f, 0.5f);
  rate("tanh_per_cycle", tangent, 0.5f, 0.5f);
  rate("float_to_half_per_cycle", to_half, 3u, 5u);
  rate("integer_to_float_per_cycle", to_float, 3, 5);
  rate("float_to_fp8_per_cycle", to_fp8, 3u, 5u, 2);
  rate("shuffle_per_cycle", shuffle, 3u, 5u);
  rate("dp4a_per_cycle", dp4a, 3, 5);
  load_rate<true>("shared_bytes_per_cycle");
  load_rate<false>("l1_bytes_per_cycle");
  chip_rate<float>("fp32_rate", 1000);
  chip_rate<double>("fp64_rate", 500);
}
